"""Streams: making, describing, listing, settings, deletion."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance_aws.conftest import StreamHandle, Target, code_of, settle, unique

Make = Callable[..., StreamHandle]
HASH_KEY_MAX = 2**128 - 1


@pytest.mark.parametrize("count", [1, 3, 7])
def test_the_shards_of_a_new_stream_partition_the_hash_keys(make_stream: Make, count: int) -> None:
    ranges = sorted(
        (int(s["HashKeyRange"]["StartingHashKey"]), int(s["HashKeyRange"]["EndingHashKey"]))
        for s in make_stream(count).shards()
    )
    assert len(ranges) == count
    assert ranges[0][0] == 0 and ranges[-1][1] == HASH_KEY_MAX
    assert all(after[0] == before[1] + 1 for before, after in itertools.pairwise(ranges))


def test_new_shards_are_open_and_have_no_parents(make_stream: Make) -> None:
    for shard in make_stream(2).shards():
        assert "EndingSequenceNumber" not in shard["SequenceNumberRange"]
        assert "ParentShardId" not in shard and "AdjacentParentShardId" not in shard


def test_an_on_demand_stream_starts_with_four_shards(make_stream: Make) -> None:
    stream = make_stream(StreamModeDetails={"StreamMode": "ON_DEMAND"})
    assert len(stream.shards()) == 4
    assert stream.summary()["StreamModeDetails"] == {"StreamMode": "ON_DEMAND"}


def test_an_on_demand_stream_refuses_to_be_scaled(make_stream: Make, kinesis: Any) -> None:
    stream = make_stream(StreamModeDetails={"StreamMode": "ON_DEMAND"})
    scale = {"StreamName": stream.name, "TargetShardCount": 8, "ScalingType": "UNIFORM_SCALING"}
    assert code_of(kinesis.update_shard_count, **scale) in ("ValidationException", "InvalidArgumentException")


def test_a_stream_of_the_same_name_is_refused(make_stream: Make, kinesis: Any) -> None:
    name = make_stream().name
    assert code_of(kinesis.create_stream, StreamName=name, ShardCount=1) == "ResourceInUseException"


def test_a_provisioned_stream_needs_a_shard_count(kinesis: Any) -> None:
    assert code_of(kinesis.create_stream, StreamName=unique()) in ("ValidationException", "InvalidArgumentException")


def test_passing_states_are_shown(target: Target, kinesis: Any, pass_time: Callable[[float], None]) -> None:
    if target.embedded is not None:
        target.embedded.set_delays(create_s=60, update_s=60, delete_s=60)
    name = unique()

    def status() -> str:
        return str(kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]["StreamStatus"])

    def settled() -> None:
        if target.embedded is not None:
            pass_time(61)
        settle(lambda: status() == "ACTIVE")

    kinesis.create_stream(StreamName=name, ShardCount=1)
    seen = [status()]
    settled()
    shard = kinesis.list_shards(StreamName=name)["Shards"][0]["ShardId"]
    split = {"StreamName": name, "ShardToSplit": shard, "NewStartingHashKey": str(2**127)}
    kinesis.split_shard(**split)
    seen.append(status())
    assert code_of(kinesis.split_shard, **split) == "ResourceInUseException"
    settled()
    kinesis.delete_stream(StreamName=name)
    seen.append(status())
    assert seen == ["CREATING", "UPDATING", "DELETING"]


def test_the_shards_of_a_stream_in_the_making_are_in_use(target: Target, kinesis: Any) -> None:
    if target.embedded is None:
        pytest.skip("needs the delay control")
    target.embedded.set_delays(create_s=60)
    name = unique()
    kinesis.create_stream(StreamName=name, ShardCount=1)
    assert code_of(kinesis.list_shards, StreamName=name) == "ResourceInUseException"
    kinesis.delete_stream(StreamName=name)


def test_the_summary_tells_everything(make_stream: Make) -> None:
    stream = make_stream(2)
    summary = stream.summary()
    assert summary["StreamName"] == stream.name
    assert summary["StreamARN"].endswith(f":stream/{stream.name}")
    assert summary["StreamStatus"] == "ACTIVE"
    assert summary["StreamModeDetails"] == {"StreamMode": "PROVISIONED"}
    assert summary["RetentionPeriodHours"] == 24
    assert summary["OpenShardCount"] == 2
    assert summary["ConsumerCount"] == 0
    assert summary["EncryptionType"] == "NONE"
    assert summary["StreamCreationTimestamp"].year > 2000


def test_describe_stream_pages_through_the_shards(make_stream: Make, kinesis: Any) -> None:
    stream = make_stream(3)
    first = kinesis.describe_stream(StreamName=stream.name, Limit=2)["StreamDescription"]
    last = first["Shards"][-1]["ShardId"]
    rest = kinesis.describe_stream(StreamName=stream.name, ExclusiveStartShardId=last)["StreamDescription"]
    assert (len(first["Shards"]), first["HasMoreShards"]) == (2, True)
    assert (len(rest["Shards"]), rest["HasMoreShards"]) == (1, False)


def test_streams_are_listed_by_name_in_pages(make_stream: Make, kinesis: Any) -> None:
    made = sorted(make_stream().name for _ in range(3))
    found: list[str] = []
    answer = kinesis.list_streams(Limit=1)
    found += answer["StreamNames"]
    while answer["HasMoreStreams"]:
        answer = kinesis.list_streams(Limit=1, ExclusiveStartStreamName=found[-1])
        found += answer["StreamNames"]
    assert [name for name in found if name in made] == made


def test_an_unknown_stream_is_not_found(kinesis: Any) -> None:
    name = unique()
    assert code_of(kinesis.describe_stream_summary, StreamName=name) == "ResourceNotFoundException"
    assert code_of(kinesis.list_shards, StreamName=name) == "ResourceNotFoundException"
    assert code_of(kinesis.put_record, StreamName=name, Data=b"", PartitionKey="k") == "ResourceNotFoundException"


def test_the_stream_arn_can_stand_for_the_name(make_stream: Make, kinesis: Any) -> None:
    stream = make_stream()
    shard = kinesis.list_shards(StreamARN=stream.arn)["Shards"][0]["ShardId"]
    kinesis.put_record(StreamARN=stream.arn, Data=b"by arn", PartitionKey="k")
    iterator = kinesis.get_shard_iterator(StreamARN=stream.arn, ShardId=shard, ShardIteratorType="TRIM_HORIZON")
    page = kinesis.get_records(StreamARN=stream.arn, ShardIterator=iterator["ShardIterator"])
    assert [record["Data"] for record in page["Records"]] == [b"by arn"]
    assert (
        kinesis.describe_stream_summary(StreamARN=stream.arn)["StreamDescriptionSummary"]["StreamName"] == stream.name
    )


def test_retention_is_raised_and_lowered(make_stream: Make, kinesis: Any) -> None:
    stream = make_stream()
    kinesis.increase_stream_retention_period(StreamName=stream.name, RetentionPeriodHours=48)
    stream.settle()
    raised = stream.summary()["RetentionPeriodHours"]
    kinesis.decrease_stream_retention_period(StreamName=stream.name, RetentionPeriodHours=24)
    stream.settle()
    assert (raised, stream.summary()["RetentionPeriodHours"]) == (48, 24)


@pytest.mark.parametrize("hours", [23, 8761])
def test_retention_has_limits(make_stream: Make, kinesis: Any, hours: int) -> None:
    change = {"StreamName": make_stream().name, "RetentionPeriodHours": hours}
    call = kinesis.increase_stream_retention_period if hours > 24 else kinesis.decrease_stream_retention_period
    assert code_of(call, **change) in ("InvalidArgumentException", "ValidationException")


def test_a_deleted_stream_is_not_found_any_more(make_stream: Make, kinesis: Any) -> None:
    stream = make_stream()
    shard = stream.open_ids()[0]
    iterator = stream.iterator(shard)
    kinesis.delete_stream(StreamName=stream.name)
    settle(lambda: code_of(kinesis.describe_stream_summary, StreamName=stream.name) == "ResourceNotFoundException")
    assert code_of(kinesis.get_records, ShardIterator=iterator) == "ResourceNotFoundException"


def test_a_stream_with_consumers_is_deleted_only_if_told_so(make_stream: Make, kinesis: Any) -> None:
    stream = make_stream()
    stream.consumer("app")
    assert code_of(kinesis.delete_stream, StreamName=stream.name) == "ResourceInUseException"
