"""The heartbeat-table contract over HTTP, by our AWS client: moto in the embedded AWS, and ministack's DynamoDB."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator

import pytest

from mld.aws.client import BotoService
from mld.fleet.heartbeat.heartbeat_table import HeartbeatTable
from mld.fleet.values import LEASE_TABLE_KEY, Place
from tests.contract.heartbeat_table import HeartbeatTableContract
from tests.contract.test_lock_table_memory import make_table
from tests.integration.test_lock_table_servers import ServerRows
from tests.support.patience import PATIENCE_S
from tests.support.servers import EmbeddedAws, Ministack, ServerProcess

REQUEST_TIMEOUT_S = PATIENCE_S
THREADS_MAX = 20
_table_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def embedded_aws() -> Iterator[ServerProcess]:
    with EmbeddedAws() as server:
        yield server


@pytest.fixture(scope="module")
def ministack() -> Iterator[ServerProcess]:
    with Ministack() as server:
        yield server


class ServerContract(HeartbeatTableContract):
    @pytest.fixture
    async def service(self, server: ServerProcess) -> AsyncIterator[BotoService]:
        service = BotoService(lambda: server.client("dynamodb"), threads_max=THREADS_MAX, name="dynamodb")
        yield service
        await service.close()

    @pytest.fixture
    async def place(self, service: BotoService) -> Place:
        place = Place(f"heartbeats-{next(_table_numbers)}", LEASE_TABLE_KEY)
        await make_table(service, place.table, place.key)
        return place

    @pytest.fixture
    async def heartbeats(self, service: BotoService, place: Place) -> HeartbeatTable:
        return HeartbeatTable(service, place.table, "me", request_timeout_s=REQUEST_TIMEOUT_S)

    @pytest.fixture
    async def rows(self, service: BotoService, place: Place) -> ServerRows:
        return ServerRows(service, place)


class TestHeartbeatTableOnMoto(ServerContract):
    @pytest.fixture
    def server(self, embedded_aws: ServerProcess) -> ServerProcess:
        return embedded_aws


@pytest.mark.ministack
class TestHeartbeatTableOnMinistack(ServerContract):
    @pytest.fixture
    def server(self, ministack: ServerProcess) -> ServerProcess:
        return ministack
