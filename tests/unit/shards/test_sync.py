"""Shard sync as a shell: which listing, how often, what it refuses, and that it can break off anywhere."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from mld.core.clock import LoopClock
from mld.core.errors import StreamInUseError, StreamNotFoundError, TableUnavailableError
from mld.core.positions import AT_TIMESTAMP, InitialPosition
from mld.core.streams import Shard, ShardFilter, ShardFilterType, ShardsPage
from mld.leases.lease import Lease
from mld.leases.table import TableScan
from mld.shards.detector import ShardDetector
from mld.shards.stream_leases import StreamLeases
from mld.shards.sync import ShardSync, SyncResult, SyncStatus
from tests.unit.shards.twins import (
    FROM_HORIZON,
    FROM_LATEST,
    FROM_TIMESTAMP,
    GRAPH_A,
    GRAPH_S,
    ListedStream,
    MemoryTable,
    done,
    numbers,
    row,
    sid,
)
from tests.virtual_time import run_virtual

OPEN_OF_A = tuple(s for s in GRAPH_A if s.is_open)
EMPTY = TableScan()


def seen(rows: Iterable[Lease]) -> TableScan:
    return TableScan(tuple(rows))


def _sync(
    table: MemoryTable, stream: ListedStream, initial: InitialPosition = FROM_LATEST, *, ignore: bool = False
) -> ShardSync:
    leases = StreamLeases(table, ShardDetector(stream, LoopClock(), random.Random(7)), LoopClock())
    return ShardSync(leases, initial=initial, ignore_unexpected_children=ignore)


def _synced(
    rows: Iterable[Lease], shards: Iterable[Shard], initial: InitialPosition = FROM_LATEST
) -> tuple[MemoryTable, SyncResult]:
    table = MemoryTable(rows)
    return table, run_virtual(_sync(table, ListedStream(shards), initial).sync(seen(table.rows.values())))


@pytest.mark.parametrize(
    ("initial", "shard_filter"),
    [
        (FROM_LATEST, ShardFilter(ShardFilterType.AT_LATEST)),
        (FROM_HORIZON, ShardFilter(ShardFilterType.AT_TRIM_HORIZON)),
        (FROM_TIMESTAMP, ShardFilter(ShardFilterType.AT_TIMESTAMP, 150.0)),
    ],
)
def test_an_empty_table_is_filled_from_the_filtered_listing(
    initial: InitialPosition, shard_filter: ShardFilter
) -> None:
    table, stream = MemoryTable(), ListedStream(OPEN_OF_A)

    result = run_virtual(_sync(table, stream, initial).bootstrap(EMPTY))

    assert stream.calls == [(shard_filter, None)]
    assert (result.status, numbers(result.created), result.shards) == (SyncStatus.DONE, {4, 8, 9, 10}, OPEN_OF_A)
    assert {lease.checkpoint for lease in table.rows.values()} == {initial.sentinel}


def test_a_table_with_rows_is_synced_without_a_filter_and_ancestors_come_first() -> None:
    table, stream = MemoryTable([row(2), row(6)]), ListedStream(GRAPH_A)

    result = run_virtual(_sync(table, stream, FROM_HORIZON).bootstrap(run_virtual(table.scan())))

    assert stream.calls == [(None, None)]
    assert [lease.key for lease in result.created] == [sid(3), sid(4), sid(5)]
    assert table.writes == [("create", sid(3)), ("create", sid(4)), ("create", sid(5))]


def test_a_table_with_an_unreadable_row_is_not_empty() -> None:
    table, stream = MemoryTable(corrupt=[sid(4)]), ListedStream(GRAPH_A)

    result = run_virtual(_sync(table, stream).bootstrap(run_virtual(table.scan())))

    assert stream.calls == [(None, None)]
    assert numbers(result.created) == {8, 9, 10}


def test_a_row_that_somebody_else_created_first_is_left_alone() -> None:
    table = MemoryTable()
    table.rows[sid(8)] = theirs = row(8, 250, owner="java")

    result = run_virtual(_sync(table, ListedStream(OPEN_OF_A)).bootstrap(EMPTY))

    assert numbers(result.created) == {4, 9, 10}
    assert table.rows[sid(8)] == theirs


def test_a_snapshot_with_a_hole_is_listed_again_after_a_second() -> None:
    stream = ListedStream()
    stream.listings = [OPEN_OF_A[1:], OPEN_OF_A[:2], OPEN_OF_A]

    async def scenario() -> tuple[SyncResult, float]:
        result = await _sync(MemoryTable(), stream).bootstrap(EMPTY)
        return result, asyncio.get_running_loop().time()

    result, seconds = run_virtual(scenario())

    assert (result.status, len(result.created), seconds) == (SyncStatus.DONE, 4, 2.0)


@pytest.mark.parametrize("initial", [FROM_LATEST, FROM_HORIZON, FROM_TIMESTAMP])
def test_a_snapshot_at_the_instant_of_a_reshard_begins_with_the_parents(initial: InitialPosition) -> None:
    table, stream = MemoryTable(), ListedStream(GRAPH_S)

    result = run_virtual(_sync(table, stream, initial).bootstrap(EMPTY))

    assert (result.status, numbers(result.created), len(stream.calls)) == (SyncStatus.DONE, {0, 3}, 1)


def test_a_snapshot_that_keeps_its_hole_creates_nothing() -> None:
    table, stream = MemoryTable(), ListedStream(OPEN_OF_A[1:])

    result = run_virtual(_sync(table, stream).bootstrap(EMPTY))

    assert result.status is SyncStatus.INCONSISTENT_LISTING
    assert "hash keys" in result.sentence
    assert (len(stream.calls), table.writes) == (3, [])


def test_a_listing_that_straddles_a_reshard_is_repeated() -> None:
    straddling = tuple(replace(s, ending_sequence=None) if s.shard_id == sid(0) else s for s in GRAPH_S)
    stream = ListedStream(GRAPH_S)
    stream.listings = [straddling, GRAPH_S]

    repeated = run_virtual(_sync(MemoryTable(), stream).sync(seen([row(3)])))
    refused = run_virtual(_sync(MemoryTable(), ListedStream(straddling)).sync(seen([row(3)])))
    accepted = run_virtual(_sync(MemoryTable(), ListedStream(straddling), ignore=True).sync(seen([row(3)])))

    assert numbers(repeated.created) == {1, 2}
    assert refused.status is SyncStatus.INCONSISTENT_LISTING
    assert "ignoreUnexpectedChildShards" in refused.sentence
    assert numbers(accepted.created) == {0}


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (StreamInUseError("CREATING"), SyncStatus.STREAM_NOT_READY),
        (StreamNotFoundError("no such stream"), SyncStatus.STREAM_MISSING),
    ],
)
def test_a_stream_that_cannot_be_listed_is_a_result_with_a_sentence(answer: Exception, status: SyncStatus) -> None:
    for rows in ([], [row(3)]):
        table, stream = MemoryTable(rows), ListedStream(GRAPH_S)
        stream.answers = [answer]
        result = run_virtual(_sync(table, stream).bootstrap(seen(rows)))
        assert (result.status, bool(result.sentence), table.writes) == (status, True, [])


def test_an_empty_listing_creates_nothing() -> None:
    for rows in ([], [row(3)]):
        result = run_virtual(_sync(MemoryTable(rows), ListedStream()).bootstrap(seen(rows)))
        assert result.status is SyncStatus.NO_SHARDS


def test_nothing_is_created_in_the_table_of_another_stream() -> None:
    # The stream was recreated: shard 0 now begins after the checkpoint that its old row holds.
    table, result = _synced([row(0, 5), row(3)], GRAPH_S)

    assert result.status is SyncStatus.FOREIGN_TABLE
    assert "applicationName" in result.sentence
    assert table.writes == []


def test_a_sync_that_breaks_off_is_finished_by_the_next_one() -> None:
    table = MemoryTable([row(2), row(6)])
    table.fail = lambda operation, key: (
        TableUnavailableError("down") if (operation, key) == ("create", sid(4)) else None
    )
    with pytest.raises(TableUnavailableError):
        run_virtual(_sync(table, ListedStream(GRAPH_A), FROM_HORIZON).sync(seen(table.rows.values())))
    assert numbers(table.rows.values()) == {2, 3, 6}

    table.fail = lambda operation, key: None
    run_virtual(_sync(table, ListedStream(GRAPH_A), FROM_HORIZON).sync(seen(table.rows.values())))

    assert numbers(table.rows.values()) == {2, 3, 4, 5, 6}


def test_a_child_row_that_the_scan_missed_does_not_bring_its_parent_back() -> None:
    # The scan passed the children's place before they were created, and the parent's after it was cleaned up.
    table = MemoryTable([row(1, 25), row(2, 25), row(3)])

    result = run_virtual(_sync(table, ListedStream(GRAPH_S), FROM_HORIZON).sync(seen([row(3)])))

    assert (result.status, result.created) == (SyncStatus.DONE, ())


def test_a_child_is_not_recreated_once_its_parent_row_is_gone() -> None:
    # Scanned: parent 0 complete, closed child 4 without a row. By now 4 was processed and cleaned up, and so was 0.
    shards = tuple(s for s in GRAPH_A)
    scanned = [done(0), done(1), *(row(n) for n in (2, 3, 4, 5))]
    table = MemoryTable(lease for lease in scanned if lease.key not in (sid(0), sid(1)))

    result = run_virtual(_sync(table, ListedStream(shards), FROM_HORIZON).sync(seen(scanned)))

    assert (result.created, result.postponed) == ((), (sid(6),))


# --- the snapshot of a timestamp --------------------------------------------------------------------------------------

AT_150 = tuple(s for s in GRAPH_A if s.shard_id in {sid(4), sid(5), sid(6), sid(7)})


class SnapshotStream(ListedStream):
    """Answers a filtered listing with `snapshot`."""

    snapshot: tuple[Shard, ...] = AT_150

    async def list_shards(self, shard_filter: ShardFilter | None, next_token: str | None) -> ShardsPage:
        page = await super().list_shards(shard_filter, next_token)
        return page if shard_filter is None else ShardsPage(self.snapshot)


def test_an_interrupted_snapshot_of_a_timestamp_is_finished_as_a_snapshot() -> None:
    # Java goes back to the roots 0 to 3, and with them delivers what is older than the timestamp.
    table, stream = MemoryTable([row(4, AT_TIMESTAMP), row(5, AT_TIMESTAMP)]), SnapshotStream(GRAPH_A)

    result = run_virtual(_sync(table, stream, FROM_TIMESTAMP).sync(seen(table.rows.values())))

    assert [(lease.key, lease.checkpoint) for lease in result.created] == [
        (sid(6), AT_TIMESTAMP),
        (sid(7), AT_TIMESTAMP),
    ]
    assert [shard_filter for shard_filter, _ in stream.calls] == [
        None,
        ShardFilter(ShardFilterType.AT_TIMESTAMP, 150.0),
    ]


def test_a_snapshot_that_cannot_be_had_means_reading_more_not_less() -> None:
    stream = SnapshotStream(GRAPH_A)
    stream.snapshot = AT_150[1:]
    table = MemoryTable([row(4, AT_TIMESTAMP), row(5, AT_TIMESTAMP)])

    result = run_virtual(_sync(table, stream, FROM_TIMESTAMP).sync(seen(table.rows.values())))

    assert (result.status, numbers(result.created)) == (SyncStatus.DONE, {0, 1, 2, 3})


def test_the_snapshot_does_not_pass_over_rows_that_are_still_read() -> None:
    # 0 is being read, and 6 is made at its end; but not before the other parent of the merge, 1, has a row too.
    rows = [row(0, AT_TIMESTAMP), row(2, AT_TIMESTAMP), row(4, AT_TIMESTAMP), row(5, AT_TIMESTAMP)]
    table, stream = MemoryTable(rows), SnapshotStream(GRAPH_A)

    result = run_virtual(_sync(table, stream, FROM_TIMESTAMP).sync(seen(rows)))

    assert numbers(result.created) == {1, 3}


# --- absence is proven, not assumed -----------------------------------------------------------------------------------


def test_a_closed_shard_whose_row_the_scan_missed_still_makes_its_children_itself() -> None:
    # The scan passed shard 6 before its row was made, and shards 0 and 1 after they were cleaned up. Shard 8 at LATEST
    # would skip what 6 is being read for.
    scanned = [row(4, 25), row(9, 250), row(10, 250)]
    table = MemoryTable([*scanned, row(6, 110, (0, 1)), row(7, 110, (2, 3))])

    result = run_virtual(_sync(table, ListedStream(GRAPH_A)).sync(seen(scanned)))

    assert (result.status, result.created) == (SyncStatus.DONE, ())


def test_rows_are_looked_for_from_old_to_young() -> None:
    table = MemoryTable([row(4, 25), row(9, 250), row(10, 250)])

    run_virtual(_sync(table, ListedStream(GRAPH_A)).sync(seen(table.rows.values())))

    assert table.reads == [sid(n) for n in (0, 1, 2, 3, 6, 7, 8)]
