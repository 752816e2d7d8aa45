"""Rules: retrieval#reader-promises, retrieval#polling-errors and retrieval#prefetch-limits, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from mld.core import errors
from mld.core.positions import AT_TIMESTAMP, LATEST, TRIM_HORIZON, InitialPosition, Position
from mld.core.streams import IteratorType, StartingPoint
from mld.retrieval.answer_verdicts import ENDS_WITHOUT_CHILDREN_MAX
from mld.retrieval.pacing import CALL_INTERVAL_MIN_S, Pacing
from mld.retrieval.polling import CALL_TIMEOUT_S, PollingReader
from mld.retrieval.prefetch import BYTES_MAX, Budget
from mld.retrieval.rawpage import RawPage
from mld.retrieval.reader import EndOfShard, ReaderShares, ShardMissing
from mld.retrieval.starting_points import FIRST_STEP_BACK_S, LATEST_MARGIN_S
from tests.support.readers import at, bodies_of, live, read, sequences
from tests.twins.streams import WALL_EPOCH_S, HangError, MemoryStreams

INITIAL = InitialPosition(TRIM_HORIZON)
IDLE_S = 1.5
HORIZON_POINT = StartingPoint(IteratorType.TRIM_HORIZON)


def reader_of(streams: MemoryStreams, *, max_records: int | None = 100, **options: Any) -> PollingReader:
    shares = ReaderShares(streams.clock, Random(1), options.pop("budget", Budget(10**9)))
    options = {"intervals": Pacing(IDLE_S), **options}
    return PollingReader(streams, shares, shard_id="shard-0", max_records=max_records, **options)


def reading(
    body: Callable[[MemoryStreams, PollingReader], Awaitable[None]],
    streams: MemoryStreams | None = None,
    **options: Any,
) -> MemoryStreams:
    """Run `body` with a new reader, stop the reader, and see to it that nothing is left running."""
    streams = streams or MemoryStreams()

    live(lambda: reader_of(streams, **options), lambda reader: body(streams, reader))
    return streams


with_reader = bodies_of(reading, "streams", "reader")


async def until_end(reader: PollingReader) -> tuple[list[str], EndOfShard]:
    got: list[str] = []
    while not isinstance(delivery := await reader.next(), EndOfShard):
        got += sequences(delivery)
    return got, delivery


def at_wall(seconds_after_epoch: float) -> StartingPoint:
    return StartingPoint(IteratorType.AT_TIMESTAMP, timestamp_s=WALL_EPOCH_S + seconds_after_epoch)


# --- starting ---------------------------------------------------------------------------------------------------------


@with_reader()
async def test_a_failed_start_raises_and_can_be_repeated(streams: MemoryStreams, reader: PollingReader) -> None:
    streams.fail("GetShardIterator", errors.StreamThrottledError("scripted"))
    with pytest.raises(errors.StreamThrottledError):
        await reader.start(TRIM_HORIZON, INITIAL)
    written = streams.put()
    await reader.start(TRIM_HORIZON, INITIAL)
    assert await read(reader, 1) == written


@with_reader()
async def test_a_hung_start_is_an_unavailable_stream(streams: MemoryStreams, reader: PollingReader) -> None:
    streams.fail("GetShardIterator", HangError())
    with pytest.raises(errors.StreamUnavailableError, match="GetShardIterator of shard shard-0: no answer"):
        await reader.start(TRIM_HORIZON, INITIAL)
    assert streams.clock.monotonic() == CALL_TIMEOUT_S


def test_a_checkpoint_whose_record_was_trimmed_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def body(streams: MemoryStreams, reader: PollingReader) -> None:
        written = streams.put(3)
        await reader.start(Position(str(int(written[0]) - 1)), INITIAL)
        assert await read(reader, 3) == written
        later = streams.put(2)
        assert await read(reader, 2) == later

    reading(body)

    told = [record for record in caplog.records if record.__dict__.get("action") == "checkpoint_trimmed"]
    assert len(told) == 1
    assert told[0].levelno == logging.ERROR
    assert "shard shard-0 has lost whatever came after record" in told[0].message


@pytest.mark.parametrize("checkpoint", [TRIM_HORIZON, LATEST, None])
def test_a_reader_that_finds_its_place_tells_nothing(
    checkpoint: Position | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(streams: MemoryStreams, reader: PollingReader) -> None:
        written = streams.put(3)
        await reader.start(checkpoint or Position(written[0], 7), INITIAL)
        later = streams.put(2)
        assert (await read(reader, 2 if checkpoint == LATEST else 5))[-2:] == later

    reading(body)

    assert caplog.records == []


def test_at_timestamp_without_a_time_warns_and_reads_everything(caplog: pytest.LogCaptureFixture) -> None:
    async def body(streams: MemoryStreams, reader: PollingReader) -> None:
        written = streams.put(2)
        await reader.start(AT_TIMESTAMP, InitialPosition(LATEST))
        assert await read(reader, 2) == written

    reading(body)
    assert [r.levelno for r in caplog.records] == [logging.WARNING]


# --- pacing -----------------------------------------------------------------------------------------------------------


@with_reader()
async def test_at_the_tip_calls_keep_the_idle_interval(streams: MemoryStreams, reader: PollingReader) -> None:
    await reader.start(TRIM_HORIZON, INITIAL)
    for _ in range(3):
        assert sequences(await reader.next()) == []
    assert streams.times("GetRecords") == pytest.approx([0.0, IDLE_S, 2 * IDLE_S])


@with_reader(max_records=10)
async def test_behind_the_tip_calls_come_five_a_second(streams: MemoryStreams, reader: PollingReader) -> None:
    streams.put(40)
    await reader.start(TRIM_HORIZON, INITIAL)
    await read(reader, 40)
    times = streams.times("GetRecords")
    assert times == pytest.approx([n * CALL_INTERVAL_MIN_S for n in range(4)])


@with_reader()
async def test_nothing_is_fetched_after_the_end_of_the_shard(streams: MemoryStreams, reader: PollingReader) -> None:
    streams.put(1)
    streams.close("child")
    await reader.start(TRIM_HORIZON, INITIAL)
    await until_end(reader)
    await asyncio.sleep(600)
    assert len(streams.times("GetRecords")) == 1


# --- the buffer -------------------------------------------------------------------------------------------------------


@with_reader(max_records=10)
async def test_a_full_buffer_stops_fetching_until_the_consumer_takes_a_page(
    streams: MemoryStreams, reader: PollingReader
) -> None:
    written = streams.put(100)
    await reader.start(TRIM_HORIZON, INITIAL)
    await asyncio.sleep(60)
    assert len(streams.times("GetRecords")) == 4
    assert sequences(await reader.next()) == written[:10]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert streams.times("GetRecords")[4:] == [60.0]


@with_reader(max_records=1)
async def test_one_page_over_the_byte_limit_fills_the_buffer(streams: MemoryStreams, reader: PollingReader) -> None:
    streams.put(4, data=bytes(BYTES_MAX * 6 // 10))
    await reader.start(TRIM_HORIZON, INITIAL)
    await asyncio.sleep(60)
    assert len(streams.times("GetRecords")) == 2


@with_reader(max_records=10)
async def test_an_old_iterator_is_replaced_after_a_long_pause(streams: MemoryStreams, reader: PollingReader) -> None:
    written = streams.put(60)
    await reader.start(TRIM_HORIZON, INITIAL)
    await asyncio.sleep(280)
    assert await read(reader, 60) == written
    assert streams.points()[1].type is IteratorType.AT_SEQUENCE_NUMBER


@with_reader()
async def test_an_iterator_in_steady_use_is_never_replaced(streams: MemoryStreams, reader: PollingReader) -> None:
    await reader.start(TRIM_HORIZON, INITIAL)
    while streams.clock.monotonic() < 1000:
        await reader.next()
    assert streams.points() == [HORIZON_POINT]


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        errors.StreamThrottledError("scripted"),
        errors.StreamUnavailableError("scripted"),
        errors.StreamInUseError("scripted"),
        errors.InvalidStreamResponseError("scripted"),
        HangError(),
    ],
)
@with_reader(max_records=10)
async def test_the_same_iterator_is_tried_again_after(
    streams: MemoryStreams, reader: PollingReader, error: Exception
) -> None:
    streams.fail("GetRecords", None, error, error)
    written = streams.put(20)
    await reader.start(TRIM_HORIZON, INITIAL)
    assert await read(reader, 20) == written
    assert streams.points() == [HORIZON_POINT]


@pytest.mark.parametrize(
    "error", [errors.IteratorExpiredError("scripted"), errors.InvalidStreamArgumentError("scripted")]
)
@with_reader(max_records=10)
async def test_a_new_iterator_at_the_last_record_follows(
    streams: MemoryStreams, reader: PollingReader, error: Exception
) -> None:
    streams.fail("GetRecords", None, error)
    written = streams.put(20)
    await reader.start(TRIM_HORIZON, INITIAL)
    assert await read(reader, 20) == written
    assert streams.points() == [HORIZON_POINT, at(written[9])]


@with_reader()
async def test_an_iterator_lost_before_the_first_record_is_taken_at_the_checkpoint_again(
    streams: MemoryStreams, reader: PollingReader
) -> None:
    written = streams.put(3)
    streams.fail("GetRecords", errors.IteratorExpiredError("scripted"))
    await reader.start(Position(written[0], 1), INITIAL)
    assert await read(reader, 3) == written
    assert {p.type for p in streams.points()} == {IteratorType.AT_SEQUENCE_NUMBER}


@with_reader()
async def test_throttling_backs_off_exponentially_until_an_answer_comes(
    streams: MemoryStreams, reader: PollingReader
) -> None:
    streams.fail("GetRecords", *[errors.StreamThrottledError("scripted")] * 8)
    await reader.start(TRIM_HORIZON, INITIAL)
    await reader.next()
    await reader.next()
    *gaps, last = [late - early for early, late in pairwise(streams.times("GetRecords"))]
    for gap, longest in zip(gaps, [1, 2, 4, 8, 10, 10, 10, 10], strict=True):
        assert longest / 2 <= gap <= longest
    assert last == pytest.approx(IDLE_S)


def test_each_kind_of_error_in_a_streak_is_logged_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def body(streams: MemoryStreams, reader: PollingReader) -> None:
        streams.fail("GetRecords", *[errors.StreamUnavailableError("no route")] * 5, errors.StreamThrottledError("b"))
        await reader.start(TRIM_HORIZON, INITIAL)
        await reader.next()

    reading(body)
    assert [r.levelname for r in caplog.records] == ["WARNING", "WARNING", "INFO"]
    assert "no route" in caplog.text


def test_a_bug_in_the_fetch_task_reaches_the_consumer(caplog: pytest.LogCaptureFixture) -> None:
    async def body(streams: MemoryStreams, reader: PollingReader) -> None:
        streams.fail("GetRecords", None, AssertionError())
        streams.put(1)
        await reader.start(TRIM_HORIZON, INITIAL)
        await read(reader, 1)
        with pytest.raises(AssertionError):
            await reader.next()

    reading(body)
    assert "shard-0" in caplog.text


def test_an_unexpected_exception_is_waited_out_like_any_error(caplog: pytest.LogCaptureFixture) -> None:
    async def body(streams: MemoryStreams, reader: PollingReader) -> None:
        streams.fail("GetRecords", MemoryError(), None, OSError(9, "Bad file descriptor"))
        written = streams.put(3)
        await reader.start(TRIM_HORIZON, INITIAL)
        assert await read(reader, 3) == written

    reading(body)
    assert "unexpected, while asking for GetRecords: MemoryError" in caplog.text


# --- the end ----------------------------------------------------------------------------------------------------------


@with_reader()
async def test_the_end_without_records_brings_no_page(streams: MemoryStreams, reader: PollingReader) -> None:
    children = streams.close("child")
    await reader.start(LATEST, INITIAL)
    assert await reader.next() == EndOfShard(children)


@with_reader(max_records=10)
async def test_an_end_that_never_names_children_is_delivered_without_them(
    streams: MemoryStreams, reader: PollingReader
) -> None:
    written = streams.put(15)
    streams.close()
    await reader.start(TRIM_HORIZON, INITIAL)
    assert await until_end(reader) == (written, EndOfShard(()))
    assert len(streams.times("GetRecords")) == 1 + ENDS_WITHOUT_CHILDREN_MAX


@with_reader(max_records=10)
async def test_a_valid_answer_starts_the_count_of_bad_ends_anew(streams: MemoryStreams, reader: PollingReader) -> None:
    def bad_end(page: RawPage) -> RawPage:
        return replace(page, next_iterator=None)

    streams.bend(*[bad_end] * (ENDS_WITHOUT_CHILDREN_MAX - 1), None, *[bad_end] * (ENDS_WITHOUT_CHILDREN_MAX - 1))
    written = streams.put(30)
    await reader.start(TRIM_HORIZON, INITIAL)
    assert await read(reader, 30) == written


# --- a missing shard --------------------------------------------------------------------------------------------------


@with_reader(max_records=10)
async def test_not_found_is_reported_and_reading_goes_on_when_asked_again(
    streams: MemoryStreams, reader: PollingReader
) -> None:
    streams.fail("GetRecords", None, errors.StreamNotFoundError("scripted"))
    written = streams.put(20)
    await reader.start(TRIM_HORIZON, INITIAL)
    assert sequences(await reader.next()) == written[:10]
    assert await reader.next() == ShardMissing()
    await asyncio.sleep(60)
    assert len(streams.times("GetRecords")) == 2
    assert await read(reader, 11) == written[9:], "the last record is read again"
    assert streams.points()[1:] == [at(written[9])]


@with_reader()
async def test_not_found_at_the_start_is_reported_by_the_first_delivery(
    streams: MemoryStreams, reader: PollingReader
) -> None:
    streams.fail("GetShardIterator", errors.StreamNotFoundError("scripted"))
    written = streams.put()
    await reader.start(TRIM_HORIZON, INITIAL)
    assert await reader.next() == ShardMissing()
    assert await read(reader, 1) == written


@with_reader()
async def test_a_shard_that_stays_missing_never_ends(streams: MemoryStreams, reader: PollingReader) -> None:
    await reader.start(TRIM_HORIZON, INITIAL)
    streams.shards.clear()
    assert [await reader.next() for _ in range(20)] == [ShardMissing()] * 20
    await asyncio.sleep(600)
    assert len(streams.calls) == 1 + 20


# --- LATEST -----------------------------------------------------------------------------------------------------------


@with_reader()
async def test_the_reader_after_a_crash_continues_from_the_first_start_at_latest(
    streams: MemoryStreams, reader: PollingReader
) -> None:
    streams.put(5)
    await asyncio.sleep(LATEST_MARGIN_S + 1)
    await reader.start(LATEST, INITIAL)
    written = streams.put(2)
    assert await read(reader, 2) == written
    await reader.stop()
    written += streams.put(2)
    second = reader_of(streams)
    await second.start(LATEST, INITIAL, anchor=reader.read.anchor_s)
    assert await read(second, 4) == written
    assert second.read.anchor_s == reader.read.anchor_s
    await second.stop()


@pytest.mark.parametrize("refusals", [1, 3])
@with_reader()
async def test_a_reader_whose_anchor_lies_in_the_future_of_kinesis_reads_from_an_earlier_time(
    streams: MemoryStreams, reader: PollingReader, refusals: int
) -> None:
    streams.fail("GetShardIterator", *[errors.InvalidStreamArgumentError("in the future")] * refusals)
    await reader.start(LATEST, INITIAL, anchor=at_wall(0.0).timestamp_s)
    written = streams.put(3)
    assert await read(reader, 3) == written
    steps_s = [FIRST_STEP_BACK_S * (2**number - 1) for number in range(refusals + 1)]
    assert streams.points() == [at_wall(-step_s) for step_s in steps_s]


def test_a_time_that_was_configured_stays_refused() -> None:
    async def body(streams: MemoryStreams, reader: PollingReader) -> None:
        streams.fail("GetShardIterator", errors.InvalidStreamArgumentError("in the future"))
        with pytest.raises(errors.InvalidStreamArgumentError):
            await reader.start(AT_TIMESTAMP, InitialPosition(AT_TIMESTAMP, 1.0))

    reading(body)


def test_a_reader_not_started_has_no_anchor() -> None:
    assert reader_of(MemoryStreams()).read is None


# --- stopping ---------------------------------------------------------------------------------------------------------


@with_reader()
async def test_stop_is_possible_at_any_time_and_again(streams: MemoryStreams, reader: PollingReader) -> None:
    streams.fail("GetRecords", HangError())
    await reader.start(TRIM_HORIZON, INITIAL)
    await asyncio.sleep(1)
    await reader.stop()
    await reader.stop()
    assert streams.clock.monotonic() == 1


@with_reader()
async def test_a_waiting_consumer_learns_that_the_reader_was_stopped(
    streams: MemoryStreams, reader: PollingReader
) -> None:
    await reader.start(TRIM_HORIZON, INITIAL)
    await reader.next()
    waiting = asyncio.create_task(reader.next())
    await asyncio.sleep(0.1)
    await reader.stop()
    with pytest.raises(RuntimeError, match="stopped"):
        await waiting


@with_reader()
async def test_a_cancelled_wait_loses_nothing(streams: MemoryStreams, reader: PollingReader) -> None:
    await reader.start(TRIM_HORIZON, INITIAL)
    await reader.next()
    waiting = asyncio.create_task(reader.next())
    await asyncio.sleep(0.1)
    waiting.cancel()
    written = streams.put(3)
    await asyncio.wait([waiting])
    assert await read(reader, 3) == written


@with_reader()
async def test_nothing_can_be_asked_after_the_end(streams: MemoryStreams, reader: PollingReader) -> None:
    streams.close("child")
    await reader.start(TRIM_HORIZON, INITIAL)
    await reader.next()
    with pytest.raises(AssertionError):
        await reader.next()


# --- the budget, and pages that nobody needs --------------------------------------------------------------------------


@with_reader(deliver_empty=False)
async def test_empty_pages_are_kept_from_a_consumer_who_has_no_use_for_them(
    streams: MemoryStreams, reader: PollingReader
) -> None:
    await reader.start(TRIM_HORIZON, INITIAL)
    waiting = asyncio.create_task(reader.next())
    await streams.clock.sleep(10 * IDLE_S)
    assert not waiting.done()
    streams.put(1)
    assert len(sequences(await waiting)) == 1


def test_a_reader_takes_part_in_the_budget_from_start_to_stop() -> None:
    budget = Budget(1000)

    async def body(streams: MemoryStreams, reader: PollingReader) -> None:
        budget.join()
        assert budget.share == 1000
        await reader.start(TRIM_HORIZON, INITIAL)
        assert budget.share == 500
        await reader.stop()
        await asyncio.sleep(0)
        assert budget.share == 1000

    reading(body, budget=budget)
