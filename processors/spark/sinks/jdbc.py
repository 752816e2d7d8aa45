"""Tables of a PostgreSQL by JDBC, exactly once.

Spark writes the frame into a staging table, on as many executors as the frame has partitions. Then one transaction on
the driver locks the table's row of the ledger, `mld_ledger` in the same schema, checks the marks, takes the staged rows
over with one statement, updates the row and commits: rows and marks are there together, or neither. A reader sees whole
commits.

What must never happen: that rows are taken over without the lock, or that marks move in another transaction. A staging
table has a name with its token and the time; a row of it has a number of its own, so that a task that Spark runs twice
fails instead of staging its rows twice. Whoever opens a sink drops staging tables that are older than a day.

A connection to the database on the driver, by the JDBC driver that Spark has loaded; Python needs none.

Every error is a `DatabaseError` with its SQLState. A connection that has raised one is of no more use than to be
closed.

Names of options are Spark's, in any case. None of them may be logged: a URL may hold a password.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.journal import LEDGER, AdmittedSink
from mld.processors.spark.commit.ledger import LedgerEntry, admission_of
from mld.processors.spark.commit.store import Store, stage
from mld.processors.spark.high_water_marks import HighWaterMarks, ShardSpans
from mld.processors.spark.sink_port import (
    DataRefused,
    JobFailed,
    Published,
    SinkError,
    SinkRefused,
    SinkSpec,
    first_line,
)
from mld.processors.spark.sinks import postgres
from mld.processors.spark.sinks.files import write
from mld.processors.spark.sinks.postgres import LEDGER_TABLE, ROW, ColumnsRefused, TableName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


SQL_EXCEPTION = "java.sql.SQLException"
CAUSES_MAX = 20
VERSION_MIN = 10
DRIVER, PACKAGE = "org.postgresql.Driver", "org.postgresql:postgresql:42.7.7"
"""Class and Maven coordinates, the latter for people; the version is an example."""
DRIVER_OPTIONS = {"driver": DRIVER, "reWriteBatchedInserts": "true", "tcpKeepAlive": "true"}
"""Options where the user gives none."""
NOT_FOR_STAGING = frozenset(("dbtable", "isolationlevel", "createtableoptions"))


def check_options(spec: SinkSpec) -> None:
    """Raise SinkRefused if a setting of the sink is missing or has no meaning here."""
    given = {name.lower(): value for name, value in spec.options.items()}
    prefix = f"mld.spark.sink.{spec.name}"
    if not given.get("dbtable"):
        raise SinkRefused(f"{prefix}.options.dbtable is missing; say which table it is")
    settings = {"path": spec.path, "partitionBy": spec.partition_by, "deleteWhen": spec.delete_when}
    options = {f"options.{name}": given.get(name.lower()) for name in ("createTableColumnTypes", "truncate", "query")}
    for name, value in {**settings, **options}.items():
        if value:
            raise SinkRefused(
                f"{prefix}.{name} has no meaning for jdbc; remove it: {prefix}.options.dbtable names the table, which "
                "you may make yourself before the start"
            )


def connection_options(spec: SinkSpec) -> dict[str, str]:
    """Return what Spark's client is told: the options of the sink, and our own where the user gives none."""
    given = {name.lower() for name in spec.options}
    return {name: value for name, value in DRIVER_OPTIONS.items() if name.lower() not in given} | dict(spec.options)


def staging_options(options: Mapping[str, str], stage: TableName) -> dict[str, str]:
    """Return what Spark's writer is told, to append to a staging table."""
    kept = {name: value for name, value in options.items() if name.lower() not in NOT_FOR_STAGING}
    return {**kept, "dbtable": stage.place}


