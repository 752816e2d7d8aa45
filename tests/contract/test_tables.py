"""Every table of ours, and the requests to DynamoDB beneath them: in memory, and over HTTP on servers we did not write.

The same contracts prove the adapters (on the servers) and the twin (in memory).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from mld.aws.client import BotoService
from mld.aws.service import Service
from mld.core.clock import LoopClock
from mld.core.errors import (
    AwsError,
    AwsUnreachableError,
    TableError,
    TableMissingError,
    TableThrottledError,
    TableUnavailableError,
)
from mld.fleet.leader.lock_table import LockTable
from mld.fleet.report.reports import WorkerReport
from mld.fleet.report.reports_table import ReportsTable
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.rows import Place
from tests.contract.dynamo import DynamoContract
from tests.contract.lease_table import EPOCH, LeaseTableContract, adapter, owned
from tests.contract.lock_table import LockTableContract
from tests.contract.reports_table import ReportsTableContract, report
from tests.contract.states_table import StatesTableContract
from tests.contract.steering_acts import SteeringContract
from tests.support.servers import ServerProcess, free_port, make_client
from tests.support.services import boto_service, wire_service
from tests.support.tables import RawRows
from tests.twins.dynamo import Fault, MemoryDynamo

MEMORY = "memory"
MOTO = pytest.param("aws_server", id="moto", marks=pytest.mark.full)
MOTO_ALWAYS = pytest.param("aws_server", id="moto")
MINISTACK = pytest.param("ministack", id="ministack", marks=[pytest.mark.full, pytest.mark.ministack])
ROWS_OF_A_PAGE = 7
UNLIKE_AWS = {
    # Broken conditions end as server errors; values of different types cannot be compared.
    "aws_server": {"#text < :v", "#text = :undefined", "#text =", "attribute_exists(#text) AND"},
    # It accepts overlapping paths, and sums of texts.
    "ministack": {"SET #text = :v, #text = :v", "SET #number = #text + :v"},
}
"""Expressions that a server is known to judge otherwise than DynamoDB."""


@pytest.fixture(params=[MEMORY, MOTO, MINISTACK])
def backend(request: pytest.FixtureRequest) -> str:
    """What stands behind the service: the twin, or the fixture of a server."""
    return str(request.param)


@pytest.fixture
def server(request: pytest.FixtureRequest, backend: str) -> ServerProcess | None:
    return None if backend == MEMORY else request.getfixturevalue(backend)


@pytest.fixture
async def service(server: ServerProcess | None) -> AsyncIterator[Service]:
    if server is None:
        yield MemoryDynamo(LoopClock(), page_rows_max=ROWS_OF_A_PAGE)
        return
    service = boto_service(server)
    yield service
    await service.close()


class TestDynamo(DynamoContract):
    @pytest.fixture(autouse=True)
    def expect_known_faults(self, request: pytest.FixtureRequest, backend: str) -> None:
        cases = request.node.callspec.params.values()
        if any(isinstance(case, str) and case in UNLIKE_AWS.get(backend, ()) for case in cases):
            request.applymarker(pytest.mark.xfail(strict=True, reason="a known fault of the server"))


class TestDynamoByTheWireClient(TestDynamo):
    """What our own client writes and reads is what botocore does."""

    @pytest.fixture(params=[MOTO_ALWAYS, MINISTACK])
    def backend(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    async def service(self, server: ServerProcess) -> AsyncIterator[Service]:
        service = wire_service(server)
        await service.open()
        yield service
        await service.close()


class TestLeaseTable(LeaseTableContract):
    async def test_a_missing_table_is_told_from_an_unavailable_one(self, service: Service) -> None:
        with pytest.raises(TableMissingError):
            await adapter(service, "missing").scan()

    async def test_a_scan_shows_the_heartbeat_that_stands_for_a_marked_row(
        self, lease_table: DynamoLeaseTable, rows: RawRows
    ) -> None:
        lease = await owned(lease_table)
        await rows.put({**await rows.there(lease.key), "mldHeartbeat": {"S": EPOCH}})

        async def seen(of_owner: str | None) -> str | None:
            of_worker = {"leaseKey": {"S": lease.owner}, "entityType": {"S": "WORKER_METRIC_STATS"}}
            await rows.put(of_worker | ({} if of_owner is None else {"mldHeartbeat": {"S": of_owner}}))
            (found,) = (await lease_table.scan(consistent=True)).leases
            return found.heartbeat

        assert [await seen(f"{EPOCH}.{number}") for number in (7, 8)] == [f"{EPOCH}.7", f"{EPOCH}.8"]
        for of_owner in (None, "0" * 16 + ".9", "fenced by w-9"):
            assert await seen(of_owner) == EPOCH, "it stands for nothing, and does not move"


class TestLeaseTableScannedInSegments(LeaseTableContract):
    """On the twin; that servers share the rows among segments is in `DynamoContract`."""

    scan_segments = 4

    @pytest.fixture
    def backend(self) -> str:
        return MEMORY


class TestLockTable(LockTableContract):
    pass


class TestReportsTable(ReportsTableContract):
    pass


class TestStatesTable(StatesTableContract):
    pass


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (AwsError("op", "ProvisionedThroughputExceededException"), TableThrottledError),
        (AwsError("op", "AccessDeniedException"), TableUnavailableError),
        (AwsUnreachableError("op", "reset"), TableUnavailableError),
    ],
)
async def test_every_call_tells_no_answer_from_no(failure: Exception, expected: type[TableError]) -> None:
    dynamo = MemoryDynamo(LoopClock(), faults=lambda *_: Fault(fail_before=failure))
    lock, reports = LockTable(dynamo, Place("locks", "key")), ReportsTable(dynamo, Place("reports", "wid"))
    for call in (
        lock.read(),
        lock.claim(None, "w", "v"),
        lock.heartbeat("w", "v", "w"),
        lock.release("w", "v"),
        reports.write(report(1.0)),
        reports.delete_own("w", 1),
        reports.delete_stale(WorkerReport("w", 1, legacy=True)),
        reports.scan(),
    ):
        with pytest.raises(expected):
            await call


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    service = BotoService(lambda: make_client("dynamodb", endpoint), threads_max=1, name="dynamodb")
    with pytest.raises(TableUnavailableError):
        await DynamoLeaseTable(service, LoopClock(), table_name="app").scan()
    await service.close()


class TestSteering(SteeringContract):
    """The writes of an operator."""
