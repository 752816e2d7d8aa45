"""Putting and reading records: routing, sequence numbers, iterators, limits, the end of a shard, throttling."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.conformance_aws.conftest import StreamHandle, Target, code_of
from tests.conformance_aws.test_shards import clock, stamp

Make = Callable[..., StreamHandle]
PassTime = Callable[[float], None]
MEBIBYTE = 1024 * 1024


def test_a_record_is_read_as_it_was_put(make_stream: Make) -> None:
    stream = make_stream()
    put = stream.put(b"\x00\xff data", 'schl\u00fcssel "1"')
    (record,) = stream.read(put["ShardId"])
    assert (record["Data"], record["PartitionKey"]) == (b"\x00\xff data", 'schl\u00fcssel "1"')
    assert record["SequenceNumber"] == put["SequenceNumber"]
    assert abs((datetime.now(UTC) - record["ApproximateArrivalTimestamp"]).total_seconds()) < 60


def test_an_empty_record_is_a_record(make_stream: Make) -> None:
    stream = make_stream()
    stream.put(b"")
    assert stream.data(stream.open_ids()[0]) == [b""]


def test_explicit_hash_keys_at_the_edges_choose_the_shard(make_stream: Make) -> None:
    stream = make_stream(3)
    for shard in stream.shards():
        for edge in shard["HashKeyRange"].values():
            assert stream.put(b"x", ExplicitHashKey=edge)["ShardId"] == shard["ShardId"]


def test_partition_keys_are_routed_by_their_md5(make_stream: Make) -> None:
    stream = make_stream(4)
    ranges = {s["ShardId"]: s["HashKeyRange"] for s in stream.shards()}
    for key in ("a", "b", "customer-17", "\u00e9"):
        hashed = int.from_bytes(hashlib.md5(key.encode()).digest(), "big")
        found = ranges[stream.put(b"x", key)["ShardId"]]
        assert int(found["StartingHashKey"]) <= hashed <= int(found["EndingHashKey"])


def test_sequence_numbers_have_56_digits_and_increase_in_a_shard(make_stream: Make) -> None:
    stream = make_stream()
    numbers = [stream.put(b"x", str(i))["SequenceNumber"] for i in range(20)]
    assert all(re.fullmatch(r"[1-9]\d{55}", number) for number in numbers)
    assert all(int(a) < int(b) for a, b in itertools.pairwise(numbers))


def test_sequence_numbers_lie_above_the_start_of_their_shard(make_stream: Make) -> None:
    stream = make_stream()
    put = stream.put()
    start = stream.shard(put["ShardId"])["SequenceNumberRange"]["StartingSequenceNumber"]
    assert int(put["SequenceNumber"]) > int(start)


def test_put_records_answers_in_order(make_stream: Make, kinesis: Any) -> None:
    stream = make_stream()
    entries = [{"Data": b"%d" % i, "PartitionKey": "k"} for i in range(500)]
    answer = kinesis.put_records(StreamName=stream.name, Records=entries)
    assert answer["FailedRecordCount"] == 0
    assert [r["SequenceNumber"] for r in answer["Records"]] == [
        r["SequenceNumber"] for r in stream.read("shardId-000000000000")
    ]
    assert stream.data("shardId-000000000000") == [b"%d" % i for i in range(500)]


ENTRY = {"Data": b"x", "PartitionKey": "k"}


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        pytest.param("put_records", {"Records": [ENTRY] * 501}, id="501 records"),
        pytest.param("put_record", ENTRY | {"Data": b"x" * (MEBIBYTE + 1)}, id="more than a mebibyte"),
        pytest.param("put_record", ENTRY | {"PartitionKey": ""}, id="no partition key"),
        *(
            pytest.param("put_record", ENTRY | {"ExplicitHashKey": key}, id=f"hash key {name}")
            for name, key in (("too large", str(2**128)), ("negative", "-1"), ("no number", "x"))
        ),
    ],
)
def test_what_breaks_a_limit_is_refused(
    make_stream: Make, kinesis: Any, operation: str, arguments: dict[str, Any]
) -> None:
    refused = code_of(getattr(kinesis, operation), StreamName=make_stream().name, **arguments)
    assert refused in ("ValidationException", "InvalidArgumentException")


def test_each_iterator_type_starts_where_it_says(make_stream: Make) -> None:
    stream = make_stream()
    numbers = [stream.put(b"%d" % i)["SequenceNumber"] for i in range(3)]
    shard = stream.open_ids()[0]
    assert stream.data(shard, "TRIM_HORIZON") == [b"0", b"1", b"2"]
    assert stream.data(shard, "AT_SEQUENCE_NUMBER", StartingSequenceNumber=numbers[1]) == [b"1", b"2"]
    assert stream.data(shard, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=numbers[1]) == [b"2"]


def test_at_timestamp_starts_with_the_first_record_not_older(
    make_stream: Make, target: Target, pass_time: PassTime
) -> None:
    stream = make_stream()
    shard = stream.open_ids()[0]
    stream.put(b"old")
    pass_time(3)
    between = clock(target) - 1
    stream.put(b"new")
    assert stream.data(shard, "AT_TIMESTAMP", Timestamp=stamp(between)) == [b"new"]


def test_at_timestamp_on_an_empty_shard_finds_nothing(make_stream: Make, target: Target) -> None:
    stream = make_stream()
    page = stream.page(stream.open_ids()[0], "AT_TIMESTAMP", Timestamp=stamp(clock(target) - 1))
    assert (page["Records"], page["MillisBehindLatest"]) == ([], 0)


def test_a_timestamp_to_come_is_refused(make_stream: Make, kinesis: Any, target: Target) -> None:
    stream = make_stream()
    future = {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": stamp(clock(target) + 3600)}
    shard = stream.open_ids()[0]
    refused = code_of(kinesis.get_shard_iterator, StreamName=stream.name, ShardId=shard, **future)
    assert refused in ("InvalidArgumentException", "ValidationException")


def test_a_shards_own_start_is_a_place_to_start(make_stream: Make) -> None:
    stream = make_stream()
    shard = stream.open_ids()[0]
    start = stream.shard(shard)["SequenceNumberRange"]["StartingSequenceNumber"]
    stream.put(b"first")
    assert stream.data(shard, "AT_SEQUENCE_NUMBER", StartingSequenceNumber=start) == [b"first"]
    assert stream.data(shard, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=start) == [b"first"]


@pytest.mark.parametrize("kind", ["LATEST", "AFTER_SEQUENCE_NUMBER", "AT_TIMESTAMP"])
def test_a_place_after_the_last_record_waits_for_later_ones(
    make_stream: Make, kinesis: Any, target: Target, pass_time: PassTime, kind: str
) -> None:
    stream = make_stream()
    old = stream.put(b"old")
    pass_time(3)
    more = {
        "AFTER_SEQUENCE_NUMBER": {"StartingSequenceNumber": old["SequenceNumber"]},
        "AT_TIMESTAMP": {"Timestamp": stamp(clock(target) - 1)},
    }.get(kind, {})
    iterator = stream.iterator(old["ShardId"], kind, **more)
    stream.put(b"new")
    assert [r["Data"] for r in kinesis.get_records(ShardIterator=iterator)["Records"]] == [b"new"]


def test_a_sequence_number_of_another_shard_is_an_invalid_argument(make_stream: Make, kinesis: Any) -> None:
    stream = make_stream(2)
    low, high = stream.open_ids()
    number = stream.put_into(low, b"x")["SequenceNumber"]
    wrong = {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": number}
    refused = code_of(kinesis.get_shard_iterator, StreamName=stream.name, ShardId=high, **wrong)
    assert refused == "InvalidArgumentException"


def test_a_sequence_number_that_is_none_is_refused(make_stream: Make, kinesis: Any) -> None:
    stream = make_stream()
    wrong = {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": "SHARD_END"}
    refused = code_of(kinesis.get_shard_iterator, StreamName=stream.name, ShardId=stream.open_ids()[0], **wrong)
    assert refused in ("InvalidArgumentException", "ValidationException")


def test_an_unknown_shard_is_not_found(make_stream: Make, kinesis: Any) -> None:
    wrong = {"ShardId": "shardId-000000000099", "ShardIteratorType": "TRIM_HORIZON"}
    assert code_of(kinesis.get_shard_iterator, StreamName=make_stream().name, **wrong) == "ResourceNotFoundException"


def test_an_unusable_iterator_is_an_invalid_argument(make_stream: Make, kinesis: Any) -> None:
    stream = make_stream()
    good = stream.iterator(stream.open_ids()[0])
    for bad in ("nonsense", good[:-4], good[:20] + ("A" if good[20] != "A" else "B") + good[21:]):
        assert code_of(kinesis.get_records, ShardIterator=bad) == "InvalidArgumentException"


def test_an_iterator_expires_after_300_seconds(make_stream: Make, kinesis: Any, pass_time: PassTime) -> None:
    stream = make_stream()
    iterator = stream.iterator(stream.open_ids()[0])
    pass_time(302)
    assert code_of(kinesis.get_records, ShardIterator=iterator) == "ExpiredIteratorException"


def test_the_limit_is_kept_and_the_next_iterator_goes_on(make_stream: Make, kinesis: Any) -> None:
    stream = make_stream()
    for number in range(5):
        stream.put(b"%d" % number)
    first = kinesis.get_records(ShardIterator=stream.iterator(stream.open_ids()[0]), Limit=2)
    rest = kinesis.get_records(ShardIterator=first["NextShardIterator"])
    assert [r["Data"] for r in first["Records"]] == [b"0", b"1"]
    assert [r["Data"] for r in rest["Records"]] == [b"2", b"3", b"4"]


@pytest.mark.parametrize("limit", [0, 10_001])
def test_a_limit_out_of_range_is_refused(make_stream: Make, kinesis: Any, limit: int) -> None:
    stream = make_stream()
    iterator = stream.iterator(stream.open_ids()[0])
    refused = code_of(kinesis.get_records, ShardIterator=iterator, Limit=limit)
    assert refused in ("InvalidArgumentException", "ValidationException")


def test_an_iterator_can_be_used_again(make_stream: Make, kinesis: Any) -> None:
    stream = make_stream()
    stream.put(b"x")
    iterator = stream.iterator(stream.open_ids()[0])
    pages = [kinesis.get_records(ShardIterator=iterator)["Records"] for _ in range(2)]
    assert pages[0] == pages[1] and len(pages[0]) == 1


def test_the_lag_tells_how_far_back_the_last_record_read_is(
    make_stream: Make, kinesis: Any, pass_time: PassTime
) -> None:
    stream = make_stream()
    stream.put(b"a")
    pass_time(3)
    stream.put(b"b")
    pass_time(3)
    stream.put(b"c")
    lags = []
    iterator = stream.iterator(stream.open_ids()[0])
    for _ in range(3):
        page = kinesis.get_records(ShardIterator=iterator, Limit=1)
        iterator = page["NextShardIterator"]
        lags.append(page["MillisBehindLatest"])
    assert 6_000 <= lags[0] < 9_000 and 3_000 <= lags[1] < 6_000 and lags[2] == 0


def test_a_page_holds_at_most_ten_megabytes(make_stream: Make, kinesis: Any) -> None:
    stream = make_stream()
    for number in range(12):
        stream.put(b"%02d" % number + b"x" * 1_000_000)
    first = kinesis.get_records(ShardIterator=stream.iterator(stream.open_ids()[0]))
    assert sum(len(r["Data"]) for r in first["Records"]) <= 10 * MEBIBYTE
    assert 0 < len(first["Records"]) < 12
    assert [data[:2] for data in stream.data(stream.open_ids()[0])] == [b"%02d" % i for i in range(12)]


def test_a_page_holds_at_most_ten_thousand_records(make_stream: Make, kinesis: Any) -> None:
    stream = make_stream()
    entries = [{"Data": b"x", "PartitionKey": "k"}] * 500
    for _ in range(21):
        kinesis.put_records(StreamName=stream.name, Records=entries)
    page = stream.page(stream.open_ids()[0])
    assert len(page["Records"]) <= 10_000 and page["MillisBehindLatest"] > 0
    assert len(stream.read(stream.open_ids()[0])) == 10_500


def test_records_past_retention_are_not_read(make_stream: Make, pass_time: PassTime) -> None:
    stream = make_stream()
    stream.put(b"old")
    pass_time(25 * 3600)
    stream.put(b"new")
    assert stream.data(stream.open_ids()[0]) == [b"new"]


@pytest.mark.parametrize("where", ["TRIM_HORIZON", "LATEST", "AFTER_SEQUENCE_NUMBER", "old iterator"])
def test_the_end_of_a_closed_shard_names_the_children(make_stream: Make, kinesis: Any, where: str) -> None:
    stream = make_stream()
    put = stream.put(b"x")
    parent = put["ShardId"]
    iterator = stream.page(parent)["NextShardIterator"]
    children = stream.split(parent)
    if where == "AFTER_SEQUENCE_NUMBER":
        iterator = stream.iterator(parent, where, StartingSequenceNumber=put["SequenceNumber"])
    elif where != "old iterator":
        iterator = stream.iterator(parent, where)
    pages = [kinesis.get_records(ShardIterator=iterator)]
    while pages[-1].get("NextShardIterator"):
        assert not pages[-1].get("ChildShards")
        assert len(pages) < 10, "the shard does not end"
        pages.append(kinesis.get_records(ShardIterator=pages[-1]["NextShardIterator"]))
    assert sum(len(p["Records"]) for p in pages) == (1 if where == "TRIM_HORIZON" else 0)
    named = pages[-1]["ChildShards"]
    assert {c["ShardId"]: c["HashKeyRange"] for c in named} == {c: stream.shard(c)["HashKeyRange"] for c in children}
    assert all(c["ParentShards"] == [parent] for c in named)


def test_the_end_of_a_merged_shard_names_the_child_with_both_parents(make_stream: Make) -> None:
    stream = make_stream(2)
    low, high = stream.open_ids()
    child = stream.merge(low, high)
    for parent in (low, high):
        page = stream.page(parent)
        assert not page.get("NextShardIterator")
        assert [(c["ShardId"], sorted(c["ParentShards"])) for c in page["ChildShards"]] == [
            (child, sorted([low, high]))
        ]


def test_concurrent_puts_lose_nothing(make_stream: Make) -> None:
    stream = make_stream()
    with ThreadPoolExecutor(8) as pool:
        numbers = [put["SequenceNumber"] for put in pool.map(lambda i: stream.put(b"%d" % i), range(200))]
    read = stream.read(stream.open_ids()[0])
    assert len(set(numbers)) == 200
    assert sorted(int(r["Data"]) for r in read) == list(range(200))
    assert [int(r["SequenceNumber"]) for r in read] == sorted(map(int, numbers))


@pytest.fixture
def enforcing(target: Target) -> None:
    if target.embedded is None:
        if target.name != "aws":
            pytest.skip(f"{target.name} enforces no limits of throughput")
    else:
        target.embedded.set_enforce(True)


def test_more_than_five_reads_a_second_are_throttled(make_stream: Make, kinesis: Any, enforcing: None) -> None:
    stream = make_stream()
    iterator = stream.iterator(stream.open_ids()[0])
    codes = [code_of(kinesis.get_records, ShardIterator=iterator) for _ in range(20)]
    assert codes[0] == ""
    assert "ProvisionedThroughputExceededException" in codes


def test_more_than_a_megabyte_a_second_fails_record_by_record(make_stream: Make, kinesis: Any, enforcing: None) -> None:
    stream = make_stream()
    entries = [{"Data": b"x" * 500_000, "PartitionKey": "k"}] * 8
    answer = kinesis.put_records(StreamName=stream.name, Records=entries)
    failed = [r for r in answer["Records"] if "ErrorCode" in r]
    assert answer["FailedRecordCount"] == len(failed)
    assert 0 < len(failed) < 8
    assert {r["ErrorCode"] for r in failed} == {"ProvisionedThroughputExceededException"}
    assert all("SequenceNumber" not in r for r in failed)
