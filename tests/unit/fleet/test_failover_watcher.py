"""The failover watcher in virtual time, over the real adapter and the DynamoDB twin: what it looks at and takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any

import pytest

from mld.core.errors import AwsError
from mld.core.periods import ALONE_SHARE, LONE_LEADER_LOOK_S, LOOK_PERIOD_S, PART_LEASES, SLOW_LEASES, slow_period_s
from mld.core.positions import TRIM_HORIZON
from mld.fleet.assign.failover_watcher import FailoverWatcher
from mld.fleet.assign.move_writer import WRITES_WAIT_S
from mld.fleet.assign.takeover import FREE_GRACE_S, SECOND_CHANCE_S
from mld.fleet.membership import FleetMembership
from mld.fleet.report import reports
from mld.fleet.report.reports import WorkerReport
from mld.leases import writes
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.lease import Lease
from mld.leases.table_view import TableView
from tests.support.settings import rules
from tests.twins.dynamo import Fault, MemoryDynamo, lost_reply
from tests.twins.streams import VirtualClock
from tests.unit.leases.support import TABLE, attribute, new_dynamo
from tests.virtual_time import run_virtual

CLOCK = VirtualClock()
D = 10.0
BOUND_S = D + LOOK_PERIOD_S + SECOND_CHANCE_S
RENEWAL_S = D / 3
RULES = rules(duration_s=D)


class CountedEvent(asyncio.Event):
    """How often it was set."""

    count = 0

    def set(self) -> None:
        self.count += 1
        super().set()


class Worker:
    """A failover watcher with all that it talks to, and the renewals of what it owns."""

    def __init__(self, bed: Bed, name: str, *, clock: VirtualClock = CLOCK) -> None:
        self.name = name
        self.bed = bed
        self.table = DynamoLeaseTable(bed.dynamo.client(name), CLOCK, table_name=TABLE)
        self.views = TableView(self.table, CLOCK)
        self.assigned: list[str] = []
        self.deleted: list[str] = []
        self.looked = 0
        self.leads = True
        self.assigning_due = CountedEvent()
        self.failover_watcher = FailoverWatcher(
            self.table,
            self.views,
            clock,
            RULES,
            name,
            membership=FleetMembership(name, RULES),
            stored_reports=self,
            discovery=self,
            leader=self,
            assigning_due=self.assigning_due,
        )
        bed.report(name)
        self.tasks = [asyncio.ensure_future(self.failover_watcher.run()), asyncio.ensure_future(self._renew())]

    async def _renew(self) -> None:
        while True:
            for key in await self.table.index.keys_owned_by(self.name):
                lease = await self.table.get(key)
                if lease is not None and lease.owner == self.name:
                    await self.table.apply(writes.renew(lease))
            await CLOCK.sleep(RENEWAL_S)

    async def legacy(self) -> Sequence[WorkerReport]:
        if self.bed.legacy_hangs:
            await asyncio.get_running_loop().create_future()
        return ()

    async def delete_stale(self, stale: Iterable[WorkerReport]) -> None:
        self.deleted += [report.worker for report in stale]

    def wake(self, keys: Iterable[str] = ()) -> None:
        self.assigned.extend(keys)

    def saw_table(self, leases: Iterable[Lease], *, leads_alone: bool) -> None:
        self.looked += 1

    leader = None

    async def is_leader(self) -> bool:
        return self.leads

    async def step_down(self, hold_off_s: float) -> None:
        raise AssertionError("the failover watcher does not ask for this")

    async def close(self) -> None:
        raise AssertionError("the failover watcher does not ask for this")

    def kill(self) -> None:
        for task in self.tasks:
            task.cancel()


class Bed:
    """A lease table, and workers over it."""

    def __init__(self, dynamo: MemoryDynamo) -> None:
        self.dynamo = dynamo
        self.table = DynamoLeaseTable(dynamo.client("bed"), CLOCK, table_name=TABLE)
        self.calls: list[tuple[float, str, str, Mapping[str, Any]]] = []
        self.fault: Callable[[str, str], Fault | None] = lambda sender, operation: None
        self.legacy_hangs = False
        dynamo.faults = self._fault

    def _fault(self, sender: str, operation: str, params: Mapping[str, Any]) -> Fault | None:
        self.calls.append((CLOCK.monotonic(), sender, operation, params))
        return self.fault(sender, operation)

    async def leases(self, **owners: str | None) -> None:
        for key, owner in owners.items():
            await self.table.apply(writes.create(Lease(key, TRIM_HORIZON, owner=owner)))

    def report(self, worker: str, **more: str) -> None:
        row = {"leaseKey": {"S": worker}, **reports.attributes(reports.own_report(worker, {}, CLOCK.wall(), "1"))}
        row |= {name: {"S": text} for name, text in more.items()}
        self.dynamo.put_row(TABLE, row)

    def owners(self, *keys: str) -> list[str | None]:
        return [attribute(self.dynamo, key, "leaseOwner") for key in keys]

    async def until(self, *keys: str, owners: Collection[str], within_s: float) -> float:
        """Waits until only `owners` have the leases; the seconds it took, which are less than `within_s`."""
        since = CLOCK.monotonic()
        while not set(self.owners(*keys)) <= set(owners):
            await CLOCK.sleep(0.05)
            assert CLOCK.monotonic() - since < within_s, self.owners(*keys)
        return CLOCK.monotonic() - since

    def scans(self, sender: str, since: float) -> list[float]:
        return [at for at, by, what, _ in self.calls if (by, what) == (sender, "Scan") and at >= since]


def story(test: Callable[[Bed], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            bed = Bed(await new_dynamo())
            await bed.table.index.ensure()
            await test(bed)

        run_virtual(main())

    run.__name__ = test.__name__
    return run


@story
async def test_a_dead_workers_leases_are_taken_within_the_bound_and_shared(bed: Bed) -> None:
    await bed.leases(s1="w", s2="w", s3="w", s4="w")
    dead, a, b = Worker(bed, "w"), Worker(bed, "a"), Worker(bed, "b")
    await CLOCK.sleep(60)
    assert bed.owners("s1", "s2", "s3", "s4") == ["w"] * 4
    for worker in ("a", "b"):
        bed.report(worker)  # they go on reporting, so each counts the other
    await CLOCK.sleep(5)
    dead.kill()
    assert await bed.until("s1", "s2", "s3", "s4", owners="ab", within_s=BOUND_S + 0.2) > D - RENEWAL_S
    assert sorted(bed.owners("s1", "s2", "s3", "s4"), key=str) == ["a", "a", "b", "b"]
    assert sorted(a.assigned + b.assigned) == ["s1", "s2", "s3", "s4"]
    assert "w" in a.deleted + b.deleted


@story
async def test_a_drained_worker_that_was_silent_stays_drained(bed: Bed) -> None:
    await bed.leases(s1="w")
    dead, a = Worker(bed, "w"), Worker(bed, "a")
    await CLOCK.sleep(60)
    bed.report("w", **{reports.DRAIN: "by an operator"})
    await CLOCK.sleep(5)
    dead.kill()
    await bed.until("s1", owners="a", within_s=BOUND_S + 0.2)
    assert a.deleted == [], "the mark stands on its report"


@story
async def test_an_owner_that_wakes_between_the_look_and_the_write_is_not_told_to_be_gone(bed: Bed) -> None:
    await bed.leases(s1="w", s2="w")
    a = Worker(bed, "a")
    bed.report("w")
    refused = []

    def wake(sender: str, operation: str) -> Fault | None:
        if (sender, operation) == ("a", "UpdateItem"):
            for key in ("s1", "s2"):
                row = bed.dynamo.row(TABLE, key)
                assert row is not None
                bed.dynamo.put_row(TABLE, {**row, "leaseCounter": {"N": str(int(row["leaseCounter"]["N"]) + 1)}})
            refused.append(CLOCK.monotonic())
        return None

    bed.fault = wake
    while not refused:
        await CLOCK.sleep(0.1)
    await CLOCK.sleep(1)
    assert bed.owners("s1", "s2") == ["w", "w"]
    assert a.deleted == []
    assert a.assigning_due.count == 0


@story
async def test_nobody_needs_to_lead_for_free_leases_to_be_taken(bed: Bed) -> None:
    await bed.leases(s1=None, s2=None)
    worker = Worker(bed, "a")
    assert await bed.until("s1", "s2", owners="a", within_s=FREE_GRACE_S + 0.2) >= FREE_GRACE_S
    assert worker.assigning_due.count == 1, "a leader is told once, and acts before the grace is over"


@story
async def test_of_two_that_die_one_after_the_other_all_leases_are_taken_in_time(bed: Bed) -> None:
    await bed.leases(s1="w", s2="v")
    first, second = Worker(bed, "w"), Worker(bed, "v")
    Worker(bed, "a")
    await CLOCK.sleep(40)
    first.kill()
    await CLOCK.sleep(D - 1)
    second.kill()
    killed_at = CLOCK.monotonic()
    await bed.until("s1", owners="av", within_s=BOUND_S + 0.2 - (D - 1))
    await bed.until("s1", "s2", owners="a", within_s=BOUND_S + 0.2 - (CLOCK.monotonic() - killed_at))


@story
async def test_a_lease_that_is_renewed_stays_though_others_of_its_owner_do_not_move(bed: Bed) -> None:
    await bed.leases(s1="w", s2="w")
    worker = Worker(bed, "a")
    for _ in range(20):
        lease = await bed.table.get("s2")
        assert lease is not None
        await bed.table.apply(writes.renew(lease))
        await CLOCK.sleep(RENEWAL_S)
    assert bed.owners("s1", "s2") == ["a", "w"]
    assert worker.assigning_due.count == 0, "its owner is not dead"


@story
async def test_a_swallowed_write_stops_no_looks_and_the_next_one_takes_the_lease(bed: Bed) -> None:
    await bed.leases(s1=None, s2="w")
    dead, swallowed = Worker(bed, "w"), []

    def swallow(sender: str, operation: str) -> Fault | None:
        if (sender, operation) == ("a", "UpdateItem") and not swallowed:
            swallowed.append(CLOCK.monotonic())
            return Fault(delay_before_s=1_000.0)
        return None

    bed.fault = swallow
    dead.kill()
    Worker(bed, "a")
    await bed.until("s1", owners="a", within_s=FREE_GRACE_S + WRITES_WAIT_S + LOOK_PERIOD_S + 0.5)
    assert swallowed
    await bed.until("s2", owners="a", within_s=BOUND_S + 0.2)


async def takes_late(bed: Bed) -> Worker:
    """A worker that has just taken the lease of a silent one, and will get the answer only later."""
    await bed.leases(s1="w")
    a = Worker(bed, "a")
    bed.report("w")
    late = Fault(delay_after_s=2 * WRITES_WAIT_S)
    bed.fault = lambda sender, operation: late if (sender, operation) == ("a", "UpdateItem") else None
    await bed.until("s1", owners="a", within_s=BOUND_S + 0.2)
    return a


@story
async def test_the_leases_of_a_late_write_are_taken_and_its_owner_is_known_to_be_dead(bed: Bed) -> None:
    a = await takes_late(bed)
    assert a.deleted == []
    await CLOCK.sleep(2 * WRITES_WAIT_S + 0.1)
    assert a.deleted == ["w"]


@story
async def test_an_owner_that_has_reported_before_a_late_answer_is_not_taken_for_dead(bed: Bed) -> None:
    a = await takes_late(bed)
    await CLOCK.sleep(WRITES_WAIT_S)
    bed.report("w")
    await CLOCK.sleep(WRITES_WAIT_S + 0.1)
    assert a.deleted == []
    assert a.assigning_due.count == 0


@story
async def test_a_late_failure_does_not_hold_up_a_lease_that_was_seen_again_since(bed: Bed) -> None:
    await bed.leases(s1=None)
    failing: list[Fault] = []

    def fail_after_the_next_look(sender: str, operation: str) -> Fault | None:
        if (sender, operation) != ("a", "UpdateItem") or failing:
            return None
        seen_again_s = ALONE_SHARE * D - CLOCK.monotonic()
        assert seen_again_s > WRITES_WAIT_S
        failing.append(
            Fault(delay_before_s=seen_again_s + FREE_GRACE_S / 2, fail_before=AwsError("UpdateItem", "Late"))
        )
        return failing[0]

    bed.fault = fail_after_the_next_look
    Worker(bed, "a")
    await bed.until("s1", owners="a", within_s=ALONE_SHARE * D + FREE_GRACE_S + 0.2)
    assert failing


@story
async def test_a_lost_reply_costs_one_more_look(bed: Bed) -> None:
    await bed.leases(s1="w")
    worker = Worker(bed, "a")
    await CLOCK.sleep(D - 1)
    replies = [lost_reply()]
    bed.fault = lambda by, what: replies.pop() if replies and (by, what) == ("a", "UpdateItem") else None
    await bed.until("s1", owners="a", within_s=3.0)
    await CLOCK.sleep(5)
    assert bed.owners("s1") == ["a"]
    assert worker.assigned == [], "the row tells: discovery hears of it by the next look"


@story
async def test_looks_that_fail_say_nothing_and_are_repeated(bed: Bed) -> None:
    await bed.leases(s1="w", s2="v")
    living = Worker(bed, "v")
    worker = Worker(bed, "a")
    await CLOCK.sleep(5)
    refused = AwsError("Scan", "ProvisionedThroughputExceededException", "")
    bed.fault = lambda by, what: Fault(fail_before=refused) if (by, what) == ("a", "Scan") else None
    await CLOCK.sleep(3 * D)
    assert bed.owners("s1", "s2") == ["v" if living.assigned else "w", "v"], "nothing was taken on old looks"
    assert worker.assigned == []
    bed.fault = lambda by, what: None
    living.kill()
    await bed.until("s1", "s2", owners="a", within_s=2 * D + BOUND_S)


@story
async def test_looks_that_fail_become_less_frequent(bed: Bed) -> None:
    await bed.leases(s1="w")
    refused = AwsError("Scan", "ProvisionedThroughputExceededException", "")
    bed.fault = lambda by, what: Fault(fail_before=refused) if (by, what) == ("a", "Scan") else None
    Worker(bed, "a")
    await CLOCK.sleep(60)
    assert len(bed.scans("a", 0.0)) <= 60 / LOOK_PERIOD_S + 5


@story
async def test_a_legacy_table_that_does_not_answer_delays_a_look_and_prevents_none(bed: Bed) -> None:
    bed.legacy_hangs = True
    await bed.leases(s1="w")
    Worker(bed, "a")
    await bed.until("s1", owners="a", within_s=BOUND_S + 4)


@story
async def test_watchers_look_at_the_same_time_and_others_seldom(bed: Bed) -> None:
    names = [f"w{number}" for number in range(6)]
    await bed.leases(**{f"s-{name}": name for name in names})
    for number, name in enumerate(names):
        Worker(bed, name)
        await CLOCK.sleep(0.1 * number)
    await CLOCK.sleep(60)
    since = CLOCK.monotonic()
    await CLOCK.sleep(60)
    looks = {name: bed.scans(name, since) for name in names}
    often = [name for name in names if len(looks[name]) > 20]
    assert len(often) == 3
    assert all(5 <= len(looks[name]) <= 7 for name in names if name not in often)
    phases = {round(at % LOOK_PERIOD_S, 1) for name in often for at in looks[name]}
    assert len(phases) == 1


@pytest.mark.full
@story
async def test_who_looks_seldom_at_many_leases_tries_to_take_none_that_is_renewed(bed: Bed) -> None:
    names = [f"w{number}" for number in range(5)]
    await bed.leases(**{f"s{number}": names[number % 5] for number in range(2 * SLOW_LEASES)})
    for name in names:
        Worker(bed, name)
    await CLOCK.sleep(4 * slow_period_s(2 * SLOW_LEASES, D))
    assert min(len(bed.scans(name, 0.0)) for name in names) < 10, "somebody looks seldom"
    assert [call for call in bed.calls if ":newOwner" in str(call[3])] == []


@pytest.mark.full
@story
async def test_a_large_table_is_looked_at_in_parts_by_whom_they_fall_to(bed: Bed) -> None:
    count = 2 * PART_LEASES + 10
    for number in range(count):
        row = Lease(f"s{number}", TRIM_HORIZON, owner="w" if number == 7 else f"w{number % 5}")
        await bed.table.apply(writes.create(row))
    names = [f"w{number}" for number in range(5)]
    for name in names:
        Worker(bed, name)
    await CLOCK.sleep(30)
    since = CLOCK.monotonic()
    await CLOCK.sleep(30)
    parts = {
        (params.get("Segment"), params.get("TotalSegments"))
        for at, _, what, params in bed.calls
        if what == "Scan" and at > since
    }
    assert parts - {(None, None)} == {(number, 4) for number in range(4)}
    assert bed.owners("s7") != ["w"], "its owner never lived"


@story
async def test_who_is_alone_wakes_when_somebody_comes(bed: Bed) -> None:
    await bed.leases(s1="a")
    worker = Worker(bed, "a")
    await CLOCK.sleep(20)
    looked = worker.looked
    worker.failover_watcher.wake()
    await CLOCK.sleep(0.1)
    assert worker.looked == looked + 1


@story
async def test_who_leads_alone_looks_as_seldom_as_room_needs_it(bed: Bed) -> None:
    await bed.leases(s1="a")
    worker = Worker(bed, "a")
    for worker.leads, looks in ((True, 300 / LONE_LEADER_LOOK_S), (False, 300 / (ALONE_SHARE * D))):
        await CLOCK.sleep(60)
        looked = worker.looked
        await CLOCK.sleep(300)
        assert worker.looked == looked + looks


@story
async def test_a_view_that_another_part_has_asked_for_counts_as_a_look(bed: Bed) -> None:
    await bed.leases(s1="a")
    worker = Worker(bed, "a")
    await CLOCK.sleep(60)
    since, looked = CLOCK.monotonic(), worker.looked
    for _ in range(15):  # as the assigner does
        await CLOCK.sleep(20)
        await worker.views.newer_than(CLOCK.monotonic())
    await CLOCK.sleep(1)
    assert worker.looked == looked + 15 + 1
    assert len(bed.scans("a", since)) == 15 + 1, "only the first of them came before it was time for a look of its own"


@story
async def test_who_is_alone_notices_in_the_view_of_another_part_that_somebody_has_come(bed: Bed) -> None:
    await bed.leases(s1="a")
    worker = Worker(bed, "a")
    await CLOCK.sleep(70)
    assert worker.failover_watcher.membership.is_alone
    bed.report("b")
    await worker.views.newer_than(CLOCK.monotonic())
    await CLOCK.sleep(LOOK_PERIOD_S)
    assert not worker.failover_watcher.membership.is_alone
    since = CLOCK.monotonic()
    await CLOCK.sleep(10 * LOOK_PERIOD_S)
    assert len(bed.scans("a", since)) >= 9, "there is somebody to look at now"


@story
async def test_a_lease_that_one_gave_to_the_dead_while_alone_is_taken_within_the_bound(bed: Bed) -> None:
    await bed.leases(s1="a")
    worker = Worker(bed, "a")
    await CLOCK.sleep(20)
    assert worker.failover_watcher.membership.is_alone
    lease = await bed.table.get("s1")
    assert lease is not None
    looked = worker.looked
    worker.failover_watcher.gave()
    await CLOCK.sleep(0.1)
    assert worker.looked == looked + 1, "it looks at once, and sees nothing of it yet"
    await bed.table.apply(writes.assign(lease, "dead"))
    await bed.until("s1", owners="a", within_s=BOUND_S + 0.2)


@story
async def test_clocks_that_disagree_cost_a_second_chance_and_no_more(bed: Bed) -> None:
    await bed.leases(s1="w", s2="w", s3="w")
    dead = Worker(bed, "w")
    Worker(bed, "a")
    Worker(bed, "b", clock=VirtualClock(skew_s=3600.7))
    await CLOCK.sleep(30)
    dead.kill()
    await bed.until("s1", "s2", "s3", owners="ab", within_s=BOUND_S + 0.2)
