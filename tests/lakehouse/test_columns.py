"""Columns that grow, widen, change their spelling or have no type: bytes in, rows out. `make test-lakehouse`."""

from __future__ import annotations

import json
import os

import pytest

from mld.processors.spark.sink_port import SinkRefused
from tests.lakehouse.tables import PLAIN, TableBed, session

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif("MLD_LAKEHOUSE" not in os.environ, reason="make test-lakehouse"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
TABLES = ("parquet", "delta", "delta merge", "iceberg", "iceberg merge")
LAKE = TABLES[1:]
OF_FRAME = "from pyspark.sql import functions as F\n\ndef transform(records, batch):\n    return "


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    opened = session(tmp_path_factory.mktemp("warehouse"))
    yield opened
    opened.stop()


@pytest.fixture
def table(request, spark, tmp_path):
    return TableBed(spark, tmp_path, request.param)


def tables(*kinds):
    return pytest.mark.parametrize("table", kinds or TABLES, indirect=True)


def batch(table, first, *events, **more):
    """Give the table a batch of events, whose records are numbered from `first` on."""
    return table.run({first + n: json.dumps(event).encode() for n, event in enumerate(events)}, **more)


@tables()
def test_a_field_of_a_struct_that_is_added_midway_is_in_the_table(table):
    table.start(schema="id BIGINT, c STRUCT<a: INT>, l ARRAY<STRUCT<a: INT>>, m MAP<STRING, STRUCT<a: INT>>")
    was = {"c": {"a": 1}, "l": [{"a": 2}], "m": {"k": {"a": 3}}}
    assert batch(table, 1, {"id": 1, **was}, {"id": 2}).failed == {}
    inner = "STRUCT<b: STRUCT<x: INT>, a: INT>"
    table.start(schema=f"id BIGINT, c {inner}, l ARRAY<{inner}>, m MAP<STRING, {inner}>")
    new = {"a": 4, "b": {"x": 5}}
    assert batch(table, 10, {"id": 3, "c": new, "l": [new], "m": {"k": new}}, {"id": 4, "c": {"a": 6}}).failed == {}
    table.start(schema="id BIGINT, c STRUCT<a: INT>, l ARRAY<STRUCT<a: INT>>, m MAP<STRING, STRUCT<a: INT>>")
    assert batch(table, 20, {"id": 5, **was}).failed == {}
    assert table.rows("id, c.a, c.b.x, l[0].a, l[0].b.x, m.k.a, m.k.b.x") == [
        ("1", "1", None, "2", None, "3", None),
        ("2", None, None, None, None, None, None),
        ("3", "4", "5", "4", "5", "4", "5"),
        ("4", "6", None, None, None, None, None),
        ("5", "1", None, "2", None, "3", None),
    ]
    assert table.rows("id, c IS NULL, l IS NULL")[1] == ("2", "True", "True"), "and no struct of nulls"


NARROW = "id BIGINT, n INT, f FLOAT, d DECIMAL(4,2), s STRUCT<n: INT>"
WIDE = "id BIGINT, n BIGINT, f DOUBLE, d DECIMAL(12,2), s STRUCT<n: BIGINT>"


@tables()
def test_a_type_becomes_wider_where_the_format_can_and_is_refused_with_both_types_where_not(table):
    first, second = {"id": 1, "n": 1, "f": 0.5, "d": 1.25, "s": {"n": 1}}, {"id": 2, "n": 1 << 40, "s": {"n": 1 << 41}}
    table.start(schema=NARROW)
    assert batch(table, 1, first).failed == {}
    table.start(schema=WIDE)
    if table.format != "iceberg":
        (said,) = batch(table, 10, {**second, "f": 0.25, "d": 123456789.25}).failed.values()
        assert "n is int, in this batch it is bigint; cast it" in said
    if table.format == "parquet":
        return
    if table.format == "delta":
        assert "'delta.enableTypeWidening' = 'true'" in said
        table.sql(f"ALTER TABLE {table.name} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    assert batch(table, 10, {**second, "f": 0.25, "d": 123456789.25}).failed == {}
    table.start(schema=NARROW)
    assert batch(table, 20, {"id": 3, "n": 3, "f": 0.75, "d": 3.25, "s": {"n": 3}}).failed == {}
    assert table.rows("id, n, f, d, s.n") == [
        ("1", "1", "0.5", "1.25", "1"),
        ("2", str(1 << 40), "0.25", "123456789.25", str(1 << 41)),
        ("3", "3", "0.75", "3.25", "3"),
    ]


@tables()
def test_a_column_that_is_only_null_is_refused_until_it_has_a_type(table):
    text = f"{OF_FRAME}records.select('sequenceNumber', 'payload.*', F.lit(%s).alias('later'))\n"
    table.start(text % "None")
    (said,) = batch(table, 1, {"id": 1}).failed.values()
    assert "the new column later has no type" in said and "cast it" in said
    table.start(text % "'x'")
    assert batch(table, 1, {"id": 1}).failed == {}
    table.start(text % "None")
    assert batch(table, 10, {"id": 2}).failed == {}
    assert table.rows("id, later") == [("1", "x"), ("2", None)]


@pytest.mark.parametrize("sensitive", ["false", "true"])
@tables()
def test_a_column_keeps_its_first_spelling(table, spark, sensitive):
    spark.conf.set("spark.sql.caseSensitive", sensitive)
    try:
        table.start(schema="id BIGINT, user STRING, c STRUCT<a: INT>")
        assert batch(table, 1, {"id": 1, "user": "a", "c": {"a": 1}}).failed == {}
        table.start(schema="id BIGINT, User STRING, C STRUCT<A: INT>")
        assert batch(table, 10, {"id": 2, "User": "b", "C": {"A": 2}}).failed == {}
        assert table.rows("id, user, c.a") == [("1", "a", "1"), ("2", "b", "2")]
        assert spark.conf.get("spark.sql.caseSensitive") == sensitive
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


@tables()
def test_a_column_that_is_added_or_vanished_is_a_warning_once(table, caplog):
    table.start(schema="id BIGINT, old STRING")
    assert batch(table, 1, {"id": 1, "old": "a"}).failed == {}
    assert "columns" not in caplog.text
    table.start(schema="id BIGINT, new STRING")
    for n in (10, 20):
        assert batch(table, n, {"id": n, "new": "b"}).failed == {}
    said = [record.getMessage() for record in caplog.records if "columns" in record.getMessage()]
    assert len(said) == 2 and "added: new" in said[0] and "there: old" in said[1]
    assert table.rows("id, old, new") == sorted([("1", "a", None), ("10", None, "b"), ("20", None, "b")], key=repr)


NEVER = {
    "parquet, a struct as a partition": ("parquet", "'payload.*'", "partitionBy = c", "partition"),
    "delta, a struct as a partition": ("delta", "'payload.*'", "partitionBy = c", "partition"),
    "iceberg, a struct as a partition": ("iceberg", "'payload.*'", "partitionBy = c", "partition"),
    "delta, a field of a struct as a partition": ("delta", "'payload.*'", "partitionBy = c.a", "c.a"),
    "parquet, a field of a struct as a partition": ("parquet", "'payload.*'", "partitionBy = c.a", "c.a"),
    "iceberg, an interval": ("iceberg", "F.expr('interval 1 day').alias('i')", "", "interval"),
    "delta, an interval": ("delta", "F.expr('interval 1 day').alias('i')", "", "INTERVAL"),
    "iceberg, a variant": ("iceberg", "F.expr(\"parse_json('{}')\").alias('v')", "", "cannot have these columns"),
    "orc, a variant": ("orc", "F.expr(\"parse_json('{}')\").alias('v')", "", "VARIANT"),
    "iceberg, no such transform": ("iceberg", "'payload.*'", "partitionBy = hours(id)", "hour"),
}


@pytest.mark.parametrize(("table", "columns", "key", "said"), NEVER.values(), ids=NEVER, indirect=["table"])
def test_what_can_never_succeed_stops_at_the_first_batch_with_a_sentence(table, columns, key, said):
    keys = [f"mld.spark.sink.out.{key}"] if key else []
    table.start(f"{OF_FRAME}records.select('sequenceNumber', {columns})\n", *keys, schema="id BIGINT, c STRUCT<a: INT>")
    outcome = batch(table, 1, {"id": 1, "c": {"a": 1}}, {"id": 2})
    (reason,) = outcome.failed.values()
    assert said in reason and outcome.figures.attempts == 1
    assert table.letters() == []


@tables("delta merge")
def test_a_table_of_delta_that_takes_no_changes_is_no_target_of_a_merge(table):
    table.make("sequenceNumber STRING, id BIGINT, v STRING", "TBLPROPERTIES ('delta.appendOnly' = 'true')")
    with pytest.raises(SinkRefused, match=r"takes no changes, and mode is merge: ALTER TABLE"):
        table.start()


REQUIRED = "sequenceNumber STRING, id BIGINT, s STRUCT<a: INT NOT NULL>"


@tables("delta", "iceberg", "iceberg merge")
def test_a_field_that_the_table_requires_is_a_rows_fault(table):
    table.make(REQUIRED)
    table.start(schema="id BIGINT, s STRUCT<a: INT>")
    assert batch(table, 1, {"id": 1, "s": {"a": 1}}).failed == {}
    events = [{"id": n, "s": {"a": None if n == 3 else n}} for n in range(2, 6)]
    assert batch(table, 10, *events).failed == {}
    assert table.rows("id, s.a") == [("1", "1"), ("2", "2"), ("4", "4"), ("5", "5")]
    assert len(table.letters()) == 1


@tables("delta merge")
def test_changes_are_merged_into_no_table_of_delta_that_requires_a_field(table):
    table.make(REQUIRED)
    table.start(schema="id BIGINT, s STRUCT<a: INT>")
    (said,) = batch(table, 1, {"id": 1, "s": {"a": 1}}).failed.values()
    assert "NOT NULL" in said
    assert table.letters() == []


@tables("iceberg", "iceberg merge")
def test_a_partition_is_a_column_with_a_dot_if_there_is_one_else_a_path(table):
    pipeline = f"{OF_FRAME}records.select('sequenceNumber', 'payload.*', F.lit('x').alias('d.a'))\n"
    table.start(
        pipeline,
        "mld.spark.sink.out.partitionBy = d.a, c.b, bucket(2, c.b)",
        schema="id BIGINT, c STRUCT<a: STRING, b: STRING>",
    )
    assert batch(table, 1, {"id": 1, "c": {"a": "de", "b": "y"}}, {"id": 2, "c": {"b": "z"}}).failed == {}
    parts = {row[0] for row in table.sql(f"SELECT to_json(partition) FROM {table.name}.partitions")}
    assert len(parts) == 2 and all('"d.a":"x"' in part and '"c.b":' in part for part in parts)
    assert table.rows("id, `d.a`, c.a") == [("1", "x", "de"), ("2", "x", None)]


@tables("iceberg")
def test_a_value_of_a_field_that_is_no_name_of_a_directory_is_a_letter(table):
    table.make("id BIGINT, c STRUCT<a: STRING>", "PARTITIONED BY (c.a)")
    table.start(PLAIN, schema="id BIGINT, c STRUCT<a: STRING>")
    assert batch(table, 1, {"id": 1, "c": {"a": "de"}}, {"id": 2, "c": {"a": "x" * 300}}, {"id": 3}).failed == {}
    assert table.rows("id, c.a") == [("1", "de"), ("3", None)]
    assert len(table.letters()) == 1


@tables("delta", "iceberg")
def test_odd_names_grow_too(table):
    table.start(
        PLAIN, schema="`a.b` BIGINT, s STRUCT<`x-y`: INT, `größe`: INT>" if table.format == "iceberg" else "id INT"
    )
    assert batch(table, 1, {"a.b": 1, "s": {"x-y": 1}, "id": 1}).failed == {}
    table.start(
        PLAIN,
        schema="`a.b` BIGINT, s STRUCT<`x-y`: INT, `größe`: INT, `a.b`: INT>"
        if table.format == "iceberg"
        else "id INT, s STRUCT<`a-b`: INT>",
    )
    assert batch(table, 10, {"a.b": 2, "s": {"a.b": 2, "a-b": 2}, "id": 2}).failed == {}
    assert len(table.rows("*")) == 2


@tables("parquet")
def test_fields_of_any_name_grow_in_a_directory(table):
    table.start(PLAIN, schema="id BIGINT, s STRUCT<`x-y`: INT, `@type`: STRUCT<`a b`: INT>>")
    assert batch(table, 1, {"id": 1, "s": {"x-y": 1, "@type": {"a b": 1}}}).failed == {}
    table.start(PLAIN, schema="id BIGINT, s STRUCT<`x-y`: INT, `@type`: STRUCT<`a b`: INT, `größe`: INT>>")
    assert batch(table, 10, {"id": 2, "s": {"@type": {"größe": 2}}}).failed == {}
    assert table.rows("id, s.`x-y`, s.`@type`.`a b`, s.`@type`.`größe`") == [
        ("1", "1", "1", None),
        ("2", None, None, "2"),
    ]


@tables("csv")
def test_columns_of_files_without_names_are_put_in_their_first_order(table):
    table.start(PLAIN, schema="a BIGINT, b STRING")
    assert batch(table, 1, {"a": 1, "b": "x"}).failed == {}
    table.start(PLAIN, schema="B STRING, a INT")
    assert batch(table, 10, {"a": 2, "B": "y"}).failed == {}
    assert sorted(map(tuple, table.spark.read.csv(table.place).collect())) == [("1", "x"), ("2", "y")]
    table.start(PLAIN, schema="a BIGINT, b STRING, c STRING")
    (said,) = batch(table, 20, {"a": 3, "b": "z"}).failed.values()
    assert "csv has no names" in said


@tables("delta")
def test_a_table_of_delta_grows_unless_the_user_says_otherwise(table):
    table.start(PLAIN)
    assert batch(table, 1, {"id": 1, "v": "a"}).failed == {}
    table.start(PLAIN, "mld.spark.sink.out.options.mergeSchema = false", schema="id BIGINT, v STRING, more STRING")
    (said,) = batch(table, 10, {"id": 2, "more": "x"}).failed.values()
    assert "METADATA_MISMATCH" in said
    assert table.rows("*") == [("1", "a")]
