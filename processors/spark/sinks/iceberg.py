"""Iceberg tables, exactly once: one commit of the table for each batch, two with `mode = merge`.

The commit adds the batch's files and replaces the ledger's entry, and it is made on top of the snapshot that the entry
before was read at: if anybody else has committed since, the catalog refuses it. A batch that lost such a race is not
computed again: its files are there, and the next attempt checks the new marks and adds the same files.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import quote_plus
from uuid import uuid4

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.journal import signature
from mld.processors.spark.commit.ledger import LedgerEntry
from mld.processors.spark.commit_stages import stage
from mld.processors.spark.high_water_marks import ShardSpans, advanced
from mld.processors.spark.sink_port import Fenced, Published, SinkError, SinkRefused, SinkSpec
from mld.processors.spark.sinks.iceberg_ledger import (
    KEPT_PROPERTY,
    PROPERTY,
    MainWasMoved,
    head_of,
    moved_sentence,
    note,
)
from mld.processors.spark.sinks.iceberg_table import WAP_PROPERTY, Files, IcebergTable, TableAsRead, changed_rows
from mld.processors.spark.sinks.lake_table import APPLICATION, RACES_MAX, LakeSink, LostRace, PartitionField
from mld.processors.spark.sinks.merge import Merge, quoted, type_of
from mld.processors.spark.sinks.table_columns import changes
from mld.properties.spark import TRANSFORM

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class IcebergSink(LakeSink):
    """An Iceberg table, `catalog.schema.table`."""

    def __init__(self, spec: SinkSpec, spark: SparkSession) -> None:
        super().__init__(spec, spark)
        check_name(spec)
        self._merge = Merge(spec.name, spec.keys, spec.delete_when) if spec.mode.lower() == "merge" else None
        if self._merge is not None:
            if not spec.keys:
                self._merge.check(())
            # A MERGE is told what to say in its snapshot by the settings of a session: by one of its own.
            self._spark = type(spark)(spark.sparkContext, spark._jsparkSession.cloneSession())
        self._seen: TableAsRead | None = None
        self._table: IcebergTable | None = None

    def _head(self) -> LedgerEntry | None:
        """Return the entry in force; remembers the table and its metadata, which the next commit is bound to."""
        self._table = IcebergTable.load(self._spark, self._target)
        self._seen = self._table.look() if self._table is not None else None
        return self._entry()

    def _entry(self) -> LedgerEntry | None:
        seen = self._seen
        if seen is None:
            return None
        try:
            return head_of(seen.lineage(), seen.property(PROPERTY), seen.property(KEPT_PROPERTY), self._decoded)
        except MainWasMoved as moved:
            raise SinkRefused(moved_sentence(self.name, self._target, moved.number)) from moved
        except ValueError as error:
            raise SinkRefused(f"sink {self.name}: the ledger in {self._target} is damaged: {error}") from error

    def _attempt(self, frame: DataFrame | None, batch: ShardSpans, batch_id: str) -> Published:
        head = self._head()
        self._admission.check(head, batch)
        if self._table is None:
            if frame is None:  # no table yet: an empty batch that comes again is as empty
                return Published(advanced(self._admission.marks(head), batch))
            self._make_table(frame)
            raise LostRace  # whoever made it, it is there now
        if self._merge is not None and frame is not None:
            return self._merged(self._merge, frame, batch, batch_id)
        stage("staging")
        files = self._write(frame)
        stage("staged")
        try:
            return self._published(files, batch, batch_id)
        except (Fenced, SinkRefused):
            self._table.discard(files)
            raise

    def _write(self, frame: DataFrame | None) -> Files:
        assert self._table is not None
        if frame is None:
            return Files([])
        with self._bounded(frame) as bounded:
            return self._table.write(self._fitted(bounded), self._spec.options)

    def _fitted(self, frame: DataFrame) -> DataFrame:
        """Return the frame with all columns of the table, which has all of the frame's. Raises as `_fit`."""
        from pyspark.sql.functions import lit

        absent = self._fit(frame)
        kinds = {field.name: field.dataType for field in self._spark.table(self._target).schema} if absent else {}
        return frame.withColumns({name: lit(None).cast(kinds[name]) for name in absent}) if absent else frame

    def _partition_fields(self) -> list[PartitionField]:
        assert self._seen is not None
        return self._seen.partition_fields(check_name(self._spec)[0])

    def _directory(self, fields: list[PartitionField], values: list[str | None]) -> str:
        return "/".join(
            f"{quote_plus(field.column)}={quote_plus(value or '')}" for field, value in zip(fields, values, strict=True)
        )

    def _stored_partitions(self) -> DataFrame | None:
        return self._spark.table(f"{self._target}.data_files")

    def _merged(self, merge: Merge, frame: DataFrame, batch: ShardSpans, batch_id: str) -> Published:
        """Publish the batch as one MERGE, staged beside `main`, and then made its next snapshot."""
        assert self._table is not None and self._seen is not None
        rows = merge.newest(frame)
        self._fit(frame)
        if self._seen.property(WAP_PROPERTY) != "true":
            self._spark.sql(f"ALTER TABLE {self._target} SET TBLPROPERTIES ('{WAP_PROPERTY}' = 'true')")
            raise LostRace  # the table is another one now
        entry = self._following(batch, batch_id)
        before = self._seen.snapshot_id
        stage("staging")
        self._table.merge(rows, merge.statement(self._target, "{source}", frame.columns), entry.token, note(entry))
        stage("staged")
        self._seen = self._table.look()
        if self._seen.snapshot_id != before:
            raise LostRace
        said = {PROPERTY: encoded(entry)}
        staged = self._seen.staged(entry.token)
        try:
            if staged is None:  # nothing to insert, update or delete
                self._table.append(Files([]), self._seen, {PROPERTY: note(entry)}, said)
            else:
                self._table.publish(staged, self._seen, said)
        except LostRace:
            if not self._is_head(entry):
                raise
        stage("committed")
        return Published(self._admission.marks(entry), entry.number, 0 if staged is None else changed_rows(staged))

    def _is_head(self, entry: LedgerEntry) -> bool:
        """Return whether the entry is in force; looks again."""
        assert self._table is not None
        self._seen = self._table.look()
        head = self._entry()
        return head is not None and head.token == entry.token

    def _published(self, files: Files, batch: ShardSpans, batch_id: str) -> Published:
        """Return the files with the entry that follows the head as it is now."""
        assert self._table is not None and self._seen is not None
        for _ in range(RACES_MAX):
            entry = self._following(batch, batch_id)
            try:
                self._commit_files(files, entry)
            except LostRace:
                if not self._is_head(entry):
                    continue
            stage("committed")
            return Published(self._admission.marks(entry), entry.number, rows=files.rows)
        raise SinkError(f"sink {self.name}: {RACES_MAX} other commits came first, nothing was published")

    def _following(self, batch: ShardSpans, batch_id: str) -> LedgerEntry:
        return self._admission.following(
            self._entry(), batch, uuid4().hex, layout=self._spec.format, batch_id=batch_id, **signature()
        )

    def _commit_files(self, files: Files, entry: LedgerEntry) -> None:
        assert self._table is not None and self._seen is not None
        self._table.append(files, self._seen, {PROPERTY: note(entry)}, {PROPERTY: encoded(entry)})

    def _commit(self, frame: DataFrame, entry: LedgerEntry) -> int:
        raise NotImplementedError  # `_attempt` does it in two steps

    def _nothing(self) -> DataFrame | None:
        return None

    def _fit(self, frame: DataFrame) -> tuple[str, ...]:
        """Give the table the columns of the frame that it has not got; those of the table that the frame has not got.

        Raises SinkRefused, and LostRace if the table is another one now."""
        found = changes(
            [(field.name, field.dataType.simpleString()) for field in self._spark.table(self._target).schema],
            [(field.name, field.dataType.simpleString()) for field in frame.schema],
            self.name,
            self._target,
        )
        if found.added:
            columns = ", ".join(f"{quoted(name)} {type_of(frame.schema[name].dataType)}" for name, _ in found.added)
            try:
                self._spark.sql(f"ALTER TABLE {self._target} ADD COLUMNS ({columns})")
            except Exception as error:
                if "already exists" not in str(error).lower().replace("_", " "):
                    raise
            raise LostRace  # by us or by somebody who was faster
        return found.absent

    def _make_table(self, frame: DataFrame) -> None:
        make_table(self._spark, self._target, frame, self._spec.partition_by)


