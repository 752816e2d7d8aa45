"""Shard sync as a shell: which listing, how often, what it refuses, and that it can break off anywhere."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from mld.errors import StreamInUseError, StreamNotFoundError, TableUnavailableError
from mld.leases.lease import Lease
from mld.leases.table import TableScan
from mld.positions import LATEST, TRIM_HORIZON, InitialPosition
from mld.shards.detector import ShardDetector
from mld.shards.sync import ShardSync, SyncResult, SyncStatus, bootstrap_filter
from mld.streams import Shard, ShardFilter, ShardFilterType
from tests.unit.shards.twins import (
    FROM_HORIZON,
    FROM_LATEST,
    FROM_TIMESTAMP,
    GRAPH_A,
    GRAPH_S,
    ListedStream,
    MemoryTable,
    VirtualClock,
    done,
    numbers,
    row,
    sid,
)
from tests.virtual_time import run_virtual

OPEN_OF_A = tuple(s for s in GRAPH_A if s.is_open)
EMPTY = TableScan(())


def _sync(
    table: MemoryTable, stream: ListedStream, initial: InitialPosition = FROM_LATEST, *, ignore: bool = False
) -> ShardSync:
    detector = ShardDetector(stream, VirtualClock(), random.Random(7))
    return ShardSync(table, detector, VirtualClock(), initial=initial, ignore_unexpected_children=ignore)


def _synced(
    rows: Iterable[Lease], shards: Iterable[Shard], initial: InitialPosition = FROM_LATEST
) -> tuple[MemoryTable, SyncResult]:
    table = MemoryTable(rows)
    return table, run_virtual(_sync(table, ListedStream(shards), initial).sync(tuple(table.rows.values())))


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
    assert bootstrap_filter(initial) == shard_filter
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


def test_a_second_sync_creates_nothing() -> None:
    table, first = _synced([row(4)], GRAPH_A)
    again = run_virtual(_sync(table, ListedStream(GRAPH_A)).sync(tuple(table.rows.values())))

    assert numbers(first.created) == {8, 9, 10}
    assert again == SyncResult(SyncStatus.DONE, shards=GRAPH_A)


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

    repeated = run_virtual(_sync(MemoryTable(), stream).sync([row(3)]))
    refused = run_virtual(_sync(MemoryTable(), ListedStream(straddling)).sync([row(3)]))
    accepted = run_virtual(_sync(MemoryTable(), ListedStream(straddling), ignore=True).sync([row(3)]))

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
        result = run_virtual(_sync(table, stream).bootstrap(TableScan(tuple(rows))))
        assert (result.status, bool(result.sentence), table.writes) == (status, True, [])


def test_an_empty_listing_creates_nothing() -> None:
    for rows in ([], [row(3)]):
        result = run_virtual(_sync(MemoryTable(rows), ListedStream()).bootstrap(TableScan(tuple(rows))))
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
        run_virtual(_sync(table, ListedStream(GRAPH_A), FROM_HORIZON).sync(tuple(table.rows.values())))
    assert numbers(table.rows.values()) == {2, 3, 6}

    table.fail = lambda operation, key: None
    run_virtual(_sync(table, ListedStream(GRAPH_A), FROM_HORIZON).sync(tuple(table.rows.values())))

    assert numbers(table.rows.values()) == {2, 3, 4, 5, 6}


def test_a_child_row_that_the_scan_missed_does_not_bring_its_parent_back() -> None:
    # The scan passed the children's place before they were created, and the parent's after it was cleaned up.
    table = MemoryTable([row(1, 25), row(2, 25), row(3)])

    result = run_virtual(_sync(table, ListedStream(GRAPH_S), FROM_HORIZON).sync([row(3)]))

    assert (result.status, result.created) == (SyncStatus.DONE, ())


def test_a_child_is_not_recreated_once_its_parent_row_is_gone() -> None:
    # Scanned: parent 0 complete, closed child 4 without a row. By now 4 was processed and cleaned up, and so was 0.
    shards = tuple(s for s in GRAPH_A)
    scanned = [done(0), done(1), *(row(n) for n in (2, 3, 4, 5))]
    table = MemoryTable(lease for lease in scanned if lease.key not in (sid(0), sid(1)))

    result = run_virtual(_sync(table, ListedStream(shards), FROM_HORIZON).sync(scanned))

    assert (result.created, result.postponed) == ((), (sid(6),))


def test_children_of_a_completed_parent_get_their_rows_back() -> None:
    _, result = _synced([done(0), row(3)], GRAPH_S)

    assert [(lease.key, lease.checkpoint) for lease in result.created] == [
        (sid(1), TRIM_HORIZON),
        (sid(2), TRIM_HORIZON),
    ]
    assert LATEST not in {lease.checkpoint for lease in result.created}
