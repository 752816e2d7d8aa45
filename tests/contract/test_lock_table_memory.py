"""The lock-table contract on the in-memory DynamoDB, and which error means what."""

from __future__ import annotations

from typing import Any

import pytest

from mld.clock import LoopClock
from mld.errors import AwsError, AwsUnreachableError, TableError, TableThrottledError, TableUnavailableError
from mld.fleet.leader.lock_table import LockTable
from mld.fleet.values import Place
from tests.contract.lock_table import LockTableContract
from tests.twins.dynamo import Fault, MemoryDynamo

TABLE = "locks"


async def make_table(dynamo: Any, table: str, key: str) -> None:
    """A table with a string hash key, as another program would make it."""
    await dynamo.call(
        "CreateTable",
        {
            "TableName": table,
            "AttributeDefinitions": [{"AttributeName": key, "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": key, "KeyType": "HASH"}],
            "BillingMode": "PAY_PER_REQUEST",
        },
    )


class TwinRows:
    def __init__(self, dynamo: MemoryDynamo) -> None:
        self._dynamo = dynamo

    async def put(self, row: dict[str, dict[str, Any]]) -> None:
        self._dynamo.put_row(TABLE, row)

    async def get(self, key: str) -> dict[str, dict[str, Any]] | None:
        return self._dynamo.row(TABLE, key)


class TestLockTableInMemory(LockTableContract):
    @pytest.fixture
    async def dynamo(self, key: str) -> MemoryDynamo:
        dynamo = MemoryDynamo(LoopClock())
        await make_table(dynamo, TABLE, key)
        return dynamo

    @pytest.fixture
    async def lock_table(self, dynamo: MemoryDynamo, key: str) -> LockTable:
        return LockTable(dynamo, Place(TABLE, key))

    @pytest.fixture
    async def rows(self, dynamo: MemoryDynamo) -> TwinRows:
        return TwinRows(dynamo)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (AwsError("op", "ProvisionedThroughputExceededException"), TableThrottledError),
        (AwsError("op", "SomethingNew", status=429), TableThrottledError),
        (AwsError("op", "AccessDeniedException"), TableUnavailableError),
        (AwsError("op", "InternalServerError", status=500), TableUnavailableError),
        (AwsUnreachableError("op", "reset"), TableUnavailableError),
    ],
)
async def test_every_call_tells_no_answer_from_no(failure: Exception, expected: type[TableError]) -> None:
    dynamo = MemoryDynamo(LoopClock())
    await make_table(dynamo, TABLE, "key")
    dynamo.faults = lambda *_: Fault(fail_before=failure)
    table = LockTable(dynamo, Place(TABLE, "key"))
    for call in (
        table.read(),
        table.claim(None, "w", "v", lease_s=1.0),
        table.heartbeat("w", "v", "w", lease_s=1.0),
        table.release("w", "v"),
    ):
        with pytest.raises(expected):
            await call
