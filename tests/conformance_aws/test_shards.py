"""ListShards with its filters and pages; splits, merges, scaling, and the family they leave."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.conformance_aws.conftest import StreamHandle, Target, code_of

Make = Callable[..., StreamHandle]
PassTime = Callable[[float], None]


def clock(target: Target) -> float:
    """The service's time, as well as we know it."""
    return float(target.embedded.control("GET", "health")["now"]) if target.embedded else time.time()


def stamp(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def test_shards_come_in_pages(make_stream: Make, kinesis: Any) -> None:
    stream = make_stream(3)
    first = kinesis.list_shards(StreamName=stream.name, MaxResults=2)
    second = kinesis.list_shards(NextToken=first["NextToken"], MaxResults=2)
    assert len(first["Shards"]) == 2
    assert {s["ShardId"] for s in first["Shards"] + second["Shards"]} == stream.ids()
    assert not second.get("NextToken")


def test_a_page_token_must_come_alone(make_stream: Make, kinesis: Any) -> None:
    stream = make_stream(2)
    token = kinesis.list_shards(StreamName=stream.name, MaxResults=1)["NextToken"]
    assert code_of(kinesis.list_shards, StreamName=stream.name, NextToken=token) == "InvalidArgumentException"


def test_a_bad_page_token_is_refused(kinesis: Any) -> None:
    assert code_of(kinesis.list_shards, NextToken="nonsense") in (
        "InvalidArgumentException",
        "ExpiredNextTokenException",
    )


def test_a_page_token_expires_after_300_seconds(make_stream: Make, kinesis: Any, pass_time: PassTime) -> None:
    stream = make_stream(2)
    token = kinesis.list_shards(StreamName=stream.name, MaxResults=1)["NextToken"]
    pass_time(302)
    assert code_of(kinesis.list_shards, NextToken=token) == "ExpiredNextTokenException"


def test_a_listing_starts_after_a_given_shard(make_stream: Make) -> None:
    stream = make_stream(3)
    ids = sorted(stream.ids())
    assert stream.ids(ExclusiveStartShardId=ids[0]) == set(ids[1:])


def test_filters_without_a_time_name_the_open_the_first_and_all_shards(make_stream: Make) -> None:
    stream = make_stream(2)
    first = stream.ids()
    stream.split(stream.open_ids()[0])
    assert len(stream.ids()) == 4
    named = {kind: stream.ids(ShardFilter={"Type": kind}) for kind in ("AT_LATEST", "FROM_TRIM_HORIZON")}
    assert named == {"AT_LATEST": set(stream.open_ids()), "FROM_TRIM_HORIZON": stream.ids()}
    later = {"Type": "AFTER_SHARD_ID", "ShardId": max(first)}
    assert stream.ids(ShardFilter=later) == stream.ids() - first


def test_at_trim_horizon_names_the_shards_that_were_open_then(make_stream: Make) -> None:
    stream = make_stream(2)
    first = stream.ids()
    stream.split(stream.open_ids()[0])
    assert stream.ids(ShardFilter={"Type": "AT_TRIM_HORIZON"}) == first


@pytest.mark.parametrize("kind", ["AT_TIMESTAMP", "FROM_TIMESTAMP"])
def test_timestamp_filters_tell_before_from_after_a_split(
    make_stream: Make, pass_time: PassTime, target: Target, kind: str
) -> None:
    stream = make_stream(2)
    first = stream.ids()
    # Clients send whole seconds, hence the distances.
    pass_time(2)
    before = clock(target)
    pass_time(2)
    stream.split(stream.open_ids()[0])
    pass_time(3)
    after = clock(target)
    at_before = stream.ids(ShardFilter={"Type": kind, "Timestamp": stamp(before)})
    at_after = stream.ids(ShardFilter={"Type": kind, "Timestamp": stamp(after)})
    assert at_before == (first if kind == "AT_TIMESTAMP" else stream.ids())
    assert at_after == set(stream.open_ids())


def test_a_filter_holds_on_later_pages(make_stream: Make, kinesis: Any) -> None:
    stream = make_stream(3)
    stream.split(stream.open_ids()[0])
    answer = kinesis.list_shards(StreamName=stream.name, ShardFilter={"Type": "AT_LATEST"}, MaxResults=1)
    found = [s["ShardId"] for s in answer["Shards"]]
    while token := answer.get("NextToken"):
        answer = kinesis.list_shards(NextToken=token, MaxResults=1)
        found += [s["ShardId"] for s in answer["Shards"]]
    assert sorted(found) == sorted(stream.open_ids())


def test_a_filter_that_needs_an_argument_is_refused_without(make_stream: Make, kinesis: Any) -> None:
    name = make_stream().name
    refused = ("InvalidArgumentException", "ValidationException")
    assert code_of(kinesis.list_shards, StreamName=name, ShardFilter={"Type": "AT_TIMESTAMP"}) in refused
    assert code_of(kinesis.list_shards, StreamName=name, ShardFilter={"Type": "AFTER_SHARD_ID"}) in refused


def test_a_split_closes_the_parent_and_keeps_it_listed(make_stream: Make) -> None:
    stream = make_stream()
    parent = stream.open_ids()[0]
    children = stream.split(parent)
    assert "EndingSequenceNumber" in stream.shard(parent)["SequenceNumberRange"]
    assert stream.open_ids() == children and len(children) == 2
    assert {stream.shard(c)["ParentShardId"] for c in children} == {parent}


def test_a_closed_shard_ends_above_its_start_and_below_its_children(make_stream: Make) -> None:
    stream = make_stream()
    parent = stream.open_ids()[0]
    children = stream.split(parent)
    numbers = stream.shard(parent)["SequenceNumberRange"]
    end = int(numbers["EndingSequenceNumber"])
    assert int(numbers["StartingSequenceNumber"]) < end
    assert all(int(stream.shard(c)["SequenceNumberRange"]["StartingSequenceNumber"]) > end for c in children)


def test_the_open_shard_count_follows_splits_and_merges(make_stream: Make) -> None:
    stream = make_stream()
    children = stream.split(stream.open_ids()[0])
    split = stream.summary()["OpenShardCount"]
    stream.merge(*children)
    assert (split, stream.summary()["OpenShardCount"]) == (2, 1)


def test_the_records_of_a_split_parent_stay_and_new_ones_go_to_the_children(make_stream: Make) -> None:
    stream = make_stream()
    parent = stream.open_ids()[0]
    stream.put(b"old")
    children = stream.split(parent)
    for child in children:
        stream.put_into(child, child.encode())
    assert stream.data(parent) == [b"old"]
    assert [stream.data(child) for child in children] == [[child.encode()] for child in children]


def test_a_closed_shard_cannot_be_split(make_stream: Make, kinesis: Any) -> None:
    stream = make_stream()
    parent = stream.open_ids()[0]
    stream.split(parent)
    again = {"StreamName": stream.name, "ShardToSplit": parent, "NewStartingHashKey": "1000"}
    assert code_of(kinesis.split_shard, **again) in ("InvalidArgumentException", "ResourceInUseException")


@pytest.mark.parametrize("border", ["0", str(2**128)])
def test_a_split_outside_the_shard_is_refused(make_stream: Make, kinesis: Any, border: str) -> None:
    stream = make_stream()
    bad = {"StreamName": stream.name, "ShardToSplit": stream.open_ids()[0], "NewStartingHashKey": border}
    assert code_of(kinesis.split_shard, **bad) in ("InvalidArgumentException", "ValidationException")


def test_a_merge_has_both_parents_and_their_range(make_stream: Make) -> None:
    stream = make_stream(2)
    low, high = stream.open_ids()
    child = stream.shard(stream.merge(low, high))
    assert (child["ParentShardId"], child["AdjacentParentShardId"]) == (low, high)
    assert child["HashKeyRange"] == {"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)}


def test_a_merge_loses_and_doubles_nothing(make_stream: Make) -> None:
    stream = make_stream(2)
    low, high = stream.open_ids()
    for number in range(3):
        stream.put_into(low, b"low %d" % number)
        stream.put_into(high, b"high %d" % number)
    child = stream.merge(low, high)
    stream.put(b"new")
    assert stream.data(low) == [b"low 0", b"low 1", b"low 2"]
    assert stream.data(high) == [b"high 0", b"high 1", b"high 2"]
    assert stream.data(child) == [b"new"]


def test_shards_that_do_not_touch_cannot_be_merged(make_stream: Make, kinesis: Any) -> None:
    stream = make_stream(3)
    first, _, third = stream.open_ids()
    bad = {"StreamName": stream.name, "ShardToMerge": first, "AdjacentShardToMerge": third}
    assert code_of(kinesis.merge_shards, **bad) == "InvalidArgumentException"


def test_scaling_up_and_down_keeps_a_partition_and_every_record(make_stream: Make) -> None:
    stream = make_stream(2)
    put = []
    for target in (4, 3, 2):
        for shard in stream.open_ids():
            put.append(f"{target} {shard}".encode())
            stream.put_into(shard, put[-1])
        stream.scale(target)
        ranges = [stream.shard(i)["HashKeyRange"] for i in stream.open_ids()]
        assert len(ranges) == target
        assert int(ranges[0]["StartingHashKey"]) == 0 and int(ranges[-1]["EndingHashKey"]) == 2**128 - 1
        assert all(int(b["StartingHashKey"]) == int(a["EndingHashKey"]) + 1 for a, b in itertools.pairwise(ranges))
    assert sorted(data for shard in stream.ids() for data in stream.data(shard)) == sorted(put)


def test_scaling_to_more_than_double_or_less_than_half_is_refused(make_stream: Make, kinesis: Any) -> None:
    stream = make_stream(4)
    refused = ("InvalidArgumentException", "LimitExceededException", "ValidationException")
    for target in (9, 1):
        scale = {"StreamName": stream.name, "TargetShardCount": target, "ScalingType": "UNIFORM_SCALING"}
        assert code_of(kinesis.update_shard_count, **scale) in refused


def test_shards_past_retention_are_not_listed(make_stream: Make, pass_time: PassTime, kinesis: Any) -> None:
    stream = make_stream()
    parent = stream.open_ids()[0]
    iterator = stream.iterator(parent)
    children = stream.split(parent)
    pass_time(25 * 3600)
    assert stream.ids() == set(children)
    assert code_of(kinesis.get_records, ShardIterator=iterator) in (
        "ResourceNotFoundException",
        "ExpiredIteratorException",
    )
    late = {"StreamName": stream.name, "ShardId": parent, "ShardIteratorType": "TRIM_HORIZON"}
    assert code_of(kinesis.get_shard_iterator, **late) == "ResourceNotFoundException"
