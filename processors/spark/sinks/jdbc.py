"""Tables of a database by JDBC, exactly once.

Spark writes the frame into a staging table, on as many executors as the frame has partitions. Then one transaction on
the driver locks the table's row of the ledger, `mld_ledger` in the same schema, checks the marks, takes the staged rows
over with one statement, updates the row and commits: rows and marks are there together, or neither. A reader sees whole
commits.

What must never happen: that rows are taken over without the lock, or that marks move in another transaction. A staging
table has a name with its token and the time; a row of it has a number of its own, so that a task that Spark runs twice
fails instead of staging its rows twice. Whoever opens a sink drops staging tables that are older than a day.

A connection to the database on the driver, by the JDBC driver that Spark has loaded; Python needs none.

Every error is a `DatabaseError` with SQLState and the vendor's code. A connection that has raised one is of no more
use than to be closed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.journal import LEDGER, AdmittedSink
from mld.processors.spark.commit.ledger import Admission, LedgerEntry
from mld.processors.spark.commit.store import Store, stage
from mld.processors.spark.high_water_marks import HighWaterMarks, ShardSpans, advanced
from mld.processors.spark.sink_port import (
    DataRefused,
    JobFailed,
    Published,
    SinkError,
    SinkRefused,
    SinkSpec,
    first_line,
)
from mld.processors.spark.sinks.files import write
from mld.processors.spark.sinks.jdbc_dialects import abandoned, driver_options, stage_name, staging_options
from mld.processors.spark.sinks.jdbc_statements import (
    LEDGER_TABLE,
    ROW,
    STAGE_PREFIX,
    ColumnsRefused,
    DatabaseFault,
    FittedColumns,
    FrameColumn,
    JdbcDialect,
    TableColumn,
    TableName,
    check_unique,
    created,
    fitted,
    newest,
    staging_columns,
    staging_name,
    table_named,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


READ_COMMITTED = 2
SQL_EXCEPTION = "java.sql.SQLException"
CAUSES_MAX = 20
NO_COLUMNS_IN_NAME = "%"


class DatabaseError(Exception):
    """What the database or its driver said, with its codes; `state` is empty if there is none."""

    def __init__(self, text: str, state: str, code: int) -> None:
        super().__init__(text)
        self.state, self.code = state, code


class NoDriver(Exception):
    """The class of the JDBC driver is not in the JVM."""


class JdbcConnection:
    """One connection; statements commit on their own until `begin`."""

    def __init__(self, jvm: Any, java: Any) -> None:
        self._jvm, self._java = jvm, java

    def execute(self, sql: str, *values: str | int) -> int:
        """Run a statement that returns no rows; how many rows it changed."""
        with self._said(), self._prepared(sql, values) as statement:
            statement.execute()
            return int(statement.getUpdateCount())

    def query(self, sql: str, *values: str | int) -> list[tuple[str | None, ...]]:
        """Return all rows, each value as text."""
        with self._said(), self._prepared(sql, values) as statement:
            return _rows(statement.executeQuery())

    def columns(self, schema: str, table: str, *, by_catalog: bool) -> list[dict[str, str | None]]:
        """Return what the catalog knows of the table's columns, in their order; empty if there is no such table."""
        return self._catalog("getColumns", schema, table, by_catalog, NO_COLUMNS_IN_NAME)

    def unique_indexes(self, schema: str, table: str, *, by_catalog: bool) -> list[dict[str, str | None]]:
        """Return a row for each column of each unique index."""
        return self._catalog("getIndexInfo", schema, table, by_catalog, True, True)

    def _catalog(
        self, method: str, schema: str, table: str, by_catalog: bool, *more: Any
    ) -> list[dict[str, str | None]]:
        with self._said():
            about = self._java.getMetaData()
            plain = method == "getIndexInfo"
            escape = str(about.getSearchStringEscape())
            names = [schema, table] if plain else [_literal(name, escape) for name in (schema, table)]
            where = (names[0], None) if by_catalog else (None, names[0])
            found = getattr(about, method)(*where, names[1], *more)
            columns = found.getMetaData()
            labels = [str(columns.getColumnLabel(n)).upper() for n in range(1, columns.getColumnCount() + 1)]
            return [dict(zip(labels, row, strict=True)) for row in _rows(found)]

    def product(self) -> tuple[str, int]:
        """Return what the database calls itself, and its major version."""
        with self._said():
            about = self._java.getMetaData()
            return str(about.getDatabaseProductName()), int(about.getDatabaseMajorVersion())

    def silent_for_at_most(self, seconds: int) -> None:
        """Limit the silence: after so long without an answer the connection is broken off; whoever waits for it gets an
        error.
        """
        with self._said():
            executor = self._jvm.java.util.concurrent.ForkJoinPool.commonPool()
            self._java.setNetworkTimeout(executor, seconds * 1_000)

    def begin(self) -> None:
        """Begin a transaction that sees what is committed."""
        with self._said():
            self._java.setTransactionIsolation(READ_COMMITTED)
            self._java.setAutoCommit(False)

    def commit(self) -> None:
        """Commit. After an error nobody knows whether it happened."""
        with self._said():
            self._java.commit()
            self._java.setAutoCommit(True)

    def rollback(self) -> None:
        with self._said():
            self._java.rollback()
            self._java.setAutoCommit(True)

    def close(self) -> None:
        """Close the connection; what is not committed is undone."""
        with suppress(Exception):
            if not self._java.getAutoCommit():
                self._java.rollback()
        with suppress(Exception):
            self._java.close()

    @contextmanager
    def _prepared(self, sql: str, values: tuple[str | int, ...]) -> Iterator[Any]:
        statement = self._java.prepareStatement(sql)
        try:
            for index, value in enumerate(values, 1):
                statement.setLong(index, value) if isinstance(value, int) else statement.setString(index, value)
            yield statement
        finally:
            with suppress(Exception):
                statement.close()

    @contextmanager
    def _said(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            found = database_error(self._jvm, error)
            if found is None:
                raise
            raise found from error


def connected(spark: SparkSession, options: Mapping[str, str]) -> JdbcConnection:
    """Return a new connection, as Spark itself makes one of these options. Raises DatabaseError and NoDriver."""
    jvm: Any = spark._jvm
    options_of = jvm.org.apache.spark.sql.execution.datasources.jdbc.JDBCOptions
    given = jvm.java.util.HashMap()
    for name, value in options.items():
        given.put(name, value)
    try:
        checked = options_of(jvm.PythonUtils.toScalaMap(given))
        dialect = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(options["url"])
        return JdbcConnection(jvm, dialect.createConnectionFactory(checked).apply(-1))
    except Exception as error:
        found = database_error(jvm, error)
        if found is not None:
            raise found from error
        if "ClassNotFoundException" in str(error) or "did not find registered driver" in str(error):
            raise NoDriver from error
        raise


def database_error(jvm: Any, error: Exception) -> DatabaseError | None:
    """Return the exception of the database within an exception of Spark's or Py4J's; None if there is none."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    of_sql: Any = jvm.java.lang.Class.forName(SQL_EXCEPTION) if java is not None else None
    for _ in range(CAUSES_MAX):
        if java is None:
            return None
        if of_sql.isInstance(java):
            following = java.getNextException()  # of a batch: the first one says only that there are others
            told = following if following is not None else java
            text = str(told.getMessage() or told.getClass().getSimpleName())
            return DatabaseError(first_line(Exception(text)), str(told.getSQLState() or ""), int(told.getErrorCode()))
        java = java.getCause()
    return None


def _rows(found: Any) -> list[tuple[str | None, ...]]:
    count = int(found.getMetaData().getColumnCount())
    rows = []
    while found.next():
        rows.append(tuple(found.getString(index) for index in range(1, count + 1)))
    return rows


def _literal(name: str, escape: str) -> str:
    """Return a name where the catalog takes a pattern."""
    return "".join(escape + character if character in ("_", "%", escape) else character for character in name)


log = logging.getLogger("mld.spark")

LOCK_WAIT_S = 60
"""Longest wait for another writer's transaction; then the sink is waited for. Longer than IDLE_S, so that it outlasts
one that hangs."""
IDLE_S = 30
"""A transaction that says nothing for so long is ended by the server, where the server can do that."""
SILENT_S = 900
"""Longest wait for an answer, without `options.queryTimeout`."""
SILENT_MARGIN_S = 60
SWEEP_EVERY_S = 3600.0


def check_marks_before(sink: str, before: Store | None, table: str) -> None:
    """Raise SinkRefused if mld 0.1 has kept marks of a table that has none in its own database."""
    if before is not None and (names := before.names(LEDGER)):
        raise SinkRefused(
            f"sink {sink}: {before.uri(LEDGER)} has {max(names)}: marks of table {table} as mld 0.1 kept them, which "
            "this version does not read. Write to another table; or, if records that come once more since the last "
            "checkpoints do no harm there, remove that directory"
        )


@dataclass(frozen=True, slots=True)
class Staging:
    """A frame on its way: its staging table, what becomes of its columns, and its rows once they are there."""

    table: TableName
    frame: tuple[FrameColumn, ...]
    columns: FittedColumns
    rows: int = 0


class JdbcSink(AdmittedSink):
    """A table of PostgreSQL, MySQL or MariaDB. `before` is where mld 0.1 would have kept the marks of the sink."""

    def __init__(
        self,
        spec: SinkSpec,
        spark: SparkSession,
        dialect: JdbcDialect,
        before: Store | None = None,
        *,
        lock_wait_s: int = LOCK_WAIT_S,
        idle_s: int = IDLE_S,
    ) -> None:
        self._spec, self._spark, self._dialect, self._before = spec, spark, dialect, before
        self._lock_wait_s, self._idle_s = lock_wait_s, idle_s
        self.name = spec.name
        given = {name.lower(): value for name, value in spec.options.items()}
        self._given = given
        self._options = driver_options(spec, dialect)
        self._merges = spec.mode.lower() == "merge"
        self._swept_at: float | None = None
        self._checked = False
        self._has_warned = False
        remedy = (
            "Use another table; or, if both are meant to write there, set "
            f"mld.spark.sink.{spec.name}.writers = shared: each then has marks of its own"
        )
        self._admission = Admission(spec.writer, spec.name, f"table {given['dbtable']}", remedy, spec.shared)

    def open(self) -> HighWaterMarks:
        with self._said("opening its ledger"), self._connection() as connection:
            self._check_server(connection)
            target = self._target(connection)
            self._sweep(connection, target)
            head = self._head(connection, target)
            has_table = bool(self._columns(connection, target))
            if head is None and has_table:
                check_marks_before(self.name, self._before, str(target))
            if head is not None and not has_table:
                raise SinkRefused(
                    f"sink {self.name}: there is no table {target}, and its row in {target.beside(LEDGER_TABLE)} says "
                    f"what it holds, last in commit {head.number}; restore the table, or delete that row as well"
                )
            return self._admission.marks(head)

    def publish(self, frame: DataFrame | None, batch: ShardSpans, batch_id: str) -> Published:
        with self._said("writing a batch"):
            with self._connection() as connection:
                self._check_server(connection)
                target = self._target(connection)
                self._sweep(connection, target)
                head = self._head(connection, target)
                self._admission.check(head, batch)
                if frame is None and not self._columns(connection, target):
                    # No table yet: an empty batch that comes again is as empty.
                    return Published(advanced(self._admission.marks(head), batch))
                self._make_ledger(connection, target)
                staging = None if frame is None else self._prepared(connection, target, frame)
            try:
                if frame is not None and staging is not None:
                    staging = self._staged(frame, staging)
                with self._connection() as connection:
                    entry = self._transaction(connection, target, staging, batch, batch_id)
            finally:
                if staging is not None:
                    self._drop(staging.table)
            return self._published(entry, staging.rows if staging else 0)

    # --- before the transaction: statements that commit on their own -------------------------------------------------

    def _check_server(self, connection: JdbcConnection) -> None:
        """Check once per start whether this is a database that the dialect is for. Raises SinkRefused."""
        if self._checked:
            return
        product, version = connection.product()
        dialect = self._dialect
        if not dialect.serves(product, version):
            raise SinkRefused(
                f"sink {self.name}: {product} {version} is not {dialect.name} {dialect.version_min} or later, which "
                "this sink writes exactly once"
            )
        if dialect.strictness is not None:
            ((modes,),) = connection.query(dialect.strictness)
            if "STRICT_" not in (modes or "") and "TRADITIONAL" not in (modes or ""):
                raise SinkRefused(
                    f"sink {self.name}: sql_mode of the database is {modes!r}, by which values that do not fit are cut "
                    "without a word; add STRICT_TRANS_TABLES there, or to sessionVariables of options.url"
                )
        self._checked = True

    def _target(self, connection: JdbcConnection) -> TableName:
        """Return the user's table, as the catalog has it or would have it."""
        ((schema,),) = connection.query(self._dialect.schema_query)
        try:
            named = table_named(self._given["dbtable"], self._dialect, schema or "")
        except ValueError as error:
            raise SinkRefused(f"mld.spark.sink.{self.name}.options.dbtable: {error}") from error
        if not named.schema:
            raise SinkRefused(
                f"mld.spark.sink.{self.name}.options.dbtable names no schema, and the connection has none"
            )
        return named

    def _columns(self, connection: JdbcConnection, table: TableName) -> list[TableColumn]:
        found = connection.columns(table.schema, table.table, by_catalog=self._dialect.schema_is_catalog)
        return [
            TableColumn(
                str(row["COLUMN_NAME"]),
                str(row["TYPE_NAME"]),
                required=row["IS_NULLABLE"] == "NO" and row["COLUMN_DEF"] is None and row["IS_AUTOINCREMENT"] != "YES",
                generated=row.get("IS_GENERATEDCOLUMN") == "YES" and row["IS_AUTOINCREMENT"] != "YES",
            )
            for row in found
        ]

    def _make_ledger(self, connection: JdbcConnection, target: TableName) -> None:
        table = target.beside(LEDGER_TABLE)
        if not self._columns(connection, table):
            self._unless_there(connection, self._dialect.create_ledger(table), lambda: self._columns(connection, table))
        if not connection.query(self._dialect.head(table), target.table):
            self._unless_there(
                connection,
                self._dialect.first_entry(table),
                lambda: connection.query(self._dialect.head(table), target.table),
                target.table,
            )
        self._check_transactional(connection, table)
        self._check_transactional(connection, target)

    def _unless_there(self, connection: JdbcConnection, sql: str, is_there: Callable[[], object], *values: str) -> None:
        """Create what another writer may be creating at the same time."""
        try:
            connection.execute(sql, *values)
        except DatabaseError:
            if not is_there():
                raise

    def _check_transactional(self, connection: JdbcConnection, table: TableName) -> None:
        question = self._dialect.engines()
        if question is not None and connection.query(question, table.schema, table.table) == [("NO",)]:
            raise SinkRefused(
                f"sink {self.name}: table {table} is of an engine without transactions; ALTER TABLE … ENGINE = InnoDB"
            )

    def _prepared(self, connection: JdbcConnection, target: TableName, frame: DataFrame) -> Staging:
        """Make or widen the table, and make the staging table."""
        columns = tuple(FrameColumn(field.name, field.dataType.simpleString()) for field in frame.schema.fields)
        dialect, keys = self._dialect, self._spec.keys
        try:
            have = self._columns(connection, target)
            if not have:
                made, primary = created(columns, keys if self._merges else (), dialect)
                sql = dialect.create(target, made, primary, self._given.get("createtableoptions", ""))
                self._unless_there(connection, sql, lambda: self._columns(connection, target))
                log.info("sink %s: made table %s (%s)", self.name, target, ", ".join(" ".join(c) for c in made))
                have = self._columns(connection, target)
                self._check_transactional(connection, target)
            fit = fitted(columns, have, keys if self._merges else (), dialect)
            for name, type_ in fit.added:
                sql = dialect.add_column(target, name, type_)
                self._unless_there(connection, sql, partial(self._has, connection, target, name))
                log.info("sink %s: added column %s %s to table %s", self.name, name, type_, target)
            if self._merges:
                targets = [column.target for column in fit.staged if column.is_key]
                check_unique(targets, self._unique_indexes(connection, target), dialect)
            stage_columns = [*staging_columns(columns, dialect), (ROW, dialect.types["bigint"])]
        except ColumnsRefused as error:
            raise SinkRefused(f"sink {self.name}: table {target}: {error}") from error
        table = target.beside(stage_name(time.time(), uuid4().hex))
        connection.execute(dialect.create(table, stage_columns, [ROW]))
        return Staging(table, columns, fit)

    def _has(self, connection: JdbcConnection, target: TableName, name: str) -> bool:
        return any(column.name.lower() == name.lower() for column in self._columns(connection, target))

    def _unique_indexes(self, connection: JdbcConnection, target: TableName) -> list[frozenset[str]]:
        """Return the columns of each unique index that covers all rows."""
        indexes: dict[str, set[str]] = {}
        rows = connection.unique_indexes(target.schema, target.table, by_catalog=self._dialect.schema_is_catalog)
        for row in rows:
            if row["INDEX_NAME"] is not None and row["COLUMN_NAME"] is not None and not row.get("FILTER_CONDITION"):
                indexes.setdefault(row["INDEX_NAME"], set()).add(row["COLUMN_NAME"].strip('"'))
        return [frozenset(columns) for columns in indexes.values()]

    def _staged(self, frame: DataFrame, staging: Staging) -> Staging:
        """Have Spark write the frame into its staging table."""
        from pyspark.sql.functions import monotonically_increasing_id

        stage("staging")
        columns = [frame[f"`{c.name.replace('`', '``')}`"].alias(staging_name(n)) for n, c in enumerate(staging.frame)]
        numbered = frame.select(*columns, monotonically_increasing_id().alias(ROW))
        try:
            rows = write(
                numbered,
                sink=self.name,
                format="jdbc",
                options=staging_options(self._options, self._dialect.place(staging.table)),
                mode="append",
                path=None,
            )
        except JobFailed as error:
            cause = error.__cause__
            found = database_error(self._jvm, cause) if isinstance(cause, Exception) else None
            if found is None:
                raise
            if found.state.startswith("23"):  # a task has run twice: another attempt has a table of its own
                raise
            raise self._meaning(found, "writing a batch into a staging table", of_rows=True) from error
        stage("staged")
        return Staging(staging.table, staging.frame, staging.columns, rows)

    # --- the transaction ---------------------------------------------------------------------------------------------

    def _transaction(
        self,
        connection: JdbcConnection,
        target: TableName,
        staging: Staging | None,
        batch: ShardSpans,
        batch_id: str,
    ) -> LedgerEntry:
        """Take over the staged rows and move the marks, together."""
        dialect, table = self._dialect, target.beside(LEDGER_TABLE)
        connection.begin()
        for sql in dialect.begin(lock_wait_s=self._lock_wait_s, idle_s=self._idle_s):
            connection.execute(sql)
        stage("begun")
        rows = connection.query(dialect.locked_head(table), target.table)
        if not rows:
            raise SinkError(f"sink {self.name}: the row of {target.table} in {table} is gone; it is tried again")
        ((number, text),) = rows
        head = self._decoded(number, text)
        stage("locked")
        staged = staging.rows if staging else 0
        entry = self._entry_after(head, batch, batch_id, layout=self._spec.format, rows=staged)
        if staging is not None and staging.rows:
            self._take_over(connection, target, staging)
        stage("inserted")
        said = ledger.encode(entry).decode()
        values = (entry.number, entry.token, said, target.table, int(number or 0))
        if connection.execute(dialect.next_entry(table), *values) != 1:
            raise SinkError(f"sink {self.name}: the row of {target.table} in {table} has changed under its lock")
        stage("updated")
        try:
            connection.commit()
        except DatabaseError as error:
            raise SinkError(
                f"sink {self.name}: no answer to the commit of batch {batch_id} ({error}); the ledger says whether it "
                "happened"
            ) from error
        stage("committed")
        return entry

    def _take_over(self, connection: JdbcConnection, target: TableName, staging: Staging) -> None:
        dialect, columns = self._dialect, staging.columns.staged
        ((count, lacking),) = connection.query(dialect.count(staging.table, columns))
        if int(count or 0) != staging.rows:
            raise SinkError(
                f"sink {self.name}: {staging.table} holds {count} rows, and Spark has written {staging.rows}; it is "
                "tried again"
            )
        if int(float(lacking or 0)):
            raise DataRefused(f"sink {self.name}: {lacking} rows have no value in a key of table {target}")
        orderings = newest(staging.frame)
        if self._merges and not orderings and not self._has_warned:
            log.warning(
                "sink %s: the frame has no column sequenceNumber, so of two rows of one key in a batch the later one "
                "stays; after a shuffle that is any of them",
                self.name,
            )
            self._has_warned = True
        sql = (
            dialect.merge(target, staging.table, columns, orderings)
            if self._merges
            else dialect.append(target, staging.table, columns)
        )
        try:
            connection.execute(sql)
        except DatabaseError as error:
            raise self._meaning(error, f"putting a batch into table {target}", of_rows=True) from error

    # --- the ledger --------------------------------------------------------------------------------------------------

    def _head(self, connection: JdbcConnection, target: TableName) -> LedgerEntry | None:
        """Return the entry of the table as it is now, without a lock; None if it has none in this database."""
        table = target.beside(LEDGER_TABLE)
        if not self._columns(connection, table):
            return None
        rows = connection.query(self._dialect.head(table), target.table)
        return self._decoded(*rows[0]) if rows else None

    def _decoded(self, number: str | None, text: str | None) -> LedgerEntry | None:
        if not int(number or 0):
            return None
        try:
            return ledger.decode((text or "").encode())
        except ValueError as error:
            raise ledger.refusal(self.name, f"its row in {LEDGER_TABLE}", error) from error

    # --- connections and their errors --------------------------------------------------------------------------------

    @property
    def _jvm(self) -> Any:
        return self._spark._jvm

    @contextmanager
    def _connection(self) -> Iterator[JdbcConnection]:
        connection = connected(self._spark, self._options)
        try:
            timeout = self._given.get("querytimeout", "")
            silent = int(timeout) + SILENT_MARGIN_S if timeout.isdecimal() and int(timeout) else SILENT_S
            connection.silent_for_at_most(silent)
            yield connection
        finally:
            connection.close()

    def _drop(self, table: TableName) -> None:
        """Drop a staging table; if that fails, it goes after a day."""
        try:
            with self._connection() as connection:
                connection.execute(self._dialect.drop(table))
        except DatabaseError as error:
            log.debug("sink %s: %s stays: %s", self.name, table, error)

    def _sweep(self, connection: JdbcConnection, target: TableName) -> None:
        if self._swept_at is not None and time.monotonic() - self._swept_at < SWEEP_EVERY_S:
            return
        rows = connection.query(self._dialect.tables(), target.schema, f"{STAGE_PREFIX}%")
        for name in abandoned((str(name) for (name,) in rows), time.time()):
            log.info("sink %s: dropping %s, whose writer is gone", self.name, name)
            self._drop(target.beside(name))
        self._swept_at = time.monotonic()

    @contextmanager
    def _said(self, doing: str) -> Iterator[None]:
        try:
            yield
        except DatabaseError as error:
            raise self._meaning(error, doing) from error
        except NoDriver as error:
            driver = self._given.get("driver", self._dialect.driver)
            raise SinkRefused(
                f"sink {self.name}: the JDBC driver {driver} is not loaded; write mld.spark.packages = "
                f"{self._dialect.package}, or name the class of another one that is as "
                f"mld.spark.sink.{self.name}.options.driver"
            ) from error

    def _meaning(self, error: DatabaseError, doing: str, *, of_rows: bool = False) -> SinkError:
        """Return what an error of the database means for the next attempt."""
        said = f"sink {self.name}: {doing}: {error}"
        fault = self._dialect.fault(error.state, error.code)
        if fault is DatabaseFault.DATA and of_rows:
            return DataRefused(said)
        if fault is DatabaseFault.REFUSED:
            return SinkRefused(f"{said}; {self._dialect.remedy(error.state, error.code, self.name)}")
        return SinkError(said)
