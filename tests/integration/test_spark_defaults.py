"""What a session of ours is set to: times in Parquet, and casts that fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra: pip install 'mld-kinesis[spark]'")

from mld.processors.spark.testing import session
from tests.support.page_blocks import block
from tests.support.spark_bed import WITH_HELPERS, A, bed, engine_bed, lay_helpers, rows, run_with_helpers

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
JSON = ("mld.spark.format = json", "mld.spark.schema = n INT, text STRING, at TIMESTAMP")
PARQUET = "mld.spark.sink.out.format = parquet"
TIMES = "SELECT payload.n, payload.at FROM records"
CASTS = "SELECT payload.n, CAST(payload.text AS INT) AS number FROM records"
TYPE_KEY = "spark.sql.parquet.outputTimestampType"


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    made = session()
    yield made
    made.stop()  # a test in the next file may start one of its own


def event(n: int, text: str = "1") -> bytes:
    return json.dumps({"n": n, "text": text, "at": f"2026-01-01T10:00:{n:02d}.123456Z"}).encode()


def footer(spark: Any, file: Path) -> Any:
    java = spark._jvm.org.apache
    path = java.hadoop.fs.Path(str(file))
    return java.parquet.hadoop.ParquetFileReader.readFooter(spark._jsc.hadoopConfiguration(), path)


def column(spark: Any, file: Path, name: str) -> tuple[str, bool]:
    """The type of a column as Parquet has it, and whether it has statistics."""
    found = footer(spark, file)
    kind = str(found.getFileMetaData().getSchema().getType(name))
    (chunk,) = [one for one in found.getBlocks()[0].getColumns() if one.getPath().toDotString() == name]
    return kind, chunk.getStatistics().hasNonNullValue()


def test_times_in_parquet_are_microseconds_with_statistics_and_old_files_are_read_beside_them(
    spark: Any, tmp_path: Path
) -> None:
    bed = engine_bed(spark, tmp_path, TIMES, *JSON, PARQUET)
    ours = spark.conf.get(TYPE_KEY)
    try:
        spark.conf.set(TYPE_KEY, "INT96")  # as Spark does by itself, and as it was
        assert bed.run({1: event(1), 2: event(2)}).failed == {}
    finally:
        spark.conf.set(TYPE_KEY, ours)
    assert bed.run({3: event(3), 4: event(4)}).failed == {}
    old, new = sorted((tmp_path / "out").glob("c[0-9]*.parquet"))
    assert column(spark, old, "at") == ("optional int96 at", False)
    assert column(spark, new, "at") == ("optional int64 at (TIMESTAMP(MICROS,true))", True)
    read = spark.read.parquet(str(tmp_path / "out"))
    found = read.where("at > '2026-01-01 10:00:01.123456'").orderBy("n").selectExpr("n", "string(at)").collect()
    assert [tuple(row) for row in found] == [(n, f"2026-01-01 10:00:{n:02d}.123456") for n in (2, 3, 4)]


def test_a_cast_that_fails_is_a_record_that_cannot_be_processed(spark: Any, tmp_path: Path) -> None:
    bed = engine_bed(spark, tmp_path, CASTS, *JSON)
    outcome = bed.run({1: event(1), 2: event(2, "two"), 3: event(3)})
    assert (outcome.failed, outcome.figures.poisoned) == ({}, 1)
    assert [(row["n"], row["number"]) for row in rows(tmp_path / "out")] == [(1, 1), (3, 1)]
    (letter,) = rows(tmp_path / "dead")
    assert letter["sequenceNumber"] == "2" and "CAST_INVALID_INPUT" in letter["reason"]


def test_without_a_dead_letter_it_stops_its_shard(spark: Any, tmp_path: Path) -> None:
    bed = engine_bed(spark, tmp_path, CASTS, *JSON, dead=False)
    outcome = bed.run({1: event(1), 2: event(2, "two"), 3: event(3)})
    assert "CAST_INVALID_INPUT" in outcome.failed[A]
    assert [row["n"] for row in rows(tmp_path / "out")] == [1]


def test_try_cast_makes_it_null(spark: Any, tmp_path: Path) -> None:
    bed = engine_bed(spark, tmp_path, CASTS.replace("CAST", "TRY_CAST"), *JSON)
    assert bed.run({1: event(1), 2: event(2, "two")}).failed == {}
    assert [(row["n"], row.get("number")) for row in rows(tmp_path / "out")] == [(1, 1), (2, None)]


def test_functions_import_what_stands_beside_the_pipeline(tmp_path: Path) -> None:
    """In a session of its own: its Python workers are told the directory when the session starts."""
    stop_active_session()
    lay_helpers(tmp_path)
    with bed(tmp_path, WITH_HELPERS, "mld.spark.master = local[1]") as made:
        run_with_helpers(made)


def stop_active_session() -> None:
    from pyspark.sql import SparkSession

    if (active := SparkSession.getActiveSession()) is not None:
        active.stop()


ORDER_PB2 = """
class Order:
    def __init__(self, id, n):
        self.id, self.n = id, n

    @staticmethod
    def FromString(data):
        if type(data) is not bytes or data[:1] != b"\\n":
            raise ValueError("Error parsing message")
        return Order(data[2 : 2 + data[1]].decode(), data[3 + data[1]] if len(data) > 2 + data[1] else 0)
"""
"""Stands in for what protoc makes of `message Order { string id = 1; int32 n = 2; }`, which needs its package."""


@pytest.mark.parametrize("is_framed", [False, True])
def test_a_recipe_for_protobuf_makes_rows_of_messages_with_and_without_a_frame(tmp_path: Path, is_framed: bool) -> None:
    stop_active_session()
    recipe = block("python", "order_pb2", "spark-formats.md")
    frame = b"\0\0\0\0\7\0" if is_framed else b""
    if is_framed:
        recipe = recipe.replace('order("data")', 'order(F.expr("substring(data, 7)"))')
    (tmp_path / "order_pb2.py").write_text(ORDER_PB2)
    letters = f"mld.spark.deadLetter = {tmp_path / 'dead'}"
    with bed(tmp_path, recipe, "mld.spark.master = local[1]", "mld.spark.format = binary", letters) as made:
        data = {1: frame + b"\n\1a\x10\7", 2: frame + b"\7\7", 3: frame + b"\n\1b"}
        assert made.run(data).failed == {}
    assert [(row["id"], row["n"]) for row in rows(tmp_path / "out")] == [("a", 7), ("b", 0)]
    assert [row["sequenceNumber"] for row in rows(tmp_path / "dead")] == ["2"]
