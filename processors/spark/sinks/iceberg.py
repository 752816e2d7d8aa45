"""Iceberg tables, exactly once: one commit of the table for each batch, two with `mode = merge`.

The commit adds the batch's files and replaces the ledger's entry, and it is made on top of the snapshot that the entry
before was read at: if anybody else has committed since, the catalog refuses it. A batch that lost such a race is not
computed again: its files are there, and the next attempt checks the new marks and adds the same files.

Spark writes files that belong to no snapshot yet, as the actions of Iceberg do that rewrite files: they are handed to a
coordinator instead of being committed. Then, by Iceberg's Java API, a snapshot is made of them whose parent is the one
the ledger was read at, and table metadata with that snapshot and the ledger's entry replace the metadata that were
read: the compare-and-swap of every catalog. No loop of Iceberg's is in between which would put our snapshot on top of
somebody else's. A MERGE stages its snapshot in the table's metadata (write, audit, publish), where no branch has it; it
becomes the current one by the same swap. Files that are not committed after all stay as orphans: a catalog's no may be
that to a repetition of what it had done.

The newest entry of the ledger is a property of the table, and the summary of each snapshot has a short note that says
which entry it came with. Snapshots are kept for days, and all their summaries stand in every metadata file: whole
entries there would make each commit write what a thousand commits have said. The note ties the two together: walking
from the current snapshot by its parents, the first note must be that of the property. If it is not, `main` was moved by
hand, and nobody can know which records are in the table.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.faults import stage
from mld.processors.spark.commit.ledger import APPLICATION, LedgerEntry
from mld.processors.spark.high_water_marks import ShardSpans
from mld.processors.spark.session.decoding import quoted
from mld.processors.spark.session.error_classes import is_of
from mld.processors.spark.sink_port import Published, SinkRefused
from mld.processors.spark.sink_spec import SinkSpec
from mld.processors.spark.sinks.columns import fitted, place_of, text_of
from mld.processors.spark.sinks.lake_table import LakeSink, LostRace
from mld.processors.spark.sinks.partitions import by_directories
from mld.properties.spark import TRANSFORM

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


PROPERTY = "mld.ledger"
"""Key of the newest entry among the properties of the table, and of the note in a snapshot's summary."""
KEPT_PROPERTY = "mld.ledger.keep"
"""Set by a person to the number of the entry that shall stay in force though `main` was moved by hand."""
EXPIRED = ""
"""Stands for a note that was in a snapshot that has expired."""
MAIN = "main"
FILE_SET = "rewritten-file-set-id"
"""Option by which Iceberg before 1.11 is told that files are not to be committed; later ones know it by the name."""
NO_TABLE = ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND")
"""How Spark says that there is no such table."""
TABLE_CACHE = "org.apache.iceberg.spark.SparkTableCache"
WAP_ID, WAP_CONF, WAP_PROPERTY = "wap.id", "spark.wap.id", "write.wap.enabled"
"""Write, audit, publish: a snapshot's summary, the session's setting, and the table's property that allows it."""
ELSEWHERE = ("spark.wap.branch", WAP_CONF)
"""Settings by which a user wants rows beside `main`."""
NOTE_CONF = f"spark.sql.iceberg.snapshot-property.{PROPERTY}"
COMMIT_FAILED = "org.apache.iceberg.exceptions.CommitFailedException"
CHANGED = tuple(f"spark.merge-into.num-target-rows-{what}" for what in ("inserted", "updated", "deleted"))
"""Figures of a MERGE in the summary of its snapshot, since Spark 4.1."""


def note(entry: LedgerEntry) -> str:
    """Return what the summary of the entry's snapshot says."""
    value = {"application": APPLICATION, "version": "note", "number": entry.number, "token": entry.token}
    return json.dumps(value, separators=(",", ":"))


