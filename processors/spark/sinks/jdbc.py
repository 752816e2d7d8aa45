"""Tables of a PostgreSQL by JDBC, exactly once.

Spark writes the frame into a staging table, on as many executors as the frame has partitions. Then one transaction on
the driver locks the table's row of the ledger, `mld_ledger` in the same schema, checks the marks, takes the staged rows
over with one statement, updates the row and commits: rows and marks are there together, or neither. A reader sees whole
commits.

What must never happen: that rows are taken over without the lock, or that marks move in another transaction. A staging
table has a name with its token and the time. Before its rows are taken over it is locked against tasks that Spark runs
twice, and has to hold as many rows as Spark has counted. Whoever opens a sink drops staging tables that are older than
a day.

Columns are the same if their names are equal but for case; of several, that one counts whose case is equal, too. Types
are the business of Spark and of the database: a table is made with those that Spark has for PostgreSQL, and every value
is cast to the type of its column, so that a value that cannot be is a row's fault.

The driver connects by the JDBC driver that Spark has loaded; Python needs none. Names of options are Spark's, in any
case. None of them may be logged: a URL may hold a password.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.journal import AdmittedSink
from mld.processors.spark.commit.ledger import Admission, LedgerEntry
from mld.processors.spark.commit.store import stage
from mld.processors.spark.high_water_marks import HighWaterMarks, ShardSpans
from mld.processors.spark.session.error_classes import (
    BAD_IDENTIFIER,
    OF_A_ROW,
    SQL,
    Cause,
    ErrorKind,
    causes_of,
    kind_of,
)
from mld.processors.spark.sink_port import (
    DataRefused,
    JobFailed,
    Published,
    SinkError,
    SinkRefused,
    SinkSpec,
    first_line,
)
from mld.processors.spark.sinks.columns import SinkColumns
from mld.processors.spark.sinks.files import write
from mld.processors.spark.sinks.merge import Merge, not_older

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("mld.spark")

LEDGER_TABLE = "mld_ledger"
LEDGER_LINES = ("target TEXT PRIMARY KEY", "number BIGINT", "token TEXT", "entry TEXT")
"""A row for each table; before its first commit the entry is empty."""
STAGE_PREFIX = "mld_stage_"
ABANDONED_S = 24 * 3600
"""A staging table of that age has no writer any more."""
SILENT_S = 900
"""Longest wait for an answer."""
ROW = "mld_row"
"""Column of a staging table: number of the row, in the order of the frame."""
PLACE = ("sequencenumber", "subsequencenumber", "rownumber")
"""Columns of `records`, in lower case, that say which of two rows of a shard is the newer one."""
SAME = "IS NOT DISTINCT FROM"
DRIVER, PACKAGE = "org.postgresql.Driver", "org.postgresql:postgresql:42.7.7"
"""Class and Maven coordinates, the latter for people; the version is an example."""
DRIVER_OPTIONS = {"driver": DRIVER, "reWriteBatchedInserts": "true", "tcpKeepAlive": "true"}
"""Options where the user gives none."""
NO_DRIVER = "java.lang.ClassNotFoundException"


# --- names, columns and statements: values in, values out ------------------------------------------------------------


class TableName(NamedTuple):
    """Schema and table, as they stand in the catalog."""

    schema: str
    table: str

    @property
    def place(self) -> str:
        """The table, as a statement names it."""
        return f"{quoted(self.schema)}.{quoted(self.table)}"


class Column(NamedTuple):
    """A column of a table, or of a frame with the type that it would have in a table."""

    name: str
    type: str
    required: bool = False
    """Whether a row has to give it a value: no NULL, no default, not counted by the database."""


def quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def listed(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))


def stage_name(now: float, token: str) -> str:
    """Return the name of a staging table that is made at that time."""
    return f"{STAGE_PREFIX}{int(now)}_{token}"


def places_of(names: Sequence[str], columns: Sequence[Column]) -> list[int]:
    """Return where the columns of these names are in a frame, whatever their case; what is not there is left out."""
    lowered = [column.name.lower() for column in columns]
    return [lowered.index(name.lower()) for name in names if name.lower() in lowered]


def fitted(at: str, frame: Sequence[Column], table: Sequence[Column], keys: Sequence[str]) -> list[Column]:
    """Return the column of the table for each of the frame's; its own for one that has to be added. Raises SinkRefused,
    whose sentence begins with `at`.
    """
    names = [column.name.lower() for column in frame]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SinkRefused(f"{at}: the frame has column {twice[0]} twice; rename one in the pipeline")
    known = {column.name.lower(): column for column in table} | {column.name: column for column in table}
    found = [known.get(column.name) or known.get(column.name.lower(), column) for column in frame]
    if absent := [found[place].name for place in places_of(keys, frame) if table and found[place] not in table]:
        raise SinkRefused(f"{at}: key {absent[0]} is no column of the table; add it, with a unique index")
    if left := [column.name for column in table if column.required and column not in found]:
        raise SinkRefused(
            f"{at}: column {left[0]} takes no NULL and has no default, and the frame does not have it; add it in the "
            "pipeline, or give it a default"
        )
    return found


NAMED = "SELECT current_schema(), n[1], n[2], n[3] FROM parse_ident(?) n"
"""Asks for the schema in which names without one are looked for, and the parts of a name."""
STAGES_BEFORE = (
    "SELECT table_name FROM information_schema.tables WHERE table_schema = ? AND CAST(SUBSTRING(table_name "  # noqa: S608
    f"FROM '^{STAGE_PREFIX}([0-9]{{1,12}})_[0-9a-f]+$') AS BIGINT) < CAST(? AS BIGINT)"
)
"""Asks for the staging tables of a schema that were made before a time; what has no such name has no time."""
COLUMNS = (
    "SELECT a.attname, format_type(a.atttypid, -1), "
    "(a.attnotnull OR t.typnotnull) AND NOT a.atthasdef AND a.attidentity = '' "
    "FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid "
    "WHERE a.attrelid = to_regclass(?) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
)
"""Asks for name, type and `required` of each column of a table (its `place`); of none if there is no such table."""


def create(table: TableName, lines: Iterable[str], suffix: str = "") -> str:
    """Return CREATE TABLE with columns and constraints. Another writer may be making the same one."""
    return f"CREATE TABLE IF NOT EXISTS {table.place} ({', '.join(lines)}) {suffix}".rstrip()


def create_stage(table: TableName, columns: Sequence[Column], keys: Sequence[int]) -> str:
    """Return CREATE TABLE for columns `c0`, `c1`, …, in which keys have a value; a violation names the key."""
    lines = [*(f"c{place} {column.type}" for place, column in enumerate(columns)), f"{ROW} BIGINT"]
    names = {place: quoted(f"key {columns[place].name} has a value") for place in keys}
    return create(table, [*lines, *(f"CONSTRAINT {names[place]} CHECK (c{place} IS NOT NULL)" for place in keys)])


def add_column(table: TableName, column: Column) -> str:
    return f"ALTER TABLE {table.place} ADD COLUMN IF NOT EXISTS {quoted(column.name)} {column.type}"


def take_over(
    target: TableName,
    stage: TableName,
    columns: Sequence[Column],
    keys: Sequence[int],
    newest: Sequence[int],
    order: Sequence[int] = (),
) -> str:
    """Return what puts staged rows into these columns of the target.

    With `keys` it merges: rows of new keys are inserted, those of known keys replace what is there, unless they are
    older by the columns in `order`. Of one key the newest by these counts, then that of the highest numbers in
    `newest`, and of equal ones the last in the order of the frame."""
    names = [column.name for column in columns]
    values = [f"CAST(s.c{place} AS {column.type})" for place, column in enumerate(columns)]
    into, rows = f"INSERT INTO {target.place} ({listed(names)})", f"{', '.join(values)} FROM {stage.place} s"
    if not keys:
        return f"{into} SELECT {rows}"
    key = ", ".join(str(place + 1) for place in keys)
    given = [f"{values[place]} DESC NULLS LAST" for place in order]
    given += [f"CAST(s.c{place} AS NUMERIC) DESC" for place in newest]
    by = ", ".join((key, *given, f"s.{ROW} DESC"))
    rest = [quoted(name) for place, name in enumerate(names) if place not in keys]
    action = f"UPDATE SET {', '.join(f'{name} = EXCLUDED.{name}' for name in rest)}" if rest else "NOTHING"
    if rest and order:
        by_names = [quoted(names[place]) for place in order]
        action += f" WHERE {not_older(by_names, 'EXCLUDED', quoted(target.table), SAME)}"
    conflict = f"ON CONFLICT ({listed(names[place] for place in keys)}) DO {action}"
    return f"{into} SELECT DISTINCT ON ({key}) {rows} ORDER BY {by} {conflict}"


# --- errors ----------------------------------------------------------------------------------------------------------

MADE_BY_ANOTHER = "42P07"
"""Of a table that another writer has made at the same time."""
_PLACES = "make the database, or correct {0}.url and {0}.dbtable"
_REMEDIES = {
    BAD_IDENTIFIER: "{0}.dbtable is table or schema.table, quoted where needed",
    "28": "correct {0}.user and {0}.password",
    "3D": _PLACES,
    "3F": _PLACES,
    "42501": "the user needs the right to create tables in the schema of {0}.dbtable, and to read and write that "
    "table; for new columns it has to be its owner",
    "42883": "the server has to be a PostgreSQL from 10 on",
    "42P10": "the table needs a unique index of exactly its keys; create one",
}


def meaning(error: Cause, sink: str, doing: str, *, of_rows: bool) -> SinkError:
    """Return what an error of the database means for the next attempt; `of_rows`: whether a row can be to blame."""
    said, state, kind = f"sink {sink}: {doing}: {first_line(Exception(error.text))}", error.state, kind_of([error])
    if of_rows and state.startswith(OF_A_ROW):
        return DataRefused(said)
    if kind in (ErrorKind.SHAPE, ErrorKind.FORBIDDEN) and state != MADE_BY_ANOTHER:
        found = _REMEDIES.get(state) or _REMEDIES.get(
            state[:2], "correct the pipeline, the table or the sink's options"
        )
        return SinkRefused(f"{said}; {found.format(f'mld.spark.sink.{sink}.options')}")
    return SinkError(said)


# --- the sink --------------------------------------------------------------------------------------------------------


class JdbcConnection:
    """A new connection, as Spark itself makes one of these options; statements commit on their own until a BEGIN."""

    def __init__(self, jvm: Any, options: Mapping[str, str]) -> None:
        of_spark = jvm.org.apache.spark.sql
        checked = of_spark.execution.datasources.jdbc.JDBCOptions(jvm.PythonUtils.toScalaMap(dict(options)))
        self._java = of_spark.jdbc.JdbcDialects.get(checked.url()).createConnectionFactory(checked).apply(-1)
        self._java.setNetworkTimeout(jvm.java.util.concurrent.ForkJoinPool.commonPool(), SILENT_S * 1_000)

    def run(self, sql: str, *values: str) -> list[tuple[str | None, ...]]:
        """Run a statement; its rows, if it has any, each value as text."""
        statement = self._java.prepareStatement(sql)
        for index, value in enumerate(values, 1):
            statement.setString(index, value)
        rows = []
        if statement.execute():
            found = statement.getResultSet()
            columns = range(1, int(found.getMetaData().getColumnCount()) + 1)
            while found.next():
                rows.append(tuple(found.getString(column) for column in columns))
        statement.close()
        return rows

    def close(self) -> None:
        """Close the connection; what is not committed is undone by the server."""
        with suppress(Exception):
            self._java.close()


def check_options(spec: SinkSpec) -> None:
    """Raise SinkRefused if a setting of the sink is missing or has no meaning here."""
    given = {name.lower(): value for name, value in spec.options.items()}
    prefix = f"mld.spark.sink.{spec.name}"
    if not given.get("dbtable"):
        raise SinkRefused(f"{prefix}.options.dbtable is missing; say which table it is")
    settings: dict[str, object] = {"path": spec.path, "partitionBy": spec.partition_by}
    settings["deleteWhen without orderBy"] = spec.delete_when if not spec.order_by else None
    options = {f"options.{name}": given.get(name.lower()) for name in ("createTableColumnTypes", "truncate", "query")}
    if wrong := [name for name, value in {**settings, **options}.items() if value]:
        raise SinkRefused(
            f"{prefix}.{wrong[0]} has no meaning for jdbc; remove it: {prefix}.options.dbtable names the table, which "
            "you may make yourself before the start"
        )


def connection_options(spec: SinkSpec) -> dict[str, str]:
    """Return what Spark's client is told: the options of the sink, and our own where the user gives none."""
    given = {name.lower() for name in spec.options}
    return {name: value for name, value in DRIVER_OPTIONS.items() if name.lower() not in given} | dict(spec.options)


