"""The JDBC sink's words to each database, and what their errors mean: tables of values."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.processors.spark.commit.journal import LEDGER
from mld.processors.spark.sink_port import SinkRefused, SinkSpec
from mld.processors.spark.sinks.factory import make_sink
from mld.processors.spark.sinks.jdbc import check_marks_before
from mld.processors.spark.sinks.jdbc_dialects import DIALECTS, dialect_of
from mld.processors.spark.sinks.jdbc_statements import DatabaseFault, Ordering, StagedColumn, TableName, table_named
from tests.twins.store import Disk, MemoryStore

POSTGRES, MARIADB, MYSQL = DIALECTS
TARGET, STAGE = TableName(("lake", 'odd "name')), TableName(("lake", "mld_stage_1_ab"))
KEY, VALUE = StagedColumn("c0", "user", "text", is_key=True), StagedColumn("c1", "at", "timestamptz")
PLAIN_KEY, PLAIN_VALUE = StagedColumn("c0", "user", is_key=True), StagedColumn("c1", "at")
NEWEST = (Ordering("c2", digits=True), Ordering("c3"))


@pytest.mark.parametrize(
    ("url", "dialect"),
    [
        ("jdbc:postgresql://db/x", POSTGRES),
        (" JDBC:MySQL://db/x", MYSQL),
        ("jdbc:mysql:replication://one,two/x", MYSQL),
        ("jdbc:mariadb://db/x", MARIADB),
        ("jdbc:oracle:thin:@db", None),
        ("jdbc:", None),
        ("postgresql://db/x", None),
        ("", None),
    ],
)
def test_the_url_says_the_dialect(url, dialect):
    assert dialect_of(url) is dialect


def test_sql_server_is_refused_with_a_remedy():
    spec = SinkSpec("out", "jdbc", options={"URL": "jdbc:sqlserver://db;databaseName=x", "dbtable": "t"})
    with pytest.raises(SinkRefused, match=r"sink\.out\.options\.url: .*SQL Server, .*no longer there; .* delta"):
        make_sink(spec, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "dialect", "table"),
    [
        ("Clicks", POSTGRES, ("now", "clicks")),
        ('"Clicks"', POSTGRES, ("now", "Clicks")),
        ('Lake."a.b ""c"', POSTGRES, ("lake", 'a.b "c')),
        ("Lake.Clicks", MYSQL, ("Lake", "Clicks")),
        ("`Lake`.`a``b`", MARIADB, ("Lake", "a`b")),
    ],
)
def test_tables_are_named_as_the_database_would_read_it(text, dialect, table):
    assert table_named(text, dialect, "now") == table


@pytest.mark.parametrize("text", ["", "a.b.c", "a b", "a;DROP TABLE b", '"a', "a.", "(SELECT 1) t"])
def test_what_is_no_name_of_a_table_is_refused(text):
    with pytest.raises(ValueError, match="no name of a table"):
        table_named(text, POSTGRES, "now")


def test_statements_of_postgresql():
    assert POSTGRES.create(STAGE, [("c0", "TEXT"), ("mld_row", "BIGINT")], ["mld_row"]) == (
        'CREATE TABLE "lake"."mld_stage_1_ab" ("c0" TEXT, "mld_row" BIGINT NOT NULL, PRIMARY KEY ("mld_row"))'
    )
    assert POSTGRES.locked_head(STAGE).endswith("WHERE target = ? FOR UPDATE")
    assert POSTGRES.append(TARGET, STAGE, [KEY, VALUE]) == (
        'INSERT INTO "lake"."odd ""name" ("user", "at") SELECT CAST("c0" AS text), CAST("c1" AS timestamptz) '
        'FROM "lake"."mld_stage_1_ab"'
    )
    assert POSTGRES.merge(TARGET, STAGE, [KEY, VALUE], NEWEST) == (
        'INSERT INTO "lake"."odd ""name" ("user", "at") SELECT "user", "at" FROM ('
        'SELECT CAST("c0" AS text) AS "user", CAST("c1" AS timestamptz) AS "at", '
        'ROW_NUMBER() OVER (PARTITION BY CAST("c0" AS text) '
        'ORDER BY CHAR_LENGTH("c2") DESC, "c2" DESC, "c3" DESC, "mld_row" DESC) AS mld_rank '
        'FROM "lake"."mld_stage_1_ab") ranked WHERE mld_rank = 1 '
        'ON CONFLICT ("user") DO UPDATE SET "at" = EXCLUDED."at"'
    )
    assert POSTGRES.merge(TARGET, STAGE, [KEY], ()).endswith('ON CONFLICT ("user") DO NOTHING')
    assert POSTGRES.count(STAGE, [KEY, VALUE]) == (
        'SELECT COUNT(*), SUM(CASE WHEN "c0" IS NULL THEN 1 ELSE 0 END) FROM "lake"."mld_stage_1_ab"'
    )


@pytest.mark.parametrize("dialect", [MYSQL, MARIADB])
def test_statements_of_mysql(dialect):
    assert dialect.create(STAGE, [("c0", "LONGTEXT")], []).endswith("(`c0` LONGTEXT) " + dialect.table_suffix)
    assert dialect.merge(TARGET, STAGE, [PLAIN_KEY, PLAIN_VALUE], NEWEST) == (
        'INSERT INTO `lake`.`odd "name` (`user`, `at`) SELECT `c0`, `c1` FROM `lake`.`mld_stage_1_ab` '
        "ORDER BY CHAR_LENGTH(`c2`) ASC, `c2` ASC, `c3` ASC, `mld_row` ASC ON DUPLICATE KEY UPDATE `at` = VALUES(`at`)"
    )
    assert dialect.merge(TARGET, STAGE, [PLAIN_KEY], ()).endswith("UPDATE `user` = VALUES(`user`)")


@pytest.mark.parametrize(
    ("spark", "postgres", "mysql"),
    [
        ("string", "TEXT", "LONGTEXT"),
        ("decimal(38,18)", "NUMERIC(38,18)", "DECIMAL(38,18)"),
        ("timestamp", "TIMESTAMP WITH TIME ZONE", "DATETIME(6)"),
        ("array<decimal(3,2)>", "NUMERIC(3,2)[]", None),
        ("array<array<int>>", None, None),
        ("struct<a:int>", None, None),
        ("void", None, None),
    ],
)
def test_types(spark, postgres, mysql):
    found = [dialect.type_of(spark) for dialect in (POSTGRES, MYSQL, MARIADB)]
    assert found == [postgres, mysql, mysql]


@pytest.mark.parametrize(
    ("spark", "column", "is_key", "cast"),
    [
        ("string", "text", False, None),
        ("string", "varchar", False, None),
        ("string", "jsonb", False, "jsonb"),
        ("string", "uuid", False, "uuid"),
        ("string", '"lake"."mood"', False, '"lake"."mood"'),
        ("string", 'Mood"; DROP', False, '"Mood""; DROP"'),
        ("bigint", "int4", False, None),
        ("bigint", "serial", True, "int4"),
        ("string", "citext", True, "citext"),
    ],
)
def test_postgresql_casts_text_and_keys(spark, column, is_key, cast):
    assert POSTGRES.cast(spark, column, is_key=is_key) == cast
    assert MYSQL.cast(spark, column, is_key=is_key) is None


@pytest.mark.parametrize(
    ("dialect", "state", "code", "fault"),
    [
        (POSTGRES, "08006", 0, DatabaseFault.WAIT),
        (POSTGRES, "57P01", 0, DatabaseFault.WAIT),
        (POSTGRES, "53100", 0, DatabaseFault.WAIT),
        (POSTGRES, "55P03", 0, DatabaseFault.WAIT),
        (POSTGRES, "40P01", 0, DatabaseFault.WAIT),
        (POSTGRES, "25006", 0, DatabaseFault.WAIT),
        (POSTGRES, "25P03", 0, DatabaseFault.WAIT),
        (POSTGRES, "23505", 0, DatabaseFault.DATA),
        (POSTGRES, "22021", 0, DatabaseFault.DATA),
        (POSTGRES, "P0001", 0, DatabaseFault.DATA),
        (POSTGRES, "21000", 0, DatabaseFault.DATA),
        (POSTGRES, "28P01", 0, DatabaseFault.REFUSED),
        (POSTGRES, "42501", 0, DatabaseFault.REFUSED),
        (POSTGRES, "3D000", 0, DatabaseFault.REFUSED),
        (POSTGRES, "55000", 0, DatabaseFault.REFUSED),
        (POSTGRES, "54000", 0, DatabaseFault.DATA),
        (POSTGRES, "XX000", 0, DatabaseFault.UNKNOWN),
        (POSTGRES, "", 0, DatabaseFault.UNKNOWN),
        (MYSQL, "28000", 1045, DatabaseFault.REFUSED),
        (MYSQL, "42000", 1142, DatabaseFault.REFUSED),
        (MYSQL, "42000", 1226, DatabaseFault.WAIT),
        (MYSQL, "HY000", 1205, DatabaseFault.WAIT),
        (MYSQL, "HY000", 1290, DatabaseFault.WAIT),
        (MYSQL, "HY000", 1366, DatabaseFault.DATA),
        (MYSQL, "HY000", 3819, DatabaseFault.DATA),
        (MARIADB, "23000", 4025, DatabaseFault.DATA),
        (MARIADB, "HY000", 1364, DatabaseFault.REFUSED),
        (MARIADB, "HY000", 9999, DatabaseFault.UNKNOWN),
    ],
)
def test_what_an_error_means(dialect, state, code, fault):
    assert dialect.fault(state, code) is fault


@pytest.mark.parametrize(
    ("dialect", "state", "code", "word"),
    [
        (POSTGRES, "28P01", 0, "options.password"),
        (MYSQL, "28000", 1045, "options.password"),
        (POSTGRES, "42501", 0, "create tables"),
        (MYSQL, "42000", 1142, "create tables"),
        (POSTGRES, "3D000", 0, "options.url"),
        (MARIADB, "42000", 1049, "options.url"),
        (POSTGRES, "42804", 0, "the pipeline"),
    ],
)
def test_a_refusal_says_what_to_do(dialect, state, code, word):
    assert word in dialect.remedy(state, code, "out")


@pytest.mark.parametrize(
    ("product", "version", "served"),
    [
        ("PostgreSQL", 17, [POSTGRES]),
        ("PostgreSQL", 8, []),  # as another database says that speaks its protocol
        ("MySQL", 8, [MARIADB, MYSQL]),
        ("MariaDB", 11, [MARIADB, MYSQL]),
    ],
)
def test_who_serves_whom(product, version, served):
    assert [dialect for dialect in DIALECTS if dialect.serves(product, version)] == served


ODD_NAMES = ('"', '""', "`", "``", "]", "'; DROP TABLE t; --", "a\nb", "a\\", "?", "{fn x}", "/*", "\u0430", "x" * 5000)
NAMES = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=80)


@pytest.mark.parametrize("dialect", [POSTGRES, MYSQL], ids=lambda one: one.name)
@given(data=st.data())
def test_whatever_a_column_is_called_it_is_a_name_and_nothing_else(dialect, data) -> None:
    """SQLite reads the quotes of both."""
    names = data.draw(st.lists(NAMES | st.sampled_from(ODD_NAMES), min_size=1, max_size=5, unique_by=str.casefold))
    with sqlite3.connect(":memory:") as database:
        table, stage = TableName(("main", "'; --\"`")), TableName(("main", "s"))
        creation = dialect.create(table, [(name, "text") for name in names], [])
        database.execute(creation.removesuffix(dialect.table_suffix))
        database.execute(dialect.add_column(table, "mld_added", "text"))
        database.execute("CREATE TABLE s (c0 text)")
        database.execute("INSERT INTO s VALUES ('v')")
        database.execute(dialect.append(table, stage, [StagedColumn("c0", name) for name in names]))
        found = database.execute(f"SELECT * FROM {dialect.place(table)}")
        assert [one[0] for one in found.description] == [*names, "mld_added"]
        assert found.fetchall() == [("v",) * len(names) + (None,)]


def test_marks_that_version_0_1_kept_elsewhere_are_refused_and_not_forgotten():
    store = MemoryStore(Disk())
    check_marks_before("out", None, "clicks")
    check_marks_before("out", store, "clicks")
    store.put(f"{LEDGER}/000000000007.json", b"{}")
    with pytest.raises(SinkRefused, match=r"000000000007\.json: marks of table clicks as mld 0\.1 kept them"):
        check_marks_before("out", store, "clicks")
