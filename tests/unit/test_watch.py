"""The watch: whom it looks at without a leader's word, and who counts as dead when a worker is buried."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pytest

from mld.clock import LoopClock
from mld.fleet.heartbeat_table import HeartbeatTable
from mld.fleet.watch import CHOOSE_AGAIN_IDLE_S, CHOOSE_AGAIN_S, Watch
from mld.fleet.watching import Watched, life_signs
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.lease import Lease
from mld.leases.table import FleetScan
from mld.positions import TRIM_HORIZON
from tests.twins.dynamo import MemoryDynamo
from tests.unit.leases.support import TABLE, new_dynamo
from tests.virtual_time import run_virtual

CLOCK = LoopClock()
DURATION_S = 10.0


def lease(key: str, owner: str | None, counter: int = 0) -> Lease:
    return Lease(key, TRIM_HORIZON, counter=counter, owner=owner)


@pytest.mark.parametrize(
    ("before", "after", "still", "moved"),
    [
        ([lease("s", "a")], [lease("s", "a")], {"a"}, set()),
        ([lease("s", "a")], [lease("s", "a", 1)], set(), {"a"}),
        ([lease("s", "a"), lease("t", "a")], [lease("s", "a"), lease("t", "a", 1)], set(), {"a"}),
        ([lease("s", "a")], [lease("s", "b")], set(), set()),
        ([lease("s", None)], [lease("s", None)], set(), set()),
        ([], [lease("s", "a")], set(), set()),
        ([lease("s", "a")], [], set(), set()),
        ([lease("s", "a"), lease("t", "b")], [lease("s", "a"), lease("t", "b", 9)], {"a"}, {"b"}),
    ],
)
def test_who_stands_still_and_who_renews(
    before: list[Lease], after: list[Lease], still: set[str], moved: set[str]
) -> None:
    assert life_signs({row.key: row for row in before}, after) == (frozenset(still), frozenset(moved))


def test_a_handoff_under_way_is_the_old_owner_s() -> None:
    row = replace(lease("s", "b"), checkpoint_owner="a")
    assert life_signs({"s": row}, [row]) == (frozenset({"a"}), frozenset())


class Bed:
    """A watch over a table; whom it chooses, and what it asked for."""

    def __init__(self, dynamo: MemoryDynamo, table: DynamoLeaseTable, chosen: Iterable[Watched] = ()) -> None:
        self.chosen = tuple(chosen)
        self.asked: list[tuple[float, frozenset[str]]] = []
        self.buried: list[tuple[str, frozenset[str], list[str]]] = []
        self.assigned: list[str] = []
        self.watch = Watch(
            table,
            CLOCK,
            worker_id="me",
            lease_duration_s=DURATION_S,
            spread=self._spread,
            choose=self._choose,
            report=self._report,
            heartbeats=HeartbeatTable(dynamo, TABLE, "me", request_timeout_s=DURATION_S / 3),
            on_assigned=self.assigned.extend,
        )

    async def _choose(self, _scan: FleetScan, dead: frozenset[str]) -> tuple[Watched, ...]:
        self.asked.append((CLOCK.monotonic(), dead))
        return self.chosen

    async def _spread(self, _scan: FleetScan, orphaned: Iterable[Lease], dead: frozenset[str]) -> Mapping[str, str]:
        keys = [row.key for row in orphaned]
        self.buried.append((keys[0], dead, keys))
        return dict.fromkeys(keys, "me")

    async def _report(self, _worker: str, _leases: Sequence[Lease]) -> int:
        return 0

    async def run_for(self, seconds: float) -> None:
        running = asyncio.ensure_future(self.watch.run())
        await CLOCK.sleep(seconds)
        running.cancel()


async def bed(*rows: Lease, chosen: Iterable[Watched] = ()) -> tuple[Bed, DynamoLeaseTable]:
    dynamo = await new_dynamo()
    table = DynamoLeaseTable(dynamo.client("me"), CLOCK, table_name=TABLE)
    for row in rows:
        await table.create(row)
    return Bed(dynamo, table, chosen), table


def test_it_chooses_at_once_and_now_and_then_until_a_leader_tells_it() -> None:
    async def main() -> None:
        it, _ = await bed(lease("s", "a"))
        it.chosen = ()
        await it.run_for(2.5 * CHOOSE_AGAIN_IDLE_S)
        assert len(it.asked) == 3
        it.watch.watch([])
        await it.run_for(2 * CHOOSE_AGAIN_S)
        assert len(it.asked) == 3

    run_virtual(main())


def test_somebody_to_watch_is_enough_for_longer() -> None:
    async def main() -> None:
        it, table = await bed(lease("s", "a"), chosen=[Watched("a", "s")])

        async def renew() -> None:
            while True:
                row = await table.get("s")
                assert row is not None
                await table.renew(row)
                await CLOCK.sleep(3.0)

        renewing = asyncio.ensure_future(renew())
        await it.run_for(0.9 * CHOOSE_AGAIN_S)
        renewing.cancel()
        assert len(it.asked) == 1
        assert it.watch.watching() == {Watched("a", "s")}
        assert not it.buried

    run_virtual(main())


def test_a_burial_names_everybody_who_stood_still_and_is_followed_by_a_new_choice() -> None:
    async def main() -> None:
        rows = [lease("s", "a"), lease("t", "a"), lease("u", "b"), lease("v", "c")]
        it, table = await bed(*rows, chosen=[Watched("a", "s")])

        async def renew() -> None:
            while True:
                row = await table.get("v")
                assert row is not None
                await table.renew(row)
                await CLOCK.sleep(3.0)

        renewing = asyncio.ensure_future(renew())
        await it.run_for(DURATION_S + 2.0)
        renewing.cancel()
        assert it.buried == [("s", frozenset({"a", "b"}), ["s", "t"])]
        assert it.asked[-1][1] == {"a", "b"}
        assert it.assigned == ["s", "t"]
        left = await table.get("u")
        assert left is not None
        assert left.owner == "b", "nobody looked at b's lease itself"

    run_virtual(main())


def test_a_published_ring_replaces_our_choice_once_and_is_only_added_when_it_is_read_again() -> None:
    async def main() -> None:
        it, _ = await bed()
        it.watch.hear(None)
        it.watch.watch_also([Watched("chosen", "c")])
        it.watch.hear('[["a","s"]]')
        assert it.watch.watching() == {Watched("a", "s")}
        it.watch.watch_also([Watched("chosen", "c")])
        it.watch.hear('[["a","s"]]')
        assert it.watch.watching() == {Watched("a", "s"), Watched("chosen", "c")}

    run_virtual(main())


def test_what_stood_on_our_row_before_we_started_is_no_leader_s_last_word() -> None:
    async def main() -> None:
        it, _ = await bed()
        it.watch.watch_also([Watched("chosen", "c")])
        it.watch.hear('[["a","s"]]')
        assert it.watch.watching() == {Watched("a", "s"), Watched("chosen", "c")}

    run_virtual(main())
