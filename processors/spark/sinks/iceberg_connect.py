"""Iceberg tables through Spark Connect, exactly once: by SQL alone, because there is no JVM of ours to ask.

The ledger's entry stands in the snapshot's summary. The rows are appended to a branch that starts at the snapshot in
which the marks were read, and `main` is then fast-forwarded to it, which fails if `main` has moved since. That is four
commits of the table's metadata for each batch, and metadata that hold every entry until their snapshots expire.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.ledger import LedgerEntry
from mld.processors.spark.commit_stages import stage
from mld.processors.spark.high_water_marks import HighWaterMarks
from mld.processors.spark.sink_port import JobFailed, SinkRefused, SinkSpec
from mld.processors.spark.sinks.iceberg import check_name, make_table
from mld.processors.spark.sinks.iceberg_ledger import (
    KEPT_PROPERTY,
    PROPERTY,
    Lineage,
    MainWasMoved,
    head_of,
    moved_sentence,
)
from mld.processors.spark.sinks.lake_table import APPLICATION, MISSING, LakeSink, LostRace
from mld.processors.spark.spark_errors import failure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ABANDONED_S = 24 * 3600
"""A branch of that age has no writer any more."""
BRANCH = "mld_"


class ConnectIcebergSink(LakeSink):
    """An Iceberg table, `catalog.schema.table`."""

    def __init__(self, spec: SinkSpec, spark: SparkSession) -> None:
        super().__init__(spec, spark)
        self._catalog, self._table = check_name(spec)
        self._snapshot: int | None = None

    def open(self) -> HighWaterMarks:
        marks = super().open()
        self._drop_abandoned()
        return marks

    def _head(self) -> LedgerEntry | None:
        """Return the entry in force; remembers where `main` stands."""
        try:
            rows = self._spark.sql(
                f"SELECT snapshot_id, parent_id, summary['{PROPERTY}'] AS said FROM {self._target}.snapshots"  # noqa: S608 - the user's own table
            ).collect()
            current = self._spark.sql(
                f"SELECT snapshot_id FROM {self._target}.refs WHERE name = 'main'"  # noqa: S608
            ).collect()
            properties = {row.key: row.value for row in self._spark.sql(f"SHOW TBLPROPERTIES {self._target}").collect()}
        except Exception as error:
            if any(condition in str(error) for condition in MISSING):
                self._snapshot = None
                return None
            raise
        self._snapshot = current[0].snapshot_id if current else None
        snapshots = {row.snapshot_id: (row.parent_id, row.said) for row in rows}
        if self._snapshot is not None and self._snapshot not in snapshots:
            raise LostRace  # it moved between the questions
        lineage = _lineage(snapshots, self._snapshot)
        try:
            return head_of(lineage, properties.get(PROPERTY), properties.get(KEPT_PROPERTY), self._decoded)
        except MainWasMoved as moved:
            raise SinkRefused(moved_sentence(self.name, self._target, moved.number)) from moved
        except ValueError as error:
            raise SinkRefused(f"sink {self.name}: the ledger in {self._target} is damaged: {error}") from error

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
        make_table(self._spark, self._target, frame, self._spec.partition_by)
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


def _lineage(snapshots: Mapping[int, tuple[int | None, str | None]], current: int | None) -> Lineage:
    """Walk from the current snapshot by parents, as `iceberg_table` does it."""
    at = current
    while at is not None:
        if at not in snapshots:
            return Lineage(None, whole=False)  # expired
        at, said = snapshots[at]
        if said is not None:
            return Lineage(said, whole=False)
    return Lineage(None, whole=True)
