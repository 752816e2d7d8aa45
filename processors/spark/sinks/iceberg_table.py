"""One Iceberg table through its Java API: Spark writes files that belong to no snapshot yet, and one commit adds them.

Spark writes as the actions of Iceberg do that rewrite files: the files are handed to a coordinator instead of being
committed. Then a snapshot is made of them whose parent is the one the ledger was read at, and table metadata with that
snapshot and the ledger's entry replace the metadata that were read: the compare-and-swap of every catalog. No loop of
Iceberg's is in between which would put our snapshot on top of somebody else's.

Decides nothing about marks.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from mld.processors.spark.commit_stages import stage
from mld.processors.spark.sinks.iceberg_ledger import PROPERTY, Lineage
from mld.processors.spark.sinks.lake_table import LostRace, PartitionField
from mld.processors.spark.sinks.merge import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAIN = "main"
FILE_SET = "rewritten-file-set-id"
"""Option by which Iceberg before 1.11 is told that files are not to be committed; later ones know it by the name."""
NO_TABLE = ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND")
"""How Spark says that there is no such table."""
TABLE_CACHE = "org.apache.iceberg.spark.SparkTableCache"
WAP_ID, WAP_CONF, WAP_PROPERTY = "wap.id", "spark.wap.id", "write.wap.enabled"
"""Write, audit, publish: a snapshot's summary, the session's setting, and the table's property that allows it."""
NOTE_CONF = "spark.sql.iceberg.snapshot-property."
COMMIT_FAILED = "org.apache.iceberg.exceptions.CommitFailedException"


CHANGED = tuple(f"spark.merge-into.num-target-rows-{what}" for what in ("inserted", "updated", "deleted"))
"""Figures of a MERGE in the summary of its snapshot, since Spark 4.1."""


def changed_rows(staged: Any) -> int | None:
    """Return how many rows the MERGE of a snapshot has changed; None if it does not say."""
    found = [said for name in CHANGED if (said := staged.summary().get(name)) is not None]
    return sum(map(int, found)) if found else None


class Files:
    """Data files that no snapshot has yet."""

    def __init__(self, files: list[Any]) -> None:
        self.files = files
        self.offered = False
        """Whether a catalog was ever asked to commit them: its no may be that to a repetition of what it had done."""

    @property
    def rows(self) -> int:
        return sum(int(file.recordCount()) for file in self.files)


FUNCTIONS = {"year": "years", "month": "months", "day": "days", "hour": "hours"}
"""Functions of a catalog, by the transforms of a partition that they compute; others are called the same."""


class TableAsRead:
    """The table's metadata as they were read once."""

    def __init__(self, metadata: Any) -> None:
        self.metadata = metadata
        current = metadata.currentSnapshot()
        self.snapshot_id: int | None = None if current is None else int(current.snapshotId())

    def staged(self, wap_id: str) -> Any | None:
        """Return the newest snapshot that was staged by this name."""
        for snapshot in reversed(list(self.metadata.snapshots())):
            if snapshot.summary().get(WAP_ID) == wap_id:
                return snapshot
        return None

    def lineage(self) -> Lineage:
        """Walk from the current snapshot by parents to the first summary that has something of a ledger."""
        snapshot = self.metadata.currentSnapshot()
        while snapshot is not None:
            said = snapshot.summary().get(PROPERTY)
            if said is not None:
                return Lineage(said, whole=False)
            parent = snapshot.parentId()
            if parent is None:
                return Lineage(None, whole=True)
            snapshot = self.metadata.snapshot(parent)
            if snapshot is None:
                return Lineage(None, whole=False)  # expired
        return Lineage(None, whole=True)

    def partition_fields(self, catalog: str) -> list[PartitionField]:
        """Return what the table is partitioned by; the values are made by functions of the catalog."""
        from pyspark.sql.functions import expr

        schema, fields = self.metadata.schema(), []
        for field in self.metadata.spec().fields():
            source, top = field.sourceId(), schema.asStruct().field(field.sourceId())
            path = schema.findColumnName(source).split(".") if top is None else [top.name()]
            transform, _, width = field.transform().toString().rstrip("]").partition("[")
            value, stored = ".".join(map(quoted, path)), f"partition.{quoted(field.name())}"
            if transform != "identity":
                given = ", ".join(filter(None, (width, value)))
                value = f"{quoted(catalog)}.system.{FUNCTIONS.get(transform, transform)}({given})"
            takes_null = schema.asStruct().field(path[0]).isOptional()
            if transform != "void":
                fields.append(PartitionField(path[0], expr(value), stored, takes_null))
        return fields

    def property(self, name: str) -> str | None:
        value: str | None = self.metadata.properties().get(name)
        return value


