"""A connection to a database by the JDBC driver that Spark has loaded; Python needs no driver.

Options have Spark's names, in upper or lower case. No option may be logged, because a URL may contain a password.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from mld.processors.spark.sink_port import SinkRefused
from mld.processors.spark.sink_spec import SinkSpec

SILENT_S = 900
"""Longest wait for an answer of the server."""
DRIVER, PACKAGE = "org.postgresql.Driver", "org.postgresql:postgresql:42.7.7"
"""The class of the driver, and its Maven coordinates for messages; the version is an example."""
DRIVER_OPTIONS = {"driver": DRIVER, "reWriteBatchedInserts": "true", "tcpKeepAlive": "true"}
"""Default options."""


class JdbcConnection:
    """A new connection, which Spark's own code makes from the options. Until a BEGIN each statement
    commits by itself.
    """

    def __init__(self, jvm: Any, options: Mapping[str, str]) -> None:
        of_spark = jvm.org.apache.spark.sql
        checked = of_spark.execution.datasources.jdbc.JDBCOptions(jvm.PythonUtils.toScalaMap(dict(options)))
        # -1 is the number by which Spark's factory makes a connection for the driver, not for a partition.
        self._java = of_spark.jdbc.JdbcDialects.get(checked.url()).createConnectionFactory(checked).apply(-1)
        self._java.setNetworkTimeout(jvm.java.util.concurrent.ForkJoinPool.commonPool(), SILENT_S * 1_000)

    def run(self, sql: str, *values: str) -> list[tuple[str | None, ...]]:
        """Run a statement with these values for its parameters. Return its rows; each value in them
        is a text or None.
        """
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
        """Close the connection. The server rolls back a transaction that is not committed."""
        with suppress(Exception):
            self._java.close()


def check_options(spec: SinkSpec) -> None:
    """Raise SinkRefused if a setting of the sink is missing or has no meaning for PostgreSQL."""
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
    """Return the options for Spark's JDBC client: the sink's options, and our defaults for options that it lacks."""
    given = {name.lower() for name in spec.options}
    return {name: value for name, value in DRIVER_OPTIONS.items() if name.lower() not in given} | dict(spec.options)
