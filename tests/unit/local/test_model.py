"""Single rules of the Kinesis model that a history does not reach: expiry, retention, limits, subscriptions."""

from __future__ import annotations

import pytest

from mld.core.streams import IteratorType, StartingPoint
from mld.local.kinesis import Kinesis, KinesisError, PutEntry
from mld.local.records import timestamp_text
from mld.local.shard_subscription import Finished, Idle, SubscriptionEvent
from tests.twins.kinesis_model import records_in

START_S = 1_700_000_000.0
TRIM_HORIZON = StartingPoint(IteratorType.TRIM_HORIZON)
LATEST = StartingPoint(IteratorType.LATEST)
SHARD = "shardId-000000000000"
HOUR_S = 3600.0


def made(shards: int = 1, *, enforce: bool = False) -> Kinesis:
    kinesis = Kinesis(enforce=enforce)
    kinesis.create_stream("s", now=START_S, shard_count=shards)
    return kinesis


def put(kinesis: Kinesis, data: bytes, now: float = START_S) -> str:
    return kinesis.put_record("s", PutEntry.of(data, "k"), now=now).sequence


def read(kinesis: Kinesis, now: float) -> list[bytes]:
    iterator = kinesis.get_shard_iterator("s", SHARD, TRIM_HORIZON, now=now)
    return [record.data for record in records_in(kinesis.get_records(iterator, now=now)[0])]


def test_iterators_and_numbers_of_a_former_stream_are_refused() -> None:
    kinesis = made()
    start = StartingPoint(IteratorType.AFTER_SEQUENCE_NUMBER, sequence=put(kinesis, b"x"))
    iterator = kinesis.get_shard_iterator("s", SHARD, TRIM_HORIZON, now=START_S)
    kinesis.delete_stream("s", now=START_S + 1)
    kinesis.create_stream("s", now=START_S + 2, shard_count=1)
    with pytest.raises(KinesisError, match="ResourceNotFoundException"):
        kinesis.get_records(iterator, now=START_S + 3)
    with pytest.raises(KinesisError, match="InvalidArgumentException"):
        kinesis.get_shard_iterator("s", SHARD, start, now=START_S + 3)


@pytest.mark.parametrize("old_records", [3, 3000])
def test_records_leave_with_retention_and_reading_goes_on_behind_them(old_records: int) -> None:
    kinesis = made()
    first = put(kinesis, b"old 0")
    for number in range(1, old_records):
        put(kinesis, b"old %d" % number)
    later = START_S + 24 * HOUR_S + 1
    put(kinesis, b"new", now=later)
    start = StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence=first)
    iterator = kinesis.get_shard_iterator("s", SHARD, start, now=later)
    page, _ = kinesis.get_records(iterator, now=later)
    assert [record.data for record in records_in(page)] == [b"new"]
    assert page.span.size_bytes == len(b"new") + len(b"k")
    assert read(kinesis, later) == [b"new"]


def test_a_clock_that_goes_back_keeps_records_in_order() -> None:
    kinesis = made()
    put(kinesis, b"a", now=START_S + 10)
    put(kinesis, b"b", now=START_S + 5)
    assert read(kinesis, START_S + 10) == [b"a", b"b"]


def test_a_page_is_cut_at_ten_mebibytes_but_holds_one_record_at_least() -> None:
    kinesis = made()
    kinesis.stream("s", START_S).record_kib_max = 10_240
    sizes = [10 * 1024 * 1024 - 1, 6_000_000, 6_000_000]
    for size in sizes:
        put(kinesis, b"x" * size)
    iterator: str | None = kinesis.get_shard_iterator("s", SHARD, TRIM_HORIZON, now=START_S)
    counts = []
    while iterator is not None and len(counts) < 3:
        page, iterator = kinesis.get_records(iterator, now=START_S)
        counts.append(len(page.span.fragments))
    assert counts == [1, 1, 1]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1_700_000_000.123, "1.700000000123E9"), (0.0, "0.000"), (1.5, "1.500"), (12.345, "1.2345E1"), (9.999, "9.999")],
)
def test_times_are_written_as_the_service_writes_them(seconds: float, text: str) -> None:
    assert timestamp_text(seconds) == text
    assert float(text) == seconds


