"""Iceberg tables, exactly once: one commit of the table for each batch, two with `mode = merge`.

The commit adds the batch's files and replaces the ledger's entry, and it is made on top of the snapshot that the entry
before was read at: if anybody else has committed since, the catalog refuses it. A batch that lost such a race is not
computed again: its files are there, and the next attempt checks the new marks and adds the same files.

One Iceberg table through its Java API: Spark writes files that belong to no snapshot yet, and one commit adds them.

Spark writes as the actions of Iceberg do that rewrite files: the files are handed to a coordinator instead of being
committed. Then a snapshot is made of them whose parent is the one the ledger was read at, and table metadata with that
snapshot and the ledger's entry replace the metadata that were read: the compare-and-swap of every catalog. No loop of
Iceberg's is in between which would put our snapshot on top of somebody else's.

Decides nothing about marks.

Whether a frame fits the columns of a table: what is added to the table, what stays empty, and what is refused.

Columns are matched by name, without regard to case. A type that every value fits into is no change. Pure.

Where an Iceberg table keeps the ledger: the newest entry as a property of the table, and in the summary of each
snapshot a short note that says which entry it came with.

Snapshots are kept for days, and all their summaries stand in every metadata file: whole entries there would make each
commit write what a thousand commits have said. One property is replaced instead, in the commit that moves `main`. The
note ties the two together: walking from the current snapshot by its parents, the first note must be that of the
property. If it is not, `main` was moved by hand, and nobody can know which records are in the table.

Pure: values in, values out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.ledger import Columns, LedgerEntry
from mld.processors.spark.commit.store import stage
from mld.processors.spark.high_water_marks import HighWaterMarks, ShardSpans
from mld.processors.spark.sink_port import Fenced, Published, SinkError, SinkRefused, SinkSpec
from mld.processors.spark.sinks.files import by_directories, quoted
from mld.processors.spark.sinks.lake_table import (
    RACES_MAX,
    LakeSink,
    LostRace,
    Merge,
    type_of,
)
from mld.properties.spark import TRANSFORM

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


PROPERTY = "mld.ledger"
"""Key of the newest entry among the properties of the table, and of the note in a snapshot's summary."""
KEPT_PROPERTY = "mld.ledger.keep"
"""Set by a person to the number of the entry that shall stay in force though `main` was moved by hand."""
NOTE_VERSION = "note"


class MainWasMoved(Exception):
    """The table was rolled back or replaced: the ledger is ahead of its rows. `number` is that of the ledger."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(number)


@dataclass(frozen=True, slots=True)
class Lineage:
    """What the snapshots of `main` say: the summary's text of the first that has one, from the current one by parents;
    `whole` if the walk has seen the first snapshot of all, so that nothing can have been expired."""

    said: str | None
    whole: bool


def note(entry: LedgerEntry) -> str:
    """Return what the summary of the entry's snapshot says."""
    value = {"application": "mld", "version": NOTE_VERSION, "number": entry.number, "token": entry.token}
    return json.dumps(value, separators=(",", ":"))


def head_of(lineage: Lineage, kept: str | None, keep: str | None) -> LedgerEntry | None:
    """Return the entry in force, of the walk and the table's properties; None if nobody has written with a ledger.

    Raises MainWasMoved, and ValueError if a note or the entry is damaged."""
    if lineage.said is None:
        if kept is None:
            return None
        entry = ledger.decode(kept.encode())
        if lineage.whole and keep != str(entry.number):
            raise MainWasMoved(entry.number)
        return entry
    noted = _note_of(lineage.said)
    if kept is None:  # a person has taken the property away, so that everything is written again
        return LedgerEntry(*noted)
    entry = ledger.decode(kept.encode())
    if entry.token != noted[1] and keep != str(entry.number):
        raise MainWasMoved(entry.number)
    return entry


def _note_of(text: str) -> tuple[int, str]:
    """Number and token of a note. Raises ValueError."""
    value = json.loads(text)
    match value:
        case {"version": "note", "number": int(number), "token": str(token)}:
            return number, token
    raise ValueError(f"no note of a ledger: {text[:200]}")


def moved_sentence(sink: str, table: str, number: int) -> str:
    """Return what a person can do when `MainWasMoved`."""
    return (
        f"sink {sink}: {table} was rolled back or replaced: its ledger is that of commit {number}, which is not in the "
        "table any more; nothing was written. If what was rolled back is to be delivered again, forget the marks by "
        f"ALTER TABLE {table} UNSET TBLPROPERTIES ('{PROPERTY}'), and begin the application where you want it to; if "
        f"it is to stay away, ALTER TABLE {table} SET TBLPROPERTIES ('{KEPT_PROPERTY}' = '{number}')"
    )


WHOLE = ("tinyint", "smallint", "int", "bigint")
FITS = {
    **{kind: (*WHOLE[at + 1 :], "float", "double") for at, kind in enumerate(WHOLE[:2])},
    "int": ("bigint", "double"),
    "float": ("double",),
    "void": ("*",),
}
"""Types of a table, by the type of a frame, that hold every value of it exactly."""
TEXTS = ("string", "varchar", "char")


@dataclass(frozen=True, slots=True)
class ColumnChanges:
    added: Columns
    """Columns that the table has not got."""
    absent: tuple[str, ...]
    """Columns of the table, by its names, that the frame has not got: they are null."""


