"""The lease assignment manager's shell: load, decide, write, lead and stop leading (coordination#assignment-runs).

The table is the real adapter over the DynamoDB twin, in virtual time. What goes where is `test_assignment`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from mld.core.periods import LOOK_PERIOD_S
from mld.core.positions import TRIM_HORIZON
from mld.fleet.assign.assigner import HOLD_OFF_JITTER_S, HOLD_OFF_S, Assigner
from mld.fleet.assign.fleet_load import Why
from mld.fleet.assign.leadership import ALONE_LEASES_MAX, ALONE_S
from mld.fleet.assign.move_writer import WRITES_WAIT_S
from mld.fleet.membership import TRACE_S, FleetMembership
from mld.fleet.report import reports
from mld.fleet.report.reports import WorkerReport
from mld.leases import writes
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.lease import Lease
from mld.leases.table_view import TableView
from mld.properties.values import AssignmentStrategy
from tests.support.settings import rules
from tests.twins.dynamo import Fault, MemoryDynamo, lost_request
from tests.twins.streams import VirtualClock
from tests.unit.leases.support import TABLE, FaultPlan, attribute, counter_of, new_dynamo
from tests.virtual_time import run_virtual, virtual

CLOCK = VirtualClock()


class Leader:
    """A leader decider on a string."""

    def __init__(self) -> None:
        self.leads = True
        self.answers: list[bool] = []
        self.stepped_down: list[float] = []

    async def is_leader(self) -> bool:
        return self.answers.pop(0) if self.answers else self.leads

    async def step_down(self, hold_off_s: float) -> None:
        self.stepped_down.append(hold_off_s)

    async def close(self) -> None:
        self.leads = False


@dataclass
class Heard:
    assigned: list[tuple[str, ...]]
    stale: list[str]
    legacy: Sequence[WorkerReport] = ()
    gave: int = 0


class Bed:
    """A table, a leader and its assigner."""

    def __init__(self, dynamo: MemoryDynamo, **settings: Any) -> None:
        self.dynamo = dynamo
        self.leader = Leader()
        self.heard = Heard([], [])
        self.table = DynamoLeaseTable(dynamo.client("me"), CLOCK, table_name=TABLE)
        self.settings = rules(**settings)
        self.membership = FleetMembership("me", self.settings)
        self.views = TableView(self.table, CLOCK)
        self.assigner = Assigner(
            self.table,
            self.views,
            "me",
            CLOCK,
            random.Random(1),
            self.settings,
            leader=self.leader,
            membership=self.membership,
            stored_reports=self,
            on_gave=self.gave,
            on_assigned=self.heard.assigned.append,
            due=asyncio.Event(),
        )

    async def legacy(self) -> Sequence[WorkerReport]:
        return self.heard.legacy

    async def delete_stale(self, stale: Iterable[WorkerReport]) -> None:
        self.heard.stale += [report.worker for report in stale]

    def gave(self) -> None:
        self.heard.gave += 1

    async def leases(self, owners: Mapping[str, str | None], kbps: float = 10.0) -> None:
        for key, owner in owners.items():
            await self.table.apply(writes.create(Lease(key, TRIM_HORIZON, owner=owner, throughput_kbps=kbps)))

    def report(self, *workers: str, version: str | None = "1", ago_s: float = 0.0) -> None:
        for worker in workers:
            self.put(worker, reports.own_report(worker, {}, CLOCK.wall() - ago_s, version or ""), version)

    def put(self, worker: str, report: WorkerReport, version: str | None = None) -> None:
        row = {"leaseKey": {"S": worker}, **reports.attributes(report)}
        if version is None:
            row.pop(reports.VERSION, None)
        self.dynamo.put_row(TABLE, row)

    async def renew(self, *keys: str) -> None:
        for key in keys:
            lease = await self.table.get(key)
            assert lease is not None
            await self.table.apply(writes.renew(lease))

    def owners(self, keys: Iterable[str]) -> dict[str, str | None]:
        return {key: attribute(self.dynamo, key, "leaseOwner") for key in keys}


async def bed(**settings: Any) -> Bed:
    return Bed(await new_dynamo(), **settings)


@virtual
async def test_unassigned_leases_are_given_to_the_live_workers_at_once() -> None:
    it = await bed()
    it.report("me", "java", version=None)
    await it.leases(dict.fromkeys(("s1", "s2", "s3", "s4")))
    report = await it.assigner.run_once()
    assert report is not None
    assert (report.moved, report.plan.count(Why.FREE), report.refused) == (4, 4, 0)
    assert sorted(str(owner) for owner in it.owners(("s1", "s2", "s3", "s4")).values()) == ["java"] * 2 + ["me"] * 2
    (mine,) = it.heard.assigned
    assert it.owners(mine) == dict.fromkeys(mine, "me")
    assert it.heard.gave == 1, "java may be dead: this worker is not alone"
    assert counter_of(it.dynamo, "s1") == 1


@virtual
async def test_a_swallowed_write_holds_up_no_run_and_is_no_failure() -> None:
    it = await bed()
    it.report("me", "other")
    await it.leases(dict.fromkeys(("s1", "s2")))
    swallowed = []

    def swallow(_sender: str, operation: str, params: Mapping[str, Any]) -> Fault | None:
        if operation == "UpdateItem" and not swallowed:
            swallowed.append(params["Key"]["leaseKey"]["S"])
            return Fault(delay_before_s=1_000.0)
        return None

    it.dynamo.faults = swallow
    since = CLOCK.monotonic()
    report = await it.assigner.run_once()
    assert report is not None
    assert CLOCK.monotonic() - since < 2 * WRITES_WAIT_S + 0.5
    assert (report.moved, it.heard.gave) == (1, 1)
    report = await it.assigner.run_once()
    assert report is not None
    assert [move.lease.key for move in report.plan.moves] == swallowed
    assert None not in it.owners(("s1", "s2")).values()
    it.assigner.close()


@virtual
async def test_who_is_alone_after_all_gets_everything_soon() -> None:
    it = await bed()
    keys = [f"s{number:03d}" for number in range(100)]
    await it.leases(dict.fromkeys(keys))
    it.report("of the fleet before", ago_s=TRACE_S - 10)
    running = asyncio.create_task(it.assigner.run())
    await CLOCK.sleep(ALONE_S - 0.5)
    assert Counter(it.owners(keys).values()) == {"me": ALONE_LEASES_MAX, None: 100 - ALONE_LEASES_MAX}
    await CLOCK.sleep(2.0)
    assert Counter(it.owners(keys).values()) == {"me": 100}
    running.cancel()


@virtual
async def test_whoever_does_not_lead_does_nothing() -> None:
    it = await bed()
    it.report("me")
    await it.leases({"s1": None})
    it.leader.leads = False
    it.dynamo.calls.clear()
    assert await it.assigner.run_once() is None
    assert it.dynamo.calls == []


@virtual
async def test_leadership_lost_while_deciding_writes_nothing() -> None:
    it = await bed()
    it.report("me")
    await it.leases({"s1": None})
    it.leader.answers = [True, False]
    assert await it.assigner.run_once() is None
    assert it.owners(["s1"]) == {"s1": None}
    assert it.leader.stepped_down == []


@virtual
async def test_a_dead_worker_s_lease_goes_in_the_second_run_after_its_last_renewal() -> None:
    it = await bed()
    it.report("me")
    await it.leases({"s1": "dead", "s2": "me"})
    owners = []
    for _ in range(2):
        await it.assigner.run_once()
        owners.append(it.owners(["s1", "s2"]))
        await it.renew("s2")
        await CLOCK.sleep(20.0)
    assert owners == [{"s1": "dead", "s2": "me"}, {"s1": "me", "s2": "me"}]
    assert attribute(it.dynamo, "s1", "checkpointOwner") is None


@virtual
async def test_an_expired_lease_that_is_renewed_before_the_write_stays() -> None:
    """Java's write asks for the owner alone, and takes it."""

    it = await bed()
    it.report("me")
    await it.leases({"s1": "slow", "s2": "dead"})
    await it.assigner.run_once()
    await CLOCK.sleep(20.0)

    def renewed_after_all(_sender: str, operation: str, params: Mapping[str, Any]) -> Fault | None:
        if operation == "UpdateItem" and params["Key"] == {"leaseKey": {"S": "s1"}}:
            row = it.dynamo.row(TABLE, "s1") or {}
            it.dynamo.put_row(TABLE, {**row, "leaseCounter": {"N": str(int(row["leaseCounter"]["N"]) + 1)}})
        return None

    it.dynamo.faults = renewed_after_all
    report = await it.assigner.run_once()
    assert report is not None
    assert (report.moved, report.refused) == (1, 1)
    assert it.owners(["s1", "s2"]) == {"s1": "slow", "s2": "me"}


