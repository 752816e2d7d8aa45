"""The watch in virtual time: evidence before a burial, races between watchers, representatives that go elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from mld.clock import LoopClock
from mld.fleet.heartbeat_table import HeartbeatTable
from mld.fleet.watch import Watch
from mld.fleet.watching import Watched
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.lease import Lease
from mld.leases.table import FleetScan
from mld.positions import TRIM_HORIZON
from tests.twins.dynamo import Fault, MemoryDynamo, lost_request
from tests.unit.leases.support import TABLE, new_dynamo
from tests.virtual_time import run_virtual

CLOCK = LoopClock()
DURATION_S = 10.0
RENEWAL_S = 3.3


class Watcher:
    """A watch of worker `name`, told to watch `w` by its lease s1. At most `room` orphans go to `heir`."""

    def __init__(self, bed: Bed, name: str, heir: str | None = None, room: int = 1000) -> None:
        self.heir = heir or name
        self.room = room
        self.moved_by_leader = 0
        self.reported: list[tuple[str, list[str]]] = []
        self.assigned: list[str] = []
        self.dead: list[frozenset[str]] = []
        self.watch = Watch(
            DynamoLeaseTable(bed.dynamo.client(name), CLOCK, table_name=TABLE),
            CLOCK,
            worker_id=name,
            lease_duration_s=DURATION_S,
            spread=self._spread,
            choose=self._choose,
            report=self._report,
            heartbeats=HeartbeatTable(bed.dynamo.client(name), TABLE, name, request_timeout_s=DURATION_S / 3),
            on_assigned=self.assigned.extend,
        )
        self.watch.watch([Watched("w", "s1")])
        self.task = asyncio.ensure_future(self.watch.run())

    async def _choose(self, _scan: FleetScan, _dead: frozenset[str]) -> tuple[Watched, ...]:
        return ()

    async def _spread(self, _scan: FleetScan, orphaned: Iterable[Lease], dead: frozenset[str]) -> Mapping[str, str]:
        self.dead.append(dead)
        return {row.key: self.heir for row in list(orphaned)[: self.room]}

    async def _report(self, worker: str, leases: Sequence[Lease]) -> int:
        self.reported.append((worker, [lease.key for lease in leases]))
        return self.moved_by_leader


class Bed:
    """A table with leases s1 to s3 of worker w, which renews those in `renewed`."""

    def __init__(self, dynamo: MemoryDynamo) -> None:
        self.dynamo = dynamo
        self.table = DynamoLeaseTable(dynamo.client("w"), CLOCK, table_name=TABLE)
        self.renewed = {"s1", "s2", "s3"}
        self.calls: list[tuple[float, str, str]] = []
        self.lost: Callable[[str, str], bool] = lambda sender, operation: False
        dynamo.faults = self._fault
        self._renewing: asyncio.Task[None] | None = None

    def _fault(self, sender: str, operation: str, _params: Mapping[str, Any]) -> Fault | None:
        self.calls.append((CLOCK.monotonic(), sender, operation))
        return lost_request() if self.lost(sender, operation) else None

    async def open(self) -> None:
        await self.table.ensure_owner_index()
        for key in sorted(self.renewed):
            await self.table.create(Lease(key, TRIM_HORIZON, owner="w"))
        self._renewing = asyncio.ensure_future(self._renew())

    async def _renew(self) -> None:
        while True:
            for key in sorted(self.renewed):
                lease = await self.table.get(key)
                if lease is not None and lease.owner == "w":
                    await self.table.renew(lease)
            await CLOCK.sleep(RENEWAL_S)

    def kill(self) -> float:
        self.renewed = set()
        return CLOCK.monotonic()

    def owners(self) -> list[str]:
        return [self.dynamo.row(TABLE, key)["leaseOwner"]["S"] for key in ("s1", "s2", "s3")]

    def scans(self, sender: str, since: float = 0.0) -> int:
        return sum(at >= since and (by, what) == (sender, "Scan") for at, by, what in self.calls)


def story(test: Callable[[Bed], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            bed = Bed(await new_dynamo())
            await bed.open()
            await test(bed)

        run_virtual(main())

    run.__name__ = test.__name__
    return run


@story
async def test_a_dead_workers_leases_go_to_others_after_a_lease_duration(bed: Bed) -> None:
    watcher = Watcher(bed, "a")
    await CLOCK.sleep(30)
    assert bed.scans("a") == 0, "one read a second is all"
    killed_at = bed.kill()
    while bed.owners() != ["a"] * 3:
        await CLOCK.sleep(0.1)
    assert DURATION_S - RENEWAL_S <= CLOCK.monotonic() - killed_at <= DURATION_S + 2.0
    assert watcher.reported == [("w", ["s1", "s2", "s3"])]
    assert watcher.dead == [frozenset({"w"})]
    assert watcher.assigned == ["s1", "s2", "s3"]
    assert bed.scans("a") == 2, "a base line, and the rows as they are"
    await CLOCK.sleep(30)
    assert bed.scans("a") == 2
    assert watcher.watch.watching() == frozenset(), "it has no lease that could stand for it"


@story
async def test_a_lease_that_is_renewed_stays_though_its_representative_stands_still(bed: Bed) -> None:
    watcher = Watcher(bed, "a")
    await CLOCK.sleep(5)
    bed.renewed = {"s2"}
    await CLOCK.sleep(30)
    assert bed.owners() == ["a", "w", "a"]
    assert watcher.assigned == ["s1", "s3"]


@story
async def test_a_worker_that_comes_back_in_time_keeps_everything(bed: Bed) -> None:
    watcher = Watcher(bed, "a")
    await CLOCK.sleep(5)
    bed.kill()
    await CLOCK.sleep(6)
    assert bed.scans("a") == 1, "late: a base line"
    bed.renewed = {"s1", "s2", "s3"}
    await CLOCK.sleep(60)
    assert bed.owners() == ["w"] * 3
    assert watcher.reported == []


@story
async def test_without_a_base_line_in_time_it_is_read_later_and_must_be_old_enough(bed: Bed) -> None:
    watcher = Watcher(bed, "a")
    await CLOCK.sleep(5)
    bed.renewed = {"s2"}
    stopped_at = CLOCK.monotonic()
    bed.lost = lambda sender, operation: (sender, operation) == ("a", "Scan")
    await CLOCK.sleep(14)
    assert bed.owners() == ["w"] * 3
    bed.lost = lambda sender, operation: False
    while bed.owners() != ["a", "w", "a"]:
        await CLOCK.sleep(0.1)
        assert CLOCK.monotonic() - stopped_at < 25
    assert CLOCK.monotonic() - stopped_at > 14 + RENEWAL_S, "nothing is proven at once"
    assert watcher.reported == [("w", ["s1", "s3"])]
    await CLOCK.sleep(20)
    assert bed.owners() == ["a", "w", "a"]


@story
async def test_a_read_that_fails_says_nothing(bed: Bed) -> None:
    watcher = Watcher(bed, "a")
    await CLOCK.sleep(5)
    bed.lost = lambda sender, operation: sender == "a"
    await CLOCK.sleep(60)
    bed.lost = lambda sender, operation: False
    await CLOCK.sleep(3)
    assert watcher.reported == []
    assert bed.owners() == ["w"] * 3


@story
async def test_of_two_watchers_one_wins_each_lease(bed: Bed) -> None:
    one, other = Watcher(bed, "a"), Watcher(bed, "b")
    await CLOCK.sleep(5)
    bed.kill()
    await CLOCK.sleep(30)
    assert set(bed.owners()) <= {"a", "b"}
    assert sorted(one.assigned + other.assigned) == ["s1", "s2", "s3"], "each lease once"
    for watcher, name in ((one, "a"), (other, "b")):
        assert [key for key, owner in zip(("s1", "s2", "s3"), bed.owners(), strict=True) if owner == name] == sorted(
            watcher.assigned
        )
    counters = [int(bed.dynamo.row(TABLE, key)["leaseCounter"]["N"]) for key in ("s1", "s2", "s3")]
    changes = [w for w in bed.dynamo.history if w.before and w.before["leaseOwner"] != w.after["leaseOwner"]]
    assert len(changes) == 3
    assert all(counter > 0 for counter in counters)


@story
async def test_a_renewal_between_look_and_write_saves_the_lease(bed: Bed) -> None:
    watcher = Watcher(bed, "a")
    await CLOCK.sleep(5)
    bed.kill()
    renewed: list[str] = []

    async def renew_late() -> None:
        lease = await bed.table.get("s2")
        assert lease is not None
        await bed.table.renew(lease)
        renewed.append("s2")

    report = watcher._report

    async def after_a_renewal(worker: str, leases: Sequence[Lease]) -> int:
        await renew_late()
        return await report(worker, leases)

    watcher.watch._report = after_a_renewal
    await CLOCK.sleep(12)
    assert renewed
    assert bed.owners() == ["a", "w", "a"]


@story
async def test_what_the_leader_in_this_process_has_moved_is_left_to_it(bed: Bed) -> None:
    watcher = Watcher(bed, "a")
    watcher.moved_by_leader = 3
    await CLOCK.sleep(5)
    bed.kill()
    await CLOCK.sleep(30)
    assert watcher.reported == [("w", ["s1", "s2", "s3"])], "once"
    assert watcher.dead == []
    assert bed.owners() == ["w"] * 3


@story
async def test_leases_without_an_heir_are_tried_again(bed: Bed) -> None:
    watcher = Watcher(bed, "a", room=1)
    await CLOCK.sleep(5)
    bed.kill()
    await CLOCK.sleep(13)
    assert bed.owners() == ["a", "w", "w"]
    await CLOCK.sleep(60)
    assert bed.owners() == ["a", "a", "a"]
    assert watcher.assigned == ["s1", "s2", "s3"]


@story
async def test_a_representative_that_goes_elsewhere_is_replaced(bed: Bed) -> None:
    watcher = Watcher(bed, "a")
    await CLOCK.sleep(5)
    bed.renewed = {"s2", "s3"}
    lease = await bed.table.get("s1")
    assert lease is not None
    await bed.table.assign(lease, "x")
    await CLOCK.sleep(2)
    assert watcher.watch.watching() == {Watched("w", "s2")}
    bed.kill()
    await CLOCK.sleep(13)
    assert bed.owners() == ["x", "a", "a"]


@story
async def test_another_word_of_the_leader_counts_more_than_a_choice_of_its_own(bed: Bed) -> None:
    watcher = Watcher(bed, "a")
    await CLOCK.sleep(5)
    lease = await bed.table.get("s1")
    assert lease is not None
    await bed.table.assign(lease, "x")
    keys_owned_by = watcher.watch._table.keys_owned_by

    async def told_meanwhile(worker: str) -> tuple[str, ...]:
        watcher.watch.watch([Watched("x", "s1")])
        return await keys_owned_by(worker)

    watcher.watch._table.keys_owned_by = told_meanwhile
    await CLOCK.sleep(1.5)
    assert watcher.watch.watching() == {Watched("x", "s1")}


@story
async def test_a_suspect_is_not_forgotten_when_the_leader_says_something_else(bed: Bed) -> None:
    watcher = Watcher(bed, "a")
    await CLOCK.sleep(5)
    bed.kill()
    await CLOCK.sleep(7)
    watcher.watch.watch([])
    assert watcher.watch.watching() == {Watched("w", "s1")}, "its base line is read, the matter is under way"
    await CLOCK.sleep(6)
    assert bed.owners() == ["a"] * 3
    watcher.watch.watch([])
    assert watcher.watch.watching() == frozenset()


@story
async def test_the_same_word_again_keeps_what_is_known(bed: Bed) -> None:
    watcher = Watcher(bed, "a")
    await CLOCK.sleep(5)
    killed_at = bed.kill()
    while bed.owners() != ["a"] * 3:
        watcher.watch.watch([Watched("w", "s1"), Watched("a", "s9")])
        await CLOCK.sleep(0.5)
    assert CLOCK.monotonic() - killed_at <= DURATION_S + 2.0
