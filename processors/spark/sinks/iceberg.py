"""Iceberg tables, exactly once: one commit of the table for each batch, two with `mode = merge`.

A commit adds the batch's files to the table and replaces the ledger's entry. It is based on the snapshot at which the
last entry was read: if another writer has committed since, the catalog refuses the commit. After such a lost race the
batch is not computed again; the next attempt checks the new marks and commits the same files.

Spark writes files that belong to no snapshot yet, in the same way as Iceberg's actions that rewrite files: the files
are registered with a coordinator instead of being committed. Then Iceberg's Java API makes a snapshot with these files,
whose parent is the snapshot at which the ledger was read. New table metadata, with that snapshot and the ledger's
entry, replace the old metadata by the catalog's compare-and-swap. Iceberg's own retry loop is not used, because it
would put our snapshot on top of another writer's. A MERGE first puts its snapshot into the table's metadata without
adding it to any branch (write, audit, publish); the same swap then makes it the current snapshot. Files that are never
committed stay as orphans. They are not deleted after a refusal, because a catalog may refuse a retry of a commit that
it already applied.

The newest entry is a property of the table. The summary of each snapshot has only a short note that names its entry:
snapshots are kept for days, and every metadata file contains the summaries of all of them, so with whole entries each
commit would write a thousand entries again. The note shows that snapshot and entry belong together: going from the
current snapshot back through its parents, the first note must be that of the entry in the property. Otherwise a person
has moved `main`, and it is not known which records are in the table.

An entry of the ledger has the marks after its commit. A mark is the position up to which the records of a shard are in
the table. The newest entry is the head. `stage(...)` names a place in the code for tests, which kill or hold the
process there.
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
from mld.processors.spark.sinks.lake_table import LakeSink, LostRace, of_rows
from mld.processors.spark.sinks.partitions import by_directories
from mld.properties.spark import TRANSFORM

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


PROPERTY = "mld.ledger"
"""Property of the table with the newest entry, and the key of the note in a snapshot's summary."""
KEPT_PROPERTY = "mld.ledger.keep"
"""Property of the table: a person sets it to the number of an entry, to declare that the entry stays valid although
`main` was moved by hand.
"""
EXPIRED = ""
"""Takes the place of the note if the snapshot that may have it has expired."""
MAIN = "main"
FILE_SET = "rewritten-file-set-id"
"""Option that makes Iceberg before 1.11 register the files instead of committing them. Later versions recognize this by
the name of the table (see `_write`).
"""
NO_TABLE = ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND")
"""Error conditions of Spark if there is no such table."""
TABLE_CACHE = "org.apache.iceberg.spark.SparkTableCache"
WAP_ID, WAP_CONF, WAP_PROPERTY = "wap.id", "spark.wap.id", "write.wap.enabled"
"""Names for write, audit, publish: the key in a snapshot's summary, the setting of the session, and the property of the
table that allows it."""
ELSEWHERE = ("spark.wap.branch", WAP_CONF)
"""Settings by which a user wants rows to be written elsewhere than to `main`."""
DELETES = "write.metadata.delete-after-commit.enabled"
"""Property of the table by which a commit deletes old metadata files, wherever the table's metadata say that they are.
"""
NOTE_CONF = f"spark.sql.iceberg.snapshot-property.{PROPERTY}"
COMMIT_FAILED = "org.apache.iceberg.exceptions.CommitFailedException"
CHANGED = tuple(f"spark.merge-into.num-target-rows-{what}" for what in ("inserted", "updated", "deleted"))
"""Keys of the row counts of a MERGE in the summary of its snapshot, since Spark 4.1."""