def test_the_dead_whose_reports_come_from_the_future_get_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """This host's clock was set back by an hour: two dead workers look fresh, and got leases in turns.

    Seed 3001045 of mode 3xmix.
    """

    async def main() -> None:
        it = await bed()
        it.report("dead 1", "dead 2", ago_s=-3600.0)
        await it.leases({"s1": "dead 1", "s2": None})
        for _ in range(5):
            it.report("me")
            await it.assigner.run_once()
            await CLOCK.sleep(20.0)
        assert it.owners(["s1", "s2"]) == {"s1": "me", "s2": "me"}
        it.report("dead 1", ago_s=-3601.0)
        await it.leases({"s3": None})
        it.report("me")
        await it.assigner.run_once()
        assert it.owners(["s3"]) == {"s3": "dead 1"}, "it lives"

    with caplog.at_level(logging.WARNING):
        run_virtual(main())
    warned = [record.args[0] for record in caplog.records if getattr(record, "action", "") == "clocks_disagree"]
    assert warned == ["dead 1", "dead 2", "dead 1"], "two stand still, and one that reports anew has another clock"


@virtual
async def test_a_new_leader_has_to_watch_again_before_it_calls_anything_expired() -> None:
    it = await bed()
    it.report("me")
    await it.leases({"s1": "dead"})
    await it.assigner.run_once()
    it.leader.leads = False
    await CLOCK.sleep(20.0)
    await it.assigner.run_once()
    it.leader.leads = True
    await it.assigner.run_once()
    assert it.owners(["s1"]) == {"s1": "dead"}
    await CLOCK.sleep(20.0)
    await it.assigner.run_once()
    assert it.owners(["s1"]) == {"s1": "me"}


