"""A connection to the database on the driver, by the JDBC driver that Spark has loaded; Python needs none.

Every error is a `DatabaseError` with SQLState and the vendor's code. A connection that has raised one is of no more
use than to be closed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from mld.processors.spark.spark_errors import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    jdbc = jvm.org.apache.spark.sql.execution.datasources.jdbc
    given = jvm.java.util.HashMap()
    for name, value in options.items():
        given.put(name, value)
    try:
        checked = jdbc.JDBCOptions(jvm.PythonUtils.toScalaMap(given))
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
