"""The JDBC sink's words to PostgreSQL, and what its errors mean: tables of values."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.processors.spark.session.error_classes import SQL
from mld.processors.spark.session.error_kinds import Cause
from mld.processors.spark.sink_port import DataRefused, SinkError, SinkRefused
from mld.processors.spark.sink_spec import SinkSpec
from mld.processors.spark.sinks.factory import make_sink
from mld.processors.spark.sinks.generic import GenericSink
from mld.processors.spark.sinks.jdbc import JdbcSink
from mld.processors.spark.sinks.jdbc_errors import meaning
from mld.processors.spark.sinks.postgres_sql import (
    Column,
    TableName,
    add_column,
    create,
    create_stage,
    fitted,
    quoted,
    take_over,
)

TARGET, STAGE = TableName("lake", 'odd "name'), TableName("lake", "mld_stage_1_ab")
KEY, VALUE = Column("user", "text"), Column("at", "timestamptz")


def said(state):
    return Cause((SQL,), state, text="words")


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


def test_statements():
    assert create_stage(STAGE, [KEY, VALUE], [0]) == (
        'CREATE TABLE IF NOT EXISTS "lake"."mld_stage_1_ab" (c0 text, c1 timestamptz, mld_row BIGINT, '
        'CONSTRAINT "key user has a value" CHECK (c0 IS NOT NULL))'
    )
    assert take_over(TARGET, STAGE, [KEY, VALUE], [], []) == (
        'INSERT INTO "lake"."odd ""name" ("user", "at") SELECT CAST(s.c0 AS text), CAST(s.c1 AS timestamptz) '
        'FROM "lake"."mld_stage_1_ab" s'
    )
    assert take_over(TARGET, STAGE, [KEY, VALUE], [0], [2, 3]) == (
        'INSERT INTO "lake"."odd ""name" ("user", "at") '
        "SELECT DISTINCT ON (1) CAST(s.c0 AS text), CAST(s.c1 AS timestamptz) "
        'FROM "lake"."mld_stage_1_ab" s '
        "ORDER BY 1, CAST(s.c2 AS NUMERIC) DESC, CAST(s.c3 AS NUMERIC) DESC, s.mld_row DESC "
        'ON CONFLICT ("user") DO UPDATE SET "at" = EXCLUDED."at"'
    )
    ordered = take_over(TARGET, STAGE, [KEY, VALUE], [0], [], [1])
    assert "ORDER BY 1, CAST(s.c1 AS timestamptz) DESC NULLS LAST, s.mld_row DESC" in ordered
    assert ordered.endswith(
        'DO UPDATE SET "at" = EXCLUDED."at" WHERE '
        '(coalesce(EXCLUDED."at" > "odd ""name"."at", EXCLUDED."at" IS NOT NULL) '
        'OR EXCLUDED."at" IS NOT DISTINCT FROM "odd ""name"."at" AND true)'
    )
    assert take_over(TARGET, STAGE, [KEY], [0], []).endswith('ON CONFLICT ("user") DO NOTHING')


@pytest.mark.parametrize(
    ("state", "kind"),
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
def test_what_an_error_means(state, kind):
    assert type(meaning(said(state), "out", "doing", of_rows=True)) is kind
    assert not isinstance(meaning(said(state), "out", "doing", of_rows=False), DataRefused)


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ("28P01", "options.password"),
        ("42501", "create tables"),
        ("3D000", "options.url"),
        ("42P10", "unique index"),
        ("22023", "schema.table"),
        ("42883", "PostgreSQL from 10"),
        ("42804", "the pipeline"),
    ],
)
def test_a_refusal_says_what_to_do(state, word):
    error = meaning(said(state), "out", "doing", of_rows=False)
    assert isinstance(error, SinkRefused)
    assert str(error).startswith("sink out: doing: words; ")
    assert word in str(error)


ODD_NAMES = ('"', '""', "`", "``", "]", "'; DROP TABLE t; --", "a\nb", "a\\", "?", "{fn x}", "/*", "\u0430", "x" * 5000)
NAMES = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=80)


@given(data=st.data())
def test_whatever_a_column_is_called_it_is_a_name_and_nothing_else(data) -> None:
    """SQLite reads the same quotes, but knows no ADD COLUMN IF NOT EXISTS."""
    names = data.draw(st.lists(NAMES | st.sampled_from(ODD_NAMES), min_size=1, max_size=5, unique_by=str.casefold))
    with closing(sqlite3.connect(":memory:")) as database:
        table, stage = TableName("main", "'; --\"`"), TableName("main", "s")
        database.execute(create(table, [f"{quoted(name)} text" for name in names]))
        added = add_column(table, Column("mld_added", "text"))
        database.execute(added.replace("COLUMN IF NOT EXISTS", "COLUMN"))
        columns = [Column(name, "text") for name in names]
        database.execute(create_stage(stage, columns, range(len(names))))
        values = ", ".join(f"'v{place}'" for place in range(len(names)))
        database.execute(f"INSERT INTO s VALUES ({values}, 1)")
        database.execute(take_over(table, stage, columns, [], []))
        found = database.execute(f"SELECT * FROM {table.place}")
        assert [one[0] for one in found.description] == [*names, "mld_added"]
        assert found.fetchall() == [(*(f"v{place}" for place in range(len(names))), None)]


@pytest.mark.parametrize("type", ["text", "character varying", "citext", "name"])
def test_an_order_of_numbers_is_refused_where_the_table_compares_texts(type) -> None:
    """There 9 is newer than 10, and the newer change would be left out."""
    frame, order = [Column("id", "TEXT"), Column("at", "BIGINT")], ("at",)
    table = [Column("id", "text"), Column("at", type)]
    with pytest.raises(SinkRefused, match=f"t: orderBy names at, which is {type} there, where 9 is newer than 10"):
        fitted("t", frame, table, ("id",), order)
    fitted("t", frame, table, ("id",))
    fitted("t", [Column("id", "TEXT"), Column("at", "TEXT")], table, ("id",), order)
    fitted("t", frame, [Column("id", "text"), Column("at", "numeric")], ("id",), order)
    fitted("t", frame, [], ("id",), order)