@virtual
async def test_a_slow_scan_does_not_make_leases_look_expired() -> None:
    """The rows of two scans 9 s apart: the first one's were read when it began, the second one's when it ended."""

    it = await bed()
    it.report("me")
    await it.leases({"s1": "other"})
    await it.assigner.run_once()
    await CLOCK.sleep(9.0)
    plan = FaultPlan(it.dynamo, operations=["Scan"])
    plan.next(Fault(delay_after_s=2.0))
    await it.assigner.run_once()
    assert it.owners(["s1"]) == {"s1": "other"}


@virtual
async def test_balancing_hands_over_in_the_first_run_and_every_third() -> None:
    it = await bed()
    it.report("me", "busy")
    await it.leases({f"s{number}": "busy" for number in range(4)})
    balanced = []
    for _ in range(7):
        it.report("me", "busy")
        report = await it.assigner.run_once()
        assert report is not None
        balanced.append(report.balanced)
        await it.renew(*(f"s{number}" for number in range(4)))
        await CLOCK.sleep(20.0)
    assert balanced == [True, False, False, True, False, False, True]
    handed = [key for key in ("s0", "s1", "s2", "s3") if attribute(it.dynamo, key, "leaseOwner") == "me"]
    assert handed
    assert {key for keys in it.heard.assigned for key in keys} == set(handed)


@virtual
async def test_a_handoff_nobody_completes_is_forced_after_its_deadline() -> None:
    it = await bed(balance_every=1000)
    keys = [f"s{number}" for number in range(4)]
    await it.leases(dict.fromkeys(keys, "busy"))
    states = []
    for _ in range(5):
        it.report("me", "busy")
        await it.assigner.run_once()
        states.append({attribute(it.dynamo, key, "checkpointOwner") for key in keys})
        await it.renew(*keys)
        await CLOCK.sleep(12.0)
    assert states == [{"busy", None}] * 4 + [{None}]  # 30 s for the handoff and 10 s for the lease
    assert set(it.owners(keys).values()) == {"busy", "me"}


