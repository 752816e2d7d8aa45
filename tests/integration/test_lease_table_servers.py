"""The lease-table contract over HTTP, through our AWS client: moto in the embedded AWS, and ministack's DynamoDB."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from mld.aws.client import BotoService
from mld.clock import LoopClock
from mld.errors import TableMissingError, TableUnavailableError
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.lease import Lease
from mld.positions import TRIM_HORIZON
from tests.contract.lease_table import LeaseTableContract
from tests.support.patience import PATIENCE_S
from tests.support.servers import EmbeddedAws, Ministack, ServerProcess, free_port, make_client

REQUEST_TIMEOUT_S = PATIENCE_S
THREADS_MAX = 16
_table_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def embedded_aws() -> Iterator[ServerProcess]:
    with EmbeddedAws() as server:
        yield server


@pytest.fixture(scope="module")
def ministack() -> Iterator[ServerProcess]:
    with Ministack() as server:
        yield server


class ServerRows:
    """The table as another program sees it."""

    def __init__(self, service: BotoService, table_name: str) -> None:
        self._service = service
        self._table_name = table_name

    async def put(self, row: dict[str, dict[str, Any]]) -> None:
        await self._service.call("PutItem", {"TableName": self._table_name, "Item": row})

    async def get(self, key: str) -> dict[str, dict[str, Any]] | None:
        params = {"TableName": self._table_name, "Key": {"leaseKey": {"S": key}}, "ConsistentRead": True}
        item: dict[str, dict[str, Any]] | None = (await self._service.call("GetItem", params)).get("Item")
        return item


class ServerContract(LeaseTableContract):
    @pytest.fixture
    async def service(self, server: ServerProcess) -> AsyncIterator[BotoService]:
        service = BotoService(lambda: server.client("dynamodb"), threads_max=THREADS_MAX, name="dynamodb")
        yield service
        await service.close()

    @pytest.fixture
    def table_name(self) -> str:
        return f"app-{next(_table_numbers)}"

    @pytest.fixture
    async def lease_table(self, service: BotoService, table_name: str) -> DynamoLeaseTable:
        table = DynamoLeaseTable(service, LoopClock(), table_name=table_name, request_timeout_s=REQUEST_TIMEOUT_S)
        assert await table.ensure()
        return table

    @pytest.fixture
    async def rows(self, service: BotoService, table_name: str) -> ServerRows:
        return ServerRows(service, table_name)

    async def test_a_missing_table_is_told_from_an_unavailable_one(self, service: BotoService) -> None:
        table = DynamoLeaseTable(service, LoopClock(), table_name="missing", request_timeout_s=REQUEST_TIMEOUT_S)
        with pytest.raises(TableMissingError):
            await table.scan()

    async def test_a_table_is_created_with_all_its_options(self, service: BotoService) -> None:
        name = f"options-{next(_table_numbers)}"
        table = DynamoLeaseTable(
            service,
            LoopClock(),
            table_name=name,
            billing_mode="PROVISIONED",
            read_capacity=7,
            write_capacity=8,
            deletion_protection=True,
            point_in_time_recovery=True,
            tags={"team": "clicks"},
            request_timeout_s=REQUEST_TIMEOUT_S,
        )
        assert await table.ensure()
        assert not await table.ensure()
        described = (await service.call("DescribeTable", {"TableName": name}))["Table"]
        assert described["DeletionProtectionEnabled"] is True
        assert described["ProvisionedThroughput"]["ReadCapacityUnits"] == 7
        backups = await service.call("DescribeContinuousBackups", {"TableName": name})
        recovery = backups["ContinuousBackupsDescription"]["PointInTimeRecoveryDescription"]
        assert recovery["PointInTimeRecoveryStatus"] == "ENABLED"

    async def test_a_scan_in_segments_finds_every_row_once(self, service: BotoService, table_name: str) -> None:
        table = DynamoLeaseTable(
            service, LoopClock(), table_name=table_name, scan_segments=4, request_timeout_s=REQUEST_TIMEOUT_S
        )
        await table.ensure()
        for number in range(20):
            assert await table.create(Lease(f"shardId-{number:012d}", TRIM_HORIZON))
        keys = [lease.key for lease in (await table.scan()).leases]
        assert sorted(keys) == [f"shardId-{number:012d}" for number in range(20)]


class TestLeaseTableOnMoto(ServerContract):
    @pytest.fixture
    def server(self, embedded_aws: ServerProcess) -> ServerProcess:
        return embedded_aws


@pytest.mark.ministack
class TestLeaseTableOnMinistack(ServerContract):
    @pytest.fixture
    def server(self, ministack: ServerProcess) -> ServerProcess:
        return ministack


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    service = BotoService(lambda: make_client("dynamodb", endpoint), threads_max=1, name="dynamodb")
    with pytest.raises(TableUnavailableError):
        await DynamoLeaseTable(service, LoopClock(), table_name="app").scan()
    await service.close()