class DatabaseError(Exception):
    """What the database or its driver said, with its SQLState; empty if there is none."""

    def __init__(self, text: str, state: str) -> None:
        super().__init__(text)
        self.state = state


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

    def begin(self) -> None:
        """Begin a transaction with the next statement."""
        with self._said():
            self._java.setAutoCommit(False)

    def commit(self) -> None:
        """Commit. After an error nobody knows whether it happened."""
        with self._said():
            self._java.commit()

    def close(self) -> None:
        """Close the connection; what is not committed is undone by the server."""
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


def connected(spark: SparkSession, options: Mapping[str, str], silent_s: int) -> JdbcConnection:
    """Return a new connection, as Spark itself makes one of these options; after `silent_s` without an answer it is
    broken off, and whoever waits for it gets an error. Raises DatabaseError and NoDriver.
    """
    jvm: Any = spark._jvm
    options_of = jvm.org.apache.spark.sql.execution.datasources.jdbc.JDBCOptions
    given = jvm.java.util.HashMap()
    for name, value in options.items():
        given.put(name, value)
    try:
        checked = options_of(jvm.PythonUtils.toScalaMap(given))
        dialect = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(checked.url())
        made = dialect.createConnectionFactory(checked).apply(-1)
        made.setNetworkTimeout(jvm.java.util.concurrent.ForkJoinPool.commonPool(), silent_s * 1_000)
        return JdbcConnection(jvm, made)
    except Exception as error:
        found = database_error(jvm, error)
        if found is not None:
            raise found from error
        if "ClassNotFoundException" in str(error) or "did not find registered driver" in str(error):
            raise NoDriver from error
        raise


def database_error(jvm: Any, error: BaseException | None) -> DatabaseError | None:
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
            return DatabaseError(first_line(Exception(text)), str(told.getSQLState() or ""))
        java = java.getCause()
    return None


def _rows(found: Any) -> list[tuple[str | None, ...]]:
    count = int(found.getMetaData().getColumnCount())
    rows = []
    while found.next():
        rows.append(tuple(found.getString(index) for index in range(1, count + 1)))
    return rows


log = logging.getLogger("mld.spark")

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
    columns: list[postgres.StagedColumn]
    newest: list[str]
    """By what rows of one key are sorted (`newest_first`)."""
    rows: int = 0


