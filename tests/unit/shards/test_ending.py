"""The end of a shard: child rows, then their names on the parent, in every situation, and nothing out of doubt."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from mld.core.clock import LoopClock
from mld.core.errors import LeaseLostError, StreamNotFoundError, TableUnavailableError
from mld.core.positions import TRIM_HORIZON, InitialPosition
from mld.core.streams import HASH_KEY_MAX, ChildShard, HashRange, Shard
from mld.leases.lease import Lease
from mld.shards.detector import ShardDetector
from mld.shards.ending import Blocked, BlockedOnMergeParent, Create, Invalid, Prepared, ShardEnding, plan_shard_end
from mld.shards.graph import children_in
from mld.shards.stream_leases import StreamLeases
from mld.shards.sync import ShardSync
from tests.unit.shards.twins import (
    FROM_LATEST,
    GRAPH_M,
    GRAPH_S,
    ListedStream,
    MemoryTable,
    child,
    done,
    row,
    sid,
)
from tests.virtual_time import run_virtual

SPLIT = children_in(GRAPH_S, sid(0))
MERGE = children_in(GRAPH_M, sid(0))
S_TRIMMED = tuple(s for s in GRAPH_S if s.shard_id != sid(0))


def _ending(table: MemoryTable, stream: ListedStream, initial: InitialPosition = FROM_LATEST) -> ShardEnding:
    leases = StreamLeases(table, ShardDetector(stream, LoopClock(), random.Random(7)), LoopClock())
    return ShardEnding(leases, ShardSync(leases, initial=initial))


def _prepare(
    rows: Iterable[Lease], lease: Lease, children: Iterable[ChildShard], shards: Iterable[Shard]
) -> tuple[MemoryTable, Prepared | Blocked | Invalid]:
    table = MemoryTable(rows)
    return table, run_virtual(_ending(table, ListedStream(shards)).prepare(lease, tuple(children)))


# --- the decision ----------------------------------------------------------------------------------------------------


def test_children_of_a_split_start_at_the_trim_horizon_with_their_parents_and_keys() -> None:
    plan = plan_shard_end(row(0, 15), tuple(reversed(SPLIT)), ())

    assert plan == Create(
        tuple(Lease(c.shard_id, TRIM_HORIZON, parents=frozenset({sid(0)}), hash_range=c.hash_range) for c in SPLIT)
    )


@pytest.mark.parametrize(("present", "blocked_on"), [((0, 1), None), ((), None), ((0,), sid(1)), ((1,), sid(0))])
def test_a_merge_goes_on_with_both_parent_rows_or_none(present: tuple[int, ...], blocked_on: str | None) -> None:
    plan = plan_shard_end(row(0, 15), MERGE, {sid(n) for n in present})

    assert plan == BlockedOnMergeParent(blocked_on) if blocked_on else isinstance(plan, Create)


def test_a_merge_does_not_wait_for_a_row_that_cannot_come_or_that_nobody_waits_for() -> None:
    # Java blocks here until the shard itself leaves retention.
    assert isinstance(plan_shard_end(row(0, 15), MERGE, {sid(0)}, trimmed={sid(1)}), Create)
    assert isinstance(plan_shard_end(row(0, 15), MERGE, {sid(0)}, child_row_present=True), Create)


def test_a_child_that_names_other_parents_only_is_invalid() -> None:
    plan = plan_shard_end(row(0, 15), (SPLIT[0], child(9, 8)), ())

    assert isinstance(plan, Invalid)
    assert sid(9) in plan.reason


def test_a_single_child_with_one_parent_is_invalid() -> None:
    plan = plan_shard_end(row(0, 15), (child(1, 0),), {sid(0)})

    assert isinstance(plan, Invalid)
    assert sid(1) in plan.reason


# --- the shell -------------------------------------------------------------------------------------------------------


def test_child_rows_come_before_their_names_on_the_parent_row() -> None:
    table, outcome = _prepare([row(0, 15)], row(0, 15), SPLIT, GRAPH_S)

    assert outcome == Prepared((sid(1), sid(2)))
    assert table.writes == [("create", sid(1)), ("create", sid(2)), ("record_children", sid(0))]
    assert table.rows[sid(0)] == replace(row(0, 15), children=frozenset({sid(1), sid(2)}))


def test_it_can_break_off_anywhere_and_be_repeated() -> None:
    for broken, rest in (
        (("create", sid(1)), (sid(1), sid(2))),
        (("create", sid(2)), (sid(2),)),
        (("record_children", sid(0)), ()),
    ):
        table = MemoryTable([row(0, 15)])
        table.fail = lambda operation, key, at=broken: TableUnavailableError("?") if (operation, key) == at else None  # type: ignore[misc]
        with pytest.raises(TableUnavailableError):
            run_virtual(_ending(table, ListedStream(GRAPH_S)).prepare(row(0, 15), SPLIT))
        assert table.rows[sid(0)].children == frozenset()

        table.fail = lambda operation, key: None
        assert run_virtual(_ending(table, ListedStream(GRAPH_S)).prepare(row(0, 15), SPLIT)) == Prepared(rest)
        assert set(table.rows) == {sid(0), sid(1), sid(2)}


def test_a_vanished_own_row_is_a_lost_lease() -> None:
    with pytest.raises(LeaseLostError):
        _prepare([], row(0, 15), SPLIT, GRAPH_S)


def test_a_completed_lease_needs_no_preparation() -> None:
    table, outcome = _prepare([done(0)], done(0), (), GRAPH_S)

    assert (outcome, table.writes, table.reads) == (Prepared(()), [], [])


def test_a_missing_merge_parent_gets_its_row_by_a_sync_at_once() -> None:
    table, outcome = _prepare([row(0, 15)], row(0, 15), MERGE, GRAPH_M)

    assert outcome == Prepared((sid(1), sid(2)))
    assert table.writes == [("create", sid(1)), ("create", sid(2)), ("record_children", sid(0))]


def test_a_merge_parent_that_is_still_to_come_blocks_without_a_sync_each_time() -> None:
    # Parent 1 will be created when its own parent 5 ends.
    parent = Shard(sid(5), HashRange(0, HASH_KEY_MAX), "1", "9")
    shards = (parent, GRAPH_M[0], replace(GRAPH_M[1], parent_id=sid(5)), GRAPH_M[2])
    table, stream = MemoryTable([row(5, 3), row(0, 15)]), ListedStream(shards)

    async def scenario() -> tuple[int, int]:
        ending = _ending(table, stream)
        for _ in range(9):
            assert isinstance(await ending.prepare(row(0, 15), MERGE), Blocked)
            await asyncio.sleep(1)
        in_9_s = len(stream.calls)
        await asyncio.sleep(2)
        assert isinstance(await ending.prepare(row(0, 15), MERGE), Blocked)
        return in_9_s, len(stream.calls)

    assert run_virtual(scenario()) == (1, 2)
    assert table.writes == []


def test_a_merge_parent_that_left_retention_does_not_block() -> None:
    without_1 = tuple(s for s in GRAPH_M if s.shard_id != sid(1))
    _, outcome = _prepare([row(0, 15)], row(0, 15), MERGE, without_1)

    assert outcome == Prepared((sid(2),))


def test_children_that_the_service_no_longer_names_are_looked_up() -> None:
    table, outcome = _prepare([row(0, 15), row(3)], row(0, 15), (), GRAPH_S)

    assert outcome == Prepared((sid(1), sid(2)))
    assert table.rows[sid(0)].children == {sid(1), sid(2)}


@pytest.mark.parametrize(
    "shards",
    [
        tuple(replace(s, ending_sequence=None) for s in GRAPH_S if s.shard_id in (sid(0), sid(3))),
        tuple(s for s in GRAPH_S if s.shard_id in (sid(0), sid(3))),
    ],
    ids=["still open", "closed, no children listed"],
)
def test_a_listed_shard_does_not_end_without_children(shards: tuple[Shard, ...]) -> None:
    table, outcome = _prepare([row(0, 15), row(3)], row(0, 15), (), shards)

    assert isinstance(outcome, Invalid)
    assert table.writes == []


def test_an_expired_shard_ends_after_its_children_got_leases_at_the_trim_horizon() -> None:
    lost = row(0, 15, hash_range=GRAPH_S[0].hash_range)
    table, outcome = _prepare([lost, row(3, 15)], lost, (), S_TRIMMED)

    assert outcome == Prepared((sid(1), sid(2)))
    assert {table.rows[sid(n)].checkpoint for n in (1, 2)} == {TRIM_HORIZON}
    assert table.rows[sid(0)].children == {sid(1), sid(2)}


def test_an_expired_shard_waits_when_the_table_moves_under_the_sync() -> None:
    # Another parent row that justified a lease is gone by now: the next attempt decides anew.
    lost = row(0, 15, hash_range=GRAPH_S[0].hash_range)
    scanned = MemoryTable([lost, done(3)])
    later = Shard(sid(4), GRAPH_S[3].hash_range, "30", None, sid(3))
    stream = ListedStream((*S_TRIMMED[:2], replace(S_TRIMMED[2], ending_sequence="29"), later))
    gone = {sid(3)}

    async def get(key: str) -> Lease | None:
        return None if key in gone else scanned.rows.get(key)

    scanned.get = get  # type: ignore[method-assign]
    outcome = run_virtual(_ending(scanned, stream).prepare(lost, ()))

    assert isinstance(outcome, Blocked)
    assert scanned.rows[sid(0)].children == frozenset()
    gone.clear()
    assert isinstance(run_virtual(_ending(scanned, stream).prepare(lost, ())), Prepared)


def test_a_missing_stream_or_one_without_shards_ends_nothing() -> None:
    for answers in ([StreamNotFoundError("no such stream")], []):
        table, stream = MemoryTable([row(0, 15)]), ListedStream()
        stream.answers = list(answers)
        outcome = run_virtual(_ending(table, stream).prepare(row(0, 15), ()))
        assert isinstance(outcome, Blocked)
        assert "streamName" in outcome.reason
        assert table.writes == []


def test_a_wrong_stream_ends_nothing() -> None:
    # As many shards and the same ids, but another stream: its shard 1 began long before our checkpoint.
    lost = row(0, 5000, hash_range=GRAPH_S[0].hash_range)
    table, outcome = _prepare([lost], lost, (), S_TRIMMED)

    assert isinstance(outcome, Blocked)
    assert table.writes == []
