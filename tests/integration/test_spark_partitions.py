"""`partitionBy` on values that a producer chooses, with a real Spark: what a sink begins, and where the rest is."""

from __future__ import annotations

import logging
import shutil

import pytest

pytest.importorskip("pyspark")

from mld.processors.spark.high_water_marks import RecordPosition, ShardSpan, StreamShard
from mld.processors.spark.sink_port import SinkSpec
from mld.processors.spark.sinks.delta import DeltaSink
from mld.processors.spark.sinks.factory import make_sink
from mld.processors.spark.sinks.files import BEYOND, directory_of
from mld.processors.spark.sinks.lake_table import LostRace, PartitionField

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("java") is None, reason="needs a JDK 17"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
SHARD = StreamShard("clicks", "shardId-000000000000")
ODD = ["a/b", "a b", "x=1", "é", "", "..", "%41", "#'\"", "{[^]}", "\x01\x7f", "_x", ".y", "q" * 200]


@pytest.fixture(scope="module")
def spark():
    from tests.prove_spark.jvm import Jvm

    jvm = Jvm()
    yield jvm.session
    jvm.kill()


def sink_of(spark, path, at_most, **more):
    spec = SinkSpec("out", "parquet", str(path), partition_by=("customer",), new_partitions_max=at_most, **more)
    sink = make_sink(spec, spark)
    sink.open()
    return sink


def step(number):
    """The nth batch of one record."""
    return {SHARD: ShardSpan(RecordPosition(number - 1) if number > 1 else None, RecordPosition(number))}


def of(spark, *customers):
    rows = [(customer, number) for number, customer in enumerate(customers)]
    return spark.createDataFrame(rows, "customer STRING, n INT")


def begun(path):
    return {one.name for one in path.iterdir() if one.name.startswith("customer=")}


def test_rows_beyond_the_bound_are_kept_whole_and_known_partitions_go_on(spark, tmp_path, caplog):
    path = tmp_path / "out"
    sink = sink_of(spark, path, 3)
    assert sink.publish(of(spark, "good"), step(1), "b").rows == 1
    many = [f"c{number}" for number in range(40)]
    with caplog.at_level(logging.ERROR, "mld.spark"):
        assert sink.publish(of(spark, *many, "good", None), step(2), "b").rows == 42
    assert len(begun(path)) == 3
    assert "39 rows" in caplog.text
    assert "newPartitionsPerHour" in caplog.text
    assert sink.publish(of(spark, "good", "new"), step(3), "b").rows == 2
    table = spark.read.parquet(str(path)).collect()
    beyond = spark.read.parquet(str(path / BEYOND)).select("customer", "n").collect()
    assert sum(row.customer == "good" for row in table) == 3
    assert len(table) + len(beyond) == 1 + 42 + 2
    assert {row.customer for row in table} | {row.customer for row in beyond} == {*many, "good", "new", None}
    assert sink_of(spark, path, 3).open() == {SHARD: RecordPosition(3)}


def test_a_batch_that_is_tried_again_has_each_row_once(spark, tmp_path):
    path = tmp_path / "out"
    sink = sink_of(spark, path, 2)
    frame = of(spark, *(f"c{number}" for number in range(9)))
    with pytest.raises(TimeoutError), sink._journal.staged() as token:
        assert sink._write(frame, token) == 9
        raise TimeoutError  # before the commit; the bound stands elsewhere now
    again = sink_of(spark, path, 5)
    assert again.publish(frame, step(1), "b").rows == 9
    table = spark.read.parquet(str(path)).count()
    assert (table, spark.read.parquet(str(path / BEYOND)).count()) == (5, 4)


def test_a_new_host_knows_the_partitions_that_there_are(spark, tmp_path):
    path = tmp_path / "out"
    many = [f"c{number}" for number in range(6)]
    sink_of(spark, path, 6).publish(of(spark, *many), step(1), "b")
    sink = sink_of(spark, path, 1)
    assert sink.publish(of(spark, *many, "new"), step(2), "b").rows == 7
    assert sink.publish(of(spark, *many, "newer"), step(3), "b").rows == 7
    assert begun(path) == {f"customer={one}" for one in [*many, "new"]}
    assert spark.read.parquet(str(path / BEYOND)).count() == 1


def test_the_names_of_odd_values_are_those_of_spark(spark, tmp_path):
    path = tmp_path / "out"
    sink_of(spark, path, 50).publish(of(spark, *ODD), step(1), "b")
    assert begun(path) == {directory_of(("customer",), [value]) for value in ODD}
    sink = sink_of(spark, path, 1)
    sink.publish(of(spark, *ODD, "n1", "n2"), step(2), "b")
    assert spark.read.parquet(str(path / BEYOND)).count() == 1, "only one of the two new ones"


