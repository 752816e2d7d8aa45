"""Subscriptions in virtual time: retrieval#subscription-starting-point and what follows it there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mld.core import errors
from mld.core.positions import AT_TIMESTAMP, LATEST, TRIM_HORIZON, InitialPosition, Position
from mld.core.streams import HASH_KEY_MAX, ChildShard, HashRange, IteratorType, StartingPoint
from mld.retrieval import fanout, subscriptions
from mld.retrieval.answer_verdicts import ENDS_WITHOUT_CHILDREN_MAX
from mld.retrieval.fanout import EVENTS_MAX, OPEN_TIMEOUT_S, FanOutReader
from mld.retrieval.prefetch import Budget
from mld.retrieval.reader import Delivery, EndOfShard, ReaderShares, Records, ShardMissing
from mld.retrieval.registration import RegisteredConsumer
from mld.retrieval.starting_points import LATEST_MARGIN_S
from mld.retrieval.subscriptions import CONTESTED_TAKEOVERS, CONTESTED_WITHIN_S
from tests.support.fleet import settings_of
from tests.support.pages import page_with, records_of
from tests.support.readers import after, bodies_of, live, read
from tests.twins.fanout import LIFE_S, MemoryFanOut
from tests.twins.streams import WALL_EPOCH_S, HangError, MemoryStreams

INITIAL = InitialPosition(TRIM_HORIZON)
HORIZON = StartingPoint(IteratorType.TRIM_HORIZON)
BROKEN = errors.StreamUnavailableError("scripted")
Body = Callable[[MemoryFanOut, FanOutReader], Awaitable[None]]


def reading(
    body: Body,
    *,
    streams: MemoryStreams | None = None,
    event_records: int = 10,
    arn: str | None = None,
    **options: Any,
) -> MemoryFanOut:
    """Run `body` with a new reader, stop the reader, and see to it that nothing is left running."""
    streams = streams or MemoryStreams()
    fan_out = MemoryFanOut(streams, event_records=event_records)

    def reader() -> FanOutReader:
        rng = Random(1)
        consumer = RegisteredConsumer(fan_out, streams.clock, rng, settings_of().fanout, arn=arn)
        shares = ReaderShares(streams.clock, rng, options.pop("budget", Budget(10**9)))
        return FanOutReader(fan_out, consumer, shares, shard_id="shard-0", **options)

    live(reader, lambda reader: body(fan_out, reader))
    assert all(subscription.closed for subscription in fan_out.subscriptions), "each subscription is closed"
    return fan_out


with_reader = bodies_of(reading, "fan_out", "reader")


class Filter:
    """What a consumer does: it takes only what comes after what it has had."""

    def __init__(self, reader: FanOutReader, checkpoint: Position = TRIM_HORIZON) -> None:
        self._reader = reader
        self._had = checkpoint
        self.got: list[str] = []

    async def next(self) -> Delivery:
        delivery = await self._reader.next()
        if isinstance(delivery, Records):
            batch = delivery.page.after(self._had)
            self._had = batch.largest or self._had
            self.got += [record.sequence_number for record in records_of(batch)]
        return delivery

    async def until(self, count: int) -> list[str]:
        while len(self.got) < count:
            await self.next()
        return self.got


# --- starting ---------------------------------------------------------------------------------------------------------


@with_reader()
async def test_a_start_finds_or_makes_the_consumer_and_subscribes_at_once(
    fan_out: MemoryFanOut, reader: FanOutReader
) -> None:
    written = fan_out.streams.put(25)
    await reader.start(TRIM_HORIZON, INITIAL)
    assert await read(reader, 25) == written
    assert [call.operation for call in fan_out.calls] == [
        "DescribeStreamSummary",
        "DescribeStreamConsumer",
        "RegisterStreamConsumer",
        "DescribeStreamConsumer",
        "SubscribeToShard",
    ]
    assert fan_out.times("SubscribeToShard") == [0.0]


@with_reader(arn="arn:mine")
async def test_a_configured_consumer_is_neither_described_nor_registered(
    fan_out: MemoryFanOut, reader: FanOutReader
) -> None:
    fan_out.consumers["arn:mine"] = 0.0
    written = fan_out.streams.put(3)
    await reader.start(TRIM_HORIZON, INITIAL)
    assert await read(reader, 3) == written
    assert [call.operation for call in fan_out.calls] == ["SubscribeToShard"]


@with_reader()
async def test_the_first_subscription_starts_where_the_lease_and_the_settings_say(
    fan_out: MemoryFanOut, reader: FanOutReader
) -> None:
    await reader.start(AT_TIMESTAMP, InitialPosition(AT_TIMESTAMP, 17.5))
    await reader.next()
    assert fan_out.points() == [StartingPoint(IteratorType.AT_TIMESTAMP, timestamp_s=17.5)]


@with_reader()
async def test_a_start_at_the_tip_that_fails_at_first_skips_nothing_that_came_meanwhile(
    fan_out: MemoryFanOut, reader: FanOutReader
) -> None:
    fan_out.fail("SubscribeToShard", BROKEN)
    await reader.start(LATEST, INITIAL)
    await asyncio.sleep(0.05)
    written = fan_out.streams.put(2)
    assert await read(reader, 2) == written
    since = StartingPoint(IteratorType.AT_TIMESTAMP, timestamp_s=WALL_EPOCH_S - LATEST_MARGIN_S)
    assert fan_out.points() == [StartingPoint(IteratorType.LATEST), since]


def test_a_checkpoint_whose_record_was_trimmed_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def body(fan_out: MemoryFanOut, reader: FanOutReader) -> None:
        written = fan_out.streams.put(30)
        await reader.start(Position(str(int(written[0]) - 1)), INITIAL)
        assert await read(reader, 30) == written

    reading(body)
    assert [record.__dict__["action"] for record in caplog.records].count("checkpoint_trimmed") == 1


# --- ends and renewals ------------------------------------------------------------------------------------------------


@with_reader()
async def test_after_an_ordinary_end_the_next_subscription_starts_after_the_continuation(
    fan_out: MemoryFanOut, reader: FanOutReader
) -> None:
    fan_out.cut(2, None)
    written = fan_out.streams.put(25)
    await reader.start(TRIM_HORIZON, INITIAL)
    assert await read(reader, 25) == written
    fan_out.streams.put(0)
    assert fan_out.points() == [HORIZON, after(written[19])]
    assert fan_out.times("SubscribeToShard") == [0.0, 1.0]  # not more than one call a second


@with_reader(deliver_empty=False)
async def test_a_quiet_shard_is_renewed_before_its_end_after_a_continuation_of_empty_events(
    fan_out: MemoryFanOut, reader: FanOutReader
) -> None:
    first = fan_out.streams.put(1)
    await reader.start(TRIM_HORIZON, INITIAL)
    assert await read(reader, 1) == first
    fan_out.streams.shards["other"] = fan_out.streams.shards["shard-0"].__class__("other")
    fan_out.streams.put(5, shard_id="other")  # the tip moves on, our shard has nothing
    tip = str(fan_out.streams.tip)
    await asyncio.sleep(3600)
    written = fan_out.streams.put(1)
    assert await read(reader, 1) == written
    assert set(fan_out.points()[1:]) == {after(tip)}
    lives = [after_s - before_s for before_s, after_s in pairwise(fan_out.times("SubscribeToShard"))]
    assert min(lives) >= subscriptions.RENEW_AFTER_S
    assert max(lives) < LIFE_S - 5


@with_reader(streams=MemoryStreams(latency_s=0.5))
async def test_a_renewal_leaves_no_gap_and_changes_no_order(fan_out: MemoryFanOut, reader: FanOutReader) -> None:
    """A record every 0.1 s over six lives, on a network that takes 0.5 s to open a subscription."""
    written: list[str] = []

    async def write() -> None:
        for _ in range(16_000):
            written.extend(fan_out.streams.put(1))
            await asyncio.sleep(0.1)

    writing = asyncio.create_task(write())
    consumer = Filter(reader)
    await reader.start(TRIM_HORIZON, INITIAL)
    late_s = 0.0
    while len(consumer.got) < 16_000:
        before = len(consumer.got)
        await consumer.next()
        if before > 100 and len(consumer.got) > before:
            arrived = fan_out.streams.shards["shard-0"].records[before].approximate_arrival_ms
            late_s = max(late_s, fan_out.clock.wall() - arrived / 1000)
    await writing
    assert consumer.got == written
    assert len(fan_out.subscriptions) >= 5
    assert late_s < 0.2, "somebody waited for a renewal"


@with_reader()
async def test_a_renewal_that_fails_is_repeated_while_the_old_subscription_is_read(
    fan_out: MemoryFanOut, reader: FanOutReader
) -> None:
    await reader.start(TRIM_HORIZON, INITIAL)
    await reader.next()
    fan_out.fail("SubscribeToShard", BROKEN, BROKEN)
    for _ in range(62):
        written = fan_out.streams.put(1)
        assert await read(reader, 1) == written
        await asyncio.sleep(5)
    assert len(fan_out.subscriptions) == 2  # the first and the one of the third attempt
    assert len(fan_out.points()) == 4


@with_reader(deliver_empty=False)
async def test_a_renewal_that_never_succeeds_ends_in_an_ordinary_end(
    fan_out: MemoryFanOut, reader: FanOutReader
) -> None:
    await reader.start(TRIM_HORIZON, INITIAL)
    await asyncio.sleep(1)
    fan_out.fail("SubscribeToShard", *[BROKEN] * 12)
    await asyncio.sleep(400)
    written = fan_out.streams.put(1)
    assert await read(reader, 1) == written


@with_reader()
async def test_the_last_event_ends_the_shard_and_nothing_follows(fan_out: MemoryFanOut, reader: FanOutReader) -> None:
    written = fan_out.streams.put(25)
    children = fan_out.streams.close("shard-1", "shard-2")
    await reader.start(TRIM_HORIZON, INITIAL)
    assert await read(reader, 25) == written
    assert await reader.next() == EndOfShard(children)
    await asyncio.sleep(1000)
    assert len(fan_out.points()) == 1


@with_reader()
async def test_an_end_whose_children_are_never_named_is_believed_after_some_time(
    fan_out: MemoryFanOut, reader: FanOutReader
) -> None:
    written = fan_out.streams.put(12)
    fan_out.streams.close()
    await reader.start(TRIM_HORIZON, INITIAL)
    consumer = Filter(reader)
    while not isinstance(delivery := await consumer.next(), EndOfShard):
        pass
    assert delivery == EndOfShard(())
    assert consumer.got == written
    assert len(fan_out.points()) == ENDS_WITHOUT_CHILDREN_MAX


@with_reader()
async def test_an_event_that_contradicts_itself_is_asked_for_again(fan_out: MemoryFanOut, reader: FanOutReader) -> None:
    fan_out.bends.append(page_with((), "1", 0, (ChildShard("c", frozenset({"shard-0"}), HashRange(0, HASH_KEY_MAX)),)))
    written = fan_out.streams.put(3)
    await reader.start(TRIM_HORIZON, INITIAL)
    assert await read(reader, 3) == written
    assert fan_out.points() == [HORIZON, HORIZON]


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        errors.StreamUnavailableError("500"),
        errors.StreamThrottledError("KMSThrottling"),
        errors.StreamInUseError("taken over"),
        errors.InvalidStreamResponseError("checksum"),
        errors.InvalidStreamArgumentError("number"),
    ],
)
@with_reader()
async def test_an_error_inside_the_stream_costs_no_record(
    fan_out: MemoryFanOut, reader: FanOutReader, error: errors.StreamError
) -> None:
    fan_out.cut(1, error)
    fan_out.cut(0, error)
    written = fan_out.streams.put(40)
    await reader.start(TRIM_HORIZON, INITIAL)
    assert await read(reader, 40) == written
    assert fan_out.points() == [HORIZON, after(written[9]), after(written[9])]


@with_reader(yield_s=20.0)
async def test_who_is_taken_over_gives_way_before_it_takes_over_again(
    fan_out: MemoryFanOut, reader: FanOutReader
) -> None:
    await reader.start(TRIM_HORIZON, INITIAL)
    await reader.next()
    await asyncio.sleep(7)
    await fan_out.subscribe(fan_out.arn_of("app"), "shard-0", HORIZON)  # the new owner of the lease
    fan_out.subscriptions[-1].closed = True
    await asyncio.sleep(19)
    assert len(fan_out.points()) == 2
    await asyncio.sleep(10)
    assert len(fan_out.points()) == 3


@with_reader()
async def test_a_second_application_on_the_same_consumer_is_said_once(
    fan_out: MemoryFanOut, reader: FanOutReader, caplog: pytest.LogCaptureFixture
) -> None:
    def said() -> list[str]:
        return [one.getMessage() for one in caplog.records if vars(one).get("action") == "subscription_contested"]

    await reader.start(TRIM_HORIZON, INITIAL)
    for takeover in range(1, 6):
        fan_out.streams.put(1)
        await read(reader, 1)
        await asyncio.sleep(7)
        await fan_out.subscribe(fan_out.arn_of("app"), "shard-0", HORIZON)
        fan_out.subscriptions[-1].closed = True
        await asyncio.sleep(30)
        assert len(said()) == (takeover >= CONTESTED_TAKEOVERS)
    assert "another application uses the same consumer; give each its own" in said()[0]
    assert reader._metrics.subscriptions.value()["taken"] == 5
    assert reader._metrics.last_error is not None and "by arn:" in reader._metrics.last_error
    assert "takes the subscription by arn:" in reader._metrics.contested_words
    wall_s = reader._clock.wall()
    assert wall_s < reader._metrics.contested_until_s <= wall_s + CONTESTED_WITHIN_S, "and ends by itself"


@with_reader()
async def test_a_subscription_that_is_taken_seldom_is_no_contest(
    fan_out: MemoryFanOut, reader: FanOutReader, caplog: pytest.LogCaptureFixture
) -> None:
    await reader.start(TRIM_HORIZON, INITIAL)
    for _ in range(2 * CONTESTED_TAKEOVERS):
        await asyncio.sleep(CONTESTED_WITHIN_S)
        await fan_out.subscribe(fan_out.arn_of("app"), "shard-0", HORIZON)
        fan_out.subscriptions[-1].closed = True
    assert "subscription_contested" not in {vars(one).get("action") for one in caplog.records}
    assert reader._metrics.contested_words == ""


@with_reader(arn="arn:mine")
async def test_a_fresh_subscription_of_somebody_else_is_waited_out(fan_out: MemoryFanOut, reader: FanOutReader) -> None:
    fan_out.consumers["arn:mine"] = 0.0
    other = await fan_out.subscribe("arn:mine", "shard-0", HORIZON)
    written = fan_out.streams.put(3)
    await reader.start(TRIM_HORIZON, INITIAL)
    assert await read(reader, 3) == written
    assert 5.0 <= fan_out.clock.monotonic() < 7.0
    assert other.taken_over
    other.close()


@with_reader()
async def test_a_call_without_answer_is_given_up(fan_out: MemoryFanOut, reader: FanOutReader) -> None:
    fan_out.fail("SubscribeToShard", HangError())
    written = fan_out.streams.put(3)
    await reader.start(TRIM_HORIZON, INITIAL)
    assert await read(reader, 3) == written
    assert OPEN_TIMEOUT_S < fan_out.times("SubscribeToShard")[1] <= OPEN_TIMEOUT_S + 0.5


@with_reader()
async def test_a_silent_connection_is_given_up(fan_out: MemoryFanOut, reader: FanOutReader) -> None:
    await reader.start(TRIM_HORIZON, INITIAL)
    await reader.next()
    fan_out.subscriptions[0].silent = True
    written = fan_out.streams.put(3)
    assert await read(reader, 3) == written
    assert fan_out.clock.monotonic() < fanout.IDLE_MAX_S + 1


def test_trouble_is_logged_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="mld.retrieval")

    async def body(fan_out: MemoryFanOut, reader: FanOutReader) -> None:
        fan_out.fail("SubscribeToShard", *[BROKEN] * 5)
        await reader.start(TRIM_HORIZON, INITIAL)
        await reader.next()

    reading(body)
    ours = {"mld.retrieval.fanout", "mld.retrieval.registration"}
    told = [record.__dict__["action"] for record in caplog.records if record.name in ours]
    assert told == ["consumer_registered", "subscription_failed", "reader_recovered"]


# --- what is not found ------------------------------------------------------------------------------------------------


@with_reader()
async def test_a_missing_shard_is_told_and_looked_for_again_when_asked(
    fan_out: MemoryFanOut, reader: FanOutReader
) -> None:
    written = fan_out.streams.put(3)
    shard = fan_out.streams.shards.pop("shard-0")
    await reader.start(TRIM_HORIZON, INITIAL)
    assert await reader.next() == ShardMissing()
    await asyncio.sleep(1000)
    assert len(fan_out.points()) == 1
    fan_out.streams.shards["shard-0"] = shard
    assert await read(reader, 3) == written


@with_reader()
async def test_a_missing_stream_is_a_missing_shard(fan_out: MemoryFanOut, reader: FanOutReader) -> None:
    fan_out.fail("DescribeStreamSummary", errors.StreamNotFoundError("scripted"))
    await reader.start(TRIM_HORIZON, INITIAL)
    assert await reader.next() == ShardMissing()
    await reader.next()


@with_reader(deliver_empty=False)
async def test_a_consumer_that_was_deregistered_is_registered_anew_and_ends_no_shard(
    fan_out: MemoryFanOut, reader: FanOutReader
) -> None:
    before = fan_out.streams.put(10)
    await reader.start(TRIM_HORIZON, INITIAL)
    assert await read(reader, 10) == before
    fan_out.consumers.clear()
    fan_out.subscriptions[0]._cut = (0, errors.StreamNotFoundError("scripted"))
    written = fan_out.streams.put(3)
    assert await read(reader, 3) == written
    assert fan_out.points() == [HORIZON, after(before[-1])]
    assert fan_out.arn_of("app").endswith(":2")


@with_reader(arn="arn:mine")
async def test_a_configured_consumer_that_is_gone_is_not_replaced(fan_out: MemoryFanOut, reader: FanOutReader) -> None:
    written = fan_out.streams.put(3)
    await reader.start(TRIM_HORIZON, INITIAL)
    assert await reader.next() == ShardMissing()  # its consumer judges by the listing
    fan_out.consumers["arn:mine"] = 0.0
    assert await read(reader, 3) == written
    assert "RegisterStreamConsumer" not in {call.operation for call in fan_out.calls}


# --- back-pressure and stopping ---------------------------------------------------------------------------------------


@with_reader()
async def test_nothing_is_taken_without_room(fan_out: MemoryFanOut, reader: FanOutReader) -> None:
    written = fan_out.streams.put(500)
    await reader.start(TRIM_HORIZON, INITIAL)
    await asyncio.sleep(100)
    assert fan_out.subscriptions[0].events == EVENTS_MAX
    assert await read(reader, 500) == written


@with_reader(budget=Budget(24_000))
async def test_nothing_is_taken_beyond_the_budget(fan_out: MemoryFanOut, reader: FanOutReader) -> None:
    fan_out.streams.put(500)
    await reader.start(TRIM_HORIZON, INITIAL)
    await asyncio.sleep(10)
    assert fan_out.subscriptions[0].events == 3


@with_reader()
async def test_a_consumer_slower_than_a_subscription_lives_loses_nothing(
    fan_out: MemoryFanOut, reader: FanOutReader
) -> None:
    written = fan_out.streams.put(200)
    consumer = Filter(reader)
    await reader.start(TRIM_HORIZON, INITIAL)
    while len(consumer.got) < 200:
        await consumer.next()
        await asyncio.sleep(LIFE_S * 1.5)
    assert consumer.got == written


@with_reader(streams=MemoryStreams(latency_s=0.5))
async def test_a_stop_in_the_middle_of_a_renewal_leaves_nothing(fan_out: MemoryFanOut, reader: FanOutReader) -> None:
    await reader.start(TRIM_HORIZON, INITIAL)
    while len(fan_out.points()) < 2:
        await reader.next()
    await reader.stop()


# --- everything at once -----------------------------------------------------------------------------------------------

ERRORS = st.sampled_from(
    [
        None,
        BROKEN,
        errors.StreamThrottledError("x"),
        errors.StreamInUseError("x"),
        errors.InvalidStreamResponseError("x"),
        errors.StreamNotFoundError("x"),
    ]
)


@settings(max_examples=40)
@given(
    cuts=st.lists(st.tuples(st.integers(0, 4), ERRORS), max_size=8),
    faults=st.lists(ERRORS, max_size=8),
    describe=st.lists(ERRORS, max_size=3),
    writes=st.lists(st.tuples(st.integers(0, 30), st.floats(0, 200)), min_size=1, max_size=12),
    pauses=st.lists(st.floats(0, 400), max_size=10),
    latency_s=st.sampled_from([0.0, 0.7]),
)
def test_whatever_happens_every_record_arrives_once_and_in_order(
    cuts: list[tuple[int, errors.StreamError | None]],
    faults: list[errors.StreamError | None],
    describe: list[errors.StreamError | None],
    writes: list[tuple[int, float]],
    pauses: list[float],
    latency_s: float,
) -> None:
    async def body(fan_out: MemoryFanOut, reader: FanOutReader) -> None:
        for after_events, error in cuts:
            fan_out.cut(after_events, error)
        fan_out.fail("SubscribeToShard", *faults)
        fan_out.fail("DescribeStreamConsumer", None, *describe)
        written: list[str] = []

        async def write() -> None:
            for count, pause_s in writes:
                written.extend(fan_out.streams.put(count))
                await asyncio.sleep(pause_s)
            fan_out.streams.close("shard-1", "shard-2")

        writing = asyncio.create_task(write())
        consumer = Filter(reader)
        await reader.start(TRIM_HORIZON, INITIAL)
        waits = iter(pauses)
        while not isinstance(await consumer.next(), EndOfShard):
            await asyncio.sleep(next(waits, 0.0))
        await writing
        assert consumer.got == written

    reading(body, streams=MemoryStreams(latency_s=latency_s))
