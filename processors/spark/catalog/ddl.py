"""Statements that make tables of Hive, Athena or Spark SQL over the sinks of a properties file.

    mld-spark --ddl app.properties        # in the daemon's working directory

Columns are those that the newest entry of each sink's ledger has, so the sink has to have a commit.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence

from mld.processors.spark.catalog.table import SERDES, CatalogTableError, Table, ddl, left_out, named
from mld.processors.spark.commit.journal import Journal
from mld.processors.spark.commit.store import PosixStore, local_directory
from mld.processors.spark.meeting_place import EXIT_CONFIGURATION, EXIT_FAILURE
from mld.processors.spark.sanitized import complain
from mld.processors.spark.settings import SettingsError, load
from mld.processors.spark.sink_port import SinkError, SinkRefused, SinkSpec

COMMIT = "mld_commit"
"""The directories of a sink without `partitionBy`."""


def statements(file: str, env: Mapping[str, str]) -> Iterator[str]:
    """Yield one text for each sink. Raises SettingsError, SinkError and CatalogTableError."""
    for spec in load(file, (), env).sinks:
        yield _of_sink(spec)


def _of_sink(spec: SinkSpec) -> str:
    format = spec.format.lower()
    if format not in SERDES or not spec.path:
        return f"-- sink {spec.name}: no table over {format}; there is one over {', '.join(SERDES)}\n"
    try:
        store = PosixStore(local_directory(spec.path, f"mld.spark.sink.{spec.name}.path"))
    except SinkRefused:
        return (
            f"-- sink {spec.name}: its ledger is not on this machine; set mld.spark.sink.{spec.name}.glueTable, or "
            "change the LOCATION of a table over a directory of this machine\n"
        )
    head = Journal(store, spec.name).head()
    if head is None or not head.columns:
        return f"-- sink {spec.name}: has no commit with columns yet\n"
    database, name = named(spec.glue_table) if spec.glue_table else ("default", spec.name.lower())
    columns, keys = tuple(head.columns), spec.partition_by
    if not keys and any(one.startswith(f"{COMMIT}=") for one in store.names("")):
        columns, keys = (*columns, (COMMIT, "bigint")), (COMMIT,)
    said = "".join(f"-- without the column {one}, for whose type Hive has none\n" for one in left_out(columns))
    return said + ddl(Table(database, name, store.uri("").rstrip("/"), format, keys), columns)


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: mld-spark --ddl APP.properties\n")
        return EXIT_CONFIGURATION
    try:
        sys.stdout.write("\n".join(statements(arguments[0], os.environ)))
    except SettingsError as error:
        complain(str(error))
        return EXIT_CONFIGURATION
    except (SinkError, CatalogTableError, OSError) as error:
        complain(str(error))
        return EXIT_FAILURE
    return 0
