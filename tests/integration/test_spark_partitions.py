"""`partitionBy` with a real Spark: what a sink of files writes, and values by which no directory can be called."""

from __future__ import annotations

import logging
import shutil
from collections import Counter

import pytest

pytest.importorskip("pyspark")

from mld.processors.spark.positions import RecordPosition, ShardSpan, StreamShard
from mld.processors.spark.sink_port import DataRefused
from mld.processors.spark.sink_spec import SinkSpec
from mld.processors.spark.sinks import files
from mld.processors.spark.sinks.factory import make_sink
from tests.support.spark_bed import engine_bed, rows

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


def sink_of(spark, path):
    sink = make_sink(SinkSpec("out", "parquet", str(path), partition_by=("customer",)), spark)
    sink.open()
    return sink


def step(number):
    """The nth batch of one record."""
    return {SHARD: ShardSpan(RecordPosition(number - 1) if number > 1 else None, RecordPosition(number))}


def of(spark, *customers):
    rows = [(customer, number) for number, customer in enumerate(customers)]
    return spark.createDataFrame(rows, "customer STRING, n INT").repartition(4)


def test_every_row_is_in_the_directory_of_its_value_and_a_partition_of_a_batch_is_one_file(spark, tmp_path):
    sink = sink_of(spark, tmp_path)
    for number in (1, 2):
        assert sink.publish(of(spark, *ODD, None, *ODD), step(number), "b").rows == 2 * len(ODD) + 1
    found = Counter(row.customer for row in spark.read.parquet(str(tmp_path)).collect())
    assert found == Counter([*[one for one in ODD if one] * 4, *[None] * 6])
    assert len(list(tmp_path.glob("customer=*/*.parquet"))) == 2 * len(ODD)


@pytest.mark.parametrize("value", ["q" * 247, "é" * 130, "a\0b", "/" * 100])
def test_a_value_by_which_no_directory_can_be_called_is_refused_as_the_record_s_fault(spark, tmp_path, value):
    sink = sink_of(spark, tmp_path)
    assert sink.publish(of(spark, "good", "q" * 246), step(1), "b").rows == 2
    with pytest.raises(DataRefused, match="is no name of a directory: that of customer is too long"):
        sink.publish(of(spark, "good", value), step(2), "b")
    assert spark.read.parquet(str(tmp_path)).count() == 2


def test_its_record_goes_to_the_dead_letter_and_all_others_into_the_table(spark, tmp_path):
    keys = ("mld.spark.format = text", "mld.spark.sink.out.partitionBy = payload")
    bed = engine_bed(spark, tmp_path, "SELECT sequenceNumber, payload FROM records", *keys)
    assert bed.run({1: b"a", 2: b"b"}).failed == {}
    assert bed.run({3: b"a", 4: b"x" * 300, 5: b"c"}).failed == {}
    bed.engine.stop()
    assert sorted(file.parent.name for file in tmp_path.glob("out/payload=*/*")) == [
        *["payload=a"] * 2, "payload=b", "payload=c",
    ]  # fmt: skip
    assert [row["sequenceNumber"] for row in rows(tmp_path / "dead")] == ["4"]


def test_many_files_are_said(spark, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(files, "MANY_FILES", 2)
    with caplog.at_level(logging.WARNING, "mld.spark"):
        sink_of(spark, tmp_path).publish(of(spark, "a", "b", "c"), step(1), "b")
    assert "sink out: 3 files of 3 rows: partition by something coarser" in caplog.text
