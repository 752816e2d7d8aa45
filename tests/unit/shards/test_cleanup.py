"""Which finished rows are deleted, when, and at what cost; all in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace

import pytest

from mld.core.clock import LoopClock
from mld.core.errors import StreamUnavailableError, TableThrottledError, TableUnavailableError
from mld.core.positions import AT_TIMESTAMP, LATEST, SHARD_END, TRIM_HORIZON, Position
from mld.leases.lease import Lease
from mld.shards.cleanup import (
    ENTRIES_PER_TICK_MAX,
    Delete,
    Forget,
    Keep,
    LeaseCleanup,
    judge_cleanup,
    judge_garbage,
)
from mld.shards.detector import ShardDetector
from mld.shards.stream_leases import StreamLeases
from tests.unit.shards.twins import GRAPH_B, GRAPH_S, ListedStream, MemoryTable, done, row, sid, survey
from tests.virtual_time import run_virtual

S_TRIMMED = tuple(s for s in GRAPH_S if s.shard_id != sid(0))
ENDED = done(0, children=(1, 2))


# --- the decision ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("started", [LATEST, SHARD_END, Position("25")])
def test_a_row_goes_when_all_children_have_started(started: Position) -> None:
    assert isinstance(judge_cleanup(ENDED, {sid(1): row(1, started), sid(2): row(2, 25)}, completed_due=True), Delete)


@pytest.mark.parametrize(
    ("lease", "family", "kept_for"),
    [
        (ENDED, [row(1, 25), row(2, TRIM_HORIZON)], sid(2)),
        (ENDED, [row(1, AT_TIMESTAMP), row(2, 25)], sid(1)),
        (ENDED, [row(1, 25)], sid(2)),
        (done(5, (3, 4), (6, 7)), [row(6, 25), row(7, 25), done(4)], sid(4)),
    ],
)
def test_a_row_stays_for_a_child_or_a_parent(lease: Lease, family: list[Lease], kept_for: str) -> None:
    decision = judge_cleanup(lease, {relative.key: relative for relative in family}, completed_due=True)

    assert isinstance(decision, Keep)
    assert kept_for in decision.reason
    assert decision.missing_child == (sid(2) if len(family) == 1 else None)


def test_other_rows_are_forgotten_or_left_to_the_service() -> None:
    assert isinstance(judge_cleanup(None, {}, completed_due=True), Forget)
    assert isinstance(judge_cleanup(row(0, 15), {}, completed_due=True), Forget)
    assert judge_cleanup(done(0), {}, completed_due=True) is None
    assert judge_cleanup(ENDED, {}, completed_due=False) is None


def test_garbage_is_deleted_only_with_proof_and_with_all_children_leased() -> None:
    children = (row(1), row(2))
    assert isinstance(judge_garbage(done(0), survey((done(0), *children), S_TRIMMED)), Delete)
    # Java would delete here, and the children's rows would later be made at LATEST.
    assert judge_garbage(done(0), survey((done(0), row(1)), S_TRIMMED)) == Keep(f"child {sid(2)} has no row", sid(2))
    for shards in (None, (), GRAPH_S):
        assert isinstance(judge_garbage(done(0), survey((done(0), *children), shards)), Keep)


# --- the shell -------------------------------------------------------------------------------------------------------


class Scene:
    """A cleanup over a table and a stream, driven for some virtual seconds."""

    def __init__(self, rows: list[Lease], shards: tuple[object, ...] = GRAPH_S) -> None:
        self.table = MemoryTable(rows)
        self.stream = ListedStream(shards)  # type: ignore[arg-type]
        self.missing: list[str] = []
        self.deleted_at: dict[str, float] = {}

    def run(
        self,
        seconds: float,
        queue: list[Lease],
        *,
        enabled: bool = True,
        completed_s: float = 300.0,
        meanwhile: Callable[[], Coroutine[object, object, object]] | None = None,
    ) -> LeaseCleanup:
        async def scenario() -> LeaseCleanup:
            cleanup = LeaseCleanup(
                StreamLeases(self.table, ShardDetector(self.stream, LoopClock(), random.Random(7)), LoopClock()),
                enabled=enabled,
                completed_interval_s=completed_s,
                on_missing_child=self.missing.append,
            )
            for lease in queue:
                cleanup.enqueue(lease)
            running = asyncio.create_task(cleanup.run())
            other = asyncio.create_task(meanwhile()) if meanwhile is not None else None
            done_before: set[str] = set(self.table.rows)
            await asyncio.sleep(0.5)
            for second in range(1, int(seconds) + 1):
                await asyncio.sleep(1)
                for key in done_before - self.table.rows.keys():
                    self.deleted_at.setdefault(key, second)
            running.cancel()
            assert other is None or other.done()
            return cleanup

        return run_virtual(scenario())


def test_a_finished_row_is_deleted_at_the_first_due_tick() -> None:
    scene = Scene([ENDED, row(1, 25), row(2, 25)])

    cleanup = scene.run(400, [ENDED])

    assert scene.deleted_at == {sid(0): 300}
    assert (cleanup.queued, scene.stream.calls) == ((), [])


def test_each_look_restarts_the_stopwatch_and_looks_become_rare() -> None:
    scene = Scene([ENDED, row(1, 25), row(2, TRIM_HORIZON)])
    often = Scene([ENDED, row(1, 25), row(2, TRIM_HORIZON)])

    scene.run(1790, [ENDED])
    often.run(3000, [ENDED], completed_s=60.0)

    assert scene.table.reads.count(sid(0)) == 3  # at 300, 600 and 1200 s; Java: every minute from 300 s on
    # At 60, 120, 240, 480, 960, 1560, 2160 and 2760 s, and at 1800 s in the round over the list of shards.
    assert often.table.reads.count(sid(0)) == 9


def test_a_row_that_waited_for_its_parent_goes_with_it_however_rarely_it_is_looked_at() -> None:
    chain = [done(2, (0, 1), (3, 4)), done(3, (2,), (5,)), done(4, (2,), (5,))]
    scene = Scene([*chain, row(5, 45, (3, 4)), done(1, (), (2,))], GRAPH_B)

    async def parent_goes_later() -> list[float]:
        await asyncio.sleep(250)
        del scene.table.rows[sid(1)]
        return []

    scene.run(1000, chain, completed_s=60.0, meanwhile=parent_goes_later)

    assert scene.deleted_at == {sid(1): 250, sid(2): 480, sid(3): 480, sid(4): 480}


def test_the_same_lease_is_queued_once_whatever_its_counter() -> None:
    scene = Scene([ENDED, row(1, 25), row(2, TRIM_HORIZON)])

    cleanup = scene.run(310, [ENDED, replace(ENDED, counter=7)])

    assert cleanup.queued == (sid(0),)
    assert scene.table.reads.count(sid(0)) == 1


def test_a_chain_of_generations_goes_in_one_tick_oldest_first() -> None:
    chain = [done(5, (3, 4), (6, 7)), done(2, (0, 1), (3, 4)), done(4, (2,), (5,)), done(3, (2,), (5,))]
    scene = Scene([*chain, row(6, 55, (5,)), row(7, 55, (5,))], GRAPH_B)

    scene.run(310, chain)

    assert scene.table.writes == [("delete_completed", sid(n)) for n in (2, 3, 4, 5)]


def test_a_row_without_noted_children_learns_them_from_the_list_of_shards() -> None:
    scene = Scene([done(0), row(1, 25), row(2, 25)])

    scene.run(310, [done(0)])

    assert scene.table.writes == [("record_children", sid(0)), ("delete_completed", sid(0))]
    assert len(scene.stream.calls) == 1


def test_a_row_without_children_anywhere_is_kept() -> None:
    # Java deletes it: two empty sets of children are equal.
    scene = Scene([done(0)], GRAPH_S[:1])

    cleanup = scene.run(2000, [done(0)])

    assert (scene.table.writes, cleanup.queued) == ([], (sid(0),))


def test_garbage_goes_after_half_an_hour_although_a_child_never_started() -> None:
    scene = Scene([ENDED, row(1, TRIM_HORIZON), row(2, TRIM_HORIZON)], S_TRIMMED)

    scene.run(2000, [ENDED])

    assert scene.deleted_at == {sid(0): 1800}


def test_an_unreachable_or_missing_stream_deletes_nothing_and_does_not_stop_the_rest() -> None:
    scene = Scene([ENDED, row(1, TRIM_HORIZON), row(2, TRIM_HORIZON)], ())
    scene.stream.answers = [StreamUnavailableError("down")] * 4 + [StreamUnavailableError("down")]

    cleanup = scene.run(4000, [ENDED])

    assert (scene.table.writes, cleanup.queued) == ([], (sid(0),))


def test_a_missing_child_row_is_reported_and_keeps_its_parent() -> None:
    scene = Scene([ENDED, row(1, 25)])

    scene.run(310, [ENDED])

    assert (scene.missing, scene.table.writes) == ([sid(2)], [])


def test_switched_off_only_garbage_is_deleted() -> None:
    kept = Scene([ENDED, row(1, 25), row(2, 25)])
    kept.run(4000, [ENDED], enabled=False)
    garbage = Scene([ENDED, row(1, 25), row(2, 25)], S_TRIMMED)
    garbage.run(4000, [ENDED], enabled=False)

    assert kept.table.writes == []
    assert garbage.deleted_at == {sid(0): 1800}


def test_an_error_concerns_its_entry_alone_and_is_tried_again() -> None:
    scene = Scene([ENDED, row(1, 25), row(2, 25), done(5, (), (6, 7)), row(6, 55), row(7, 55)])
    failures = [TableUnavailableError("down")]
    scene.table.fail = lambda operation, key: failures.pop() if key == sid(0) and failures else None

    scene.run(700, [ENDED, done(5, (), (6, 7))])

    assert scene.deleted_at == {sid(5): 300, sid(0): 600}


def test_a_throttled_table_is_left_in_peace_until_the_next_tick() -> None:
    scene = Scene([ENDED, row(1, 25), row(2, 25), done(5, (), (6, 7)), row(6, 55), row(7, 55)])
    failures = [TableThrottledError("slow down")]
    scene.table.fail = lambda operation, key: failures.pop() if failures else None

    scene.run(700, [ENDED, done(5, (), (6, 7))])

    assert scene.deleted_at == {sid(5): 360, sid(0): 600}


def test_a_tick_looks_at_a_bounded_number_of_entries() -> None:
    count = ENTRIES_PER_TICK_MAX + 50
    rows = [done(n, (), (100_000,)) for n in range(count)]
    scene = Scene([*rows, row(100_000, 25)])

    scene.run(400, rows)

    assert list(scene.deleted_at.values()).count(300) == ENTRIES_PER_TICK_MAX
    assert list(scene.deleted_at.values()).count(360) == 50


def test_an_entry_that_is_due_for_both_checks_is_looked_at_once() -> None:
    scene = Scene([ENDED, row(1, 25), row(2, TRIM_HORIZON)])

    scene.run(1810, [ENDED])

    assert scene.table.reads.count(sid(0)) == 4  # at 300, 600, 1200 and 1800 s
    assert len(scene.stream.calls) == 1


def test_the_service_is_asked_at_most_once_a_tick() -> None:
    rows = [done(n) for n in range(20)]
    scene = Scene(rows, GRAPH_S[:1])

    scene.run(310, rows)

    assert len(scene.stream.calls) == 1
    assert scene.table.reads.count("*") == 1
