"""The JDBC sink's words to PostgreSQL, and what its errors mean: tables of values."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.processors.spark.commit.journal import LEDGER
from mld.processors.spark.sink_port import DataRefused, SinkError, SinkRefused, SinkSpec
from mld.processors.spark.sinks.factory import GenericSink, make_sink
from mld.processors.spark.sinks.jdbc import JdbcSink, check_marks_before
from mld.processors.spark.sinks.postgres import (
    ColumnsRefused,
    FrameColumn,
    StagedColumn,
    TableName,
    add_column,
    append,
    cast_of,
    count,
    create,
    fault,
    locked_head,
    merge,
    remedy,
    table_named,
    type_of,
)
from tests.twins.store import Disk, MemoryStore

TARGET, STAGE = TableName("lake", 'odd "name'), TableName("lake", "mld_stage_1_ab")
KEY, VALUE = StagedColumn("c0", "user", "text", is_key=True), StagedColumn("c1", "at", "timestamptz")
NEWEST = ['CHAR_LENGTH("c2") DESC', '"c2" DESC', '"c3" DESC']


def sink_of(url, **more):
    options = {"URL": url, "dbtable": "t"}
    return make_sink(SinkSpec("out", "jdbc", options=options, **more), None)  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["jdbc:postgresql://db/x", " JDBC:PostgreSQL:x"])
def test_tables_of_postgresql_are_written_exactly_once(url):
    assert isinstance(sink_of(url), JdbcSink)


@pytest.mark.parametrize("url", ["jdbc:oracle:thin:@db", "jdbc:", "postgresql://db/x", ""])
def test_other_databases_are_appended_to_at_least_once(url):
    assert isinstance(sink_of(url), GenericSink)


@pytest.mark.parametrize(
    ("url", "more"),
    [
        ("jdbc:sqlserver://db;databaseName=x", {}),
        (" JDBC:MySQL://db/x", {}),
        ("jdbc:mysql:replication://one,two/x", {}),
        ("jdbc:mariadb://db/x", {"mode": "merge", "keys": ("a",)}),
        ("jdbc:oracle:thin:@db", {"mode": "merge", "keys": ("a",)}),
    ],
)
def test_what_only_postgresql_does_is_refused_elsewhere_with_a_remedy(url, more):
    remedies = r"only PostgreSQL .*; .* delta; .*sink\.out\.format = org\.apache\.spark\.sql\.jdbc"
    with pytest.raises(SinkRefused, match=rf"sink\.out\.options\.url: .*{remedies}"):
        sink_of(url, **more)


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("Clicks", ("now", "clicks")),
        ('"Clicks"', ("now", "Clicks")),
        ('Lake."a.b ""c"', ("lake", 'a.b "c')),
    ],
)
def test_tables_are_named_as_the_database_would_read_it(text, table):
    assert table_named(text, "now") == table


@pytest.mark.parametrize("text", ["", "a.b.c", "a b", "a;DROP TABLE b", '"a', "a.", "(SELECT 1) t", "`a`"])
def test_what_is_no_name_of_a_table_is_refused(text):
    with pytest.raises(ValueError, match="no name of a table"):
        table_named(text, "now")


def test_statements():
    assert create(STAGE, [("c0", "TEXT"), ("mld_row", "BIGINT")], ["mld_row"]) == (
        'CREATE TABLE IF NOT EXISTS "lake"."mld_stage_1_ab" '
        '("c0" TEXT, "mld_row" BIGINT NOT NULL, PRIMARY KEY ("mld_row"))'
    )
    assert locked_head(STAGE).endswith("WHERE target = ? FOR UPDATE")
    assert append(TARGET, STAGE, [KEY, VALUE]) == (
        'INSERT INTO "lake"."odd ""name" ("user", "at") SELECT CAST("c0" AS text), CAST("c1" AS timestamptz) '
        'FROM "lake"."mld_stage_1_ab"'
    )
    assert merge(TARGET, STAGE, [KEY, VALUE], NEWEST) == (
        'INSERT INTO "lake"."odd ""name" ("user", "at") SELECT "user", "at" FROM ('
        'SELECT CAST("c0" AS text) AS "user", CAST("c1" AS timestamptz) AS "at", '
        'ROW_NUMBER() OVER (PARTITION BY CAST("c0" AS text) '
        'ORDER BY CHAR_LENGTH("c2") DESC, "c2" DESC, "c3" DESC, "mld_row" DESC) AS mld_rank '
        'FROM "lake"."mld_stage_1_ab") ranked WHERE mld_rank = 1 '
        'ON CONFLICT ("user") DO UPDATE SET "at" = EXCLUDED."at"'
    )
    assert merge(TARGET, STAGE, [KEY], []).endswith('ON CONFLICT ("user") DO NOTHING')
    assert count(STAGE, [KEY, VALUE]) == (
        'SELECT COUNT(*), COUNT(*) FILTER (WHERE "c0" IS NULL) FROM "lake"."mld_stage_1_ab"'
    )


@pytest.mark.parametrize(
    ("spark", "found"),
    [
        ("string", "TEXT"),
        ("decimal(38,18)", "NUMERIC(38,18)"),
        ("timestamp", "TIMESTAMP WITH TIME ZONE"),
        ("array<string>", "TEXT[]"),
        ("array<decimal(3,2)>", "NUMERIC(3,2)[]"),
    ],
)
def test_types(spark, found):
    assert type_of(FrameColumn("a", spark)) == found


@pytest.mark.parametrize("spark", ["array<array<int>>", "struct<a:int>", "map<string,int>", "void"])
def test_what_has_no_type_is_refused(spark):
    with pytest.raises(ColumnsRefused, match="no type for column a"):
        type_of(FrameColumn("a", spark))


@pytest.mark.parametrize(
    ("spark", "column", "is_key", "cast"),
    [
        ("string", "text", False, None),
        ("string", "character varying", False, None),
        ("string", "jsonb", False, "jsonb"),
        ("string", "uuid", False, "uuid"),
        ("string", '"Lake".mood', False, '"Lake".mood'),
        ("bigint", "integer", False, None),
        ("bigint", "integer", True, "integer"),
        ("string", "citext", True, "citext"),
    ],
)
def test_text_and_keys_are_cast(spark, column, is_key, cast):
    assert cast_of(spark, column, is_key=is_key) == cast


@pytest.mark.parametrize(
    ("state", "meaning"),
    [
        ("08006", SinkError),
        ("57P01", SinkError),
        ("53100", SinkError),
        ("55P03", SinkError),
        ("40P01", SinkError),
        ("25006", SinkError),
        ("25P03", SinkError),
        ("42P07", SinkError),
        ("XX000", SinkError),
        ("", SinkError),
        ("23505", DataRefused),
        ("22021", DataRefused),
        ("P0001", DataRefused),
        ("21000", DataRefused),
        ("54000", DataRefused),
        ("28P01", SinkRefused),
        ("42501", SinkRefused),
        ("3D000", SinkRefused),
        ("55000", SinkRefused),
    ],
)
def test_what_an_error_means(state, meaning):
    assert fault(state) is meaning


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ("28P01", "options.password"),
        ("42501", "create tables"),
        ("3D000", "options.url"),
        ("42P10", "unique index"),
        ("42804", "the pipeline"),
    ],
)
def test_a_refusal_says_what_to_do(state, word):
    assert word in remedy(state, "out")


ODD_NAMES = ('"', '""', "`", "``", "]", "'; DROP TABLE t; --", "a\nb", "a\\", "?", "{fn x}", "/*", "\u0430", "x" * 5000)
NAMES = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=80)


@given(data=st.data())
def test_whatever_a_column_is_called_it_is_a_name_and_nothing_else(data) -> None:
    """SQLite reads the same quotes, but knows no ADD COLUMN IF NOT EXISTS."""
    names = data.draw(st.lists(NAMES | st.sampled_from(ODD_NAMES), min_size=1, max_size=5, unique_by=str.casefold))
    with sqlite3.connect(":memory:") as database:
        table, stage = TableName("main", "'; --\"`"), TableName("main", "s")
        database.execute(create(table, [(name, "text") for name in names]))
        database.execute(add_column(table, "mld_added", "text").replace("COLUMN IF NOT EXISTS", "COLUMN"))
        database.execute("CREATE TABLE s (c0 text)")
        database.execute("INSERT INTO s VALUES ('v')")
        database.execute(append(table, stage, [StagedColumn("c0", name) for name in names]))
        found = database.execute(f"SELECT * FROM {table.place}")
        assert [one[0] for one in found.description] == [*names, "mld_added"]
        assert found.fetchall() == [("v",) * len(names) + (None,)]


def test_marks_that_version_0_1_kept_elsewhere_are_refused_and_not_forgotten():
    store = MemoryStore(Disk())
    check_marks_before("out", None, "clicks")
    check_marks_before("out", store, "clicks")
    store.put(f"{LEDGER}/000000000007.json", b"{}")
    with pytest.raises(SinkRefused, match=r"000000000007\.json: marks of table clicks as mld 0\.1 kept them"):
        check_marks_before("out", store, "clicks")
