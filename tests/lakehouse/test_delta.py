"""Delta tables against the real library: expired history, changes merged by key, columns. `make test-lakehouse`."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from uuid import uuid4

import pytest

from mld.processors.spark.high_water_marks import spans
from mld.processors.spark.positions import RecordPosition, StreamShard
from mld.processors.spark.sink_port import Fenced, SinkRefused
from mld.processors.spark.sink_spec import SinkSpec
from mld.processors.spark.sinks.factory import make_sink
from mld.processors.spark.writer_identity import WriterIdentity

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif("MLD_LAKEHOUSE" not in os.environ, reason="make test-lakehouse"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

A, B = StreamShard("s", "shardId-000000000000"), StreamShard("s", "shardId-000000000001")
ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/s"
ONE = WriterIdentity("one", "main", "s", ARN, "2026-01-02T00:00:00.000Z")
OTHERS = {
    "application": ONE._replace(application="two"),
    "region": ONE._replace(arn=ARN.replace("eu-west-1", "us-east-1")),
    "made again": ONE._replace(created="2026-02-03T00:00:00.000Z"),
}


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]")
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.jars.packages": "io.delta:delta-spark_4.1_2.13:4.4.0",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    for key, value in conf.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:
        pytest.skip(f"the jars cannot be fetched: {str(error)[:200]}")
    yield session
    session.stop()


def sink_at(spark, path, writer=ONE, **more):
    return make_sink(SinkSpec("out", "delta", str(path), writer=writer, **more), spark)


def appended(spark, sink, end, marks, shard=A, extra=()):
    batch = spans({shard: RecordPosition(end)}, marks)
    span = batch[shard]
    frame = spark.range(span.after.sequence + 1 if span.after else 1, end + 1, 1, 1)
    return sink.publish(frame.selectExpr(f"'{shard.shard}' AS shardId", "id AS sequence", *extra), batch, "b").marks


def numbers(spark, path):
    return Counter(row.sequence for row in spark.read.format("delta").load(str(path)).select("sequence").collect())


# --- history that expires --------------------------------------------------------------------------------------------


def expire(spark, path: Path) -> None:
    """What Delta does to its log once `delta.logRetentionDuration` has passed: all before a checkpoint goes."""
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('a' = 'b')")
    commits = sorted((path / "_delta_log").glob("*.json"))
    for commit in commits[:-1]:
        commit.unlink()
        (commit.parent / f".{commit.name}.crc").unlink(missing_ok=True)


def test_an_entry_that_has_expired_is_refused_until_its_loss_is_accepted(spark, tmp_path):
    path = tmp_path / "t"
    sink = sink_at(spark, path)
    marks = appended(spark, sink, 3, sink.open())
    appended(spark, sink, 5, marks)
    expire(spark, path)
    with pytest.raises(
        SinkRefused, match="has had 2 commits of this program, but its history no longer says"
    ) as refused:
        sink_at(spark, path).open()
    statement = str(refused.value).partition("ALTER TABLE")
    spark.sql("".join(statement[1:]))
    again = sink_at(spark, path)
    assert again.open() == {}
    batch = spans({B: RecordPosition(7)}, {})
    published = again.publish(spark.range(6, 8).selectExpr("'x' AS shardId", "id AS sequence"), batch, "b")
    assert (published.number, published.marks) == (3, {B: RecordPosition(7)})
    assert sink_at(spark, path).open() == {B: RecordPosition(7)}
    assert numbers(spark, path) == Counter(range(1, 8))


def test_a_table_of_somebody_else_has_lost_nothing(spark, tmp_path):
    path = tmp_path / "t"
    spark.range(1).selectExpr("'x' AS shardId", "id AS sequence").write.format("delta").save(str(path))
    sink = sink_at(spark, path)
    assert sink.open() == {}
    appended(spark, sink, 2, {})
    assert numbers(spark, path) == Counter(range(3))


# --- who writes, by path and by name ---------------------------------------------------------------------------------


@pytest.fixture(params=["path", "name"])
def place(request, tmp_path):
    return str(tmp_path / "t") if request.param == "path" else f"default.t{uuid4().hex}"


def test_another_application_region_or_stream_is_refused_and_by_sharing_has_its_own_marks(spark, place):
    one = sink_at(spark, place)
    appended(spark, one, 2, one.open())
    for other in OTHERS.values():
        with pytest.raises(SinkRefused, match="is written by application one") as refused:
            sink_at(spark, place, other).open()
        assert str(other) in str(refused.value) and "writers = shared" in str(refused.value)
        with pytest.raises(SinkRefused):
            appended(spark, sink_at(spark, place, other), 1, {})
    two = sink_at(spark, place, OTHERS["region"], shared=True)
    assert two.open() == {}
    assert appended(spark, two, 1, {}) == {A: RecordPosition(1)}
    assert sink_at(spark, place).open() == {A: RecordPosition(2)}


# --- columns ---------------------------------------------------------------------------------------------------------


def test_a_column_is_added_and_another_type_is_refused(spark, tmp_path):
    path = tmp_path / "t"
    sink = sink_at(spark, path)
    marks = appended(spark, sink, 2, sink.open())
    marks = appended(spark, sink, 3, marks, extra=("'new' AS more",))
    with pytest.raises(
        SinkRefused, match="its column more is string, in this batch it is int; cast it in the pipeline"
    ):
        appended(spark, sink, 4, marks, extra=("1 AS more",))
    rows = spark.read.format("delta").load(str(path)).select("sequence", "more").collect()
    assert {(row.sequence, row.more) for row in rows} == {(1, None), (2, None), (3, "new")}


# --- changes ---------------------------------------------------------------------------------------------------------

BIG = 49590338271490256608559692538361571095921575989136588898


def changed(spark, sink, marks, *changes, columns="id long, name string, op string, sequenceNumber string"):
    """Publish changes, each (id, name, op, sequence, …); the batch ends at the last."""
    batch = spans({A: RecordPosition(max(change[3] for change in changes))}, marks)
    frame = spark.createDataFrame([(*change[:3], str(change[3]), *change[4:]) for change in changes], columns)
    return sink.publish(frame, batch, "b").marks


def current(spark, place):
    frame = spark.read.format("delta").load(place) if "/" in place else spark.table(place)
    return {(row.id, row.name) for row in frame.collect()}


def merging(spark, place, **more):
    return sink_at(spark, place, mode="merge", keys=("id",), delete_when="op = 'REMOVE'", **more)


def test_change_data_ends_as_current_rows(spark, place):
    sink = merging(spark, place)
    marks = changed(
        spark,
        sink,
        sink.open(),
        (1, "first", "INSERT", 9),
        (1, "second", "MODIFY", 10),  # the newest by number, not by text
        (2, "b", "INSERT", 11),
        (3, "gone at once", "INSERT", 12),
        (3, None, "REMOVE", 13),
        (None, "no key", "INSERT", 14),
    )
    assert current(spark, place) == {(1, "second"), (2, "b"), (None, "no key")}
    marks = changed(spark, sink, marks, (1, None, "REMOVE", BIG), (2, "b2", None, BIG + 1), (4, "d", "INSERT", BIG + 2),
                    (None, "still none", "MODIFY", BIG + 3), (5, None, "REMOVE", BIG + 4))  # fmt: skip
    wanted = {(2, "b2"), (4, "d"), (None, "still none")}
    assert current(spark, place) == wanted
    again = merging(spark, place)
    assert again.open() == marks == {A: RecordPosition(BIG + 4)}
    with pytest.raises(Fenced):
        changed(spark, again, {}, (1, "back", "INSERT", 20))
    assert again.publish(None, spans({B: RecordPosition(3)}, marks), "b").marks == {**marks, B: RecordPosition(3)}
    assert current(spark, place) == wanted


def test_a_merge_that_lost_the_race_is_run_again(spark, tmp_path, monkeypatch):
    path = str(tmp_path / "t")
    mine, other = merging(spark, path), merging(spark, path)
    marks = changed(spark, mine, mine.open(), (1, "a", None, 1))
    commit, raced = type(mine)._commit, []

    def late(self, *given):
        if self is mine and not raced:
            raced.append(1)
            theirs = spark.createDataFrame(
                [(1, "theirs", None, "1")], "id long, name string, op string, sequenceNumber string"
            )
            other.publish(theirs, spans({B: RecordPosition(1)}, marks), "b")
        return commit(self, *given)

    monkeypatch.setattr(type(mine), "_commit", late)
    assert changed(spark, mine, marks, (1, "mine", None, 2)) == {A: RecordPosition(2), B: RecordPosition(1)}
    assert current(spark, path) == {(1, "mine")}
    assert mine._head().number == 3


def test_a_merge_adds_columns_and_refuses_other_types(spark, tmp_path):
    path = str(tmp_path / "t")
    sink = merging(spark, path)
    marks = changed(spark, sink, sink.open(), (1, "a", None, 1))
    more = "id long, name string, op string, sequenceNumber string, score int"
    marks = changed(spark, sink, marks, (2, "b", None, 2, 7), columns=more)
    rows = spark.read.format("delta").load(path).select("id", "score").collect()
    assert {(row.id, row.score) for row in rows} == {(1, None), (2, 7)}
    with pytest.raises(SinkRefused, match="its column score is int, in this batch it is string"):
        changed(spark, sink, marks, (3, "c", None, 3, "x"), columns=more.replace("int", "string"))
    assert sink_at(spark, path).open() == marks
