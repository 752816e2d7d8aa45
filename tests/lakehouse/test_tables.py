"""What tables of every format do with records as they come: bytes in, rows out. `make test-lakehouse`."""

from __future__ import annotations

import json
import os

import pytest

from mld.processors.spark.sink_port import SinkRefused
from tests.lakehouse.tables import JSON, KINDS, PLAIN, TableBed, session
from tests.support.databases import Postgres
from tests.support.fetch_databases import installed as has_postgres

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif("MLD_LAKEHOUSE" not in os.environ, reason="make test-lakehouse"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    opened = session(tmp_path_factory.mktemp("warehouse"))
    yield opened
    opened.stop()


@pytest.fixture(scope="module")
def database():
    if not has_postgres():
        yield None
        return
    with Postgres() as running:
        yield running


@pytest.fixture
def table(request, spark, database, tmp_path):
    kind = request.param
    if kind.startswith("jdbc") and database is None:
        pytest.skip("no PostgreSQL: make test-jdbc fetches one")
    return TableBed(spark, tmp_path, kind, database)


def tables(*kinds):
    return pytest.mark.parametrize("table", kinds or KINDS, indirect=True)


FORMATS = {
    "json": (b'{"id": %d, "v": "%s"}', "'payload.*'"),
    "jsonlines": (b'{"id": %d, "v": "%s"}\n', "'rowNumber', 'payload.*'"),
    "text": (b"%d %s", "F.split('payload', ' ')[0].cast('bigint').alias('id'), F.split('payload', ' ')[1].alias('v')"),
    "binary": (
        b"%d %s",
        "F.expr(\"bigint(split_part(string(data), ' ', 1)) id\"), F.expr(\"split_part(string(data), ' ', 2) v\")",
    ),
}


@pytest.mark.parametrize("format", FORMATS)
@tables()
def test_records_of_every_format_are_in_every_table(table, format):
    text, columns = FORMATS[format]
    schema = "id BIGINT, v STRING" if format.startswith("json") else None
    pipeline = (
        "from pyspark.sql import functions as F\n\ndef transform(records, batch):\n"
        f"    return records.select('sequenceNumber', {columns})\n"
    )
    table.start(pipeline, schema=schema, format=format)
    assert table.run([text % (n, b"a") for n in range(5)]).failed == {}
    assert table.run({n + 10: text % (n, b"b") for n in range(3, 8)}).failed == {}
    first = range(3) if table.mode else range(5)
    assert table.rows() == sorted([(str(n), "a") for n in first] + [(str(n), "b") for n in range(3, 8)])


RULES = {
    "delta check": (
        "delta",
        "id BIGINT, v STRING",
        "ADD CONSTRAINT short CHECK (length(v) < 4)",
        b'{"id": 3, "v": "long"}',
    ),
    "delta not null": ("delta", "id BIGINT NOT NULL, v STRING", "", b'{"v": "x"}'),
    "delta varchar": ("delta", "id BIGINT, v VARCHAR(3)", "", b'{"id": 3, "v": "long"}'),
    "delta merge check": (
        "delta merge",
        "id BIGINT, v STRING",
        "ADD CONSTRAINT short CHECK (length(v) < 4)",
        b'{"id": 3, "v": "long"}',
    ),
    "iceberg required": ("iceberg", "id BIGINT NOT NULL, v STRING", "", b'{"v": "x"}'),
    "iceberg merge required": ("iceberg merge", "id BIGINT, v STRING NOT NULL", "", b'{"id": 3}'),
    "jdbc check": ("jdbc", "id BIGINT, v TEXT CHECK (length(v) < 4)", "", b'{"id": 3, "v": "long"}'),
}


@pytest.mark.parametrize(("table", "columns", "rule", "bad"), RULES.values(), ids=RULES, indirect=["table"])
def test_a_row_that_breaks_a_rule_of_the_table_is_a_letter_and_all_others_are_rows(table, columns, rule, bad):
    table.make(columns)
    if rule:
        table.sql(f"ALTER TABLE {table.name} {rule}")
    table.start(JSON if table.mode else PLAIN)
    assert table.run({1: b'{"id": 1, "v": "a"}'}).failed == {}
    outcome = table.run({n: bad if n == 3 else b'{"id": %d, "v": "b"}' % n for n in range(2, 7)})
    assert outcome.failed == {}
    assert table.rows() == [("1", "a"), ("2", "b"), ("4", "b"), ("5", "b"), ("6", "b")]
    assert len(table.letters()) == 1


ODD = "__HIVE_DEFAULT_PARTITION__"


@tables("parquet", "delta", "iceberg")
def test_the_name_of_the_partition_of_nulls_as_a_value_ends_nothing(table):
    table.start(PLAIN, "mld.spark.sink.out.partitionBy = v")
    values = ["de", None, ODD, "", "fr"]
    assert table.run([json.dumps({"id": n, "v": v}).encode() for n, v in enumerate(values)]).failed == {}
    if table.format == "iceberg":  # which tells them apart
        assert table.rows() == sorted([(str(n), v) for n, v in enumerate(values)], key=repr)
    else:
        assert table.rows() == sorted([("0", "de"), ("1", None), ("3", None), ("4", "fr")], key=repr)
        assert len(table.letters()) == 1


@tables("delta")
def test_a_table_that_is_partitioned_by_a_generated_column_takes_frames_without_it(table):
    table.make("id BIGINT, v STRING, first STRING GENERATED ALWAYS AS (left(v, 1))", "PARTITIONED BY (first)")
    table.start(PLAIN)
    assert table.run([b'{"id": 1, "v": "ab"}', b'{"id": 2, "v": "cd"}']).failed == {}
    assert table.rows("id, first") == [("1", "a"), ("2", "c")]


@tables("iceberg", "iceberg merge")
def test_a_table_of_iceberg_that_is_partitioned_by_a_field_of_a_struct(table):
    table.make(
        "sequenceNumber STRING, id BIGINT, v STRING, geo STRUCT<country: STRING>", "PARTITIONED BY (geo.country)"
    )
    table.start(schema="id BIGINT, v STRING, geo STRUCT<country: STRING>")
    assert table.run([b'{"id": 1, "v": "a", "geo": {"country": "de"}}']).failed == {}
    assert table.rows("id, v, geo.country") == [("1", "a", "de")]


@tables("iceberg", "iceberg merge")
def test_transforms_of_iceberg_partition_a_table_that_is_made(table):
    key = "mld.spark.sink.out.partitionBy = bucket(4, id), truncate(1, v), day(at)"
    table.start(JSON, key, schema="id BIGINT, v STRING, at TIMESTAMP")
    data = [b'{"id": %d, "v": "x%d", "at": "2026-01-02T03:04:05Z"}' % (n, n) for n in range(5)]
    assert table.run(data).failed == {}
    assert len(table.rows()) == 5
    (said,) = table.spark.sql(f"SELECT DISTINCT to_json(partition) FROM {table.name}.partitions LIMIT 1").collect()
    assert all(name in said[0] for name in ("id_bucket", "v_trunc", "at_day"))


@tables("iceberg")
def test_rows_that_are_to_be_audited_are_never_published_on_main(table, spark):
    table.make("id BIGINT, v STRING", "TBLPROPERTIES ('write.wap.enabled' = 'true')")
    spark.conf.set("spark.wap.branch", "audit")
    try:
        with pytest.raises(SinkRefused, match=r"spark\.wap\.branch"):
            table.start(PLAIN)
    finally:
        spark.conf.unset("spark.wap.branch")
    assert table.rows() == []


ORDERED = (
    "mld.spark.sink.out.orderBy = at, seq",
    "mld.spark.sink.out.deleteWhen = op = 'REMOVE'",
)
PUT, NEWER, REMOVE, STALE = (
    b'{"id": %%d, "v": "%s", "at": %s, "seq": %d, "op": "%s"}' % one
    for one in (
        (b"put", b"1", 0, b"PUT"),
        (b"newer", b"2", 1, b"PUT"),
        (b"gone", b"2", 2, b"REMOVE"),
        (b"stale", b"null", 9, b"PUT"),
    )
)
ENDS = {
    "stale after newer": ((NEWER, PUT, STALE), "newer"),
    "newer after stale": ((STALE, PUT, NEWER), "newer"),
    "delete, then what it is newer than": ((PUT, REMOVE, NEWER, STALE), None),
    "a key that is not known, deleted": ((REMOVE, NEWER, PUT), None),
    "delete that is delivered again": ((PUT, REMOVE, REMOVE), None),
    "delete that is older than an update": ((b'{"id": %d, "v": "new", "at": 3, "seq": 0, "op": "PUT"}', REMOVE), "new"),
    "put again after a delete": ((PUT, REMOVE, b'{"id": %d, "v": "back", "at": 3, "seq": 0, "op": "PUT"}'), "back"),
    "as new as what is there": ((NEWER, NEWER.replace(b"newer", b"again")), "again"),
    "no order at all": ((STALE, STALE.replace(b"stale", b"later")), "later"),
}
"""Changes of one key in the order in which they come, and the row that a reader sees then."""


@tables("delta merge", "iceberg merge", "jdbc merge")
def test_what_is_older_than_the_row_there_changes_nothing_and_a_delete_is_remembered(table):
    """Within one batch (keys from 0 on) and over batches of one change each (keys from 100 on)."""
    schema = "id BIGINT, v STRING, at BIGINT, seq INT, op STRING"
    table.start(JSON, *ORDERED, schema=schema)
    keys = dict(enumerate(ENDS))
    data = [change % key for key, name in keys.items() for change in ENDS[name][0]]
    assert table.run(dict(enumerate(data, 1))).failed == {}
    for at in range(max(len(changes) for changes, _ in ENDS.values())):
        table.start(JSON, *ORDERED, schema=schema)
        one_each = {100 + key: ENDS[name][0][at] for key, name in keys.items() if at < len(ENDS[name][0])}
        data = {1000 * (at + 1) + key: change % key for key, change in one_each.items()}
        assert table.run(data).failed == {}
    found = {int(id): v for id, v, deleted in table.rows("id, v, _mld_deleted") if deleted in ("False", "f")}
    wanted = {key: v for key, name in keys.items() if (v := ENDS[name][1]) is not None}
    assert {keys[key % 100]: (key, v) for key, v in found.items() if wanted.get(key % 100) != v} == {}
    assert found == wanted | {100 + key: v for key, v in wanted.items()}
    assert table.letters() == []
