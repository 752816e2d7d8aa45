"""The contract of DynamoDB on the twin."""

from __future__ import annotations

import pytest

from mld.clock import LoopClock
from tests.contract.dynamo import DEFINITIONS, OWNER_INDEX, DynamoContract
from tests.twins.dynamo import MemoryDynamo


class TestDynamoInMemory(DynamoContract):
    @pytest.fixture
    async def service(self) -> MemoryDynamo:
        return MemoryDynamo(LoopClock())

    @pytest.fixture
    async def table(self, service: MemoryDynamo) -> str:
        await service.call(
            "CreateTable",
            {
                "TableName": "app",
                "KeySchema": [{"AttributeName": "leaseKey", "KeyType": "HASH"}],
                "AttributeDefinitions": DEFINITIONS,
                "BillingMode": "PAY_PER_REQUEST",
                "GlobalSecondaryIndexes": [OWNER_INDEX],
            },
        )
        return "app"
