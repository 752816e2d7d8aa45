"""The contract of the migration rows over HTTP, through our AWS client: moto in the embedded AWS, and ministack."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator

import pytest

from mld.aws.client import BotoService
from tests.contract.states_table import StatesTableContract, Tables
from tests.support.servers import EmbeddedAws, Ministack, ServerProcess

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


class ServerContract(StatesTableContract):
    @pytest.fixture
    async def service(self, server: ServerProcess) -> AsyncIterator[BotoService]:
        service = BotoService(lambda: server.client("dynamodb"), threads_max=THREADS_MAX, name="dynamodb")
        yield service
        await service.close()

    @pytest.fixture
    async def tables(self, service: BotoService) -> Tables:
        tables = Tables(service, f"states-{next(_table_numbers)}")
        await tables.create()
        return tables


class TestStatesTableOnMoto(ServerContract):
    @pytest.fixture
    def server(self, embedded_aws: ServerProcess) -> ServerProcess:
        return embedded_aws


@pytest.mark.ministack
class TestStatesTableOnMinistack(ServerContract):
    @pytest.fixture
    def server(self, ministack: ServerProcess) -> ServerProcess:
        return ministack
