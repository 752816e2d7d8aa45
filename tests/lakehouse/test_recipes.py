"""Recipes of the pages, word for word, on records as their producers make them; tables: `make test-lakehouse`."""

from __future__ import annotations

import gzip
import json
import os
import zlib

import pytest

pytest.importorskip("pyspark", reason="needs the extra: pip install 'mld-kinesis[spark]'")

from tests.lakehouse.tables import JSON, PACKAGES, TableBed, session
from tests.lakehouse.test_avro import click
from tests.support.page_blocks import USE, block
from tests.support.spark_bed import engine_bed, rows

pytestmark = [
    *(pytest.mark.spark, pytest.mark.spark_slice, pytest.mark.full, pytest.mark.timeout(900)),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
OF_SPARK = "org.apache.spark:spark-avro_2.13:4.1.1"

OF_CATALOG = "spark.sql.catalog.lake.table-default.write.parquet.compression-codec"
DEFAULTS = {OF_CATALOG: "snappy", "spark.databricks.delta.properties.defaults.enableChangeDataFeed": "true"}
"""Properties of tables that are made, as settings of Spark."""
in_lakehouse = pytest.mark.skipif("MLD_LAKEHOUSE" not in os.environ, reason="make test-lakehouse")


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    opened = session(tmp_path_factory.mktemp("warehouse"), packages=f"{PACKAGES},{OF_SPARK}", **DEFAULTS)
    yield opened
    opened.stop()


def letters(directory):
    return [int(row["sequenceNumber"]) for row in rows(directory / "dead")]


def test_events_of_cloudwatch_logs_are_rows_and_what_is_none_is_a_letter(spark, tmp_path):
    def log(*messages: str, kind: str = "DATA_MESSAGE") -> bytes:
        events = [{"id": f"i{n}", "timestamp": 1767323045000 + n, "message": text} for n, text in enumerate(messages)]
        of = {"messageType": kind, "owner": "1", "logGroup": "g", "logStream": "s", "subscriptionFilters": ["f"]}
        return json.dumps({**of, "logEvents": events}).encode()

    data = {
        1: gzip.compress(log("a", "b")),
        2: zlib.compress(log("c")),
        3: gzip.compress(log("reachable?", kind="CONTROL_MESSAGE")),
        4: log("plain"),
        5: gzip.compress(log("d"))[:-9],
        6: gzip.compress(b"{bad"),
        7: gzip.compress(bytes(17 << 20)),
        8: gzip.compress(log("e")),
    }
    bed = engine_bed(spark, tmp_path, block("python", "DATA_MESSAGE", "spark-formats.md"), "mld.spark.format = binary")
    assert bed.run(data).failed == {}
    found = [(row["sequenceNumber"], row["logGroup"], row["message"], row["at"]) for row in rows(tmp_path / "out")]
    assert found == [
        ("1", "g", "a", "2026-01-02T03:04:05.000Z"),
        ("1", "g", "b", "2026-01-02T03:04:05.001Z"),
        ("2", "g", "c", "2026-01-02T03:04:05.000Z"),
        ("8", "g", "e", "2026-01-02T03:04:05.000Z"),
    ]
    assert letters(tmp_path) == [4, 5, 6, 7]


AVRO = """
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

def transform(records, batch):
    value = from_avro(F.expr("substring(data, 6)"), '%s')
    number = F.expr("conv(hex(substring(data, 2, 4)), 16, 10)")
    return records.select("sequenceNumber", value.alias("value"), number.alias("n")).selectExpr("value.user", "n")
"""


@in_lakehouse
def test_avro_in_frames_of_confluent_is_read(spark, tmp_path):
    from tests.lakehouse.test_avro import SCHEMA

    bed = engine_bed(spark, tmp_path, AVRO % json.dumps(SCHEMA), "mld.spark.format = binary")
    assert bed.run({1: b"\0\0\0\1\2" + click("ann", 1, "a"), 2: b"\0\0\0\1\2\7\7"}).failed == {}
    assert [(row["user"], row["n"]) for row in rows(tmp_path / "out")] == [("ann", "258")]
    assert letters(tmp_path) == [2]


def properties_of(table):
    return {str(row[0]): str(row[1]) for row in table.sql(f"SHOW TBLPROPERTIES {table.name}")}


@in_lakehouse
@pytest.mark.parametrize("kind", ["delta", "delta merge"])
def test_a_table_of_delta_is_made_with_properties_and_column_mapping(spark, tmp_path, kind):
    table = TableBed(spark, tmp_path, kind)
    table.start(JSON, "mld.spark.sink.out.options.delta.columnMapping.mode = name")
    assert table.run([b'{"id": 1, "v": "a"}']).failed == {}
    found = properties_of(table)
    assert (found["delta.columnMapping.mode"], found["delta.enableChangeDataFeed"]) == ("name", "true")
    table.sql(f"ALTER TABLE {table.name} RENAME COLUMN v TO w")
    table.start(JSON.replace("'payload.*'", "'payload.id', 'payload.v AS w'").replace("select(", "selectExpr("))
    assert table.run({2: b'{"id": 2, "v": "b"}'}).failed == {}
    assert table.rows("id, w") == [("1", "a"), ("2", "b")]


@in_lakehouse
def test_a_table_of_iceberg_is_made_with_properties_of_its_catalog(spark, tmp_path):
    table = TableBed(spark, tmp_path, "iceberg")
    table.start(JSON)
    assert table.run([b'{"id": 1, "v": "a"}']).failed == {}
    assert properties_of(table)["write.parquet.compression-codec"] == "snappy"
    table.sql(f"ALTER TABLE {table.name} RENAME COLUMN v TO w")
    table.start(JSON.replace("'payload.*'", "'payload.id', 'payload.v AS w'").replace("select(", "selectExpr("))
    assert table.run({2: b'{"id": 2, "v": "b"}'}).failed == {}
    assert table.rows("id, w") == [("1", "a"), ("2", "b")]


@in_lakehouse
def test_a_table_of_dynamodb_is_kept_as_one_of_iceberg(spark, tmp_path):
    keys = dict(
        line.split(" = ", 1)
        for line in block("properties", "NewImage", "spark-tables.md").replace("\\\n  ", "").splitlines()
    )
    del keys["mld.spark.pipeline"], keys["mld.spark.table.orders"]

    def change(name: str, id: str, at: int, total: str | None = None, number: str | None = None) -> bytes:
        body = {"ApproximateCreationDateTime": at, "Keys": {"id": {"S": id}}, "SizeBytes": 59}
        body |= {"NewImage": {"id": {"S": id}, "customer": {"S": "c"}, "total": {"N": total}}} if total else {}
        body |= {"SequenceNumber": number} if number else {}
        return json.dumps({"eventID": "e", "eventName": name, "tableName": "orders", "dynamodb": body}).encode()

    table = TableBed(spark, tmp_path, "iceberg merge")
    keys = {name.replace(".orders.", ".out."): value for name, value in keys.items()}
    sql = block("sql", "NewImage", "spark-tables.md")
    table.start(sql, *(f"{name} = {value}" for name, value in keys.items()), schema=None)
    first = [change("INSERT", "a", 10, "1"), change("MODIFY", "a", 30, "3"), change("MODIFY", "a", 20, "2")]
    assert table.run([*first, change("INSERT", "b", 10, "1", "99"), change("INSERT", "c", 10, "7")]).failed == {}
    late = {11: change("REMOVE", "b", 10, None, "100"), 12: change("INSERT", "b", 10, "1", "99")}
    assert table.run(late).failed == {}
    again = {21: change("INSERT", "b", 10, "1", "99"), 22: change("MODIFY", "a", 25, "2.5")}
    assert table.run(again).failed == {}
    table.sql(f"INSERT INTO {table.place} (id, total) VALUES ('old', 5.00)")  # as from before `orderBy` was set
    living = "NOT coalesce(_mld_deleted, false)"
    assert living in " ".join((USE / "spark-tables.md").read_text().split())
    seen = table.sql(f"SELECT id, CAST(total AS STRING) FROM {table.place} WHERE {living} ORDER BY id")
    assert seen == [("a", "3.00"), ("c", "7.00"), ("old", "5.00")]
    assert table.letters() == []