def encoded(entry: LedgerEntry) -> str:
    return ledger.encode(entry, application=APPLICATION).decode().strip()


def check_name(spec: SinkSpec) -> tuple[str, str]:
    """Check the name: catalog, and schema with table. Raises SinkRefused."""
    assert spec.path is not None
    catalog, _, table = spec.path.partition(".")
    if not table or "/" in spec.path:
        raise SinkRefused(
            f"mld.spark.sink.{spec.name}.path = {spec.path}: an Iceberg table is named as catalog.schema.table"
        )
    return catalog, table


def make_table(spark: SparkSession, target: str, frame: DataFrame, partition_by: tuple[str, ...]) -> None:
    """Create it, empty, and its namespace; no error if somebody was faster."""
    from pyspark.sql.functions import col, partitioning

    namespace, _, _ = target.rpartition(".")
    with suppress(Exception):  # not everybody may; then the next statement says what is wrong
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
    writing = frame.limit(0).writeTo(target).using("iceberg")
    if partition_by:
        found = map(TRANSFORM.fullmatch, partition_by)
        first, *more = (
            getattr(partitioning, match["transform"])(col(match["column"])) if match else col(column)
            for column, match in zip(partition_by, found, strict=True)
        )
        writing = writing.partitionedBy(first, *more)
    try:
        writing.create()
    except Exception as error:
        if "ALREADY_EXISTS" not in str(error).upper():
            raise
