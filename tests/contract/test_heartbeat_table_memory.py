"""The heartbeat-table contract on the in-memory DynamoDB."""

from __future__ import annotations

import pytest

from mld.clock import LoopClock
from mld.fleet.heartbeat.heartbeat_table import HeartbeatTable
from tests.contract.heartbeat_table import HeartbeatTableContract
from tests.contract.test_lock_table_memory import TABLE, TwinRows, make_table
from tests.twins.dynamo import MemoryDynamo


class TestHeartbeatTableInMemory(HeartbeatTableContract):
    @pytest.fixture
    async def dynamo(self) -> MemoryDynamo:
        dynamo = MemoryDynamo(LoopClock())
        await make_table(dynamo, TABLE, "leaseKey")
        return dynamo

    @pytest.fixture
    async def heartbeats(self, dynamo: MemoryDynamo) -> HeartbeatTable:
        return HeartbeatTable(dynamo, TABLE, "me", request_timeout_s=3.0)

    @pytest.fixture
    async def rows(self, dynamo: MemoryDynamo) -> TwinRows:
        return TwinRows(dynamo)