class JdbcSink(AdmittedSink):
    """A table of PostgreSQL. `before` is where mld 0.1 would have kept the marks of the sink."""

    _ledger_place = f"its row in {LEDGER_TABLE}"
    lock_wait_s = 60
    """Longest wait for another writer's transaction; then the sink is waited for. Longer than `idle_s`, so that it
    outlasts one that hangs."""
    idle_s = 30
    """A transaction that says nothing for so long is ended by the server."""

    def __init__(self, spec: SinkSpec, spark: SparkSession, before: Store | None = None) -> None:
        self._spec, self._spark, self._before = spec, spark, before
        self.name = spec.name
        self._given = {name.lower(): value for name, value in spec.options.items()}
        self._options = connection_options(spec)
        self._swept_at: float | None = None
        self._target: TableName | None = None
        self._has_warned = False
        self._admission = admission_of(spec.writer, spec.name, f"table {self._given['dbtable']}", shared=spec.shared)

    def open(self) -> HighWaterMarks:
        with self._said("opening its ledger"), self._connection() as connection:
            target = self._named(connection)
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
                target = self._named(connection)
                self._sweep(connection, target)
                head = self._head(connection, target)
                self._admission.check(head, batch)
                if frame is None and not self._columns(connection, target):
                    return self._without_table(head, batch)
                if head is None:
                    table = target.beside(LEDGER_TABLE)
                    connection.execute(postgres.create_ledger(table))
                    connection.execute(postgres.first_entry(table), target.table)
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

    def _named(self, connection: JdbcConnection) -> TableName:
        """Return the user's table, as the catalog has it or would have it. The first time, check whether the database
        is one for this sink. Raises SinkRefused.
        """
        if self._target is not None:
            return self._target
        ((version, schema),) = connection.query(postgres.SERVER)
        if int(version or 0) < VERSION_MIN:
            raise SinkRefused(
                f"sink {self.name}: the database calls itself PostgreSQL {version}; this sink writes exactly once from "
                f"{VERSION_MIN} on"
            )
        key = f"mld.spark.sink.{self.name}.options.dbtable"
        try:
            named = postgres.table_named(self._given["dbtable"], schema or "")
        except ValueError as error:
            raise SinkRefused(f"{key}: {error}") from error
        if not named.schema:
            raise SinkRefused(f"{key} names no schema, and the connection has none")
        self._target = named
        return named

    def _columns(self, connection: JdbcConnection, table: TableName) -> list[postgres.TableColumn]:
        """Return the columns of a table; none if it is not there."""
        rows = connection.query(postgres.COLUMNS, table.place)
        return [postgres.TableColumn(str(name), str(type_), required == "1") for name, type_, required in rows]

    def _prepared(self, connection: JdbcConnection, target: TableName, frame: DataFrame) -> Staging:
        """Make or widen the table, and make the staging table."""
        columns = [postgres.FrameColumn(field.name, field.dataType.simpleString()) for field in frame.schema.fields]
        keys = self._spec.keys
        try:
            types = [postgres.type_of(column) for column in columns]
            have = self._columns(connection, target)
            if not have:
                made = [(column.name, type_) for column, type_ in zip(columns, types, strict=True)]
                primary = [columns[index].name for index in postgres.key_indices(columns, keys)]
                connection.execute(postgres.create(target, made, primary, self._given.get("createtableoptions", "")))
                log.info("sink %s: made table %s (%s)", self.name, target, ", ".join(map(" ".join, made)))
                have = self._columns(connection, target)
            fit, added = postgres.fitted(columns, have, keys)
        except ColumnsRefused as error:
            raise SinkRefused(f"sink {self.name}: table {target}: {error}") from error
        for name, type_ in added:
            connection.execute(postgres.add_column(target, name, type_))
            log.info("sink %s: added column %s %s to table %s", self.name, name, type_, target)
        table = target.beside(postgres.stage_name(time.time(), uuid4().hex))
        staged = [(postgres.staging_name(index), type_) for index, type_ in enumerate(types)]
        connection.execute(postgres.create(table, [*staged, (ROW, postgres.NUMBER)], [ROW]))
        return Staging(table, fit, postgres.newest_first(columns))

    def _staged(self, frame: DataFrame, staging: Staging) -> Staging:
        """Have Spark write the frame into its staging table."""
        from pyspark.sql.functions import monotonically_increasing_id

        stage("staging")
        renamed = frame.toDF(*(column.source for column in staging.columns))
        try:
            rows = write(
                renamed.withColumn(ROW, monotonically_increasing_id()),
                sink=self.name,
                format="jdbc",
                options=staging_options(self._options, staging.table),
                mode="append",
                path=None,
            )
        except JobFailed as error:
            found = database_error(self._spark._jvm, error.__cause__)
            if found is None or found.state.startswith("23"):  # a task has run twice: another attempt has its own table
                raise
            raise self._meaning(found, "writing a batch into a staging table", of_rows=True) from error
        stage("staged")
        return replace(staging, rows=rows)

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
        table = target.beside(LEDGER_TABLE)
        connection.begin()
        connection.execute(postgres.transaction_settings(lock_wait_s=self.lock_wait_s, idle_s=self.idle_s))
        stage("begun")
        rows = connection.query(postgres.locked_head(table), target.table)
        if not rows:
            raise SinkError(f"sink {self.name}: the row of {target.table} in {table} is gone; it is tried again")
        ((number, text),) = rows
        head = self._entry_of(number, text)
        stage("locked")
        staged = staging.rows if staging else 0
        entry = self._entry_after(head, batch, batch_id, layout=self._spec.format, rows=staged)
        if staging is not None and staging.rows:
            self._take_over(connection, target, staging)
        stage("inserted")
        said = ledger.encode(entry).decode()
        values = (entry.number, entry.token, said, target.table, int(number or 0))
        if connection.execute(postgres.next_entry(table), *values) != 1:
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
        ((count, lacking),) = connection.query(postgres.count(staging.table, staging.columns))
        if int(count or 0) != staging.rows:
            raise SinkError(
                f"sink {self.name}: {staging.table} holds {count} rows, and Spark has written {staging.rows}; it is "
                "tried again"
            )
        if int(lacking or 0):
            raise DataRefused(f"sink {self.name}: {lacking} rows have no value in a key of table {target}")
        if self._spec.keys and not staging.newest and not self._has_warned:
            log.warning(
                "sink %s: the frame has no column sequenceNumber, so of two rows of one key in a batch the later one "
                "stays; after a shuffle that is any of them",
                self.name,
            )
            self._has_warned = True
        statement = (
            postgres.merge(target, staging.table, staging.columns, staging.newest)
            if self._spec.keys
            else postgres.append(target, staging.table, staging.columns)
        )
        try:
            connection.execute(statement)
        except DatabaseError as error:
            raise self._meaning(error, f"putting a batch into table {target}", of_rows=True) from error

    # --- the ledger --------------------------------------------------------------------------------------------------

    def _head(self, connection: JdbcConnection, target: TableName) -> LedgerEntry | None:
        """Return the entry of the table as it is now, without a lock; None if it has none in this database."""
        table = target.beside(LEDGER_TABLE)
        if not self._columns(connection, table):
            return None
        rows = connection.query(postgres.head(table), target.table)
        return self._entry_of(*rows[0]) if rows else None

    def _entry_of(self, number: str | None, text: str | None) -> LedgerEntry | None:
        return self._decoded(text or "") if int(number or 0) else None

    # --- connections and their errors --------------------------------------------------------------------------------

    @contextmanager
    def _connection(self) -> Iterator[JdbcConnection]:
        timeout = self._given.get("querytimeout", "")
        silent_s = int(timeout) + SILENT_MARGIN_S if timeout.isdecimal() and int(timeout) else SILENT_S
        connection = connected(self._spark, self._options, silent_s)
        try:
            yield connection
        finally:
            connection.close()

    def _drop(self, table: TableName) -> None:
        """Drop a staging table; if that fails, it goes after a day."""
        try:
            with self._connection() as connection:
                connection.execute(postgres.drop(table))
        except DatabaseError as error:
            log.debug("sink %s: %s stays: %s", self.name, table, error)

    def _sweep(self, connection: JdbcConnection, target: TableName) -> None:
        if self._swept_at is not None and time.monotonic() - self._swept_at < SWEEP_EVERY_S:
            return
        before = int(time.time()) - postgres.ABANDONED_S
        for (name,) in connection.query(postgres.STAGES_BEFORE, target.schema, before):
            log.info("sink %s: dropping %s, whose writer is gone", self.name, name)
            self._drop(target.beside(str(name)))
        self._swept_at = time.monotonic()

    @contextmanager
    def _said(self, doing: str) -> Iterator[None]:
        try:
            yield
        except DatabaseError as error:
            raise self._meaning(error, doing) from error
        except NoDriver as error:
            raise SinkRefused(
                f"sink {self.name}: the JDBC driver {self._given.get('driver', DRIVER)} is not loaded; write "
                f"mld.spark.packages = {PACKAGE}, or name the class of another one that is as "
                f"mld.spark.sink.{self.name}.options.driver"
            ) from error

    def _meaning(self, error: DatabaseError, doing: str, *, of_rows: bool = False) -> SinkError:
        """Return what an error of the database means for the next attempt."""
        said = f"sink {self.name}: {doing}: {error}"
        fault = postgres.fault(error.state)
        if fault is SinkRefused:
            return SinkRefused(f"{said}; {postgres.remedy(error.state, self.name)}")
        return fault(said) if of_rows else SinkError(said)
