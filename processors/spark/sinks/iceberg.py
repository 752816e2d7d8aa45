"""Iceberg tables, exactly once.

The ledger's entry stands in the snapshot's summary. The rows are appended to a branch that starts at the snapshot in
which the marks were read, and `main` is then fast-forwarded to it, which fails if `main` has moved since.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from processors.spark.commit import ledger
from processors.spark.commit.ledger import LedgerEntry
from processors.spark.commit_stages import stage
from processors.spark.high_water_marks import HighWaterMarks
from processors.spark.sink_port import JobFailed, SinkRefused, SinkSpec
from processors.spark.sinks.lake_table import APPLICATION, MISSING, LakeSink, LostRace
from processors.spark.spark_errors import failure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ABANDONED_S = 24 * 3600
"""A branch of that age has no writer any more."""
BRANCH = "mld_"


class IcebergSink(LakeSink):
    """An Iceberg table, `catalog.schema.table`."""

    def __init__(self, spec: SinkSpec, spark: SparkSession) -> None:
        super().__init__(spec, spark)
        catalog, _, table = self._target.partition(".")
        if not table or "/" in self._target:
            raise SinkRefused(
                f"mld.spark.sink.{spec.name}.path = {spec.path}: an Iceberg table is named as catalog.schema.table"
            )
        self._catalog, self._table = catalog, table
        self._snapshot: int | None = None

    def open(self) -> HighWaterMarks:
        marks = super().open()
        self._drop_abandoned()
        return marks

    def _head(self) -> LedgerEntry | None:
        """The entry of the newest ancestor of `main` that has one; remembers where `main` stands."""
        try:
            rows = self._spark.sql(
                f"SELECT h.snapshot_id, s.summary['{APPLICATION}.ledger'] AS entry FROM {self._target}.history h "  # noqa: S608
                f"JOIN {self._target}.snapshots s ON h.snapshot_id = s.snapshot_id WHERE h.is_current_ancestor"
            ).collect()
            current = self._spark.sql(
                f"SELECT snapshot_id FROM {self._target}.refs WHERE name = 'main'"  # noqa: S608 - the user's own table
            ).collect()
        except Exception as error:
            if any(condition in str(error) for condition in MISSING):
                self._snapshot = None
                return None
            raise
        self._snapshot = current[0].snapshot_id if current else None
        if self._snapshot is not None and self._snapshot not in {row.snapshot_id for row in rows}:
            raise LostRace  # it moved between the two questions
        entries = [self._decoded(row.entry) for row in rows if row.entry]
        return max(entries, key=lambda entry: entry.number, default=None)

    def _commit(self, frame: DataFrame, entry: LedgerEntry) -> None:
        self._make_table(frame)
        branch = f"{BRANCH}{int(time.time())}_{entry.token}"
        at = f" AS OF VERSION {self._snapshot}" if self._snapshot is not None else ""
        self._spark.sql(f"ALTER TABLE {self._target} CREATE BRANCH `{branch}`{at}")
        try:
            said = ledger.encode(entry, application=APPLICATION).decode()
            frame.writeTo(f"{self._target}.branch_{branch}").options(
                **{**self._spec.options, f"snapshot-property.{APPLICATION}.ledger": said}
            ).append()
            stage("staged")
            self._forward(branch, entry)
        finally:
            self._drop(branch)

    def _forward(self, branch: str, entry: LedgerEntry) -> None:
        try:
            self._spark.sql(f"CALL {self._catalog}.system.fast_forward('{self._table}', 'main', '{branch}')").collect()
        except Exception as error:
            head = self._head()
            if head is not None and head.token == entry.token:
                return
            if "fast-forward" in str(error) or "CommitFailed" in str(error):
                raise LostRace from error
            raise JobFailed(f"sink {self.name}: {error}") from error

    def _make_table(self, frame: DataFrame) -> None:
        if self._snapshot is not None or self._spark.catalog.tableExists(self._target):
            return
        from pyspark.sql.functions import col

        writing = frame.limit(0).writeTo(self._target).using("iceberg")
        if self._spec.partition_by:
            first, *more = (col(column) for column in self._spec.partition_by)
            writing = writing.partitionedBy(first, *more)
        try:
            writing.create()
        except Exception as error:
            if "ALREADY_EXISTS" not in str(error).upper():
                raise
        raise LostRace  # it has a first snapshot now, which a branch can start at

    def _nothing(self) -> DataFrame | None:
        return self._spark.table(self._target).limit(0) if self._snapshot is not None else None

    def _drop_abandoned(self) -> None:
        if self._snapshot is None:
            return
        refs = self._spark.sql(f"SELECT name FROM {self._target}.refs WHERE type = 'BRANCH'").collect()  # noqa: S608
        for row in refs:
            born = row.name.removeprefix(BRANCH).partition("_")[0]
            if row.name.startswith(BRANCH) and born.isdigit() and time.time() - int(born) > ABANDONED_S:
                self._drop(row.name)

    def _drop(self, branch: str) -> None:
        try:
            self._spark.sql(f"ALTER TABLE {self._target} DROP BRANCH IF EXISTS `{branch}`")
        except Exception as error:
            if "CommitFailed" not in str(error):
                raise failure(error, f"sink {self.name}: dropping the branch {branch}") from error