def test_enforced_limits_allow_five_reads_a_second() -> None:
    kinesis = made(enforce=True)
    iterator = kinesis.get_shard_iterator("s", SHARD, TRIM_HORIZON, now=START_S)

    def reads(now: float) -> int:
        for number in range(20):
            try:
                kinesis.get_records(iterator, now=now)
            except KinesisError as error:
                assert error.code == "ProvisionedThroughputExceededException"
                return number
        return 20

    assert (reads(START_S), reads(START_S + 0.2), reads(START_S + 1.2)) == (5, 1, 5)


def test_enforced_limits_allow_a_thousand_records_and_a_mebibyte_a_second() -> None:
    kinesis = made(enforce=True)
    small = [PutEntry.of(b"x", "k")] * 500
    refused = [sum(p.error is not None for p in kinesis.put_records("s", small, now=START_S)) for _ in range(3)]
    assert refused == [0, 0, 500]
    large = [PutEntry.of(b"x" * 300_000, "k")] * 5
    results = kinesis.put_records("s", large, now=START_S + 5)
    assert [p.error is None for p in results] == [True, True, True, False, False]


def test_a_full_page_stops_reads_for_five_seconds() -> None:
    kinesis = made()
    for _ in range(12):
        put(kinesis, b"x" * 1_000_000)
    kinesis.enforce = True
    iterator = kinesis.get_shard_iterator("s", SHARD, TRIM_HORIZON, now=START_S)
    _, following = kinesis.get_records(iterator, now=START_S)
    assert following is not None
    with pytest.raises(KinesisError):
        kinesis.get_records(following, now=START_S + 4.9)
    assert len(kinesis.get_records(following, now=START_S + 5.1)[0].span.fragments) == 2


def consumer_arn(kinesis: Kinesis, name: str = "app") -> str:
    return kinesis.register_consumer("s", name, now=START_S).arn


def test_a_subscription_heartbeats_every_five_seconds_and_ends_after_three_hundred() -> None:
    kinesis = made()
    subscription = kinesis.subscribe(consumer_arn(kinesis), SHARD, LATEST, now=START_S)
    times, now = [], START_S
    while True:
        step = subscription.next_step(now)
        if isinstance(step, Finished):
            break
        if isinstance(step, SubscriptionEvent):
            times.append(now - START_S)
        else:
            now = step.until_s
    assert times == [5.0 * i for i in range(60)]
    assert step.error is None and now == START_S + 300


def test_a_continuation_is_accepted_after_the_shard_was_closed() -> None:
    kinesis = made()
    arn = consumer_arn(kinesis)
    first = kinesis.subscribe(arn, SHARD, LATEST, now=START_S).next_step(START_S)
    assert isinstance(first, SubscriptionEvent) and first.continuation is not None
    kinesis.split_shard("s", SHARD, 1000, now=START_S + 6)
    start = StartingPoint(IteratorType.AFTER_SEQUENCE_NUMBER, sequence=first.continuation)
    last = kinesis.subscribe(arn, SHARD, start, now=START_S + 6).next_step(START_S + 6)
    assert isinstance(last, SubscriptionEvent) and last.continuation is None and len(last.page.children) == 2


def test_a_continuation_skips_nothing_that_is_put_at_the_same_time() -> None:
    kinesis = made(2)
    arn = consumer_arn(kinesis)
    event = kinesis.subscribe(arn, SHARD, LATEST, now=START_S).next_step(START_S)
    assert isinstance(event, SubscriptionEvent) and event.continuation is not None
    kinesis.put_record("s", PutEntry.of(b"next", "k", 0), now=START_S)
    start = StartingPoint(IteratorType.AFTER_SEQUENCE_NUMBER, sequence=event.continuation)
    again = kinesis.subscribe(arn, SHARD, start, now=START_S + 5).next_step(START_S + 5)
    assert isinstance(again, SubscriptionEvent) and [record.data for record in records_in(again.page)] == [b"next"]


def test_an_enforcing_subscription_is_paced_at_two_mebibytes_a_second() -> None:
    kinesis = made()
    for _ in range(4):
        put(kinesis, b"x" * (1024 * 1024 - 1))
    kinesis.enforce = True
    subscription = kinesis.subscribe(consumer_arn(kinesis), SHARD, TRIM_HORIZON, now=START_S)
    assert isinstance(subscription.next_step(START_S), SubscriptionEvent)
    step = subscription.next_step(START_S)
    assert isinstance(step, Idle) and step.until_s == pytest.approx(START_S + 0.5, abs=0.01)
    assert isinstance(subscription.next_step(step.until_s), SubscriptionEvent)
