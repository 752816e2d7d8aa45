"""Tables of PostgreSQL by JDBC, exactly once.

Spark writes the frame into a staging table, with as many tasks as the frame has partitions. Then the driver runs one
transaction: it locks the row that the table has in the ledger (`mld_ledger` in the same schema), checks the marks,
copies the staged rows with one statement, updates the row, and commits. So either both rows and marks are there, or
neither. A reader sees whole commits.

Two things must never happen: that staged rows are copied without the lock, and that marks are moved in another
transaction. The name of a staging table has a token and the time. Before its rows are copied, the staging table is
locked, because Spark may run a task twice; then it must have as many rows as Spark has counted. A worker that opens a
sink drops staging tables that are older than a day.

An entry of the ledger has the marks. A mark is the position up to which the records of a shard are in the table. The
present entry is the head. `stage(...)` names a place in the code for tests, which kill or hold the process there.
`postgres_sql` has the statements, `jdbc_connection` the connection, `jdbc_errors` the meaning of errors.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.admission import Admission
from mld.processors.spark.commit.admitted_sink import AdmittedSink
from mld.processors.spark.commit.faults import stage
from mld.processors.spark.commit.ledger import LedgerEntry
from mld.processors.spark.high_water_marks import HighWaterMarks, ShardSpans
from mld.processors.spark.sentences import first_line
from mld.processors.spark.session.error_classes import SQL, causes_of
from mld.processors.spark.sink_port import DataRefused, JobFailed, Published, SinkError, SinkRefused
from mld.processors.spark.sink_spec import SinkSpec
from mld.processors.spark.sinks import postgres_sql
from mld.processors.spark.sinks.columns import SinkColumns
from mld.processors.spark.sinks.frame_writer import write
from mld.processors.spark.sinks.jdbc_connection import DRIVER, PACKAGE, JdbcConnection, connection_options
from mld.processors.spark.sinks.jdbc_errors import meaning
from mld.processors.spark.sinks.merge import PLACES, SEQUENCE, Merge
from mld.processors.spark.sinks.postgres_sql import Column, TableName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("mld.spark")
LEDGER_TABLE = "mld_ledger"
LEDGER_LINES = ("target TEXT PRIMARY KEY", "number BIGINT", "token TEXT", "entry TEXT")
"""Columns of the ledger, which has a row for each table. Before the first commit to a table, the entry in its row is an
empty text.
"""
ENTRY_CHARS_MAX = 64 << 20
"""Only this many characters of an entry are read. A longer entry is none of ours, and must not fill the memory."""
ABANDONED_S = 24 * 3600
"""If a staging table is of this age, its writer is gone."""
NO_DRIVER = "java.lang.ClassNotFoundException"


class Staging(NamedTuple):
    """A staging table, and the statement that copies its rows into the user's table."""

    table: TableName
    statement: str


