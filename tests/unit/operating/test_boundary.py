"""Places become checkpoints: the record before, never a later one."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from mld.core.errors import InvalidStreamArgumentError, MldError, StreamThrottledError
from mld.core.positions import TRIM_HORIZON, Position
from mld.core.streams import HASH_KEY_MAX, HashRange, Shard
from mld.operating.boundaries import boundary_at_sequence, boundary_at_time
from mld.operating.stream_access import READ_INTERVAL_S
from tests.support.kpl import User, aggregate
from tests.twins.streams import FIRST_SEQUENCE, MemoryStreams
from tests.virtual_time import virtual

SHARD = Shard("shard-0", HashRange(0, HASH_KEY_MAX), str(FIRST_SEQUENCE))


async def written(streams: MemoryStreams, *pauses_s: float) -> list[str]:
    """One record after each pause; their numbers."""
    numbers = []
    for pause_s in pauses_s:
        await asyncio.sleep(pause_s)
        numbers += streams.put()
    return numbers


async def at_time(streams: MemoryStreams, time_s: float) -> Position:
    return await boundary_at_time(streams, streams.clock, "shard-0", time_s)


@virtual
async def test_it_is_the_last_record_before_the_time() -> None:
    streams = MemoryStreams()
    numbers = await written(streams, 5, 5, 0.5, 5)
    arrived = streams.shards["shard-0"].records[2].approximate_arrival_ms / 1000

    assert await at_time(streams, arrived) == Position(numbers[1])
    assert await at_time(streams, arrived + 0.001) == Position(numbers[2])


@virtual
async def test_a_place_before_all_that_is_kept_is_the_trim_horizon() -> None:
    streams = MemoryStreams()
    await written(streams, 5, 5)
    assert await at_time(streams, streams.clock.wall() - 10_000) == TRIM_HORIZON


@virtual
async def test_the_record_before_may_be_weeks_older() -> None:
    streams = MemoryStreams()
    numbers = await written(streams, 1, 30 * 86_400)
    assert await at_time(streams, streams.clock.wall() - 60) == Position(numbers[0])


@virtual
async def test_without_records_since_then_it_is_the_last_one_and_not_latest() -> None:
    streams = MemoryStreams()
    numbers = await written(streams, 1, 1)
    await asyncio.sleep(100)
    assert await at_time(streams, streams.clock.wall() - 10) == Position(numbers[-1])


@virtual
async def test_an_empty_shard_is_read_from_its_beginning() -> None:
    streams = MemoryStreams()
    assert await at_time(streams, streams.clock.wall() - 10) == TRIM_HORIZON


@virtual
async def test_records_that_come_while_it_looks_are_not_before_now() -> None:
    streams = MemoryStreams(latency_s=0.2)
    numbers = await written(streams, 1)
    await asyncio.sleep(100)
    place_s = streams.clock.wall()
    looking = asyncio.create_task(at_time(streams, place_s))
    await asyncio.sleep(0.5)
    streams.put(3)
    assert await looking == Position(numbers[0])


@virtual
async def test_the_whole_of_an_aggregate_before_the_time_was_processed() -> None:
    streams = MemoryStreams()
    users = [User("key", b"one"), User("key", b"two"), User("key", b"three")]
    (number,) = streams.put(data=aggregate(users))
    await written(streams, 10)
    assert await at_time(streams, streams.clock.wall() - 1) == Position(number, 2)


@virtual
async def test_a_closed_shard_without_later_records_is_ended_at_its_last_one() -> None:
    streams = MemoryStreams()
    numbers = await written(streams, 1, 1)
    streams.close("shard-1")
    await asyncio.sleep(100)
    assert await at_time(streams, streams.clock.wall() - 10) == Position(numbers[-1])


@virtual
async def test_it_reads_slowly_and_waits_when_throttled() -> None:
    streams = MemoryStreams()
    await written(streams, *[0.3] * 50)
    streams.fail("GetRecords", None, StreamThrottledError("slow"), StreamThrottledError("slow"))
    await at_time(streams, streams.clock.wall() - 5)
    times = streams.times("GetRecords")
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert max(gaps) >= 2.0
    assert sum(gap < READ_INTERVAL_S / 2 for gap in gaps) <= len(gaps) // 3  # each walk begins at once


@virtual
async def test_reading_begins_with_the_record_that_was_named() -> None:
    streams = MemoryStreams()
    numbers = await written(streams, 5, 5, 0, 5)

    async def before(place: Position) -> Position:
        return await boundary_at_sequence(streams, streams.clock, SHARD, place)

    assert await before(Position(numbers[2])) == Position(numbers[1])
    assert await before(Position(numbers[0])) == TRIM_HORIZON
    assert await before(Position(numbers[3], 4)) == Position(numbers[3], 3)


@virtual
async def test_a_number_without_a_record_is_refused_with_the_next_one() -> None:
    streams = MemoryStreams()
    numbers = await written(streams, 5, 5)

    async def refused(sequence: int) -> str:
        with pytest.raises(MldError) as caught:
            await boundary_at_sequence(streams, streams.clock, SHARD, Position(str(sequence)))
        return str(caught.value)

    assert f"the next one that is kept is {numbers[1]}" in await refused(int(numbers[0]) + 1)
    assert "no later one either" in await refused(int(numbers[1]) + 1)
    assert "is no sequence number of shard" in await refused(FIRST_SEQUENCE - 1)
    streams.fail("GetShardIterator", InvalidStreamArgumentError("not of this stream"))
    assert "has no such place" in await refused(int(numbers[0]))