def changes(have: Sequence[tuple[str, str]], new: Sequence[tuple[str, str]], sink: str, table: str) -> ColumnChanges:
    """Return what a frame with the columns `new` means for a table with `have`. Raises SinkRefused."""
    known = {name.lower(): (name, kind) for name, kind in have}
    added = []
    for name, kind in new:
        before = known.get(name.lower())
        if before is None:
            if kind == "void":
                raise SinkRefused(f"sink {sink}: the new column {name} has no type; cast it in the pipeline")
            added.append((name, kind))
        elif not fits(kind, before[1]):
            raise SinkRefused(
                f"sink {sink}: the column {before[0]} of {table} is {before[1]}, that of the pipeline is {kind}; cast "
                "it in the pipeline, or give it another name (new columns are added to the table)"
            )
    named = {name.lower() for name, _ in new}
    return ColumnChanges(tuple(added), tuple(name for name, _ in have if name.lower() not in named))


def fits(kind: str, column: str) -> bool:
    """Return whether a column of the type `column` holds every value of the type `kind`."""
    if kind == column or "*" in FITS.get(kind, ()):
        return True
    if kind.partition("(")[0] in TEXTS and column == "string":
        return True
    return column in FITS.get(kind, ())


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

    def partition_columns(self) -> list[str]:
        """Return the columns by whose values themselves the table is partitioned."""
        schema, fields = self.metadata.schema(), self.metadata.spec().fields()
        return [schema.findColumnName(field.sourceId()) for field in fields if field.transform().isIdentity()]

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


class IcebergSink(LakeSink):
    """An Iceberg table, `catalog.schema.table`."""

    def __init__(self, spec: SinkSpec, spark: SparkSession) -> None:
        super().__init__(spec, spark)
        check_name(spec)
        self._seen: TableAsRead | None = None
        self._table: IcebergTable | None = None
        self._has_own_session = self._merge is None

    def open(self) -> HighWaterMarks:
        if not self._has_own_session:
            # A MERGE is told what to say in its snapshot by the settings of a session: by one of its own.
            self._spark = type(self._spark)(self._spark.sparkContext, self._spark._jsparkSession.cloneSession())
            self._has_own_session = True
        return super().open()

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
            return head_of(seen.lineage(), seen.property(PROPERTY), seen.property(KEPT_PROPERTY))
        except MainWasMoved as moved:
            raise SinkRefused(moved_sentence(self.name, self._target, moved.number)) from moved
        except ValueError as error:
            raise ledger.refusal(self.name, self._ledger_place, error) from error

    def _attempt(self, frame: DataFrame | None, batch: ShardSpans, batch_id: str) -> Published:
        head = self._head()
        self._admission.check(head, batch)
        if self._table is None:
            if frame is None:
                return self._without_table(head, batch)
            make_table(self._spark, self._target, frame, self._spec.partition_by)
            raise LostRace  # whoever made it, it is there now
        if self._merge is not None and frame is not None:
            return self._merged(self._merge, frame, batch, batch_id)
        stage("staging")
        files = self._write(frame)
        stage("staged")
        try:
            return self._appended(files, batch, batch_id)
        except (Fenced, SinkRefused):
            self._table.discard(files)
            raise

    def _write(self, frame: DataFrame | None) -> Files:
        from pyspark.sql.functions import url_encode

        assert self._table is not None
        if frame is None:
            return Files([])
        assert self._seen is not None
        columns = self._seen.partition_columns()
        return self._table.write(by_directories(self._fitted(frame), columns, url_encode), self._spec.options)

    def _fitted(self, frame: DataFrame) -> DataFrame:
        """Return the frame with all columns of the table, which has all of the frame's. Raises as `_fit`."""
        from pyspark.sql.functions import lit

        absent = self._fit(frame)
        kinds = {field.name: field.dataType for field in self._spark.table(self._target).schema} if absent else {}
        return frame.withColumns({name: lit(None).cast(kinds[name]) for name in absent}) if absent else frame

    def _merged(self, merge: Merge, frame: DataFrame, batch: ShardSpans, batch_id: str) -> Published:
        """Publish the batch as one MERGE, staged beside `main`, and then made its next snapshot."""
        assert self._table is not None and self._seen is not None
        rows = merge.newest(frame)
        self._fit(frame)
        if self._seen.property(WAP_PROPERTY) != "true":
            self._spark.sql(f"ALTER TABLE {self._target} SET TBLPROPERTIES ('{WAP_PROPERTY}' = 'true')")
            raise LostRace  # the table is another one now
        entry = self._entry_after(self._entry(), batch, batch_id, layout=self._spec.format)
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
        return self._published(entry, 0 if staged is None else changed_rows(staged))

    def _is_head(self, entry: LedgerEntry) -> bool:
        """Return whether the entry is in force; looks again."""
        assert self._table is not None
        self._seen = self._table.look()
        head = self._entry()
        return head is not None and head.token == entry.token

    def _appended(self, files: Files, batch: ShardSpans, batch_id: str) -> Published:
        """Return the files with the entry that follows the head as it is now."""
        assert self._table is not None and self._seen is not None
        for _ in range(RACES_MAX):
            entry = self._entry_after(self._entry(), batch, batch_id, layout=self._spec.format)
            try:
                self._commit_files(files, entry)
            except LostRace:
                if not self._is_head(entry):
                    continue
            stage("committed")
            return self._published(entry, files.rows)
        raise SinkError(f"sink {self.name}: {RACES_MAX} other commits came first, nothing was published")

    def _commit_files(self, files: Files, entry: LedgerEntry) -> None:
        assert self._table is not None and self._seen is not None
        self._table.append(files, self._seen, {PROPERTY: note(entry)}, {PROPERTY: encoded(entry)})

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


def encoded(entry: LedgerEntry) -> str:
    return ledger.encode(entry).decode().strip()


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
