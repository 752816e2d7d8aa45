"""Tables of every format with marks of its own, each behind an engine: bytes of records in, rows of the table out."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from mld.processors.spark.batch.outcome import BatchOutcome
from tests.support.databases import Postgres
from tests.support.fetch_databases import POSTGRES_DRIVER
from tests.support.fetch_databases import installed as has_postgres
from tests.support.spark_bed import Bed, engine_bed, rows

PACKAGES = (
    "io.delta:delta-spark_4.1_2.13:4.4.0,org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0,"
    "org.xerial:sqlite-jdbc:3.50.3.0"
)
KINDS = ("parquet", "delta", "delta merge", "iceberg", "iceberg merge", "jdbc", "jdbc merge")
NAMES = itertools.count()
PLAIN = "def transform(records, batch):\n    return records.select('payload.*')\n"
JSON = "def transform(records, batch):\n    return records.select('sequenceNumber', 'payload.*')\n"


def session(warehouse: Path, packages: str = PACKAGES, **more: str) -> Any:
    """A session with both formats and the driver of PostgreSQL; without `MLD_LAKEHOUSE` the one of the tests."""
    if "MLD_LAKEHOUSE" not in os.environ:
        from mld.processors.spark import testing

        return testing.session()
    from pyspark.sql import SparkSession

    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Duser.timezone=UTC",
        "spark.jars.packages": packages,
        "spark.jars": str(POSTGRES_DRIVER.file) if has_postgres() else "",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "jdbc",
        "spark.sql.catalog.lake.uri": f"jdbc:sqlite:{warehouse}/catalog.db",
        "spark.sql.catalog.lake.jdbc.schema-version": "V1",
        "spark.sql.catalog.lake.warehouse": str(warehouse / "lake"),
        "spark.sql.warehouse.dir": str(warehouse / "hive"),
        "spark.log.level": "OFF",
        **more,
    }
    builder = SparkSession.builder.master("local[2]")
    for key, value in conf.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        pytest.skip(f"the jars cannot be fetched: {str(error)[:200]}")


class TableBed:
    """One table of a test, and an engine that writes it; `kind` is one of `KINDS`."""

    def __init__(self, spark: Any, directory: Path, kind: str, database: Postgres | None = None) -> None:
        self.spark, self.directory, self.database = spark, directory, database
        self.format, _, self.mode = kind.partition(" ")
        self.place = {"iceberg": f"lake.db.t{next(NAMES)}", "jdbc": f"t{next(NAMES)}"}.get(
            self.format, str(directory / "table")
        )
        self.name = f"delta.`{self.place}`" if self.format == "delta" else self.place
        self.bed: Bed | None = None
        if self.format == "iceberg":
            spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.db")

    def start(
        self, pipeline: str = JSON, *keys: str, schema: str | None = "id BIGINT, v STRING", format: str = "json"
    ) -> Bed:
        """A new engine over the table, as after a restart of the host."""
        sink = "mld.spark.sink.out."
        mine = [f"{sink}format = {self.format}", f"mld.spark.format = {format}"]
        mine += [f"mld.spark.schema = {schema}"] if schema else []
        if self.format == "jdbc":
            mine += [f"{sink}path =", *(f"{sink}options.{name} = {value}" for name, value in self._options().items())]
        else:
            mine += [f"{sink}path = {self.place}"]
        if self.mode:
            mine += [f"{sink}mode = merge", f"{sink}keys = id"]
        self.bed = engine_bed(self.spark, self.directory, pipeline, *mine, *keys)
        return self.bed

    def _options(self) -> dict[str, str]:
        assert self.database is not None
        base = self.database
        return {"url": base.url, "dbtable": self.place, "user": base.user, "password": base.password}

    def run(self, data: Mapping[int, bytes] | Iterable[bytes], **more: Any) -> BatchOutcome:
        """One micro-batch; records without numbers are numbered from 1."""
        assert self.bed is not None
        return self.bed.run(data if isinstance(data, Mapping) else dict(enumerate(data, 1)), **more)

    def make(self, columns: str, more: str = "") -> None:
        """Make the table as somebody else would."""
        if self.format == "jdbc":
            self.sql(f"CREATE TABLE {self.place} ({columns})")
        else:
            self.sql(f"CREATE TABLE {self.name} ({columns}) USING {self.format} {more}")

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        if self.format != "jdbc":
            return [tuple(row) for row in self.spark.sql(statement).collect()]
        from contextlib import closing

        from mld.processors.spark.sinks.jdbc_connection import JdbcConnection

        assert self.database is not None
        options = {**self._options(), "driver": self.database.driver}
        with closing(JdbcConnection(self.spark._jvm, options)) as connection:
            return [tuple(row) for row in connection.run(statement)]

    def rows(self, columns: str = "id, v") -> list[tuple[Any, ...]]:
        """What a reader sees, sorted; values of a database are texts, so all are made texts here."""
        if self.format == "iceberg":
            self.spark.sql(f"REFRESH TABLE {self.place}")
        if self.format == "parquet":
            frame = self.spark.read.option("mergeSchema", "true").parquet(self.place)
            found = [tuple(row) for row in frame.selectExpr(*columns.split(", ")).collect()]
        else:
            found = self.sql(f"SELECT {columns} FROM {self.name}")
        return sorted((tuple(None if value is None else str(value) for value in row) for row in found), key=repr)

    def back_up(self) -> None:
        """Keep the table as it is now, with all that its sink keeps there."""
        if self.format == "jdbc":
            self.sql(f"CREATE TABLE {self.place}_kept AS SELECT * FROM {self.place}")
            self.sql(f"CREATE TABLE {self.place}_ledger AS SELECT * FROM mld_ledger WHERE target = '{self.place}'")
        elif self.format == "iceberg":
            order = f"SELECT file FROM {self.place}.metadata_log_entries ORDER BY timestamp DESC, file DESC LIMIT 1"
            ((self.kept,),) = self.sql(order)
        else:
            shutil.copytree(self.place, f"{self.place}-kept")

    def restore(self) -> None:
        """Have the table as it was when it was backed up."""
        if self.format == "jdbc":
            self.sql(f"TRUNCATE {self.place}")
            self.sql(f"INSERT INTO {self.place} SELECT * FROM {self.place}_kept")
            self.sql(f"DELETE FROM mld_ledger WHERE target = '{self.place}'")
            self.sql(f"INSERT INTO mld_ledger SELECT * FROM {self.place}_ledger")
        elif self.format == "iceberg":
            self.sql(f"DROP TABLE {self.place}")
            name = self.place.removeprefix("lake.")
            self.sql(f"CALL lake.system.register_table(table => '{name}', metadata_file => '{self.kept}')")
        else:
            shutil.rmtree(self.place)
            shutil.copytree(f"{self.place}-kept", self.place)
            if self.format == "delta":
                self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    def letters(self) -> list[str]:
        """Why records are in the dead letter."""
        directory = self.directory / "dead"
        return [row["reason"] for row in rows(directory)] if directory.exists() else []
