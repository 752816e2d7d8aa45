"""Whole workers over streams whose records Kinesis distributes over the shards by itself, in virtual time."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from mld.core.errors import StreamUnavailableError
from mld.local.kinesis import PutEntry
from mld.retrieval.placement import FRESH_S
from tests.support.fleet import STREAM, Fleet, in_fleet
from tests.support.kpl import User, aggregate

modes = pytest.mark.parametrize("mode", ["POLLING", "FANOUT"])


def make_stream(world: Fleet, *, distributes: bool = True, on_demand: bool = True) -> None:
    world.kinesis.create_stream(
        STREAM,
        now=world.clock.wall(),
        shard_count=None if on_demand else 4,
        on_demand=on_demand,
        distributes=distributes,
    )


def put_aggregates(world: Fleet, count: int, key: str | None = "a") -> set[str]:
    """Aggregates of ten user records under keys of all shards; the payloads."""
    payloads = set()
    for number in range(count):
        names = [f"{key}-{number}-{place}" for place in range(10)]
        payloads |= set(names)
        entry = PutEntry.of(aggregate([User(name, name.encode()) for name in names]), key)
        world.kinesis.put_record(STREAM, entry, now=world.clock.wall())
    return payloads


def delivered(world: Fleet) -> Counter[str]:
    return Counter(one.data.decode() for one in world.recorder.deliveries)


@modes
@in_fleet(0)
async def test_records_without_a_partition_key_are_delivered_with_an_empty_one(world, mode):
    make_stream(world)
    for number in range(20):
        entry = PutEntry.of(b"%d" % number, None if number % 3 else f"key-{number}")
        world.kinesis.put_record(STREAM, entry, now=world.clock.wall())
    keys: dict[str, str] = {}

    async def script(child):
        while True:
            message = await child.receive()
            for record in message.get("records", ()):
                keys[record["sequenceNumber"]] = record["partitionKey"]
            child.done(message)

    world.start(script=script, retrievalMode=mode)
    await world.until(lambda: len(keys) == 20)
    assert Counter(keys.values()) == {"": 13} | {f"key-{number}": 1 for number in range(0, 20, 3)}


@modes
@pytest.mark.parametrize("key", ["a", None], ids=["with keys", "without keys"])
@in_fleet(0)
async def test_all_user_records_of_aggregates_are_delivered_in_whatever_shard_they_lie(world, mode, key):
    make_stream(world)
    wanted = put_aggregates(world, 40, key)
    running = world.start(retrievalMode=mode)
    await world.until(lambda: set(delivered(world)) == wanted)
    assert set(delivered(world).values()) == {1}
    assert await running.stop()


@in_fleet(0)
async def test_what_was_distributed_is_delivered_after_the_stream_has_gone_back_to_keys(world):
    make_stream(world)
    wanted = put_aggregates(world, 20)
    world.kinesis.set_distribution(STREAM, distributes=False, now=world.clock.wall())
    world.start()
    await world.until(lambda: set(delivered(world)) == wanted)


@in_fleet(0)
async def test_a_stream_that_begins_to_distribute_while_it_is_read_loses_nothing(world):
    make_stream(world, on_demand=False, distributes=False)
    world.start()
    dropped = put_aggregates(world, 5, "before")
    await world.advance(10)
    assert not delivered(world), "they lie where their keys do not say"
    world.kinesis.set_mode(STREAM, on_demand=True, now=world.clock.wall())
    await world.advance(FRESH_S)
    world.kinesis.set_distribution(STREAM, distributes=True, now=world.clock.wall())
    wanted = put_aggregates(world, 20, "after")
    await world.until(lambda: set(delivered(world)) == wanted)
    assert not dropped & set(delivered(world))


@in_fleet(0)
async def test_where_the_service_does_not_tell_nothing_is_dropped(world):
    make_stream(world, on_demand=False, distributes=False)
    wanted = put_aggregates(world, 5)
    running = world.start()
    running.streams.faults = lambda operation: (
        StreamUnavailableError("no") if operation == "DescribeStreamSummary" else None
    )
    await world.until(lambda: set(delivered(world)) == wanted)


def test_the_embedded_kinesis_tells_the_strategy_of_streams_in_on_demand_mode_only() -> None:
    from mld.local.json_api import dispatch
    from mld.local.kinesis import Kinesis, KinesisError

    kinesis = Kinesis()

    def ask(operation: str, **fields: object) -> dict[str, object]:
        body = dispatch(lambda _: kinesis, operation, json.dumps(fields).encode(), 1.7e9).body
        return json.loads(body) if body else {}

    def strategy(name: str) -> object:
        summary = ask("DescribeStreamSummary", StreamName=name)["StreamDescriptionSummary"]
        assert isinstance(summary, dict)
        return summary.get("RecordDistributionStrategy")

    on_demand = {"StreamMode": "ON_DEMAND"}
    ask("CreateStream", StreamName="a", StreamModeDetails=on_demand, RecordDistributionStrategy="AUTO")
    ask("CreateStream", StreamName="b", StreamModeDetails=on_demand)
    ask("CreateStream", StreamName="c", ShardCount=2)
    assert [strategy(name) for name in "abc"] == ["AUTO", "USER_PARTITION_KEY", None]
    data = {"StreamName": "a", "Data": "eA=="}
    shards = [ask("PutRecord", **data, PartitionKey="k", ExplicitHashKey="0")["ShardId"] for _ in range(8)]
    assert set(Counter(shards).values()) == {2}, "evenly, whatever the keys"
    assert ask("PutRecords", StreamName="a", Records=[{"Data": "eA=="}])["FailedRecordCount"] == 0
    arn = {name: kinesis.stream_arn(name) for name in "abc"}
    ask("UpdateStreamRecordDistributionStrategy", StreamARN=arn["a"], RecordDistributionStrategy="USER_PARTITION_KEY")
    ask("UpdateStreamRecordDistributionStrategy", StreamARN=arn["b"], RecordDistributionStrategy="AUTO")
    assert [strategy(name) for name in "abc"] == ["USER_PARTITION_KEY", "AUTO", None]
    with pytest.raises(KinesisError, match="partitionKey"):
        ask("PutRecord", **data)
    for operation, fields in (
        ("UpdateStreamRecordDistributionStrategy", {"StreamARN": arn["c"]}),
        ("CreateStream", {"StreamName": "d", "ShardCount": 1}),
    ):
        with pytest.raises(KinesisError) as refused:
            ask(operation, **fields, RecordDistributionStrategy="AUTO")
        assert refused.value.code == "InvalidArgumentException"
    ask("UpdateStreamMode", StreamARN=arn["b"], StreamModeDetails={"StreamMode": "PROVISIONED"})
    assert strategy("b") is None
