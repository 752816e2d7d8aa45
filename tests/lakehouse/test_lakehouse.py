"""Delta and Iceberg sinks against the real libraries: `make test-lakehouse`.

They are released after Spark, so this has an environment of its own, with the newest Spark that both exist for.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from mld.processors.spark.high_water_marks import ENDED, spans
from mld.processors.spark.positions import RecordPosition, ShardSpan, StreamShard
from mld.processors.spark.sink_port import DataRefused, Fenced, SinkRefused
from mld.processors.spark.sink_spec import SinkSpec
from mld.processors.spark.writer_identity import WriterIdentity
from tests.support.spark_bed import engine_bed, rows

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif("MLD_LAKEHOUSE" not in os.environ, reason="make test-lakehouse"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

PACKAGES = (
    "io.delta:delta-spark_4.1_2.13:4.4.0,org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0,"
    "org.xerial:sqlite-jdbc:3.50.3.0"
)
A, B = StreamShard("s", "0"), StreamShard("s", "1")
NOBODY = WriterIdentity()


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory):
    return tmp_path_factory.mktemp("warehouse")


@pytest.fixture(scope="module")
def spark(warehouse):
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]")
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.jars.packages": PACKAGES,
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "jdbc",
        "spark.sql.catalog.lake.uri": f"jdbc:sqlite:{warehouse}/catalog.db",
        "spark.sql.catalog.lake.jdbc.schema-version": "V1",
        "spark.sql.catalog.lake.warehouse": str(warehouse / "lake"),
    }
    for key, value in conf.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:
        pytest.skip(f"the jars cannot be fetched: {str(error)[:200]}")
    yield session
    session.stop()


@pytest.fixture(params=["delta", "iceberg"])
def make(request, spark, warehouse):
    """A function that makes one more writer of the test's own table."""
    from mld.processors.spark.sinks.factory import make_sink

    name = f"t{abs(hash(request.node.name))}"
    path = str(warehouse / name) if request.param == "delta" else f"lake.db.{name}"
    return lambda writer=NOBODY, **more: make_sink(SinkSpec("out", request.param, path, writer=writer, **more), spark)


@pytest.fixture
def read(make, spark):
    sink = make()

    def rows():
        frame = spark.read.format("delta").load(sink._target) if sink._spec.format == "delta" else None
        frame = frame if frame is not None else spark.table(sink._target)
        return Counter((row[0], row[1]) for row in frame.select("shardId", "sequence").collect())

    return rows


@pytest.fixture
def stored(spark):
    def frame(sink):
        is_delta = sink._spec.format == "delta"
        return spark.read.format("delta").load(sink._target) if is_delta else spark.table(sink._target)

    return frame


def step(number):
    """The nth batch of one record."""
    return {A: ShardSpan(RecordPosition(number - 1) if number > 1 else None, RecordPosition(number))}


def publish(spark, sink, ends, marks):
    """Publish what is left of batches that end at `ends`, as records 1, 2, 3, …"""
    batch = spans({shard: RecordPosition(end) for shard, end in ends.items()}, marks)
    frame = None
    for shard, span in batch.items():
        part = spark.range(span.after.sequence + 1 if span.after else 1, span.upto.sequence + 1).selectExpr(
            f"'{shard.shard}' AS shardId", "id AS sequence"
        )
        frame = part if frame is None else frame.union(part)
    published = sink.publish(frame, batch, "b")
    assert published.rows == (0 if frame is None else frame.count())
    return published.marks


def test_marks_come_back_and_a_repetition_is_dropped(make, read, spark):
    first = make()
    assert first.open() == {}
    assert publish(spark, first, {A: 5, B: 3}, {}) == {A: RecordPosition(5), B: RecordPosition(3)}
    again = make()
    marks = again.open()
    assert marks == {A: RecordPosition(5), B: RecordPosition(3)}
    publish(spark, again, {A: 9, B: 3}, marks)
    assert read() == Counter([("0", n) for n in range(1, 10)] + [("1", n) for n in range(1, 4)])