@virtual
async def test_a_refused_move_is_counted_and_left() -> None:
    it = await bed()
    it.report("me")
    await it.leases({"s1": None, "s2": None})

    def overtaken(_sender: str, operation: str, params: Mapping[str, Any]) -> Fault | None:
        if operation == "UpdateItem" and params["Key"] == {"leaseKey": {"S": "s1"}}:
            it.dynamo.put_row(TABLE, {**(it.dynamo.row(TABLE, "s1") or {}), "leaseOwner": {"S": "quick"}})
        return None

    it.dynamo.faults = overtaken
    report = await it.assigner.run_once()
    assert report is not None
    assert (report.moved, report.refused) == (1, 1)
    assert it.owners(["s1", "s2"]) == {"s1": "quick", "s2": "me"}


@virtual
async def test_an_unknown_outcome_fails_the_run_after_all_writes() -> None:
    it = await bed()
    it.report("me")
    await it.leases(dict.fromkeys(("s1", "s2", "s3")))
    plan = FaultPlan(it.dynamo)
    plan.when = lambda operation, params: params.get("Key") == {"leaseKey": {"S": "s1"}}
    plan.always = lost_request()
    assert await it.assigner.run_once() is None
    assert it.owners(["s1", "s2", "s3"]) == {"s1": None, "s2": "me", "s3": "me"}
    assert it.heard.assigned == [("s2", "s3")]


@virtual
async def test_three_failed_runs_in_a_row_end_the_leadership_and_start_the_count_anew() -> None:
    it = await bed()
    it.report("me")
    plan = FaultPlan(it.dynamo, operations=["Scan"])
    plan.always = lost_request()
    for _ in range(2):
        await it.assigner.run_once()
    plan.always = None
    assert await it.assigner.run_once() is not None  # success forgives
    plan.always = lost_request()
    for _ in range(2):
        await it.assigner.run_once()
    assert it.leader.stepped_down == []
    await it.assigner.run_once()
    (hold_off_s,) = it.leader.stepped_down
    assert 30.0 < hold_off_s <= HOLD_OFF_S + HOLD_OFF_JITTER_S
    for _ in range(2):
        await it.assigner.run_once()
    assert len(it.leader.stepped_down) == 1


@virtual
async def test_each_load_is_tried_twice() -> None:
    it = await bed()
    it.report("me")
    plan = FaultPlan(it.dynamo, operations=["Scan"])
    plan.next(lost_request())
    assert await it.assigner.run_once() is not None
    assert it.leader.stepped_down == []


@virtual
async def test_a_run_on_schedule_decides_by_a_view_that_was_just_read_and_one_that_was_asked_for_reads_anew() -> None:
    it = await bed()
    it.report("me")
    running = asyncio.create_task(it.assigner.run())
    await CLOCK.sleep(it.settings.fleet.assignment_interval_s - LOOK_PERIOD_S / 2)
    await it.leases({"s1": None})
    await it.views.newer_than(CLOCK.monotonic())
    it.dynamo.calls.clear()
    await CLOCK.sleep(LOOK_PERIOD_S)
    assert it.owners(["s1"]) == {"s1": "me"}
    assert ("me", "Scan") not in it.dynamo.calls
    await it.leases({"s2": None})
    it.assigner.wake()
    await CLOCK.sleep(LOOK_PERIOD_S)
    assert it.owners(["s2"]) == {"s2": "me"}, "no older view shows what made somebody ask"
    running.cancel()


@virtual
async def test_a_run_on_schedule_does_not_decide_by_a_view_from_before_the_last_writes() -> None:
    it = await bed()
    it.report("me")
    await it.assigner.run_once()
    await it.leases({"s1": None})
    await it.views.newer_than(CLOCK.monotonic())
    await it.assigner.run_once(early=True)
    report = await it.assigner.run_once()
    assert report is not None
    assert (report.moved, report.refused) == (0, 0), "the lease is not given away as it was before"


