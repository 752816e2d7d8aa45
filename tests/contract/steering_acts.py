"""What the writes of steering acts must do on any DynamoDB (`mld.operating.steering`). Subclasses supply `service`."""

from __future__ import annotations

import time
from typing import Any

import pytest

from mld.aws.service import Service
from mld.aws.table_calls import TableCalls
from mld.core.clock import LoopClock
from mld.fleet.membership import LEASES_MAX
from mld.fleet.report.reports import parse_rows
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.rows import LEASE_TABLE_KEY, Place
from mld.operating.fleet_status import FleetStatus, fleet_status
from mld.operating.plan import ActPlan, ActRefusedError, Fate
from mld.operating.shard_view import ViewRules
from mld.operating.steering import (
    plan_drain,
    plan_leave_out,
    plan_move,
    plan_pause,
    plan_restart,
    plan_resume,
    plan_undrain,
)
from mld.operating.table_access import carry_out, read_table
from tests.contract.lease_table import REQUEST_TIMEOUT_S
from tests.support.tables import RawRows, make_table, unique_table

SHARD = "shardId-000000000001"
JAVA_ROW: dict[str, Any] = {
    "leaseKey": {"S": SHARD},
    "leaseOwner": {"S": "a"},
    "leaseCounter": {"N": "118"},
    "ownerSwitchesSinceCheckpoint": {"N": "0"},
    "checkpoint": {"S": "TRIM_HORIZON"},
    "checkpointSubSequenceNumber": {"N": "0"},
    "throughputKBps": {"N": "412.734375"},
    "entityType": {"S": "LEASE"},
}


def report(worker: str) -> dict[str, Any]:
    kind, lut = {"S": "WORKER_METRIC_STATS"}, {"N": str(int(time.time()))}
    return {"leaseKey": {"S": worker}, "entityType": kind, "lut": lut, "mldVersion": {"S": "1"}}


class SteeringContract:
    @pytest.fixture
    async def table(self, service: Service) -> str:
        name = unique_table()
        await make_table(service, name, "leaseKey")
        rows = RawRows(service, name)
        for row in (JAVA_ROW, report("a"), report("b")):
            await rows.put(row)
        return name

    @pytest.fixture
    def rows(self, service: Service, table: str) -> RawRows:
        return RawRows(service, table)

    @pytest.fixture
    async def calls(self, service: Service, table: str) -> TableCalls:
        self.leases = DynamoLeaseTable(service, LoopClock(), table_name=table)
        return TableCalls(service, table, REQUEST_TIMEOUT_S)

    async def seen(self, calls: TableCalls) -> FleetStatus:
        scan = (await read_table(calls, LoopClock())).scan
        reports = parse_rows(scan.others, LEASE_TABLE_KEY).reports
        return fleet_status(scan.leases, reports, None, time.time(), ViewRules(lease_duration_s=10.0))

    async def fates(self, plan: ActPlan, calls: TableCalls) -> list[Fate]:
        return [one.fate for one in await carry_out(plan, lambda _: self.leases, LoopClock())]

    async def test_a_move_begins_a_handoff_once(self, calls: TableCalls, rows: RawRows) -> None:
        plan = plan_move(await self.seen(calls), "1", "b", is_3x=True, now_s=1_000)
        assert await self.fates(plan, calls) == [Fate.DONE]
        begun = {"leaseOwner": {"S": "b"}, "checkpointOwner": {"S": "a"}, "mldPinnedUntil": {"N": "4600"}}
        assert await rows.get(SHARD) == JAVA_ROW | begun
        assert await self.fates(plan, calls) == [Fate.REFUSED], "the second operator comes too late"
        assert await rows.get(SHARD) == JAVA_ROW | begun

    async def test_a_pause_is_set_and_taken_away(self, calls: TableCalls, rows: RawRows) -> None:
        plan = plan_pause(await self.seen(calls), "1", "by me")
        assert await self.fates(plan, calls) == [Fate.DONE]
        assert await self.fates(plan, calls) == [Fate.REFUSED]
        assert await rows.get(SHARD) == JAVA_ROW | {"mldPaused": {"S": "by me"}}
        plan = plan_resume(await self.seen(calls), "1")
        assert await self.fates(plan, calls) == [Fate.DONE]
        assert await self.fates(plan, calls) == [Fate.REFUSED]
        assert await rows.get(SHARD) == JAVA_ROW

    async def test_records_are_left_out_together_until_the_checkpoint_is_past_them(
        self, calls: TableCalls, rows: RawRows
    ) -> None:
        first = plan_leave_out(await self.seen(calls), "1", "10")
        assert await self.fates(first, calls) == [Fate.DONE]
        assert await self.fates(first, calls) == [Fate.REFUSED], "somebody else has asked meanwhile"
        assert plan_leave_out(await self.seen(calls), "1", "10").changes == ()
        assert await self.fates(plan_leave_out(await self.seen(calls), "1", "20/3"), calls) == [Fate.DONE]
        row = await rows.there(SHARD)
        assert set(row["mldLeftOut"]["SS"]) == {"10", "20/3"}
        await rows.put(row | {"checkpoint": {"S": "15"}})
        assert await self.fates(plan_leave_out(await self.seen(calls), "1", "30"), calls) == [Fate.DONE]
        row = await rows.there(SHARD)
        assert set(row["mldLeftOut"]["SS"]) == {"20/3", "30"}
        with pytest.raises(ActRefusedError, match=r"is 15.*, past 14"):
            plan_leave_out(await self.seen(calls), "1", "14")

    async def test_a_child_is_asked_for_again_and_again(self, calls: TableCalls, rows: RawRows) -> None:
        for words in ("by me", "by me again"):
            assert await self.fates(plan_restart(await self.seen(calls), "1", words), calls) == [Fate.DONE]
            assert await rows.get(SHARD) == JAVA_ROW | {"mldRestart": {"S": words}}

    async def test_a_shard_that_changed_hands_is_not_paused(self, calls: TableCalls, rows: RawRows) -> None:
        plan = plan_pause(await self.seen(calls), "1", "by me")
        moved = JAVA_ROW | {"leaseOwner": {"S": "b"}}
        await rows.put(moved)
        assert await self.fates(plan, calls) == [Fate.REFUSED]
        assert await rows.get(SHARD) == moved

    async def test_a_drain_marks_the_report_and_ends(self, calls: TableCalls, table: str, rows: RawRows) -> None:
        place = Place(table, LEASE_TABLE_KEY)
        before = await rows.there("a")
        plan = plan_drain(await self.seen(calls), "a", place, "by me", LEASES_MAX, is_3x=True)
        assert await self.fates(plan, calls) == [Fate.DONE, Fate.DONE]
        assert await rows.get("a") == before | {"mldDrain": {"S": "by me"}}
        plan = plan_undrain(await self.seen(calls), "a", place)
        assert await self.fates(plan, calls) == [Fate.DONE]
        assert await self.fates(plan, calls) == [Fate.REFUSED]
        assert await rows.get("a") == before