def test_the_batch_that_makes_the_table_may_have_a_malformed_record(spark, warehouse, tmp_path):
    """The statement that makes it leaves Spark's count of what was observed without a row."""
    pipeline = "def transform(records, batch):\n    return records.select('payload.*')\n"
    keys = ("mld.spark.format = json", "mld.spark.schema = n INT", "mld.spark.sink.out.format = iceberg")
    bed = engine_bed(spark, tmp_path, pipeline, *keys, "mld.spark.sink.out.path = lake.db.made_by_a_batch")
    assert bed.run({1: b'{"n": 1}', 2: b"{bad", 3: b'{"n": 3}'}).failed == {}
    assert sorted(row.n for row in spark.table("lake.db.made_by_a_batch").collect()) == [1, 3]
    assert [row["sequenceNumber"] for row in rows(tmp_path / "dead")] == ["2"]


def test_a_zombie_is_fenced_and_writes_nothing(make, read, spark):
    zombie, owner = make(), make()
    publish(spark, zombie, {A: 2}, zombie.open())
    stale = zombie.open()
    publish(spark, owner, {A: 6}, owner.open())
    with pytest.raises(Fenced):
        publish(spark, zombie, {A: 4}, stale)
    assert read() == Counter(("0", n) for n in range(1, 7))


def overtaken(monkeypatch, sink, by):
    """Somebody else commits once between the sink's look at the head and its write."""
    commit, raced = type(sink)._commit, []

    def late(self, *given):
        if self is sink and not raced:
            raced.append(by())
        return commit(self, *given)

    monkeypatch.setattr(type(sink), "_commit", late)


@pytest.mark.parametrize(("theirs", "fenced"), [({B: 4}, False), ({A: 4}, True)], ids=["another shard", "a zombie"])
def test_a_lost_race_is_refused_only_if_our_shard_was_moved(make, read, spark, monkeypatch, theirs, fenced):
    mine, other = make(), make()
    publish(spark, mine, {A: 1}, mine.open())
    marks = other.open()
    overtaken(monkeypatch, mine, lambda: publish(spark, other, theirs, marks))
    if fenced:
        with pytest.raises(Fenced):
            publish(spark, mine, {A: 3}, marks)
        assert read() == Counter(("0", n) for n in range(1, 5))
    else:
        assert publish(spark, mine, {A: 3}, marks) == {A: RecordPosition(3), B: RecordPosition(4)}
        assert read() == Counter([("0", n) for n in range(1, 4)] + [("1", n) for n in range(1, 5)])


def test_commits_of_others_and_empty_batches_keep_the_ledger(make, read, spark):
    sink = make()
    marks = publish(spark, sink, {A: 1}, sink.open())
    stranger = spark.range(7, 8).selectExpr("'x' AS shardId", "id AS sequence")
    if sink._spec.format == "delta":
        stranger.write.format("delta").mode("append").save(sink._target)
    else:
        stranger.writeTo(sink._target).append()
    assert make().open() == marks
    empty = make()
    assert empty.publish(None, spans({A: RecordPosition(2)}, empty.open()), "b").marks[A] == RecordPosition(2)
    assert make().open()[A] == RecordPosition(2)
    assert read() == Counter([("0", 1), ("x", 7)])


def test_a_shard_that_has_ended_is_kept_by_a_batch_of_nothing(make, spark):
    sink = make()
    before = publish(spark, sink, {A: 2, B: 1}, sink.open())
    sink.retire({A: before[A]})
    assert sink.publish(None, {}, "ends").marks == {A: ENDED, B: before[B]}
    assert make().open() == {A: ENDED, B: before[B]}


# --- several writers -------------------------------------------------------------------------------------------------

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/s"
ONE = WriterIdentity("one", "main", "s", ARN, "2026-01-02T00:00:00.000Z")
OTHERS = {
    "application": ONE._replace(application="two"),
    "region": ONE._replace(arn=ARN.replace("eu-west-1", "us-east-1")),
    "made again": ONE._replace(created="2026-02-03T00:00:00.000Z"),
}


