"""Streams that Kinesis changes at once, end to end: a strategy that passes over keys, and many shards out of few."""

from __future__ import annotations

import pytest

from tests.integration.world import ASSIGNED, MakeWorld, Put, World
from tests.support.kpl import User, aggregate

RESHARD_MAX_S = 600.0
PATIENT = {
    **ASSIGNED,
    "failoverTimeMillis": 180_000,
    "leaseAssignmentIntervalMillis": 5000,
    "idleTimeBetweenReadsInMillis": 5000,
}
"""What a table and a stream of one process can answer for 128 shards, also on a machine that others use."""


def distribute(world: World) -> None:
    arn = world.kinesis.describe_stream_summary(StreamName=world.stream)["StreamDescriptionSummary"]["StreamARN"]
    world.kinesis.update_stream_mode(StreamARN=arn, StreamModeDetails={"StreamMode": "ON_DEMAND"})
    world.until_active()
    world.kinesis.update_stream_record_distribution_strategy(StreamARN=arn, RecordDistributionStrategy="AUTO")


def put_without_keys(world: World, texts: list[str]) -> None:
    answer = world.kinesis.put_records(StreamName=world.stream, Records=[{"Data": text.encode()} for text in texts])
    placed = zip(answer["Records"], texts, strict=True)
    world.puts += [Put(one["ShardId"], int(one["SequenceNumber"]), text) for one, text in placed]


def test_records_without_keys_and_whole_aggregates_arrive_where_kinesis_distributes_them(
    make_world: MakeWorld,
) -> None:
    world = make_world(shards=4)
    distribute(world)
    world.put(40)
    put_without_keys(world, [f"keyless-{number}" for number in range(40)])
    world.daemon()
    world.until_delivered()
    packed = [[f"user-{number}-{place}" for place in range(10)] for number in range(20)]
    for texts in packed:
        data = aggregate([User(text, text.encode()) for text in texts])
        world.kinesis.put_record(StreamName=world.stream, Data=data, PartitionKey="a")
    wanted = {text for texts in packed for text in texts}

    def arrived() -> bool:
        found = {record.data for life in world.history.lives() for record in life.delivered}
        return wanted <= {data.decode() if isinstance(data, bytes) else str(data) for data in found}

    world.until(arrived, what="all user records of the aggregates")


@pytest.mark.full
@pytest.mark.timeout(1_200)
def test_four_shards_become_128_at_once_and_nothing_is_lost(make_world: MakeWorld) -> None:
    world = make_world(shards=4)
    world.put(400)
    world.daemon(**PATIENT)
    world.until_delivered()
    for target in (8, 16, 32, 64, 128):
        world.kinesis.update_shard_count(
            StreamName=world.stream, TargetShardCount=target, ScalingType="UNIFORM_SCALING"
        )
        world.until_active()
        world.put(400)

    opened = {
        shard["ShardId"] for shard in world.shards() if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
    }
    assert len(opened) == 128

    def is_complete() -> bool:
        return opened <= {life.shard for life in world.history.lives()}

    world.until(is_complete, RESHARD_MAX_S, "all 128 shards are read")  # how fast: `tests/unit/test_worker_fleet.py`
    world.until_delivered()