def test_a_value_that_no_directory_can_be_called_by_keeps_no_other_row(spark, tmp_path, caplog):
    path = tmp_path / "out"
    impossible = ["q" * 247, "é" * 130, "a\0b", "/" * 100]
    with caplog.at_level(logging.ERROR, "mld.spark"):
        assert sink_of(spark, path, 9).publish(of(spark, *impossible, "good", "q" * 246), step(1), "b").rows == 6
    assert begun(path) == {"customer=good", f"customer={'q' * 246}"}
    assert {row.customer for row in spark.read.parquet(str(path / BEYOND)).collect()} == set(impossible)
    assert "no names of directories" in caplog.text


def test_partitions_written_lately_take_one_job_and_each_row_is_there_once(spark, tmp_path):
    path = tmp_path / "out"
    sink = sink_of(spark, path, 9)
    expected = []
    for number, customers in enumerate((["a", None], ["a"], [None, "a"], ["b", "a"], ["b"]), 1):
        assert sink.publish(of(spark, *customers).repartition(4), step(number), "b").rows == len(customers)
        expected += customers
    rows = [row.customer for row in spark.read.parquet(str(path)).collect()]
    assert sorted(rows, key=str) == sorted(expected, key=str)
    assert not (path / BEYOND).exists()


def test_a_partition_of_a_batch_that_was_looked_at_is_one_file(spark, tmp_path):
    path = tmp_path / "out"
    frame = of(spark, *("a", "b") * 20).repartition(4)
    assert sink_of(spark, path, 9).publish(frame, step(1), "b").rows == 40
    assert len(list(path.glob("customer=*/*.parquet"))) == 2


def test_a_batch_of_many_partitions_that_there_are_is_written_there(spark, tmp_path):
    path = tmp_path / "out"
    many = [f"c{number}" for number in range(600)]
    sink_of(spark, path, len(many)).publish(of(spark, *many), step(1), "b")
    sink_of(spark, path, 1).publish(of(spark, *many * 2, "new", "newer"), step(2), "b")
    assert spark.read.parquet(str(path)).count() == 600 + 1_200 + 1
    assert spark.read.parquet(str(path / BEYOND)).count() == 1


def test_what_others_keep_of_a_frame_stays_theirs(spark, tmp_path):
    frame = of(spark, "a", "b").persist()
    sink_of(spark, tmp_path / "out", 1).publish(frame, step(1), "b")
    assert frame.storageLevel.useMemory
    frame.unpersist()
    sink_of(spark, tmp_path / "other", 1).publish(frame, step(1), "b")
    assert not frame.storageLevel.useMemory


def test_rows_beyond_are_reported_once_their_batch_is_published(spark, tmp_path, caplog, monkeypatch):
    sink = sink_of(spark, tmp_path / "out", 1)
    monkeypatch.setattr(sink._journal, "commit", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sink.publish(of(spark, "a", "b"), step(1), "b")
    assert not caplog.text
    monkeypatch.undo()
    sink.publish(of(spark, "a", "b"), step(1), "b")
    assert "1 rows, 1 since the start" in caplog.text


class Table(DeltaSink):
    """A table of one partition column, `customer` or what `column` says, that keeps what is appended."""

    def __init__(self, spark, at_most, races=0, column="customer"):
        super().__init__(SinkSpec("out", "delta", "db.table", new_partitions_max=at_most), spark)
        self.races, self.column, self.rows = races, column, []

    def _partition_fields(self):
        from pyspark.sql.functions import col

        return [PartitionField(self.column, col(self.column), self.column)]

    def _stored_partitions(self):
        return None

    def _head(self):
        return None

    def _nothing(self):
        return None

    def _commit(self, frame, entry):
        with self._bounded(frame) as bounded:
            found = bounded.collect()
        if self.races:
            self.races -= 1
            raise LostRace
        self.rows += found
        return len(found)


def test_a_value_that_no_directory_can_be_called_by_is_beyond_in_a_table_too(spark):
    table = Table(spark, 9)
    impossible = ["q" * 247, "a\0b"]
    assert table.publish(of(spark, *impossible, "good"), step(1), "b").rows == 3
    assert {row.customer for row in table.rows} == {None, "good"}
    assert {row.mld_beyond_customer for row in table.rows} == {None, *impossible}


def test_rows_beyond_in_a_table_are_reported_once_whatever_races_are_lost(spark, caplog):
    table = Table(spark, 1, races=2)
    table.publish(of(spark, "a", "b"), step(1), "b")
    assert caplog.text.count("since the start") == 1
    assert "1 rows, 1 since the start" in caplog.text


@pytest.mark.parametrize("column", ["mld_partition", "mld_partition_of_row"])
@pytest.mark.parametrize("by", [True, False])
def test_a_column_of_the_pipeline_may_have_any_name(spark, column, by):
    frame = of(spark, "a", "b").selectExpr("*", f"customer AS {column}")
    table = Table(spark, 1, column=column if by else "customer")
    table.publish(frame, step(1), "b")
    kept = {row[column] for row in table.rows}
    assert kept == ({"a", None} if by else {"a", "b"})
    assert len(table.rows[0]) == 4
