"""Every kind of sink that needs no Spark to commit: who may write there, and whose marks are whose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mld.processors.spark.commit.store import PosixStore
from mld.processors.spark.high_water_marks import ENDED, HighWaterMarks
from mld.processors.spark.host.start_up import DEAD_LETTER, dead_letter_of
from mld.processors.spark.positions import RecordPosition, ShardSpan, StreamShard
from mld.processors.spark.sink_port import SinkRefused
from mld.processors.spark.sink_spec import SinkSpec
from mld.processors.spark.sinks.factory import make_sink
from mld.processors.spark.sinks.files import FileSink
from mld.processors.spark.writer_identity import WriterIdentity
from tests.unit.spark.twins import settings_of

A = StreamShard("s", "shardId-000000000000")
ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/s"
ONE = WriterIdentity("one", "main", "s", ARN, "2026-01-02T00:00:00.000Z")
OTHERS = {
    "application": ONE._replace(application="two"),
    "pipeline": ONE._replace(pipeline="other"),
    "region": ONE._replace(arn=ARN.replace("eu-west-1", "us-east-1")),
    "made again": ONE._replace(created="2026-02-03T00:00:00.000Z"),
}


def spec(path: Path, writer: WriterIdentity, name: str = "out", **more: Any) -> SinkSpec:
    return SinkSpec(name, path=str(path), writer=writer, **more)


KINDS: dict[str, Callable[..., Any]] = {
    "flat": lambda path, writer, **more: FileSink(spec(path, writer, **more), PosixStore(path)),
    "partitioned": lambda path, writer, **more: FileSink(
        spec(path, writer, partition_by=("day",), **more), PosixStore(path)
    ),
    "dead letter": lambda path, writer, **more: FileSink(
        spec(path, writer, DEAD_LETTER, format="json", **more), PosixStore(path)
    ),
}


def committed(sink: Any, after: RecordPosition | None, upto: int) -> HighWaterMarks:
    marks: HighWaterMarks = sink.publish(None, {A: ShardSpan(after, RecordPosition(upto))}, "b").marks
    return marks


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", OTHERS)
def test_a_foreign_writer_is_refused_and_by_sharing_has_marks_of_its_own(tmp_path, kind, other):
    make = KINDS[kind]
    one = make(tmp_path, ONE)
    assert one.open() == {}
    committed(one, None, 5)
    for attempt in (
        lambda: make(tmp_path, OTHERS[other]).open(),
        lambda: committed(make(tmp_path, OTHERS[other]), None, 3),
    ):
        with pytest.raises(SinkRefused, match="is written by application one") as refused:
            attempt()
        assert str(OTHERS[other]) in str(refused.value) and "writers = shared" in str(refused.value)
    two = make(tmp_path, OTHERS[other], shared=True)
    assert two.open() == {}
    assert committed(two, None, 3) == {A: RecordPosition(3)}
    assert make(tmp_path, ONE).open() == {A: RecordPosition(5)}
    assert committed(one, RecordPosition(5), 7) == {A: RecordPosition(7)}
    assert make(tmp_path, OTHERS[other]).open() == {A: RecordPosition(3)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_shard_that_has_ended_stays_ended_for_every_kind_of_sink(tmp_path, kind):
    sink = KINDS[kind](tmp_path, ONE)
    sink.open()
    marks = committed(sink, None, 5)
    sink.retire({A: marks[A]})
    b = StreamShard("s", "shardId-000000000001")
    sink.publish(None, {b: ShardSpan(None, RecordPosition(1))}, "b")
    assert KINDS[kind](tmp_path, ONE).open() == {A: ENDED, b: RecordPosition(1)}


def test_a_commit_of_the_dead_letter_is_one_file_for_this_user_alone() -> None:
    spec = dead_letter_of(settings_of("mld.spark.deadLetter = /dead"))
    assert (spec.one_file, spec.private, spec.shared) == (True, True, True)


@pytest.mark.parametrize("master", ["local[2]", "spark://cluster:7077"])
def test_a_bad_path_of_the_dead_letter_is_refused_by_its_key(master):
    settings = settings_of("mld.spark.deadLetter = hdfs://node/dead", f"mld.spark.master = {master}")
    with pytest.raises(SinkRefused, match=r"mld\.spark\.deadLetter"):
        make_sink(dead_letter_of(settings), None)
