"""What somebody who may write the metadata of a Delta or Iceberg table can do with them: `make test-lakehouse`."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

import pytest

from mld.processors.spark.high_water_marks import spans
from mld.processors.spark.positions import RecordPosition, StreamShard
from mld.processors.spark.session.spark_session import OF_SQL
from mld.processors.spark.sink_port import SinkError, SinkRefused
from mld.processors.spark.sink_spec import SinkSpec
from mld.processors.spark.sinks.delta import CALLS_JAVA
from mld.processors.spark.sinks.factory import make_sink
from mld.processors.spark.sinks.iceberg import DELETES, PROPERTY
from tests.lakehouse.tables import NAMES, session

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif("MLD_LAKEHOUSE" not in os.environ, reason="make test-lakehouse"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

A = StreamShard("s", "0")
ROW = "'a' AS shardId, 1L AS sequence"
CHANGE = "'k' AS id, '{n}' AS sequenceNumber, CAST({at} AS DOUBLE) AS at, {n} AS n"
MERGE = {"mode": "merge", "keys": ("id",), "order_by": ("at",)}


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory):
    return tmp_path_factory.mktemp("warehouse")


@pytest.fixture(scope="module")
def spark(warehouse):
    made = session(warehouse, **OF_SQL)
    yield made
    made.stop()


def published(spark, format, place, columns=ROW, **more):
    """A writer that opens the table anew and publishes one more record of shard A."""
    sink = make_sink(SinkSpec("out", format, str(place), **more), spark)
    marks = sink.open()
    end = marks[A].sequence + 1 if A in marks else 1
    return sink.publish(spark.sql(f"SELECT {columns}"), spans({A: RecordPosition(end)}, marks), "b")


# --- Delta -----------------------------------------------------------------------------------------------------------


def field(name, type="string", **metadata):
    return {"name": name, "type": type, "nullable": True, "metadata": metadata}


def delta(directory, *fields, protocol=(1, 4), **configuration):
    """A table that somebody has written by hand, with these further columns."""
    log = directory / "table" / "_delta_log"
    log.mkdir(parents=True)
    schema = {"type": "struct", "fields": [field("shardId"), field("sequence", "long"), *fields]}
    made = {"id": "t", "format": {"provider": "parquet", "options": {}}, "partitionColumns": [], "createdTime": 0}
    made |= {"schemaString": json.dumps(schema), "configuration": configuration}
    versions = dict(zip(("minReaderVersion", "minWriterVersion"), protocol, strict=True))
    (log / f"{0:020}.json").write_text("\n".join(map(json.dumps, ({"protocol": versions}, {"metaData": made}))))
    return log.parent


@pytest.mark.parametrize("function", [*CALLS_JAVA, "`Reflect`", "system.builtin.reflect"])
def test_no_generated_column_calls_java(spark, tmp_path, function):
    leak = f"{function}('java.lang.System', 'getenv', 'PATH')"
    table = delta(tmp_path, field("leak", **{"delta.generationExpression": leak}))
    with pytest.raises(SinkRefused):
        published(spark, "delta", table)
    assert list(table.glob("*.parquet")) == []


def test_no_generated_column_reads_the_environment_or_a_setting(spark, tmp_path):
    said = "${env:PATH} ${spark:spark.app.id}"
    published(spark, "delta", delta(tmp_path, field("leak", **{"delta.generationExpression": f"'{said}'"})))
    (row,) = spark.read.format("delta").load(str(tmp_path / "table")).collect()
    assert row.leak == said


@pytest.mark.parametrize("text", ["{", '{"commitInfo": {"userMetadata": 7}}', "aws_secret_access_key = x"])
def test_a_damaged_log_is_the_fault_of_no_record(spark, tmp_path, text):
    table = delta(tmp_path)
    published(spark, "delta", table)
    (table / "_delta_log" / f"{2:020}.json").write_text(text)
    with pytest.raises(SinkError, match="reading the ledger") as raised:
        published(spark, "delta", table)
    assert type(raised.value) in (SinkError, SinkRefused)


def test_a_schema_that_is_none_is_the_fault_of_no_record(spark, tmp_path):
    with pytest.raises(SinkError, match="reading the ledger") as raised:
        published(spark, "delta", delta(tmp_path, field("x", "no type")))
    assert type(raised.value) in (SinkError, SinkRefused)


ODD = ("a`b", 'q"', "new\nline", "\x1b[31mred", "d.o.t", "'; DROP TABLE t; --", "", "<b>", "\u202e", "${env:PATH}")


def test_columns_of_any_name_are_left_alone_or_merged(spark, tmp_path):
    at = "delta.columnMapping."
    named = [field(one, **{f"{at}id": n, f"{at}physicalName": f"c{n}"}) for n, one in enumerate((*ODD, *"ks"), 3)]
    table = delta(tmp_path, *named, protocol=(2, 5), **{"delta.columnMapping.mode": "name", f"{at}maxColumnId": "99"})
    log = table / "_delta_log" / f"{0:020}.json"  # the first two columns need their numbers, too
    text = log.read_text()
    for n, one in enumerate(("shardId", "sequence"), 1):
        old = json.dumps(json.dumps(field(one, "string" if n == 1 else "long")))[1:-1]
        new = json.dumps(
            json.dumps(field(one, "string" if n == 1 else "long", **{f"{at}id": n, f"{at}physicalName": f"c{n}"}))
        )[1:-1]
        assert old in text
        text = text.replace(old, new)
    log.write_text(text)
    columns = "'k' AS k, '1' AS s, '7' AS sequenceNumber, '1' AS `a``b`, '2' AS `d.o.t`, '3' AS `${{env:PATH}}`"
    more = {"mode": "merge", "keys": ("k", "d.o.t"), "order_by": ("a`b", "${env:PATH}"), "delete_when": "s = '1'"}
    published(spark, "delta", table, columns.format(), **more)
    (row,) = spark.read.format("delta").load(str(table)).collect()
    assert (row["a`b"], row["d.o.t"], row["${env:PATH}"], row["_mld_deleted"], row['q"']) == ("1", "2", "3", True, None)


def test_a_view_under_the_name_of_a_table_is_refused(spark):
    spark.sql(f"CREATE OR REPLACE VIEW v AS SELECT {ROW}")
    with pytest.raises(SinkRefused, match=r"reading the ledger of default\.v"):
        published(spark, "delta", "default.v")


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_which_value_of_an_order_is_newer_than_which(spark, tmp_path, format):
    """NaN is newer than infinity, that than any number, and NULL is older than all. So whoever may write such a value
    decides about its key for good, unless the pipeline bounds it."""
    place = tmp_path / "order" if format == "delta" else f"lake.db.t{next(NAMES)}"
    values = ("NULL", "1e308D", "'Infinity'", "'NaN'", "'Infinity'", "NULL", "1")
    found = []
    for n, at in enumerate(values, 1):
        published(spark, format, place, CHANGE.format(n=n, at=at), **MERGE)
        frame = spark.read.format("delta").load(str(place)) if format == "delta" else spark.table(place)
        found += [row.n for row in frame.collect()]
    assert found == [1, 2, 3, 4, 4, 4, 4]


# --- Iceberg ---------------------------------------------------------------------------------------------------------


def changed(warehouse, name, change):
    """Have `change` change the metadata of a table where they are."""
    with sqlite3.connect(warehouse / "catalog.db") as database:
        ((place,),) = database.execute("SELECT metadata_location FROM iceberg_tables WHERE table_name = ?", (name,))
    file = Path(place.removeprefix("file:"))
    metadata = json.loads(file.read_text())
    change(metadata)
    file.write_text(json.dumps(metadata))
    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)


def test_a_commit_deletes_no_file_outside_of_the_metadata(spark, warehouse, tmp_path):
    name, precious = f"t{next(NAMES)}", tmp_path / "precious"
    for _ in range(2):
        published(spark, "iceberg", f"lake.db.{name}")
    precious.touch()

    def change(metadata):
        metadata["properties"] |= {DELETES: "true", "write.metadata.previous-versions-max": "1"}
        log = metadata["metadata-log"]
        log.insert(0, {**log[0], "metadata-file": f"file:{precious}"})

    changed(warehouse, name, change)
    with pytest.raises(SinkRefused, match="a commit may delete"):
        published(spark, "iceberg", f"lake.db.{name}")
    assert precious.exists()


def test_a_ring_of_snapshots_is_walked_once(spark, warehouse):
    name = f"t{next(NAMES)}"
    for _ in range(2):
        published(spark, "iceberg", f"lake.db.{name}")

    def ring(metadata):
        first, second = metadata["snapshots"]
        for one, parent in ((first, second), (second, first)):
            del one["summary"][PROPERTY]
            one["parent-snapshot-id"] = parent["snapshot-id"]

    changed(warehouse, name, ring)
    assert published(spark, "iceberg", f"lake.db.{name}").number == 3


def test_a_number_that_is_none_is_the_fault_of_no_record(spark, warehouse):
    published(spark, "iceberg", f"lake.db.{(name := f't{next(NAMES)}')}")
    properties = {"write.metadata.previous-versions-max": "x", DELETES: "true"}
    changed(warehouse, name, lambda metadata: metadata["properties"].update(properties))
    with pytest.raises(SinkError, match='For input string: "x"') as raised:
        published(spark, "iceberg", f"lake.db.{name}")
    assert type(raised.value) is SinkError


def test_a_view_under_the_name_of_an_iceberg_table_is_said(spark):
    published(spark, "iceberg", table := f"lake.db.t{next(NAMES)}")
    spark.sql(f"CREATE VIEW lake.db.v AS SELECT * FROM {table}")
    with pytest.raises(SinkError, match=r"nothing was published \(.*db\.v because it already exists"):
        published(spark, "iceberg", "lake.db.v")
