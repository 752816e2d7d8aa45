"""The contract of the migration rows on the adapter over the in-memory DynamoDB."""

from __future__ import annotations

import pytest

from mld.clock import LoopClock
from tests.contract.states_table import StatesTableContract, Tables
from tests.twins.dynamo import MemoryDynamo


class TestStatesTableInMemory(StatesTableContract):
    @pytest.fixture
    async def service(self) -> MemoryDynamo:
        return MemoryDynamo(LoopClock(), page_rows_max=7)

    @pytest.fixture
    async def tables(self, service: MemoryDynamo) -> Tables:
        tables = Tables(service, "app")
        await tables.create()
        return tables
