"""Whose marks are whose, and who may write into a sink."""

from __future__ import annotations

import pytest

from processors.spark.admission import Desk, desk_of
from processors.spark.identity import Identity
from processors.spark.ledger import Entry, Nameless
from processors.spark.positions import QUERY, Position, Shard, Span
from processors.spark.sinks import Fenced, SinkRefused
from processors.spark.sinks.files import FlatSink
from tests.twins.store import Disk, MemoryStore
from tests.unit.spark.test_commit_races import Frame, _records, over_memory, read, write_version_1

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/clicks"
CREATED = "2026-01-02T03:04:05.000Z"
ME = Identity("app", "main", "clicks", ARN, CREATED)
OTHERS = {
    "application": ME._replace(application="billing"),
    "pipeline": ME._replace(pipeline="replay"),
    "region": ME._replace(arn=ARN.replace("eu-west-1", "us-east-1")),
    "account": ME._replace(arn=ARN.replace("123456789012", "210987654321")),
    "made again": ME._replace(created="2026-02-03T00:00:00.000Z"),
}
A, B = Shard("clicks", "shardId-000000000000"), Shard("clicks", "shardId-000000000001")
each = pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())


def desk(writer: Identity = ME, *, shared: bool = False) -> Desk:
    return desk_of(writer, "out", "/lake/out", shared=shared)


@each
def test_marks_of_another_are_not_ours_and_it_is_refused_by_name(other):
    head = Entry(1, "t", {other: {A: Position(500)}})
    with pytest.raises(SinkRefused) as refused:
        desk().marks(head)
    said = str(refused.value)
    assert f"/lake/out is written by {other}" in said
    assert f"This is {ME}" in said
    assert "nothing was written or acknowledged" in said
    assert "mld.spark.sink.out.writers = shared" in said
    with pytest.raises(SinkRefused):
        desk().check(head, {A: Span(None, Position(3))})


@each
def test_who_shares_begins_without_marks_and_leaves_those_of_the_others(other):
    head = Entry(1, "t", {other: {A: Position(500)}})
    assert desk(shared=True).marks(head) == {}
    after = desk(shared=True).following(head, {A: Span(None, Position(3))}, "u")
    assert after.writers == {other: {A: Position(500)}, ME: {A: Position(3)}}
    assert desk().marks(after) == {A: Position(3)}, "who is in goes on, whoever else came in by sharing"
    with pytest.raises(Fenced):
        desk().check(after, {A: Span(None, Position(4))})


def test_a_sink_with_many_writers_is_refused_in_one_sentence():
    head = Entry(1, "t", {ME._replace(application=f"app-{n}"): {} for n in range(9)})
    with pytest.raises(SinkRefused, match=r"app-0, .*app-2, .* and 6 more"):
        desk().marks(head)


def version_1(*shards: Shard, at: str = "", batch_id: str = "") -> Entry:
    return Entry(7, "t", {}, Nameless(dict.fromkeys(shards, Position(500)), at, batch_id))


@pytest.mark.parametrize(
    "head",
    [
        version_1(A, B),
        version_1(A, at="2026-03-01T00:00:00.000+00:00", batch_id="app-17"),
        version_1(A, at="2026-01-02T03:03:00.000+00:00", batch_id="app-query-17"),
        version_1(A, Shard(QUERY, "id")),
    ],
    ids=["says nothing", "later, by us", "a clock that is a minute slow", "streaming"],
)
def test_marks_of_version_1_become_those_of_the_stream_of_their_name(head):
    assert desk().upgrades(head)
    assert desk().marks(head) == head.unclaimed.marks
    after = desk().following(head, {}, "u")
    assert after.writers == {ME: head.unclaimed.marks}
    assert not desk().upgrades(after)
    for other in OTHERS.values():
        with pytest.raises(SinkRefused):
            desk(other).marks(after)


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (version_1(Shard("views", "0")), "an older version of this program for stream views"),
        (version_1(A, at="2025-12-31T00:00:00.000+00:00"), "last at 2025-12-31T00:00:00.000+00:00"),
        (version_1(A, batch_id="billing-17"), "by batch billing-17"),
        (version_1(A, Shard("views", "0")), "for stream views"),
    ],
    ids=["another stream", "older than the stream", "another application", "and another stream"],
)
def test_marks_of_version_1_that_are_of_somebody_else_refuse(head, said):
    with pytest.raises(SinkRefused) as refused:
        desk().marks(head)
    assert said in str(refused.value)


def test_streams_that_shared_a_sink_in_version_1_each_take_over_their_own():
    views = Shard("views", "0")
    head = version_1(A, views, batch_id="viewers-3")
    first = desk(shared=True).following(head, {A: Span(Position(500), Position(501))}, "u", batch_id="app-1")
    other = Identity("viewers", "main", "views", ARN.replace("clicks", "views"), CREATED)
    second = desk(other, shared=True).following(first, {}, "v")
    assert second.writers == {ME: {A: Position(501)}, other: {views: Position(500)}}
    assert second.unclaimed.marks == {}


# --- a sink of files ------------------------------------------------------------------------------------------------


@each
def test_two_writers_that_open_an_empty_sink_at_once(other):
    """The second finds out when it publishes: nothing of its batch is written, and nothing was taken for done."""
    disk = Disk()
    one, two = (over_memory(FlatSink, MemoryStore(disk), writer) for writer in (ME, other))
    assert one.open() == two.open() == {}
    batch = {A: Span(None, Position(4))}
    one.publish(Frame(list(_records(batch))), batch, "b")
    with pytest.raises(SinkRefused, match="shared"):
        two.publish(Frame(list(_records(batch))), batch, "b")
    with pytest.raises(SinkRefused, match="shared"):
        two.open()
    assert sum(read(disk).values()) == 4


def test_the_first_to_open_a_sink_of_version_1_has_its_marks_before_it_drops_by_them():
    disk = Disk()
    shard = Shard("s", "0")
    write_version_1(MemoryStore(disk), FlatSink, {shard: Position(5)})
    one = over_memory(FlatSink, MemoryStore(disk), Identity("one", stream="s"))
    assert one.open() == {shard: Position(5)}
    recreated = over_memory(FlatSink, MemoryStore(disk), Identity("one", stream="s", created=CREATED))
    with pytest.raises(SinkRefused, match="application one"):
        recreated.open()
    assert one.open() == {shard: Position(5)}