def test_another_writer_is_refused_by_name_and_by_sharing_writes_everything(make, read, spark):
    one = make(ONE)
    publish(spark, one, {A: 5}, one.open())
    for other in OTHERS.values():
        with pytest.raises(SinkRefused, match="is written by application one") as refused:
            make(other).open()
        assert str(other) in str(refused.value) and "writers = shared" in str(refused.value)
    two = OTHERS["region"]
    with pytest.raises(SinkRefused):
        publish(spark, make(two), {A: 3}, {})
    assert publish(spark, make(two, shared=True), {A: 3}, {}) == {A: RecordPosition(3)}
    assert publish(spark, one, {A: 7}, {A: RecordPosition(5)}) == {A: RecordPosition(7)}
    assert make(two).open() == {A: RecordPosition(3)}
    assert read() == Counter([("0", n) for n in range(1, 8)]) + Counter([("0", n) for n in range(1, 4)])


def test_a_lost_race_against_a_writer_that_shares_keeps_the_marks_of_both(make, read, spark, monkeypatch):
    mine, other = make(ONE, shared=True), make(OTHERS["application"], shared=True)
    publish(spark, mine, {A: 1}, mine.open())
    overtaken(monkeypatch, mine, lambda: publish(spark, other, {A: 4}, {}))
    assert publish(spark, mine, {A: 3}, {A: RecordPosition(1)}) == {A: RecordPosition(3)}
    assert (mine.open(), other.open()) == ({A: RecordPosition(3)}, {A: RecordPosition(4)})
    assert read() == Counter([("0", n) for n in range(1, 4)]) + Counter([("0", n) for n in range(1, 5)])


# --- partitions ------------------------------------------------------------------------------------------------------


def of_customers(spark, *customers):
    rows = [(customer, number) for number, customer in enumerate(customers)]
    return spark.createDataFrame(rows, "customer STRING, n INT").repartition(4)


def test_a_partition_of_many_is_one_file(make, spark):
    sink = make(partition_by=("customer",))
    sink.publish(of_customers(spark, *(f"c{number % 200}" for number in range(800))), step(1), "b")
    if sink._spec.format == "delta":
        assert len(spark.read.format("delta").load(sink._target).inputFiles()) == 200
    else:
        assert spark.table(f"{sink._target}.data_files").count() == 200


def test_a_value_by_which_no_directory_can_be_called_is_the_record_s_fault(make, stored, spark):
    sink = make(partition_by=("customer",))
    sink.publish(of_customers(spark, "good", "q" * 200, None), step(1), "b")
    with pytest.raises(DataRefused, match="is no name of a directory: that of customer is too long"):
        sink.publish(of_customers(spark, "good", "&" * 300), step(2), "b")
    assert stored(sink).count() == 3


def test_a_sink_partitioned_by_the_hours_of_a_column_is_written(spark):
    sink = iceberg(spark, "lake.db.by_hour", partition_by=("hours(at)", "customer"))
    marks = sink.open()
    for number in (1, 2):
        at = "timestamp_seconds(1767312000 + 3600 * id)"
        frame = spark.range(3).selectExpr("'c' AS customer", f"{at} AS at", "id")
        marks = sink.publish(frame, spans({A: RecordPosition(number)}, marks), "b").marks
    assert spark.table("lake.db.by_hour").count() == 6
    assert spark.table("lake.db.by_hour.partitions").count() == 3


# --- Iceberg ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def table(request, spark):
    return f"lake.db.i{abs(hash(request.node.name))}"


def iceberg(spark, table, **more):
    from mld.processors.spark.sinks.factory import make_sink

    return make_sink(SinkSpec("out", "iceberg", table, **more), spark)


def commits_of(spark, table):
    spark.sql(f"REFRESH TABLE {table}")
    return spark.table(f"{table}.metadata_log_entries").count()


def test_a_batch_is_one_commit_of_an_iceberg_table_and_its_metadata_do_not_grow_by_marks(spark, table):
    sink, shards = iceberg(spark, table), [StreamShard("s", f"shardId-{n:012}") for n in range(64)]
    marks = publish(spark, sink, dict.fromkeys(shards[:1], 1), sink.open())
    marks = sink.publish(None, spans(dict.fromkeys(shards, RecordPosition(2)), marks), "b").marks
    before = commits_of(spark, table)
    for end in range(3, 8):
        marks = sink.publish(None, spans(dict.fromkeys(shards, RecordPosition(end)), marks), "b").marks
    assert commits_of(spark, table) == before + 5
    said = [row[0] for row in spark.sql(f"SELECT summary['mld.ledger'] FROM {table}.snapshots").collect()]
    assert max(len(text) for text in said if text) < 150
    assert iceberg(spark, table).open() == marks


