"""SubscribeToShard: the event stream, its positions, its end, and who may hold a subscription."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from botocore.exceptions import ClientError, EventStreamError

from tests.conformance_aws.conftest import StreamHandle, Target, code_of, settle
from tests.conformance_aws.test_shards import clock, stamp

HOUR_S = 3600.0
Make = Callable[..., StreamHandle]
PassTime = Callable[[float], None]
MEBIBYTE = 1024 * 1024


class Subscription:
    """An open event stream."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self._events = iter(stream)

    def next(self) -> dict[str, Any]:
        event: dict[str, Any] = next(self._events)["SubscribeToShardEvent"]
        return event

    def until(self, count: int) -> list[bytes]:
        """The data of the next `count` records."""
        found: list[bytes] = []
        while len(found) < count:
            found += [r["Data"] for r in self.next()["Records"]]
        return found

    def rest(self) -> list[dict[str, Any]]:
        return [event["SubscribeToShardEvent"] for event in self._events]


@contextmanager
def subscribed(stream: StreamHandle, consumer: str, shard: str, kind: str, **position: Any) -> Iterator[Subscription]:
    answer = stream.client.subscribe_to_shard(
        ConsumerARN=consumer, ShardId=shard, StartingPosition={"Type": kind, **position}
    )
    events = answer["EventStream"]
    try:
        yield Subscription(events)
    finally:
        events.close()


def test_records_arrive_live_and_in_order(make_stream: Make) -> None:
    stream = make_stream()
    shard = stream.open_ids()[0]
    with subscribed(stream, stream.consumer("app"), shard, "LATEST") as subscription:
        for number in range(3):
            stream.put(b"%d" % number)
        assert subscription.until(3) == [b"0", b"1", b"2"]


def test_each_starting_position_starts_where_it_says(make_stream: Make, pass_time: PassTime, target: Target) -> None:
    stream = make_stream()
    shard = stream.open_ids()[0]
    first = stream.put(b"0")["SequenceNumber"]
    pass_time(3)
    between = stamp(clock(target) - 1)
    stream.put(b"1")

    def start(name: str, kind: str, count: int, **position: Any) -> list[bytes]:
        with subscribed(stream, stream.consumer(name), shard, kind, **position) as subscription:
            return subscription.until(count)

    assert start("trim", "TRIM_HORIZON", 2) == [b"0", b"1"]
    assert start("at", "AT_SEQUENCE_NUMBER", 2, SequenceNumber=first) == [b"0", b"1"]
    assert start("after", "AFTER_SEQUENCE_NUMBER", 1, SequenceNumber=first) == [b"1"]
    assert start("time", "AT_TIMESTAMP", 1, Timestamp=between) == [b"1"]


def test_the_continuation_goes_on_after_the_event(make_stream: Make) -> None:
    stream = make_stream()
    shard = stream.open_ids()[0]
    stream.put(b"0")
    with subscribed(stream, stream.consumer("one"), shard, "TRIM_HORIZON") as subscription:
        event = subscription.next()
        while not event["Records"]:
            event = subscription.next()
    stream.put(b"1")
    place = event["ContinuationSequenceNumber"]
    with subscribed(stream, stream.consumer("two"), shard, "AFTER_SEQUENCE_NUMBER", SequenceNumber=place) as again:
        assert again.until(1) == [b"1"]


def test_an_idle_shard_sends_events_without_records(make_stream: Make) -> None:
    stream = make_stream()
    with subscribed(stream, stream.consumer("app"), stream.open_ids()[0], "LATEST") as subscription:
        events = [subscription.next() for _ in range(2)]
    assert all(event["Records"] == [] and event["ContinuationSequenceNumber"] for event in events)
    assert [event["MillisBehindLatest"] for event in events] == [0, 0]


def test_the_lag_is_told_while_there_is_more(make_stream: Make, pass_time: PassTime) -> None:
    stream = make_stream()
    for _ in range(3):
        stream.put(b"x" * 900_000)
    pass_time(3)
    with subscribed(stream, stream.consumer("app"), stream.open_ids()[0], "TRIM_HORIZON") as subscription:
        events = [subscription.next() for _ in range(3)]
    assert events[0]["MillisBehindLatest"] >= 2_900
    assert events[-1]["MillisBehindLatest"] == 0


def test_events_hold_at_most_a_mebibyte(make_stream: Make) -> None:
    stream = make_stream()
    for _ in range(5):
        stream.put(b"x" * 500_000)
    sizes: list[int] = []
    with subscribed(stream, stream.consumer("app"), stream.open_ids()[0], "TRIM_HORIZON") as subscription:
        while sum(sizes) < 5 * 500_000:
            sizes.append(sum(len(r["Data"]) for r in subscription.next()["Records"]))
    assert max(sizes) <= MEBIBYTE