class IcebergTable:
    """The table of a name; None of it is kept but the handle."""

    def __init__(self, spark: SparkSession, table: Any) -> None:
        self._spark, self._table = spark, table
        self._java: Any = spark._jvm
        self._operations = table.operations()

    @classmethod
    def load(cls, spark: SparkSession, name: str) -> IcebergTable | None:
        """Return the table; None if there is no such table."""
        java: Any = spark._jvm
        try:
            return cls(spark, java.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name))
        except Exception as error:
            if any(condition in str(error) for condition in NO_TABLE):
                return None
            raise

    def look(self) -> TableAsRead:
        """Return the metadata as the catalog has them now."""
        return TableAsRead(self._operations.refresh())

    def write(self, frame: DataFrame, options: Mapping[str, str]) -> Files:
        """Run the frame; its files are in the table's directory, and in no snapshot."""
        name = f"mld-{uuid4().hex}"
        cache = self._cache()
        coordinator = self._java.org.apache.iceberg.spark.FileRewriteCoordinator.get()
        cache.add(name, self._table)
        try:
            frame.write.format("iceberg").mode("append").options(**{**options, FILE_SET: name}).save(name)
            return Files(list(coordinator.fetchNewFiles(self._table, name)))
        finally:
            with suppress(Exception):  # a JVM that is gone has forgotten both
                coordinator.clearRewrite(self._table, name)
                cache.remove(name)

    def _cache(self) -> Any:
        """Return where Spark finds tables by the names that rewrites give them.

        Its `get()` has a namesake with an argument, and Py4J finds now the one, now the other; hence reflection."""
        gateway: Any = self._spark.sparkContext._gateway
        lang = self._java.java.lang
        loader = lang.Thread.currentThread().getContextClassLoader()
        cache = lang.Class.forName(TABLE_CACHE, True, loader)
        return cache.getMethod("get", gateway.new_array(lang.Class, 0)).invoke(None, gateway.new_array(lang.Object, 0))

    def append(
        self, files: Files, seen: TableAsRead, summary: Mapping[str, str], properties: Mapping[str, str]
    ) -> None:
        """Make one commit, on top of what was seen. Raises LostRace if `main` has moved since; anything else that it
        raises says nothing of whether the commit has happened.
        """
        appending = self._table.newAppend()
        for file in files.files:
            appending.appendFile(file)
        for name, value in summary.items():
            appending.set(name, value)
        snapshot = appending.apply()
        if _parent_of(snapshot) != seen.snapshot_id:
            self._forget(snapshot)
            raise LostRace
        stage("checked")
        files.offered = True
        self._swap(seen.metadata, snapshot, properties)

    def merge(self, rows: DataFrame, statement: str, wap_id: str, note: str) -> None:
        """Run a MERGE whose snapshot is staged by this name: it is in the table's metadata, and in no branch.

        `statement` has a place, `{source}`, for the name of a view of the rows."""
        view = f"mld_{wap_id}"
        rows.createOrReplaceGlobalTempView(view)
        conf = {WAP_CONF: wap_id, f"{NOTE_CONF}{PROPERTY}": note}
        try:
            for name, value in conf.items():
                self._spark.conf.set(name, value)
            self._spark.sql(statement.replace("{source}", f"global_temp.{view}"))
        finally:
            with suppress(Exception):  # a JVM that is gone has no settings any more
                for name in conf:
                    self._spark.conf.unset(name)
                self._spark.catalog.dropGlobalTempView(view)

    def publish(self, staged: Any, seen: TableAsRead, properties: Mapping[str, str]) -> None:
        """Make a staged snapshot, if it is a child of the current one, the current one. Raises as `append`."""
        if _parent_of(staged) != seen.snapshot_id:
            raise LostRace
        stage("checked")
        self._swap(seen.metadata, int(staged.snapshotId()), properties)

    def _swap(self, base: Any, snapshot: Any, properties: Mapping[str, str]) -> None:
        """Make another snapshot the newest; `snapshot` is a new one, or the number of one that is in the table."""
        said = self._java.java.util.HashMap()
        for name, value in properties.items():
            said.put(name, value)
        building = self._java.org.apache.iceberg.TableMetadata.buildFrom(base)
        if isinstance(snapshot, int):
            main = self._java.org.apache.iceberg.SnapshotRef.branchBuilder(snapshot).build()
            building = building.setRef(MAIN, main)
        else:
            building = building.setBranchSnapshot(snapshot, MAIN)
        try:
            self._operations.commit(base, building.setProperties(said).build())
        except Exception as error:
            if java_class(error) != COMMIT_FAILED:
                raise
            raise LostRace from error

    def discard(self, files: Files) -> None:
        """Remove the files, unless they may be part of the table. Those that stay are orphans, or are not."""
        for file in () if files.offered else files.files:
            with suppress(Exception):
                self._table.io().deleteFile(str(file.location()))

    def _forget(self, snapshot: Any) -> None:
        with suppress(Exception):
            self._table.io().deleteFile(snapshot.manifestListLocation())


def _parent_of(snapshot: Any) -> int | None:
    parent = snapshot.parentId()
    return None if parent is None else int(parent)


def java_class(error: BaseException) -> str:
    """Name of the class of the Java exception behind this one; empty if there is none."""
    if not hasattr(error, "java_exception"):  # PySpark keeps the original in what it makes of it
        error = getattr(error, "_origin", None) or error
    found = getattr(error, "java_exception", error if hasattr(error, "getClass") else None)
    try:
        return str(found.getClass().getName()) if found is not None else ""
    except Exception:  # the JVM is gone
        return ""
