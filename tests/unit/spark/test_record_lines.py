"""A daemon's line becomes one JSON line per record, whoever has written it."""

from __future__ import annotations

import json
from binascii import a2b_base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.processors.spark.batch import record_lines
from mld.processors.spark.batch.record_lines import LineError, position_of, rows, split
from mld.processors.spark.high_water_marks import RecordPosition, StreamShard
from mld.protocol.codec import encode_process_records
from mld.protocol.messages import ProcessRecords, Record

SHARD = StreamShard("clicks", "shardId-000000000007")
TRICKY = ['"},{"data":"', ',"action":"record"}', '"sequenceNumber":"1"', "\\", '\\"', "\n", "\u2028", "é", ""]
keys = st.one_of(st.sampled_from(TRICKY), st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
records = st.builds(
    Record, st.binary(max_size=40), keys, st.integers(0, 10**56).map(str), st.integers(0, 999), st.integers(0, 2**41)
)
batches = st.lists(records, min_size=1, max_size=8)


def as_seen(line: bytes | bytearray) -> list[tuple[object, ...]]:
    found = []
    for text in bytes(line).split(b"\n")[:-1]:
        value = json.loads(text)
        assert (value["s"], value["h"]) == SHARD
        found.append(
            (
                a2b_base64(value["data"]),
                value["partitionKey"],
                value["sequenceNumber"],
                value["subSequenceNumber"],
                value["approximateArrivalTimestamp"],
            )
        )
    return found


def as_sent(batch: list[Record]) -> list[tuple[object, ...]]:
    return [
        (r.data, r.partition_key, r.sequence_number, r.sub_sequence_number, r.approximate_arrival_ms) for r in batch
    ]


@given(batches, st.one_of(st.none(), st.integers(0, 10**9)))
def test_our_daemons_line(batch, lag):
    found = split(bytearray(b"".join(encode_process_records(tuple(batch), lag))), SHARD)
    assert as_seen(found.records) == as_sent(batch)
    assert (found.count, found.millis_behind_latest) == (len(batch), lag)
    assert found.first == RecordPosition(int(batch[0].sequence_number), batch[0].sub_sequence_number)
    assert found.last == RecordPosition(int(batch[-1].sequence_number), batch[-1].sub_sequence_number)


@given(batches)
def test_a_line_in_another_style_is_parsed(batch):
    value = json.loads(b"".join(encode_process_records(tuple(batch), 5)))
    styled = json.dumps({"millisBehindLatest": 5, **value}, indent=None, separators=(" , ", " : ")).encode() + b"\n"
    found = split(styled, SHARD)
    assert as_seen(found.records) == as_sent(batch)
    assert found.last == RecordPosition(int(batch[-1].sequence_number), batch[-1].sub_sequence_number)


@given(batches)
def test_rows_keep_order_and_positions(batch):
    found = split(b"".join(encode_process_records(tuple(batch), 0)), SHARD)
    every = list(rows(bytes(found.records)))
    assert b"".join(line for _, line in every) == found.records
    assert [position for position, _ in every] == [
        RecordPosition(int(r.sequence_number), r.sub_sequence_number) for r in batch
    ]


def test_the_usual_style_is_not_parsed(monkeypatch):
    monkeypatch.setattr(record_lines, "_parsed", None)
    batch = ProcessRecords((Record(b"x", "k", "1", 0, 1), Record(b"y", "k", "2", 0, 1)), 0)
    assert split(b"".join(encode_process_records(batch.records, batch.millis_behind_latest)), SHARD).count == 2


def test_an_empty_batch():
    found = split(b'{"action":"processRecords","records":[],"millisBehindLatest":7}\n', SHARD)
    assert (found.count, found.first, found.records, found.millis_behind_latest) == (0, None, b"", 7)


@pytest.mark.parametrize("line", [b"{}", b"nonsense", b'{"action":"initialize"}', b'{"action":"processRecords"}'])
def test_what_is_no_batch_gets_a_sentence(line):
    with pytest.raises(LineError, match="not a batch"):
        split(line, SHARD)


def test_a_record_without_a_position_is_refused():
    with pytest.raises(LineError, match="without a position"):
        position_of(b'{"data":"eA=="}')


def test_the_column_has_the_name_of_one_of_several_streams():
    shard = StreamShard("eu-west-1:111111111111:orders:1700000000", "shardId-000000000000")
    record = Record(b"x", "k", "5", 0, 1)
    (line,) = split(b"".join(encode_process_records([record], 0)), shard).records.splitlines()
    assert (json.loads(line)["s"], json.loads(line)["h"]) == ("orders", "shardId-000000000000")
    assert (shard.label, StreamShard("orders", "shardId-000000000000").label) == (
        "orders/shardId-000000000000",
        "shardId-000000000000",
    )


def test_a_record_that_names_its_stream_is_split_as_any_other():
    record = Record(b"x", "k", "5", 0, 1, {"streamName": "orders"})
    found = split(b"".join(encode_process_records([record] * 2, 0)), SHARD)
    assert found.count == 2
    assert found.first == found.last == RecordPosition(5)
