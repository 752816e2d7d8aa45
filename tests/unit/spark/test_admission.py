"""Whose marks are whose, and who may write into a sink."""

from __future__ import annotations

import re

import pytest

from mld.processors.spark.commit.admission import Admission
from mld.processors.spark.commit.ledger import LedgerEntry
from mld.processors.spark.positions import RecordPosition, ShardSpan, StreamShard
from mld.processors.spark.sink_port import Fenced, SinkRefused
from mld.processors.spark.writer_identity import SEVERAL, WriterIdentity
from tests.twins.store import Disk, MemoryStore
from tests.unit.spark.test_commit_races import Frame, _records, over_memory, read

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/clicks"
CREATED = "2026-01-02T03:04:05.000Z"
ME = WriterIdentity("app", "main", "clicks", ARN, CREATED)
OTHERS = {
    "application": ME._replace(application="billing"),
    "pipeline": ME._replace(pipeline="replay"),
    "region": ME._replace(arn=ARN.replace("eu-west-1", "us-east-1")),
    "account": ME._replace(arn=ARN.replace("123456789012", "210987654321")),
    "made again": ME._replace(created="2026-02-03T00:00:00.000Z"),
}
A, B = StreamShard("clicks", "shardId-000000000000"), StreamShard("clicks", "shardId-000000000001")
each = pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())


def admission(writer: WriterIdentity = ME, *, shared: bool = False) -> Admission:
    return Admission(writer, "out", "/lake/out", shared=shared)


@each
def test_marks_of_another_are_not_ours_and_it_is_refused_by_name(other):
    head = LedgerEntry(1, "t", {other: {A: RecordPosition(500)}})
    with pytest.raises(SinkRefused) as refused:
        admission().marks(head)
    said = str(refused.value)
    assert f"/lake/out is written by {other}" in said
    assert f"This is {ME}" in said
    assert "nothing was written or acknowledged" in said
    assert "mld.spark.sink.out.writers = shared" in said
    with pytest.raises(SinkRefused):
        admission().check(head, {A: ShardSpan(None, RecordPosition(3))})


@each
def test_who_shares_begins_without_marks_and_leaves_those_of_the_others(other):
    head = LedgerEntry(1, "t", {other: {A: RecordPosition(500)}})
    assert admission(shared=True).marks(head) == {}
    after = admission(shared=True).following(head, {A: ShardSpan(None, RecordPosition(3))}, "u")
    assert after.writers == {other: {A: RecordPosition(500)}, ME: {A: RecordPosition(3)}}
    assert admission().marks(after) == {A: RecordPosition(3)}, "who is in goes on, whoever else came in by sharing"
    with pytest.raises(Fenced):
        admission().check(after, {A: ShardSpan(None, RecordPosition(4))})


def test_a_sink_with_many_writers_is_refused_in_one_sentence():
    head = LedgerEntry(1, "t", {ME._replace(application=f"app-{n}"): {} for n in range(9)})
    with pytest.raises(SinkRefused, match=r"app-0, .*app-2, .* and 6 more"):
        admission().marks(head)


# --- a sink of files ------------------------------------------------------------------------------------------------


@each
def test_two_writers_that_open_an_empty_sink_at_once(other):
    """The second finds out when it publishes: nothing of its batch is written, and nothing was taken for done."""
    disk = Disk()
    one, two = (over_memory(MemoryStore(disk), writer=writer) for writer in (ME, other))
    assert one.open() == two.open() == {}
    batch = {A: ShardSpan(None, RecordPosition(4))}
    one.publish(Frame(list(_records(batch))), batch, "b")
    with pytest.raises(SinkRefused, match="shared"):
        two.publish(Frame(list(_records(batch))), batch, "b")
    with pytest.raises(SinkRefused, match="shared"):
        two.open()
    assert sum(read(disk).values()) == 4


# --- several streams

ALL = WriterIdentity("app", "main", arn=SEVERAL)
ID = "eu-west-1:123456789012:clicks:1767323045"
OF_ID = {A: StreamShard(ID, A.shard), B: StreamShard(ID, B.shard)}
ELSEWHERE = StreamShard("eu-west-1:123456789012:orders:1700000000", A.shard)


def test_shards_of_the_same_id_in_two_streams_have_marks_of_their_own():
    batch = {OF_ID[A]: ShardSpan(None, RecordPosition(5)), ELSEWHERE: ShardSpan(None, RecordPosition(9))}
    after = admission(ALL).following(None, batch, "t")
    assert admission(ALL).marks(after) == {OF_ID[A]: RecordPosition(5), ELSEWHERE: RecordPosition(9)}
    with pytest.raises(Fenced, match="clicks/shardId-000000000000 to 5"):
        admission(ALL).check(after, {OF_ID[A]: ShardSpan(None, RecordPosition(6))})


def test_a_stream_read_alone_and_one_read_among_several_are_two_writers():
    for one, other in ((ME, ALL), (ALL, ME)):
        head = LedgerEntry(7, "t", {one: {A: RecordPosition(500)}})
        with pytest.raises(SinkRefused, match=rf"written by {re.escape(str(one))}\. This is {re.escape(str(other))}"):
            admission(other).marks(head)
        assert admission(other, shared=True).marks(head) == {}
