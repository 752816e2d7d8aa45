"""The reports-table contract over HTTP, through our AWS client: moto in the embedded AWS, and ministack's DynamoDB."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from mld.aws.client import BotoService
from mld.fleet.report.reports_table import ReportsTable
from mld.fleet.values import Place
from tests.contract.reports_table import ReportsTableContract, missing_place
from tests.contract.test_lock_table_memory import make_table
from tests.support.patience import PATIENCE_S
from tests.support.servers import EmbeddedAws, Ministack, ServerProcess

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

    def __init__(self, service: BotoService, place: Place) -> None:
        self._service = service
        self._place = place

    async def put(self, row: dict[str, dict[str, Any]]) -> None:
        await self._service.call("PutItem", {"TableName": self._place.table, "Item": row})

    async def get(self, key: str) -> dict[str, dict[str, Any]] | None:
        params = {"TableName": self._place.table, "Key": {self._place.key: {"S": key}}, "ConsistentRead": True}
        item: dict[str, dict[str, Any]] | None = (await self._service.call("GetItem", params)).get("Item")
        return item


class ServerContract(ReportsTableContract):
    @pytest.fixture
    async def service(self, server: ServerProcess) -> AsyncIterator[BotoService]:
        service = BotoService(lambda: server.client("dynamodb"), threads_max=THREADS_MAX, name="dynamodb")
        yield service
        await service.close()

    @pytest.fixture
    async def place(self, service: BotoService, key: str) -> Place:
        place = Place(f"reports-{next(_table_numbers)}", key)
        await make_table(service, place.table, key)
        return place

    @pytest.fixture
    async def reports_table(self, service: BotoService, place: Place) -> ReportsTable:
        return ReportsTable(service, place, request_timeout_s=REQUEST_TIMEOUT_S)

    @pytest.fixture
    async def missing(self, service: BotoService, key: str) -> ReportsTable:
        return ReportsTable(service, missing_place(key), request_timeout_s=REQUEST_TIMEOUT_S)

    @pytest.fixture
    async def rows(self, service: BotoService, place: Place) -> ServerRows:
        return ServerRows(service, place)


class TestReportsTableOnMoto(ServerContract):
    @pytest.fixture
    def server(self, embedded_aws: ServerProcess) -> ServerProcess:
        return embedded_aws


@pytest.mark.ministack
class TestReportsTableOnMinistack(ServerContract):
    @pytest.fixture
    def server(self, ministack: ServerProcess) -> ServerProcess:
        return ministack