@pytest.mark.parametrize("closed_before", [False, True])
def test_the_last_event_names_the_children_and_the_stream_ends(make_stream: Make, closed_before: bool) -> None:
    stream = make_stream()
    parent = stream.open_ids()[0]
    consumer = stream.consumer("app")
    stream.put(b"x")
    children = stream.split(parent) if closed_before else []
    with subscribed(stream, consumer, parent, "TRIM_HORIZON") as subscription:
        if not closed_before:
            assert subscription.until(1) == [b"x"]
            children = stream.split(parent)
        events = subscription.rest()
    last = events[-1]
    assert "ContinuationSequenceNumber" not in last
    assert {c["ShardId"] for c in last["ChildShards"]} == set(children)
    assert all(c["ParentShards"] == [parent] for c in last["ChildShards"])
    assert all("ContinuationSequenceNumber" in e and not e.get("ChildShards") for e in events[:-1])


def test_latest_on_a_closed_shard_ends_at_once(make_stream: Make) -> None:
    stream = make_stream()
    parent = stream.open_ids()[0]
    stream.put(b"x")
    stream.split(parent)
    with subscribed(stream, stream.consumer("app"), parent, "LATEST") as subscription:
        events = subscription.rest()
    assert [e["Records"] for e in events] == [[]] and len(events[-1]["ChildShards"]) == 2


def test_a_second_call_within_five_seconds_is_refused(make_stream: Make, kinesis: Any) -> None:
    stream = make_stream()
    shard, consumer = stream.open_ids()[0], stream.consumer("app")
    with subscribed(stream, consumer, shard, "LATEST"):
        second = {"ConsumerARN": consumer, "ShardId": shard, "StartingPosition": {"Type": "LATEST"}}
        assert code_of(kinesis.subscribe_to_shard, **second) == "ResourceInUseException"


def test_a_later_call_takes_the_subscription_over(make_stream: Make, pass_time: PassTime) -> None:
    stream = make_stream()
    shard, consumer = stream.open_ids()[0], stream.consumer("app")
    with subscribed(stream, consumer, shard, "LATEST") as old:
        old.next()
        pass_time(5.5) if stream.client.meta.endpoint_url.startswith("http://") else time.sleep(5.5)
        with subscribed(stream, consumer, shard, "LATEST") as new:
            try:
                old.rest()
            except EventStreamError as error:
                assert error.response["Error"]["Code"] == "ResourceInUseException"
            stream.put(b"x")
            assert new.until(1) == [b"x"]


def test_a_closed_connection_frees_the_subscription(make_stream: Make, target: Target) -> None:
    if target.embedded is None:
        pytest.skip("the service keeps the place for five seconds")
    stream = make_stream()
    shard, consumer = stream.open_ids()[0], stream.consumer("app")
    target.embedded.advance_clock(HOUR_S)
    with subscribed(stream, consumer, shard, "LATEST") as first:
        first.next()
    target.embedded.advance_clock(-HOUR_S)  # so that the five seconds for which a place is kept do not pass

    def again() -> bool:
        try:
            with subscribed(stream, consumer, shard, "LATEST") as second:
                second.next()
        except ClientError as error:
            assert error.response["Error"]["Code"] == "ResourceInUseException"
            return False
        return True

    settle(again)


def test_unknown_consumers_and_shards_are_refused_before_the_stream(make_stream: Make, kinesis: Any) -> None:
    stream = make_stream()
    shard, consumer = stream.open_ids()[0], stream.consumer("app")
    latest = {"StartingPosition": {"Type": "LATEST"}}
    nobody = f"{stream.arn}/consumer/nobody:1"
    assert (
        code_of(kinesis.subscribe_to_shard, ConsumerARN=nobody, ShardId=shard, **latest) == "ResourceNotFoundException"
    )
    wrong = {"ConsumerARN": consumer, "ShardId": "shardId-000000000099", **latest}
    assert code_of(kinesis.subscribe_to_shard, **wrong) == "ResourceNotFoundException"


@pytest.mark.parametrize("what", ["stream", "consumer"])
def test_what_is_deleted_ends_its_subscriptions(make_stream: Make, kinesis: Any, what: str) -> None:
    stream = make_stream()
    consumer = stream.consumer("app")
    with subscribed(stream, consumer, stream.open_ids()[0], "LATEST") as subscription:
        subscription.next()
        if what == "stream":
            kinesis.delete_stream(StreamName=stream.name, EnforceConsumerDeletion=True)
        else:
            kinesis.deregister_stream_consumer(ConsumerARN=consumer)
        with pytest.raises(EventStreamError) as caught:
            subscription.rest()
    assert caught.value.response["Error"]["Code"] == "ResourceNotFoundException"


def test_a_subscription_lives_five_minutes(make_stream: Make, pass_time: PassTime) -> None:
    stream = make_stream()
    with subscribed(stream, stream.consumer("app"), stream.open_ids()[0], "LATEST") as subscription:
        subscription.next()
        pass_time(301)
        events = subscription.rest()
    assert all("ContinuationSequenceNumber" in event for event in events)
