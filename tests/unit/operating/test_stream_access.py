"""Reading a shard without a lease: where it begins, at which pace, and what it does about errors."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from mld.core.errors import IteratorExpiredError, StreamThrottledError, StreamUnavailableError
from mld.core.positions import AT_TIMESTAMP, LATEST, SHARD_END, SUB_MAX, TRIM_HORIZON, InitialPosition, Position
from mld.core.streams import IteratorType, StartingPoint
from mld.leases.lease import Lease
from mld.operating.points import LATEST_POINT, TRIM_HORIZON_POINT, Point, PointKind
from mld.operating.short_ids import shard_id_of
from mld.operating.stream_access import (
    BACKOFF_FIRST_S,
    FAILURES_MAX,
    READ_INTERVAL_S,
    SpanError,
    SpanReader,
    SpanStart,
    span_start,
)
from tests.twins.streams import MemoryStreams
from tests.virtual_time import virtual

INITIAL = InitialPosition(TRIM_HORIZON)
HORIZON = StartingPoint(IteratorType.TRIM_HORIZON)


def test_a_number_stands_for_a_shard() -> None:
    assert shard_id_of("3") == "shardId-000000000003"
    assert shard_id_of("shardId-000000000003") == "shardId-000000000003"
    assert shard_id_of("²") == "²"


@pytest.mark.parametrize(
    ("point", "start"),
    [
        (TRIM_HORIZON_POINT, SpanStart(HORIZON, TRIM_HORIZON, TRIM_HORIZON)),
        (LATEST_POINT, SpanStart(StartingPoint(IteratorType.LATEST), TRIM_HORIZON, LATEST)),
        (
            Point(PointKind.TIME, 5.0),
            SpanStart(StartingPoint(IteratorType.AT_TIMESTAMP, timestamp_s=5.0), TRIM_HORIZON, AT_TIMESTAMP),
        ),
        (
            Point(PointKind.SEQUENCE, position=Position("7")),
            SpanStart(
                StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence="7"), Position("6", SUB_MAX), Position("7")
            ),
        ),
        (
            Point(PointKind.SEQUENCE, position=Position("7", 3)),
            SpanStart(StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence="7"), Position("7", 2), Position("7", 3)),
        ),
        (
            Point(PointKind.CHECKPOINT),
            SpanStart(StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence="9"), Position("9", 1), Position("9", 1)),
        ),
    ],
)
def test_a_place_names_the_first_record_that_is_wanted(point: Point, start: SpanStart) -> None:
    assert span_start(point, "s", Lease("s", Position("9", 1)), INITIAL) == start


@pytest.mark.parametrize(("lease", "words"), [(None, "has no row"), (Lease("s", SHARD_END), "is SHARD_END")])
def test_a_checkpoint_that_is_none_is_refused(lease: Lease | None, words: str) -> None:
    with pytest.raises(SpanError, match=words):
        span_start(Point(PointKind.CHECKPOINT), "s", lease, INITIAL)


def reader_of(streams: MemoryStreams) -> SpanReader:
    return SpanReader(streams, streams.clock, "shard-0", HORIZON)


@virtual
async def test_reads_leave_half_of_the_shard_to_its_consumers() -> None:
    streams = MemoryStreams()
    streams.put(10)
    reader = reader_of(streams)
    got = [(await reader.page(2)).count for _ in range(5)]
    assert got == [2, 2, 2, 2, 2]
    assert all(later - earlier >= READ_INTERVAL_S - 1e-9 for earlier, later in pairwise(streams.times("GetRecords")))


@virtual
async def test_after_an_error_it_goes_on_behind_the_last_record() -> None:
    streams = MemoryStreams()
    sequences = streams.put(4)
    reader = reader_of(streams)
    assert (await reader.page(2)).last_sequence == sequences[1]
    streams.fail("GetRecords", IteratorExpiredError("old"), *[StreamUnavailableError("no")] * (FAILURES_MAX - 1))
    assert (await reader.page(2)).first_sequence == sequences[2]
    assert StartingPoint(IteratorType.AFTER_SEQUENCE_NUMBER, sequence=sequences[1]) in streams.points()


@virtual
async def test_an_outage_that_lasts_ends_it() -> None:
    streams = MemoryStreams()
    streams.fail("GetRecords", *[StreamUnavailableError("no")] * FAILURES_MAX)
    with pytest.raises(StreamUnavailableError):
        await reader_of(streams).page(1)


@virtual
async def test_throttling_makes_it_wait_longer_and_longer_and_never_gives_up() -> None:
    streams = MemoryStreams()
    streams.put(1)
    streams.fail("GetRecords", *[StreamThrottledError("slow")] * 6)
    started = asyncio.get_running_loop().time()
    assert (await reader_of(streams).page(1)).count == 1
    assert asyncio.get_running_loop().time() - started >= BACKOFF_FIRST_S * (1 + 2 + 4 + 8)


@virtual
async def test_a_shard_that_is_not_there_is_said_with_the_remedy() -> None:
    streams = MemoryStreams("other")
    with pytest.raises(SpanError, match="mld leases"):
        await reader_of(streams).page(1)


@virtual
async def test_the_end_of_a_shard_is_the_end() -> None:
    streams = MemoryStreams()
    streams.put(1)
    streams.close("child-1", "child-2")
    reader = reader_of(streams)
    assert (await reader.page(10)).count == 1
    assert reader.is_over