def test_a_batch_that_lost_races_is_written_once(spark, table, monkeypatch):
    from mld.processors.spark.sinks.iceberg import IcebergSink

    mine, other = iceberg(spark, table), iceberg(spark, table)
    publish(spark, mine, {A: 1}, mine.open())
    overtaken(monkeypatch, mine, lambda: publish(spark, other, {B: 4}, {}))
    write, written = IcebergSink._write, []
    monkeypatch.setattr(IcebergSink, "_write", lambda *given: written.append(1) or write(*given))
    publish(spark, mine, {A: 3}, {A: RecordPosition(1)})
    assert len(written) == 2  # the other's, and ours


def test_a_zombie_that_wakes_between_its_check_and_its_commit_loses(spark, table, monkeypatch):
    from mld.processors.spark.sinks import iceberg as module

    zombie, owner = iceberg(spark, table), iceberg(spark, table)
    marks = publish(spark, zombie, {A: 2}, zombie.open())
    woken = []

    def asleep(name):
        if name == "checked" and not woken:
            woken.append(1)
            publish(spark, owner, {A: 6}, marks)

    monkeypatch.setattr(module, "stage", asleep)
    with pytest.raises(Fenced):
        publish(spark, zombie, {A: 4}, marks)
    assert spark.table(table).count() == 6
    files = {row[0].removeprefix("file:") for row in spark.sql(f"SELECT file_path FROM {table}.files").collect()}
    assert all(map(os.path.exists, files))


def test_added_columns_are_added_and_other_changes_are_refused(spark, table):
    sink = iceberg(spark, table)
    marks = publish(spark, sink, {A: 1}, sink.open())
    more = spark.sql("SELECT '0' AS shardId, 2L AS sequence, 'x' AS word")
    marks = sink.publish(more, spans({A: RecordPosition(2)}, marks), "b").marks
    less = spark.sql("SELECT 3 AS sequence")
    marks = sink.publish(less, spans({A: RecordPosition(3)}, marks), "b").marks
    rows = spark.table(table).orderBy("sequence").collect()
    assert [tuple(row) for row in rows] == [("0", 1, None), ("0", 2, "x"), (None, 3, None)]
    with pytest.raises(SinkRefused, match="its column sequence is bigint, in this batch it is string"):
        sink.publish(spark.sql("SELECT 'y' AS sequence"), spans({A: RecordPosition(4)}, marks), "b")
    odd = spark.sql("SELECT 4L AS sequence, array(named_struct('x: int>, y', 1, 'a``b', 'c')) AS `odd, ``name`")
    marks = sink.publish(odd, spans({A: RecordPosition(4)}, marks), "b").marks
    assert spark.table(table).schema["odd, `name"].dataType.simpleString() == odd.schema[1].dataType.simpleString()
    assert (
        spark.table(table).where("sequence = 4").select("`odd, ``name`").collect()
        == odd.select("`odd, ``name`").collect()
    )
    assert sink.open() == marks


@pytest.mark.parametrize("untyped", ["NULL", "array(NULL)"])
def test_a_column_without_a_type_is_refused(spark, table, untyped):
    frame = spark.sql(f"SELECT '0' AS shardId, 2L AS sequence, {untyped} AS word")
    sink = iceberg(spark, table)
    for _ in ("no table yet", "a table"):
        marks = sink.open()
        with pytest.raises(SinkRefused, match="has no type, as it is only NULL; cast it in the pipeline") as refused:
            sink.publish(frame, spans({A: RecordPosition(2)}, marks), "b")
        assert "the new column word" in str(refused.value)
        publish(spark, sink, {A: 1}, marks)


