"""The reports-table contract on the in-memory DynamoDB, and which error means what."""

from __future__ import annotations

from typing import Any

import pytest

from mld.clock import LoopClock
from mld.errors import AwsError, AwsUnreachableError, TableError, TableThrottledError, TableUnavailableError
from mld.fleet.report.reports_table import ReportsTable
from mld.fleet.values import Place, WorkerReport
from tests.contract.reports_table import ReportsTableContract, missing_place, report
from tests.contract.test_lock_table_memory import make_table
from tests.twins.dynamo import Fault, MemoryDynamo

TABLE = "reports"


class TwinRows:
    def __init__(self, dynamo: MemoryDynamo) -> None:
        self._dynamo = dynamo

    async def put(self, row: dict[str, dict[str, Any]]) -> None:
        self._dynamo.put_row(TABLE, row)

    async def get(self, key: str) -> dict[str, dict[str, Any]] | None:
        return self._dynamo.row(TABLE, key)


class TestReportsTableInMemory(ReportsTableContract):
    @pytest.fixture
    async def dynamo(self, key: str) -> MemoryDynamo:
        dynamo = MemoryDynamo(LoopClock(), page_rows_max=7)
        await make_table(dynamo, TABLE, key)
        return dynamo

    @pytest.fixture
    async def reports_table(self, dynamo: MemoryDynamo, key: str) -> ReportsTable:
        return ReportsTable(dynamo, Place(TABLE, key))

    @pytest.fixture
    async def missing(self, dynamo: MemoryDynamo, key: str) -> ReportsTable:
        return ReportsTable(dynamo, missing_place(key))

    @pytest.fixture
    async def rows(self, dynamo: MemoryDynamo) -> TwinRows:
        return TwinRows(dynamo)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (AwsError("op", "ProvisionedThroughputExceededException"), TableThrottledError),
        (AwsError("op", "AccessDeniedException"), TableUnavailableError),
        (AwsUnreachableError("op", "reset"), TableUnavailableError),
    ],
)
async def test_every_call_tells_no_answer_from_no(failure: Exception, expected: type[TableError]) -> None:
    dynamo = MemoryDynamo(LoopClock())
    await make_table(dynamo, TABLE, "wid")
    dynamo.faults = lambda *_: Fault(fail_before=failure)
    table = ReportsTable(dynamo, Place(TABLE, "wid"))
    for call in (
        table.write(report(1.0)),
        table.delete_own("w", 1),
        table.delete_stale(WorkerReport("w", 1, legacy=True)),
        table.scan(),
    ):
        with pytest.raises(expected):
            await call