def note(entry: LedgerEntry) -> str:
    """Return the note that names this entry, for the summary of the entry's snapshot."""
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
        """The table's Java object; None if there is no table."""
        self._metadata: Any = None
        """The table's metadata when they were last read. The next commit succeeds only if they are still the same."""

    # --- the ledger --------------------------------------------------------------------------------------------------

    def _head(self) -> LedgerEntry | None:
        """Load the table, and return its valid entry; None if there is no table, or it never had an entry."""
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
        """Read the table's metadata from the catalog, and return the valid entry; None if the table never had one.

        If a person has removed the property with the entry, return an entry without marks, so that all records that are
        delivered are written again. Raises SinkRefused if a person has moved `main`, or the entry is damaged."""
        self._metadata = self._table.operations().refresh()
        self._refuse_deletion()
        noted, kept = self._note(), self._property(PROPERTY)
        if kept is None:  # a person may have removed the property, to have all records written again
            return LedgerEntry(self._number_of(noted), "") if noted else None
        entry = self._decoded(kept)
        is_of_main = noted is not None and (noted == EXPIRED or entry.token in noted)
        if is_of_main or self._property(KEPT_PROPERTY) == str(entry.number):
            return entry
        raise SinkRefused(
            f"sink {self.name}: {self._target} was rolled back or replaced: its ledger is that of commit "
            f"{entry.number}, which is not in the table any more; nothing was written. If what was rolled back is to "
            f"be delivered again, forget the marks by ALTER TABLE {self._target} UNSET TBLPROPERTIES ('{PROPERTY}'), "
            "and begin the application where you want it to; if it is to stay away, ALTER TABLE "
            f"{self._target} SET TBLPROPERTIES ('{KEPT_PROPERTY}' = '{entry.number}')"
        )

    def _refuse_deletion(self) -> None:
        """Raise SinkRefused if a commit may delete a file that is in another directory than the table's metadata."""
        if (self._property(DELETES) or "").lower() != "true":
            return
        home = self._metadata.metadataFileLocation().rpartition("/")[0]
        files = (entry.file() for entry in self._metadata.previousFiles())
        if others := [file for file in files if file.rpartition("/")[0] != home]:
            what = f"sink {self.name}: by {DELETES} a commit may delete {others[0]}, which is not in {home}"
            raise SinkRefused(f"{what}: ALTER TABLE {self._target} SET TBLPROPERTIES ('{DELETES}' = 'false')")

    def _note(self) -> str | None:
        """Return the first note, going from the current snapshot back through its parents. Return EXPIRED if a parent
        is gone before a note is found, and None if no snapshot has a note."""
        snapshot, parent = self._metadata.currentSnapshot(), None
        walked: set[int | None] = set()  # parents may form a ring in metadata that somebody else has written
        while snapshot is not None and parent not in walked:
            walked.add(parent)
            found: str | None = snapshot.summary().get(PROPERTY)
            if found is not None:
                return found
            parent = snapshot.parentId()
            snapshot = None if parent is None else self._metadata.snapshot(parent)
        return None if parent is None else EXPIRED

    def _number_of(self, noted: str) -> int:
        """Return the number of the entry that a note names. Raises SinkRefused."""
        try:
            return int(json.loads(noted)["number"])
        except Exception as error:
            raise ledger.damaged(f"sink {self.name}: {self._ledger_place}", error) from error

    def _property(self, name: str) -> str | None:
        """Return a property of the table as it was last read; None if it does not exist."""
        value: str | None = self._metadata.properties().get(name)
        return value

    def _current(self) -> int | None:
        """Return the id of the current snapshot in the metadata that were last read; None if there is none."""
        snapshot = self._metadata.currentSnapshot()
        return None if snapshot is None else int(snapshot.snapshotId())

    # --- the commit --------------------------------------------------------------------------------------------------

    def _attempt(
        self, frame: DataFrame | None, changes: DataFrame | None, batch: ShardSpans, batch_id: str
    ) -> Published:
        """Commit the frame's rows with the entry that follows the head: as an append, or as a MERGE if there are
        `changes`. Without a frame, commit only the entry; if there is no table either, write nothing.

        Raises LostRace if another writer committed first, and also after making or changing the table."""
        from pyspark.sql.types import StructType

        head = self._head()
        self._admission.check(head, batch)
        if self._table is None:
            if frame is None:
                return self._without_table(head, batch)
            whole = self._columns.grown(StructType(), frame.schema)
            with self._making():
                make_table(self._spark, self._target, whole, self._spec.partition_by)
            raise LostRace  # so that the attempt begins again, with the new table
        if frame is not None and changes is not None:
            entry = self._entry_after(head, batch, batch_id, layout=self._spec.format)
            return self._published(entry, self._merged(frame, changes, entry))
        stage("staging")
        files = [] if frame is None else self._write(frame)
        stage("staged")

        def appended() -> Published:
            """Commit the files with the entry that follows the present head. Raises LostRace."""
            entry = self._entry_after(self._look(), batch, batch_id, layout=self._spec.format)
            self._commit(files, entry)
            return self._published(entry, sum(int(file.recordCount()) for file in files))

        return self._raced(appended, "committing a batch")

    def _write(self, frame: DataFrame) -> list[Any]:
        """Run the job of the frame, and return the files that it has written. They are in the table's directory, but in
        no snapshot.

        First the columns of the frame are brought into the form of the table (`fitted`), and its rows are distributed
        over the tasks by directory of the table (`by_directories`). Then the table is put into Iceberg's cache under a
        new name, and the job writes to that name. Iceberg takes such a job for a rewrite of files: it does not commit
        the files, but registers them with its coordinator, and they are fetched from there. `of_rows` marks errors of
        the job as errors of its rows, not of the table."""
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
            with of_rows():
                writing.options(**{**self._spec.options, FILE_SET: name}).save(name)
            return list(coordinator.fetchNewFiles(self._table, name))
        finally:
            with suppress(Exception):  # the JVM may be gone
                coordinator.clearRewrite(self._table, name)
                cache.remove(name)

    def _table_cache(self) -> Any:
        """Return Iceberg's cache in which Spark finds a table by a name that a rewrite has given it.

        The cache is returned by a static method `get()`. The class has another method of this name, and Py4J may find
        either one; so the method is called by reflection."""
        gateway: Any = self._spark.sparkContext._gateway
        lang = gateway.jvm.java.lang
        loader = lang.Thread.currentThread().getContextClassLoader()
        cache = lang.Class.forName(TABLE_CACHE, True, loader)
        return cache.getMethod("get", gateway.new_array(lang.Class, 0)).invoke(None, gateway.new_array(lang.Object, 0))

    def _commit(self, files: list[Any], entry: LedgerEntry) -> None:
        """Add files in one commit, based on the metadata that were last read. Raises LostRace if `main` has moved since
        then. After any other exception the commit may have happened.
        """
        appending = self._table.newAppend()
        for file in files:
            appending.appendFile(file)
        appending.set(PROPERTY, note(entry))
        self._swap(appending.apply(), entry)

    def _merged(self, frame: DataFrame, changes: DataFrame, entry: LedgerEntry) -> int | None:
        """Commit the batch as one MERGE: stage its snapshot outside `main`, then make it the next snapshot of `main`.

        Return how many rows were changed; None if Spark does not report it. Raises LostRace if `main` has moved, or if
        the table had to be changed first. After any other exception the commit may have happened.
        """
        columns = self._grown(frame)
        if self._property(WAP_PROPERTY) != "true":
            self._spark.sql(f"ALTER TABLE {self._target} SET TBLPROPERTIES ('{WAP_PROPERTY}' = 'true')")
            raise LostRace  # so that the attempt begins again, with the changed table
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
        """Make a snapshot the current one and its entry the valid one, in one step, based on the metadata that were
        last read.

        Raises LostRace if `main` has moved since then. After any other exception the commit may have happened.
        """
        if snapshot.parentId() != self._current():
            raise LostRace
        stage("checked")
        number = snapshot.snapshotId()
        # The snapshot of a MERGE is in the metadata already; that of an append is added by this commit.
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
            head = self._look()  # the catalog may refuse the retry of a commit that it already applied
            if head is None or head.token != entry.token:
                raise LostRace from error
        stage("committed")

    # --- the table ---------------------------------------------------------------------------------------------------

    def _grown(self, frame: DataFrame) -> StructType:
        """Return the table's columns if the frame fits them. If the table lacks columns or fields of the frame, or has
        narrower types, change the table and raise LostRace: the attempt begins again, with the changed table.

        Raises SinkRefused if the frame cannot be made to fit."""
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
    """Create an empty table, and its namespace. Raises Spark's exception, also if another writer has made it first."""
    namespace, _, _ = target.rpartition(".")
    with suppress(Exception):  # without the permission, the next statement raises a clear error
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
    parts = ", ".join(_partition(given, columns) for given in partition_by)
    partitioned = f" PARTITIONED BY ({parts})" if parts else ""
    lines = ", ".join(f"{quoted(column.name)} {text_of(column.dataType)}" for column in columns)
    spark.sql(f"CREATE TABLE {target} ({lines}) USING iceberg{partitioned}")


def _partition(given: str, columns: StructType) -> str:
    """Return a partition field for CREATE TABLE. `given` is a column, or a transform such as `bucket(4, id)`."""
    found = TRANSFORM.fullmatch(given)
    name = given if found is None else found["column"]
    known = place_of(columns, name)
    identifier = quoted(name) if known is None else known[0]
    return identifier if found is None else f"{found['transform']}({found['number'] or ''} {identifier})"