class Staging(NamedTuple):
    """A staging table, and the statement that takes its rows over."""

    table: TableName
    statement: str


class JdbcSink(AdmittedSink):
    """A table of PostgreSQL."""

    _ledger_place = f"its row in {LEDGER_TABLE}"
    lock_wait_s = 60
    """Longest wait for another writer's transaction; then the sink is waited for. Longer than `idle_s`, so that it
    outlasts one that hangs."""
    idle_s = 30
    """A transaction that says nothing for so long is ended by the server."""

    def __init__(self, spec: SinkSpec, spark: SparkSession) -> None:
        self._spec, self._spark = spec, spark
        self.name = spec.name
        self._given = {name.lower(): value for name, value in spec.options.items()}
        self._options = connection_options(spec)
        self._target: TableName | None = None
        self._has_warned = False
        self._merge = Merge(spec.name, spec.keys, spec.delete_when, spec.order_by)
        self._drift = SinkColumns(spec.name)
        self._admission = Admission(spec.writer, spec.name, f"table {self._given['dbtable']}", shared=spec.shared)

    def open(self) -> HighWaterMarks:
        with self._said("opening its ledger"), self._connection() as connection:
            target = self._prepared(connection)
            for (name,) in connection.run(STAGES_BEFORE, target.schema, str(int(time.time()) - ABANDONED_S)):
                log.info("sink %s: dropping %s, whose writer is gone", self.name, name)
                self._drop(target._replace(table=str(name)))
            head = self._head(connection, target)
            if head is not None and not self._columns(connection, target):
                raise SinkRefused(
                    f"sink {self.name}: there is no table {target.place}, and its row in {LEDGER_TABLE} says "
                    f"what it holds, last in commit {head.number}; restore the table, or delete that row as well"
                )
            return self._admission.marks(head)

    def publish(self, frame: DataFrame | None, batch: ShardSpans, batch_id: str) -> Published:
        if frame is not None and self._merge.keeps_deleted:
            frame = self._merge.marked(frame)
        with self._said("writing a batch"):
            with self._connection() as connection:
                target = self._prepared(connection)
                head = self._head(connection, target)
                self._admission.check(head, batch)
                if frame is None and not self._columns(connection, target):
                    return self._without_table(head, batch)
                staging = None if frame is None else self._fit(connection, target, frame)
            try:
                rows = 0 if frame is None or staging is None else self._staged(frame, staging)
                with self._connection() as connection:
                    entry = self._transaction(connection, target, staging, rows, batch, batch_id)
            finally:
                if staging is not None:
                    self._drop(staging.table)
            return self._published(entry, rows)

    # --- before the transaction: statements that commit on their own -------------------------------------------------

    def _prepared(self, connection: JdbcConnection) -> TableName:
        """Return the user's table, as the catalog has it or would have it. The first time, make the ledger. Raises
        SinkRefused.
        """
        if self._target is None:
            ((schema, first, second, more),) = connection.run(NAMED, self._given["dbtable"])
            if more or not (second or schema):
                key = f"mld.spark.sink.{self.name}.options.dbtable"
                raise SinkRefused(f"{key} has more parts than schema.table, or no schema, as the connection has none")
            named = TableName(str(first), second) if second else TableName(str(schema), str(first))
            connection.run(create(named._replace(table=LEDGER_TABLE), LEDGER_LINES))
            self._target = named
        return self._target

    def _columns(self, connection: JdbcConnection, table: TableName) -> list[Column]:
        """Return the columns of a table; none if it is not there."""
        rows = connection.run(COLUMNS, table.place)
        return [Column(str(name), str(type_), required == "t") for name, type_, required in rows]

    def _columns_of(self, frame: DataFrame) -> list[Column]:
        """Return the columns of a frame, with the types that Spark has for PostgreSQL. Raises SinkRefused."""
        of_spark: Any = self._spark._jvm.org.apache.spark.sql  # type: ignore[union-attr]
        dialect = of_spark.jdbc.JdbcDialects.get(self._given["url"])
        type_of = of_spark.execution.datasources.jdbc.JdbcUtils.getJdbcType
        fields: Any = frame._jdf.schema().fields()
        try:
            return [Column(one.name(), type_of(one.dataType(), dialect).databaseTypeDefinition()) for one in fields]
        except Exception as error:
            said = f"sink {self.name}: PostgreSQL has no type for a column: {first_line(error)}"
            raise SinkRefused(f"{said}; cast it in the pipeline, for instance with to_json") from error

    def _fit(self, connection: JdbcConnection, target: TableName, frame: DataFrame) -> Staging:
        """Make or widen the table, and make a staging table."""
        at, keys = f"sink {self.name}: table {target.place}", self._spec.keys
        columns, have = self._columns_of(frame), self._columns(connection, target)
        self._merge.check_named([column.name.lower() for column in columns], "the frame has no such column; select it")
        found = fitted(at, columns, have, keys)
        by, order = places_of(keys, columns), places_of(self._spec.order_by, columns)
        if not have:
            lines = [f"{quoted(column.name)} {column.type}" for column in columns]
            lines += [f"PRIMARY KEY ({listed(columns[place].name for place in by)})"] if by else []
            connection.run(create(target, lines, self._given.get("createtableoptions", "")))
            log.info("sink %s: made table %s", self.name, target.place)
            have = self._columns(connection, target)  # as another writer may have made it
            found = fitted(at, columns, have, keys)
        added = [column for column in found if column not in have]
        for column in added:
            connection.run(add_column(target, column))
        absent = (column for column in have if column not in found)
        self._drift.say((column.name for column in added), (column.name for column in absent))
        newest = places_of(PLACE, columns) if places_of(PLACE[:1], columns) else []
        if keys and not newest and not self._has_warned:
            log.warning(
                "sink %s: the frame has no column sequenceNumber, so of two rows of one key in a batch the later one "
                "stays; after a shuffle that is any of them",
                self.name,
            )
            self._has_warned = True
        table = target._replace(table=stage_name(time.time(), uuid4().hex))
        connection.run(create_stage(table, columns, by))
        return Staging(table, take_over(target, table, found, by, newest, order))

    def _staged(self, frame: DataFrame, staging: Staging) -> int:
        """Have Spark write the frame into its staging table; its rows."""
        from pyspark.sql.functions import monotonically_increasing_id

        stage("staging")
        renamed = frame.toDF(*(f"c{place}" for place in range(len(frame.columns))))
        numbered = renamed.withColumn(ROW, monotonically_increasing_id())
        options = {**self._options, "dbtable": staging.table.place}
        with self._said("writing a batch into a staging table", of_rows=True):
            rows = write(numbered, replace(self._spec, options=options, mode="append"))
        stage("staged")
        return rows

    # --- the transaction ---------------------------------------------------------------------------------------------

    def _transaction(
        self,
        connection: JdbcConnection,
        target: TableName,
        staging: Staging | None,
        rows: int,
        batch: ShardSpans,
        batch_id: str,
    ) -> LedgerEntry:
        """Take over the staged rows and move the marks, together."""
        place = target._replace(table=LEDGER_TABLE).place
        connection.run(
            f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '{self.lock_wait_s}s'; "
            f"SET LOCAL idle_in_transaction_session_timeout = '{self.idle_s}s'"
        )
        stage("begun")
        connection.run(f"INSERT INTO {place} VALUES (?, 0, '', '') ON CONFLICT DO NOTHING", target.table)  # noqa: S608
        head = self._head(connection, target, "FOR UPDATE")
        stage("locked")
        entry = self._entry_after(head, batch, batch_id, layout=self._spec.format, rows=rows)
        if staging is not None and rows:
            self._take_over(connection, target, staging, rows)
        stage("inserted")
        update = f"UPDATE {place} SET number = number + 1, token = ?, entry = ? WHERE target = ?"  # noqa: S608
        connection.run(update, entry.token, ledger.encode(entry).decode(), target.table)
        stage("updated")
        with self._said(f"committing batch {batch_id} (the ledger says whether it happened)", of_rows=True):
            connection.run("COMMIT")
        stage("committed")
        return entry

    def _take_over(self, connection: JdbcConnection, target: TableName, staging: Staging, rows: int) -> None:
        place = staging.table.place
        connection.run(f"LOCK TABLE {place} IN SHARE MODE")
        ((count,),) = connection.run(f"SELECT COUNT(*) FROM {place}")  # noqa: S608 - our own table
        if count != str(rows):
            raise SinkError(
                f"sink {self.name}: {place} holds {count} rows, and Spark has written {rows}; it is tried again"
            )
        with self._said(f"putting a batch into table {target.place}", of_rows=True):
            connection.run(staging.statement)

    def _head(self, connection: JdbcConnection, target: TableName, lock: str = "") -> LedgerEntry | None:
        """Return the entry of the table as it is now; None if it has none."""
        query = f"SELECT entry FROM {target._replace(table=LEDGER_TABLE).place} WHERE target = ? {lock}"  # noqa: S608
        rows = connection.run(query, target.table)
        return self._decoded(rows[0][0]) if rows and rows[0][0] else None

    # --- connections and their errors --------------------------------------------------------------------------------

    def _connection(self) -> closing[JdbcConnection]:
        return closing(JdbcConnection(self._spark._jvm, self._options))

    def _drop(self, table: TableName) -> None:
        """Drop a staging table; if that fails, it goes after a day."""
        with suppress(Exception), self._connection() as connection:
            connection.run(f"DROP TABLE {table.place}")

    @contextmanager
    def _said(self, doing: str, *, of_rows: bool = False) -> Iterator[None]:
        """Turn an error of the database, or of Spark's client of it, into what it means for the next attempt."""
        try:
            yield
        except (DataRefused, SinkRefused):
            raise
        except Exception as error:
            cause = error.__cause__ if isinstance(error, JobFailed) else error
            causes = causes_of(cause or error)
            if (found := next((one for one in causes if SQL in one.names), None)) is not None:
                raise meaning(found, self.name, doing, of_rows=of_rows) from error
            if any(NO_DRIVER in one.names for one in causes):
                raise SinkRefused(
                    f"sink {self.name}: the JDBC driver {self._given.get('driver', DRIVER)} is not loaded; write "
                    f"mld.spark.packages = {PACKAGE}, or name the class of another one that is as "
                    f"mld.spark.sink.{self.name}.options.driver"
                ) from error
            raise
