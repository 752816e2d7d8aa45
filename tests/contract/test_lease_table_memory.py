"""The lease-table contract on the adapter over the in-memory DynamoDB: also the proof that the twin behaves."""

from __future__ import annotations

from typing import Any

import pytest

from mld.clock import LoopClock
from mld.leases.dynamodb import DynamoLeaseTable
from tests.contract.lease_table import LeaseTableContract
from tests.twins.dynamo import MemoryDynamo

TABLE = "app"


class TwinRows:
    def __init__(self, dynamo: MemoryDynamo) -> None:
        self._dynamo = dynamo

    async def put(self, row: dict[str, dict[str, Any]]) -> None:
        self._dynamo.put_row(TABLE, row)

    async def get(self, key: str) -> dict[str, dict[str, Any]] | None:
        return self._dynamo.row(TABLE, key)


class TestLeaseTableInMemory(LeaseTableContract):
    @pytest.fixture
    async def dynamo(self) -> MemoryDynamo:
        return MemoryDynamo(LoopClock(), page_rows_max=7)

    @pytest.fixture
    async def lease_table(self, dynamo: MemoryDynamo) -> DynamoLeaseTable:
        table = DynamoLeaseTable(dynamo, LoopClock(), table_name=TABLE)
        await table.ensure()
        return table

    @pytest.fixture
    async def rows(self, dynamo: MemoryDynamo) -> TwinRows:
        return TwinRows(dynamo)


class TestLeaseTableInMemoryScannedInSegments(TestLeaseTableInMemory):
    @pytest.fixture
    async def lease_table(self, dynamo: MemoryDynamo) -> DynamoLeaseTable:
        table = DynamoLeaseTable(dynamo, LoopClock(), table_name=TABLE, scan_segments=4)
        await table.ensure()
        return table