class JdbcSink(AdmittedSink):
    """A table of PostgreSQL."""

    _ledger_place = f"its row in {LEDGER_TABLE}"
    lock_wait_s = 60
    """Longest wait, in the database, for another writer's transaction; after that the engine waits. It is longer than
    `idle_s`, after which a writer that hangs loses its transaction."""
    idle_s = 30
    """After this time without a statement the server ends a transaction."""

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
        """Drop abandoned staging tables, and return the marks from the table's row of the ledger."""
        with self._failures("opening its ledger"), self._connection() as connection:
            target = self._prepared(connection)
            for (name,) in connection.run(
                postgres_sql.STAGES_BEFORE, target.schema, str(int(time.time()) - ABANDONED_S)
            ):
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
        """Let Spark write the frame into a staging table, and copy the rows into the user's table in one transaction
        with the marks. While Spark writes, no connection is open. Raises SinkError.
        """
        if frame is not None and self._merge.keeps_deleted:
            frame = self._merge.marked(frame)
        with self._failures("writing a batch"):
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

    # --- before the transaction: statements that commit by themselves ------------------------------------------------

    def _prepared(self, connection: JdbcConnection) -> TableName:
        """Return schema and name of the user's table, as in the database's catalog. If the option `dbtable` names no
        schema, the connection's is used. The first call makes the ledger if needed. Raises SinkRefused."""
        if self._target is None:
            ((schema, first, second, more),) = connection.run(postgres_sql.NAMED, self._given["dbtable"])
            if more or not (second or schema):
                key = f"mld.spark.sink.{self.name}.options.dbtable"
                raise SinkRefused(f"{key} has more parts than schema.table, or no schema, as the connection has none")
            named = TableName(str(first), second) if second else TableName(str(schema), str(first))
            connection.run(postgres_sql.create(named._replace(table=LEDGER_TABLE), LEDGER_LINES))
            self._target = named
        return self._target

    def _columns(self, connection: JdbcConnection, table: TableName) -> list[Column]:
        """Return the columns of a table; none if it does not exist."""
        rows = connection.run(postgres_sql.COLUMNS, table.place)
        return [Column(str(name), str(type_), required == "t") for name, type_, required in rows]  # "t": true

    def _columns_of(self, frame: DataFrame) -> list[Column]:
        """Return the columns of a frame, with Spark's types for PostgreSQL. Raises SinkRefused."""
        of_spark: Any = self._spark._jvm.org.apache.spark.sql  # type: ignore[union-attr]
        dialect = of_spark.jdbc.JdbcDialects.get(self._given["url"])
        type_of = of_spark.execution.datasources.jdbc.JdbcUtils.getJdbcType
        fields: Any = frame._jdf.schema().fields()
        try:
            types = ((field.name(), type_of(field.dataType(), dialect)) for field in fields)
            return [Column(name, type_.databaseTypeDefinition()) for name, type_ in types]
        except Exception as error:
            why = f"sink {self.name}: PostgreSQL has no type for a column: {first_line(error)}"
            raise SinkRefused(f"{why}; cast it in the pipeline, for instance with to_json") from error

    def _fit(self, connection: JdbcConnection, target: TableName, frame: DataFrame) -> Staging:
        """Make the user's table, or add the columns of the frame that it lacks, and make a staging table. Return the
        staging table with the statement that copies its rows. Raises SinkRefused if the frame does not fit the table.
        """
        at, keys = f"sink {self.name}: table {target.place}", self._spec.keys
        columns, existing = self._columns_of(frame), self._columns(connection, target)
        self._merge.check_named([column.name.lower() for column in columns], "the frame has no such column; select it")
        matching = postgres_sql.fitted(at, columns, existing, keys, self._spec.order_by)
        key_places = postgres_sql.places_of(keys, columns)
        order_places = postgres_sql.places_of(self._spec.order_by, columns)
        if not existing:
            lines = [f"{postgres_sql.quoted(column.name)} {column.type}" for column in columns]
            if key_places:
                lines.append(f"PRIMARY KEY ({postgres_sql.listed(columns[place].name for place in key_places)})")
            connection.run(postgres_sql.create(target, lines, self._given.get("createtableoptions", "")))
            log.info("sink %s: made table %s", self.name, target.place)
            # Read again, because another writer may have made the table.
            existing = self._columns(connection, target)
            matching = postgres_sql.fitted(at, columns, existing, keys, self._spec.order_by)
        added = [column for column in matching if column not in existing]
        for column in added:
            connection.run(postgres_sql.add_column(target, column))
        absent = (column for column in existing if column not in matching)
        self._drift.say((column.name for column in added), (column.name for column in absent))
        # Of several rows with one key, the row of the newest record is used, if the frame has the records' positions.
        has_sequence = postgres_sql.places_of((SEQUENCE,), columns)
        newest = postgres_sql.places_of((SEQUENCE, *PLACES), columns) if has_sequence else []
        if keys and not newest and not self._has_warned:
            log.warning(
                "sink %s: the frame has no column sequenceNumber, so of two rows of one key in a batch the later one "
                "stays; after a shuffle that is any of them",
                self.name,
            )
            self._has_warned = True
        staging = target._replace(table=postgres_sql.stage_name(time.time(), uuid4().hex))
        connection.run(postgres_sql.create_stage(staging, columns, key_places))
        return Staging(staging, postgres_sql.take_over(target, staging, matching, key_places, newest, order_places))

    def _staged(self, frame: DataFrame, staging: Staging) -> int:
        """Let Spark write the frame into the staging table, whose columns are named by their places: c0, c1, … The
        column ROW has the order of the rows. Return the number of rows.
        """
        from pyspark.sql.functions import monotonically_increasing_id

        stage("staging")
        renamed = frame.toDF(*(f"c{place}" for place in range(len(frame.columns))))
        numbered = renamed.withColumn(postgres_sql.ROW, monotonically_increasing_id())
        options = {**self._options, "dbtable": staging.table.place}
        with self._failures("writing a batch into a staging table", of_rows=True):
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
        """Copy the staged rows and move the marks, in one transaction, which holds a lock on the table's row in the
        ledger. Return the new entry. Raises Fenced if another writer has moved the marks, and other SinkErrors.
        """
        place = target._replace(table=LEDGER_TABLE).place
        connection.run(
            f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '{self.lock_wait_s}s'; "
            f"SET LOCAL idle_in_transaction_session_timeout = '{self.idle_s}s'; SET LOCAL client_min_messages = error"
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
        with self._failures(f"committing batch {batch_id} (the ledger says whether it happened)", of_rows=True):
            connection.run("COMMIT")
        stage("committed")
        return entry

    def _take_over(self, connection: JdbcConnection, target: TableName, staging: Staging, rows: int) -> None:
        """Lock and count the staged rows, and copy them into the user's table. Raises SinkError if there are not
        exactly as many rows as Spark has counted, because a task may have run twice.
        """
        place = staging.table.place
        connection.run(f"LOCK TABLE {place} IN SHARE MODE")
        ((count,),) = connection.run(f"SELECT COUNT(*) FROM {place}")  # noqa: S608 - our own table
        if count != str(rows):
            raise SinkError(
                f"sink {self.name}: {place} holds {count} rows, and Spark has written {rows}; it is tried again"
            )
        with self._failures(f"putting a batch into table {target.place}", of_rows=True):
            connection.run(staging.statement)

    def _head(self, connection: JdbcConnection, target: TableName, lock: str = "") -> LedgerEntry | None:
        """Return the present entry of the table; None if there is no row, or no commit yet (an empty text). `lock` is a
        lock clause of SQL."""
        place = target._replace(table=LEDGER_TABLE).place
        query = f"SELECT left(entry, {ENTRY_CHARS_MAX}) FROM {place} WHERE target = ? {lock}"  # noqa: S608
        rows = connection.run(query, target.table)
        return self._decoded(rows[0][0]) if rows and rows[0][0] else None

    # --- connections and their errors --------------------------------------------------------------------------------

    def _connection(self) -> closing[JdbcConnection]:
        return closing(JdbcConnection(self._spark._jvm, self._options))

    def _drop(self, table: TableName) -> None:
        """Drop a staging table. If that fails, a later `open` drops the table."""
        with suppress(Exception), self._connection() as connection:
            connection.run(f"DROP TABLE {table.place}")

    @contextmanager
    def _failures(self, doing: str, *, of_rows: bool = False) -> Iterator[None]:
        """Turn an error of the database, or of Spark's JDBC client, into an error of a sink. Its text names the work
        that failed (`doing`).

        `of_rows`: whether a row can be to blame."""
        try:
            yield
        except (DataRefused, SinkRefused):
            raise
        except Exception as error:
            cause = error.__cause__ if isinstance(error, JobFailed) else error  # what `frame_writer` has wrapped
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