def test_an_iceberg_table_that_was_rolled_back_is_refused_until_a_person_decides(spark, table):
    sink = iceberg(spark, table)
    marks = publish(spark, sink, {A: 1}, sink.open())
    first = spark.sql(f"SELECT snapshot_id FROM {table}.refs").first()[0]
    marks = publish(spark, sink, {A: 5}, marks)
    spark.sql(f"CALL lake.system.rollback_to_snapshot('{table.partition('.')[2]}', {first})")
    with pytest.raises(SinkRefused, match="was rolled back or replaced: its ledger is that of commit 2"):
        iceberg(spark, table).open()
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('mld.ledger.keep' = '2')")
    assert iceberg(spark, table).open() == marks
    spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES ('mld.ledger')")
    again = iceberg(spark, table)
    assert again.open() == {}
    assert publish(spark, again, {A: 2}, {}) == {A: RecordPosition(2)}


def change(spark, *rows):
    return spark.createDataFrame(list(rows), "id long, name string, op string, sequenceNumber string")


def test_changes_become_a_table_of_current_rows_exactly_once(spark, table, monkeypatch):
    sink = iceberg(spark, table, mode="merge", keys=("id",), delete_when="op = 'd'")
    marks = sink.open()
    first = change(spark, (1, "a", "i", "9"), (1, "b", "u", "10"), (2, "c", "i", "11"), (3, "d", "i", "12"))
    marks = sink.publish(first, spans({A: RecordPosition(12)}, marks), "b").marks
    other = iceberg(spark, table, mode="merge", keys=("id",), delete_when="op = 'd'")
    stale = other.open()
    second = change(spark, (2, "c", "d", "13"), (3, "e", "u", "14"), (4, "f", "i", "15"), (5, "g", "d", "16"))
    before = commits_of(spark, table)
    assert sink.publish(second, spans({A: RecordPosition(16)}, marks), "b").rows == 3
    assert commits_of(spark, table) == before + 2
    with pytest.raises(Fenced):
        other.publish(change(spark, (1, "zombie", "u", "14")), spans({A: RecordPosition(14)}, stale), "b")
    spark.sql(f"REFRESH TABLE {table}")
    rows = spark.table(table).select("id", "name").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(1, "b"), (3, "e"), (4, "f")]
    assert other.open() == {A: RecordPosition(16)}


def test_two_merges_that_race_leave_both_changes(spark, table, monkeypatch):
    from mld.processors.spark.sinks import iceberg as module

    mine, other = (iceberg(spark, table, mode="merge", keys=("id",)) for _ in range(2))
    marks = mine.publish(change(spark, (1, "a", "i", "1")), spans({A: RecordPosition(1)}, mine.open()), "b").marks
    raced = []

    def overtaken_when(name):
        if name == "staged" and not raced:
            raced.append(1)
            other.publish(change(spark, (2, "b", "i", "1")), spans({B: RecordPosition(1)}, other.open()), "b")

    monkeypatch.setattr(module, "stage", overtaken_when)
    mine.publish(change(spark, (1, "c", "u", "2")), spans({A: RecordPosition(2)}, marks), "b")
    spark.sql(f"REFRESH TABLE {table}")
    rows = spark.table(table).select("id", "name").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(1, "c"), (2, "b")]
    assert mine.open() == {A: RecordPosition(2), B: RecordPosition(1)}


def test_files_of_a_commit_that_was_refused_after_it_had_happened_stay(spark, table, monkeypatch):
    """A client that repeats a request whose answer was lost is told no, though the first one was done."""
    from mld.processors.spark.sinks.iceberg import IcebergSink
    from mld.processors.spark.sinks.lake_table import LostRace

    mine, other = iceberg(spark, table), iceberg(spark, table)
    marks = publish(spark, mine, {A: 1}, mine.open())
    commit, lost = IcebergSink._commit, []

    def lost_answer(*given):
        commit(*given)
        if not lost:
            lost.append(1)
            publish(spark, other, {B: 4}, {})
            raise LostRace

    monkeypatch.setattr(IcebergSink, "_commit", lost_answer)
    with pytest.raises(Fenced):
        publish(spark, mine, {A: 3}, marks)
    assert spark.table(table).count() == 7
    assert mine.open() == {A: RecordPosition(3), B: RecordPosition(4)}