@virtual
async def test_reports_of_both_tables_count_once() -> None:
    it = await bed()
    it.report("me")
    old = reports.own_report("java", {}, CLOCK.wall() - 70, "")
    legacy = reports.own_report("java", {}, CLOCK.wall(), "")
    it.put("java", old)
    it.heard.legacy = [replace(legacy, legacy=True)]
    await it.leases({"s1": None, "s2": None})
    report = await it.assigner.run_once()
    assert report is not None
    assert report.plan.workers == 2


@virtual
async def test_workers_that_are_expired_failing_or_broken_get_nothing(caplog: pytest.LogCaptureFixture) -> None:
    it = await bed()
    it.report("me")
    it.report("gone", ago_s=61)
    failing = reports.own_report("failing", {"C": (50.0, -1.0)}, CLOCK.wall(), "1")
    it.put("failing", failing)
    it.dynamo.put_row(
        TABLE,
        {"leaseKey": {"S": "broken"}, "entityType": {"S": "WORKER_METRIC_STATS"}, "lut": {"S": "now"}},
    )
    it.report("stale", ago_s=100_000)
    await it.leases({f"s{number}": None for number in range(6)})
    report = await it.assigner.run_once()
    assert report is not None
    assert set(it.owners(f"s{number}" for number in range(6)).values()) == {"me"}
    assert it.heard.stale == ["stale"]
    assert any("broken" in record.getMessage() for record in caplog.records)


@virtual
async def test_the_loop_runs_at_once_then_every_interval_and_when_woken() -> None:
    it = await bed()
    it.report("me")
    times: list[float] = []
    run_once = it.assigner.run_once

    async def noted(*, early: bool = False) -> Any:
        times.append(round(CLOCK.monotonic(), 1))
        return await run_once(early=early)

    it.assigner.run_once = noted  # type: ignore[method-assign]
    task = asyncio.create_task(it.assigner.run())
    await CLOCK.sleep(25.0)
    it.assigner.wake()
    await CLOCK.sleep(0.1)
    it.assigner.wake()
    await CLOCK.sleep(40.0)
    task.cancel()
    assert times == [0.0, 20.0, 25.0, 26.0, 40.0, 60.0]


@virtual
async def test_what_was_given_at_the_start_is_not_handed_on_by_the_first_run_of_the_loop() -> None:
    it = await bed()
    it.report("me")
    keys = [f"s{number}" for number in range(8)]
    await it.leases(dict.fromkeys(keys))
    await it.assigner.run_once()
    it.report("you")  # it has just started as well
    running = asyncio.create_task(it.assigner.run())
    await CLOCK.sleep(5.0)
    assert set(it.owners(keys).values()) == {"me"}, "nobody hands on what has not begun"
    for _ in range(3):
        await it.renew(*keys)
        it.report("me", "you")
        await CLOCK.sleep(6.0)
    running.cancel()
    assert "you" in it.owners(keys).values(), "the first scheduled run balances"


@pytest.mark.parametrize("strategy", AssignmentStrategy)
def test_a_run_says_what_it_did(strategy: AssignmentStrategy, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        it = await bed(assignment_strategy=strategy, held_max=2)
        it.report("me")
        await it.leases(dict.fromkeys(("s1", "s2", "s3")))
        await it.assigner.run_once()

    with caplog.at_level(logging.DEBUG, logger="mld.fleet"):
        run_virtual(main())
    (line,) = [record for record in caplog.records if getattr(record, "action", "") == "assignment_run"]
    assert line.levelno == logging.INFO
    assert "3 leases, 1 workers: 2 of 2 moves written (2 free), 0 refused, 1 leases find no worker" in line.getMessage()
    moved = [record for record in caplog.records if getattr(record, "action", "") == "lease_moved"]
    assert {(record.levelno, getattr(record, "to_worker", "")) for record in moved} == {(logging.DEBUG, "me")}


@virtual
async def test_a_bug_in_a_decision_costs_the_leadership_and_not_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    it = await bed()
    it.heard.legacy = [None]  # type: ignore[list-item]
    for _ in range(3):
        assert await it.assigner.run_once() is None
    assert len(it.leader.stepped_down) == 1
    assert any(record.exc_info for record in caplog.records)