class IcebergSink(LakeSink):
    """An Iceberg table, `catalog.schema.table`."""

    def __init__(self, spec: SinkSpec, spark: SparkSession) -> None:
        super().__init__(spec, spark)
        if "." not in self._target or "/" in self._target:
            key = f"mld.spark.sink.{spec.name}.path"
            raise SinkRefused(f"{key} = {spec.path}: an Iceberg table is named as catalog.schema.table")
        self._table: Any = None
        """The table's handle in Java; None if there is no table."""
        self._metadata: Any = None
        """The table's metadata as they were looked at last, which the next commit is bound to."""

    # --- the ledger --------------------------------------------------------------------------------------------------

    def _head(self) -> LedgerEntry | None:
        if elsewhere := next((key for key in ELSEWHERE if self._spark.conf.get(key, None)), None):
            raise SinkRefused(
                f"sink {self.name}: {elsewhere} is set, and rows would be on {MAIN} all the same: every batch is "
                "published there, by one commit with the marks. Remove it; audit a table before another job copies it"
            )
        self._table = None
        java: Any = self._spark._jvm
        try:
            self._table = java.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
                self._spark._jsparkSession, self._target
            )
        except Exception as error:
            if not is_of(error, *NO_TABLE):
                raise
            return None
        return self._look()

    def _look(self) -> LedgerEntry | None:
        """Look at the table's metadata as the catalog has them now, and return the entry in force.

        Raises SinkRefused if `main` was moved by hand, or the entry is damaged."""
        self._metadata = self._table.operations().refresh()
        said, kept = self._note(), self._property(PROPERTY)
        if kept is None:  # a person may have taken the property away, so that everything is written again
            return LedgerEntry(self._number_of(said), "") if said else None
        entry = self._decoded(kept)
        is_of_main = said is not None and (said == EXPIRED or entry.token in said)
        if is_of_main or self._property(KEPT_PROPERTY) == str(entry.number):
            return entry
        raise SinkRefused(
            f"sink {self.name}: {self._target} was rolled back or replaced: its ledger is that of commit "
            f"{entry.number}, which is not in the table any more; nothing was written. If what was rolled back is to "
            f"be delivered again, forget the marks by ALTER TABLE {self._target} UNSET TBLPROPERTIES ('{PROPERTY}'), "
            "and begin the application where you want it to; if it is to stay away, ALTER TABLE "
            f"{self._target} SET TBLPROPERTIES ('{KEPT_PROPERTY}' = '{entry.number}')"
        )

    def _note(self) -> str | None:
        """Return the first note on the way from the current snapshot by the parents; None if there never was one."""
        snapshot, parent = self._metadata.currentSnapshot(), None
        while snapshot is not None:
            said: str | None = snapshot.summary().get(PROPERTY)
            if said is not None:
                return said
            parent = snapshot.parentId()
            snapshot = None if parent is None else self._metadata.snapshot(parent)
        return None if parent is None else EXPIRED

    def _number_of(self, said: str) -> int:
        """Return the number of the entry of a note. Raises SinkRefused."""
        try:
            return int(json.loads(said)["number"])
        except Exception as error:
            raise ledger.damaged(f"sink {self.name}: {self._ledger_place}", error) from error

    def _property(self, name: str) -> str | None:
        value: str | None = self._metadata.properties().get(name)
        return value

    def _current(self) -> int | None:
        """Return the number of the current snapshot."""
        snapshot = self._metadata.currentSnapshot()
        return None if snapshot is None else int(snapshot.snapshotId())

    # --- the commit --------------------------------------------------------------------------------------------------

    def _attempt(
        self, frame: DataFrame | None, changes: DataFrame | None, batch: ShardSpans, batch_id: str
    ) -> Published:
        from pyspark.sql.types import StructType

        head = self._head()
        self._admission.check(head, batch)
        if self._table is None:
            if frame is None:
                return self._without_table(head, batch)
            whole = self._columns.grown(StructType(), frame.schema)
            with self._making():
                make_table(self._spark, self._target, whole, self._spec.partition_by)
            raise LostRace  # whoever made it, it is there now
        if frame is not None and changes is not None:
            entry = self._entry_after(head, batch, batch_id, layout=self._spec.format)
            return self._published(entry, self._merged(frame, changes, entry))
        stage("staging")
        files = [] if frame is None else self._write(frame)
        stage("staged")

        def appended() -> Published:
            entry = self._entry_after(self._look(), batch, batch_id, layout=self._spec.format)
            self._commit(files, entry)
            return self._published(entry, sum(int(file.recordCount()) for file in files))

        return self._raced(appended, "committing a batch")

    def _write(self, frame: DataFrame) -> list[Any]:
        """Run the frame; its files are in the table's directory, and in no snapshot."""
        from pyspark.sql.functions import url_encode

        whole = fitted(frame, self._grown(frame), fill=True)
        schema, fields = self._metadata.schema(), self._metadata.spec().fields()
        columns = [schema.findColumnName(field.sourceId()) for field in fields if field.transform().isIdentity()]
        writing = by_directories(whole, columns, url_encode).write.format("iceberg").mode("append")
        name = f"mld-{uuid4().hex}"
        java: Any = self._spark._jvm
        cache, coordinator = self._table_cache(), java.org.apache.iceberg.spark.FileRewriteCoordinator.get()
        cache.add(name, self._table)
        try:
            writing.options(**{**self._spec.options, FILE_SET: name}).save(name)
            return list(coordinator.fetchNewFiles(self._table, name))
        finally:
            with suppress(Exception):  # a JVM that is gone has forgotten both
                coordinator.clearRewrite(self._table, name)
                cache.remove(name)

    def _table_cache(self) -> Any:
        """Return where Spark finds tables by the names that rewrites give them.

        Its `get()` has a namesake with an argument, and Py4J finds now the one, now the other; hence reflection."""
        gateway: Any = self._spark.sparkContext._gateway
        lang = gateway.jvm.java.lang
        loader = lang.Thread.currentThread().getContextClassLoader()
        cache = lang.Class.forName(TABLE_CACHE, True, loader)
        return cache.getMethod("get", gateway.new_array(lang.Class, 0)).invoke(None, gateway.new_array(lang.Object, 0))

    def _commit(self, files: list[Any], entry: LedgerEntry) -> None:
        """Add files, in one commit on top of what was looked at. Raises as `_swap`."""
        appending = self._table.newAppend()
        for file in files:
            appending.appendFile(file)
        appending.set(PROPERTY, note(entry))
        self._swap(appending.apply(), entry)

    def _merged(self, frame: DataFrame, changes: DataFrame, entry: LedgerEntry) -> int | None:
        """Commit the batch as one MERGE, staged beside `main`, and then made its next snapshot; how many rows that has
        changed, None if Spark does not say. Raises as `_swap`."""
        columns = self._grown(frame)
        if self._property(WAP_PROPERTY) != "true":
            self._spark.sql(f"ALTER TABLE {self._target} SET TBLPROPERTIES ('{WAP_PROPERTY}' = 'true')")
            raise LostRace  # the table is another one now
        before = self._current()
        stage("staging")
        self._change(changes, columns, entry.token, {WAP_CONF: entry.token, NOTE_CONF: note(entry)})
        stage("staged")
        self._look()
        if self._current() != before:
            raise LostRace
        for snapshot in reversed(list(self._metadata.snapshots())):
            if snapshot.summary().get(WAP_ID) == entry.token:
                self._swap(snapshot, entry)
                figures = [int(count) for name in CHANGED if (count := snapshot.summary().get(name)) is not None]
                return sum(figures) if figures else None
        self._commit([], entry)  # nothing to insert, update or delete
        return 0

    def _swap(self, snapshot: Any, entry: LedgerEntry) -> None:
        """Make a snapshot the current one, and the entry that in force, in one step on top of what was looked at.

        Raises LostRace if `main` has moved since; anything else that it raises says nothing of whether the commit has
        happened."""
        if snapshot.parentId() != self._current():
            raise LostRace
        stage("checked")
        number = snapshot.snapshotId()
        is_staged = self._metadata.snapshot(number) is not None
        java: Any = self._spark._jvm
        building = java.org.apache.iceberg.TableMetadata.buildFrom(self._metadata)
        building = building.setProperties({PROPERTY: ledger.encode(entry).decode().strip()})
        building = building.setBranchSnapshot(number if is_staged else snapshot, MAIN)
        try:
            self._table.operations().commit(self._metadata, building.build())
        except Exception as error:
            if not is_of(error, COMMIT_FAILED):
                raise
            head = self._look()  # it may be what a repeated request is told
            if head is None or head.token != entry.token:
                raise LostRace from error
        stage("committed")

    # --- the table ---------------------------------------------------------------------------------------------------

    def _grown(self, frame: DataFrame) -> StructType:
        """Give the table the columns and fields of the frame that it has not got, and wider types; its columns.

        Raises SinkRefused, and LostRace if the table is another one now."""
        from pyspark.sql.types import StructType

        java: Any = self._spark._jvm
        of_spark = java.org.apache.iceberg.spark.SparkSchemaUtil
        had = StructType.fromJson(json.loads(of_spark.convert(self._metadata.schema()).json()))
        whole = self._columns.grown(had, frame.schema, wider=True)
        if whole != had:
            grown = of_spark.convert(java.org.apache.spark.sql.types.DataType.fromJson(whole.json()))
            with self._making():
                self._table.updateSchema().unionByNameWith(grown).commit()
            raise LostRace
        return whole


def make_table(spark: SparkSession, target: str, columns: StructType, partition_by: tuple[str, ...]) -> None:
    """Create it, empty, and its namespace. Raises whatever Spark raises, also if somebody was faster."""
    namespace, _, _ = target.rpartition(".")
    with suppress(Exception):  # not everybody may; then the next statement says what is wrong
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
    parts = ", ".join(_partition(given, columns) for given in partition_by)
    partitioned = f" PARTITIONED BY ({parts})" if parts else ""
    lines = ", ".join(f"{quoted(one.name)} {text_of(one.dataType)}" for one in columns)
    spark.sql(f"CREATE TABLE {target} ({lines}) USING iceberg{partitioned}")


def _partition(given: str, columns: StructType) -> str:
    found = TRANSFORM.fullmatch(given)
    name = given if found is None else found["column"]
    place = (place_of(columns, name) or (quoted(name), None))[0]
    return place if found is None else f"{found['transform']}({found['number'] or ''} {place})"
