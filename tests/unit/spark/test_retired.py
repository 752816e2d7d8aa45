"""Shards that have ended: what becomes of their marks, and that nothing is written twice or lost by it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.admission import Admission
from mld.processors.spark.commit.ended_shards import SHARDS_MAX, decode_retired, encode_retired, retired
from mld.processors.spark.commit.ledger import LedgerEntry
from mld.processors.spark.high_water_marks import ENDED, lowest, spans
from mld.processors.spark.positions import OF_A_RECORD, RecordPosition, ShardSpan, StreamShard
from mld.processors.spark.sink_port import Fenced
from mld.processors.spark.writer_identity import WriterIdentity

ONE = WriterIdentity("app", "main", "clicks", "arn:aws:kinesis:eu-west-1:1:stream/clicks", "2026-01-02T03:04:05.000Z")
TWO = ONE._replace(application="other")
SEQUENCE = 49590338271490256608559692538361571095921575989136588898
"""As long as those of Kinesis."""


def shard(number: int) -> StreamShard:
    return StreamShard("clicks", f"shardId-{number:012d}")


A, B = shard(0), shard(1)


def at(sequence: int, sub: int = 0) -> RecordPosition:
    return RecordPosition(sequence, sub)


@pytest.mark.parametrize(
    ("ended", "left"),
    [
        ({A: at(5)}, {A: ENDED, B: at(7)}),
        ({A: at(6)}, {A: at(5), B: at(7)}),  # the sink was put back to an earlier state: it has not got all of it
        ({shard(2): at(1)}, {A: at(5), B: at(7)}),  # nothing of it is in the sink
        ({}, {A: at(5), B: at(7)}),
    ],
)
def test_a_shard_is_retired_only_if_the_sink_has_all_of_it(ended, left):
    assert retired({A: at(5), B: at(7)}, ended) == left


def test_a_record_that_was_buried_is_forgotten_and_no_ended_shard():
    record = A._replace(shard=OF_A_RECORD.join((A.shard, "out", "4")))
    assert retired({A: at(5), record: at(4)}, {record: at(4)}) == {A: at(5)}
    assert retired({A: at(5), record: at(4)}, {A: at(5)}) == {A: ENDED, record: at(4)}


def test_ranges_are_short_and_other_ids_stay_themselves():
    odd = StreamShard("clicks", "shardId-00000001613415624000-1b2c3d4e")
    marks = dict.fromkeys([*map(shard, [0, 1, 2, 5, 7, 8]), StreamShard("other", "0-3"), odd], ENDED) | {B: at(3)}
    assert encode_retired(marks) == {
        "clicks": ["0", "2", "5", "7-8", "=shardId-00000001613415624000-1b2c3d4e"],
        "other": ["=0-3"],
    }


@given(st.sets(st.tuples(st.sampled_from(["s", ""]), st.integers(0, 300)), max_size=60), st.booleans())
def test_what_is_written_is_read(numbers, other):
    shards = {StreamShard(stream, f"shardId-{number:012d}") for stream, number in numbers}
    shards |= {StreamShard("s", "=1-2"), StreamShard("s", "shardId-1")} if other else set()
    marks = dict.fromkeys(shards, ENDED)
    assert decode_retired(json.loads(json.dumps(encode_retired(marks)))) == marks


@pytest.mark.parametrize(
    "value",
    [[], {"s": "0-3"}, {"s": [1]}, {"s": ["3-1"]}, {"s": ["x"]}, {"s": ["1-2-3"]}, {"s": [f"0-{SHARDS_MAX}"]},
     {"s": ["0-999999", "1000000-1999999"]}, {"s": ["9" * 13]}],
)  # fmt: skip
def test_what_is_damaged_is_refused(value):
    with pytest.raises(ValueError, match="what has ended"):
        decode_retired(value)


def test_the_mark_of_a_shard_that_has_ended_is_after_any_record():
    largest = at(10**129 - 1, 9_999)
    assert spans({A: largest}, {A: ENDED}) == {}
    assert lowest([{A: ENDED}, {A: at(3)}], A) == at(3)
    assert str(ENDED) == "its end"


def test_a_batch_of_a_shard_that_has_ended_is_fenced_however_late_it_comes():
    """The worker was stopped with the first records of the shard in hand, for longer than any retention."""
    owner, zombie = (Admission(ONE, "out", "/x", shared=False) for _ in range(2))
    first = owner.following(None, {A: ShardSpan(None, at(9)), B: ShardSpan(None, at(2))}, "t1")
    ended = replace(owner, ended={A: at(9)})
    head = ledger.decode(ledger.encode(ended.following(first, {B: ShardSpan(at(2), at(4))}, "t2")), "")
    assert head.writers == {ONE: {A: ENDED, B: at(4)}}
    with pytest.raises(Fenced, match="shardId-000000000000 to its end") as fenced:
        zombie.following(head, {A: ShardSpan(None, at(5))}, "t3")
    assert fenced.value.moved == {A: ENDED}
    assert spans({A: at(5)}, zombie.marks(head)) == {}, "and nothing of it is left to write"


def test_a_writer_retires_its_own_shards_only():
    admission = Admission(ONE, "out", "/x", shared=True, ended={A: at(9)})
    head = LedgerEntry(3, "t", {ONE: {A: at(9)}, TWO: {A: at(9)}})
    assert admission.following(head, {}, "u").writers == {ONE: {A: ENDED}, TWO: {A: at(9)}}


# --- sizes -----------------------------------------------------------------------------------------------------------

LIVE, CLOSED = range(3_000, 3_064), range(3_000)


def test_an_entry_of_64_live_and_3000_closed_shards_is_small():
    marks = {shard(number): at(SEQUENCE + number) for number in (*LIVE, *CLOSED)}
    ended = {shard(number): at(SEQUENCE + number) for number in CLOSED}
    after = ledger.encode(LedgerEntry(7, "t", {ONE: retired(marks, ended)}))
    assert len(after) < 6_000
    assert ledger.decode(after, "").writers == {ONE: {**marks, **dict.fromkeys(ended, ENDED)}}
