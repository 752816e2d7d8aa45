"""Delta tables, exactly once.

The ledger's entry is in the `userMetadata` of a commit of the table, and the entry's number is the `txnVersion` of the
application `mld`. Of two transactions with the same version, Delta refuses the second if both run at the same time, and
skips it silently if it comes later. So after each write the sink reads from the table whose entry has the number.

The table's log keeps the number for ever, but the entry only for `delta.logRetentionDuration`. If the table has the
number but not the entry, it is not known which records the table holds, and the sink refuses to guess (`_lost`).

An entry of the ledger has the marks after its commit. A mark is the position up to which the records of a shard are in
the table. The newest entry is the head. `stage(...)` names a place in the code for tests, which kill or hold the
process there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.faults import stage
from mld.processors.spark.commit.ledger import APPLICATION, LedgerEntry
from mld.processors.spark.commit.s3_store import unconditional
from mld.processors.spark.high_water_marks import HighWaterMarks, ShardSpans
from mld.processors.spark.session.decoding import quoted
from mld.processors.spark.session.error_classes import is_of
from mld.processors.spark.sink_port import Published, SinkRefused
from mld.processors.spark.sink_spec import SinkSpec
from mld.processors.spark.sinks.columns import REMEDY, fitted
from mld.processors.spark.sinks.lake_table import LakeSink, LostRace, of_rows
from mld.processors.spark.sinks.partitions import by_directories

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

COMMITS_OF_OTHERS = 16
"""How many of the newest commits are searched for an entry. If all of them are of other programs (or of OPTIMIZE), the
table is asked whether it has an entry at all, which may cost a job.
"""
NO_FILE = "java.io.FileNotFoundException"
"""The exception for a version of the log that was removed because of its age."""
WIDENING, APPEND_ONLY = "delta.enableTypeWidening", "delta.appendOnly"
LOST_PROPERTY = "mld.ledger.lost"
"""Property of the table: a person sets it to the number of an entry, to accept that the entry is lost. It does not
cover the loss of a later entry.
"""
ONE_DRIVER_SCHEMES = frozenset(("s3", "s3a", "s3n"))
"""For these schemes Delta's own log store may let two drivers overwrite each other's commits: it checks whether a file
exists, and then writes it, in two steps.
"""
SINGLE_DRIVER_STORE = "S3SingleDriverLogStore"
CONDITION = "fs.option.create.conditional.overwrite"
NOT_MATCHED = "org.apache.hadoop.fs.s3a.RemoteFileChangedException"
"""The exception by which S3A reports that the condition of a write did not hold."""
CONF = "spark.databricks.delta."
USER_METADATA, TXN_APPLICATION, TXN_VERSION = (
    f"{CONF}commitInfo.userMetadata",
    f"{CONF}write.txnAppId",
    f"{CONF}write.txnVersion",
)
"""Settings of the session for a MERGE. They have the same meaning as the options of an append."""
CALLS_JAVA = ("reflect", "java_method", "try_reflect")
"""Functions of SQL that call any static method of Java. No expression may use them where a sink is a Delta table:
whoever writes its metadata can have a column computed from our environment.
"""
ROWS = ("numOutputRows",), ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
"""Names of the metrics of a commit that count its rows: for an append, and for a MERGE."""


class DeltaSink(LakeSink):
    """A Delta table, named by its path or by its name in the catalog."""

    def __init__(self, spec: SinkSpec, spark: SparkSession) -> None:
        super().__init__(spec, spark)
        self._is_tried = False
        """Whether a check has shown that two drivers cannot overwrite each other's commits."""
        self._snapshot: Any = None
        """The state of the table when it was last read; None if there is no table."""

    def _opened(self) -> HighWaterMarks:
        """Return the marks in the table. Raises SinkRefused if the table cannot be written exactly once, or cannot be
        merged into.
        """
        self._forget_calls_of_java()
        self._refuse_one_driver_store()
        marks = super()._opened()
        if self._merge is not None and self._property(APPEND_ONLY) == "true":
            alter = f"ALTER TABLE {self._identifier()} SET TBLPROPERTIES ('{APPEND_ONLY}' = 'false')"
            raise SinkRefused(
                f"sink {self.name}: {self._target} takes no changes, and mode is merge: {alter}, or append"
            )
        return marks

    def _forget_calls_of_java(self) -> None:
        """Remove the functions `CALLS_JAVA` from this session, and from what new sessions begin with."""
        catalyst: Any = self._spark._jvm.org.apache.spark.sql.catalyst  # type: ignore[union-attr]
        session: Any = self._spark._jsparkSession
        for registry in (session.sessionState().functionRegistry(), catalyst.analysis.FunctionRegistry.builtin()):
            for name in CALLS_JAVA:
                registry.dropFunction(catalyst.FunctionIdentifier(name))

    # --- the ledger --------------------------------------------------------------------------------------------------

    def _head(self) -> LedgerEntry | None:
        """Read the newest entry from the table's latest commits; None if the table never had one."""
        self._look()
        if self._snapshot is None:
            return None
        for at, commit in enumerate(self._commits()):
            if f'"application":"{APPLICATION}"' in (text := commit.get("userMetadata") or ""):
                return self._decoded(text)
            if at == COMMITS_OF_OTHERS and not self._number():
                return None
        return self._lost()

    def _lost(self) -> LedgerEntry | None:
        """Return the head for a table in whose history no entry was found: None if the table never had one, and an
        entry without marks if a person has accepted the loss of the entry.

        Raises SinkRefused if the entry is lost and no person has accepted that."""
        number = self._number()
        if not number:
            return None
        if self._property(LOST_PROPERTY) == str(number):
            return LedgerEntry(number, "")
        raise SinkRefused(
            f"sink {self.name}: {self._target} has had {number} commits of this program, but its history no longer "
            "says up to where the last one went (delta.logRetentionDuration), so records that are delivered again "
            "cannot be told from new ones. RESTORE a version that has it; or, if records written twice do no harm or "
            f"none is delivered again, ALTER TABLE {self._identifier()} SET TBLPROPERTIES ('{LOST_PROPERTY}' = "
            f"'{number}')"
        )

    def _number(self) -> int:
        """Return the number of the newest entry in the table, which the log keeps when entries are removed; 0 if there
        never was an entry."""
        found = self._snapshot.transactions().get(APPLICATION)
        return int(found.get()) if found.isDefined() else 0

    def _commits(self, after: int = -1) -> Iterator[dict[str, Any]]:
        """Yield what Delta has recorded about each commit after the version `after`, the newest first, as far back as
        the log has files."""
        if self._snapshot is None:
            return
        delta: Any = self._spark._jvm.org.apache.spark.sql.delta  # type: ignore[union-attr]
        log = self._snapshot.deltaLog()
        store, conf = log.store(), log.newDeltaHadoopConf()
        for version in range(self._snapshot.version(), after, -1):
            file = delta.util.FileNames.unsafeDeltaFile(log.logPath(), version)
            try:
                info = delta.DeltaHistoryManager.getCommitInfoOpt(store, file, conf)
            except Exception as error:
                if is_of(error, NO_FILE):
                    return
                raise
            yield json.loads(info.get().json())["commitInfo"] if info.isDefined() else {}

    def _rows_of(self, entry: LedgerEntry) -> int | None:
        """Read the table again, and return how many rows the commit with this entry has written or changed. Return None
        if no commit since the last read has this entry."""
        before = -1 if self._snapshot is None else self._snapshot.version()
        self._look()
        for commit in self._commits(before):
            if entry.token in (commit.get("userMetadata") or ""):
                figures = commit.get("operationMetrics") or {}
                of_append, of_merge = ROWS
                names = of_merge if commit["operation"] == "MERGE" else of_append
                return sum(int(figures.get(name, 0)) for name in names)
        return None

    # --- the commit --------------------------------------------------------------------------------------------------

    def _attempt(
        self, frame: DataFrame | None, changes: DataFrame | None, batch: ShardSpans, batch_id: str
    ) -> Published:
        """Write the frame and the ledger's next entry in one commit. `changes` is the source of a MERGE; None for an
        append. Raises LostRace.

        Without a frame the entry is written alone, to store the marks; nothing is written if there is no table either.
        """
        head = self._head()
        self._admission.check(head, batch)
        if frame is None and self._snapshot is None:
            return self._without_table(head, batch)
        entry = self._entry_after(head, batch, batch_id, layout=self._spec.format)
        stage("staging")
        rows = self._commit(frame, changes, entry)
        stage("committed")
        return self._published(entry, rows)

    def _commit(self, frame: DataFrame | None, changes: DataFrame | None, entry: LedgerEntry) -> int:
        """Write the frame with the entry, atomically, and return the number of rows. Raises LostRace."""
        try:
            self._write(frame, changes, entry)
        except SinkRefused:
            raise
        except Exception:
            # After any error the commit may have happened, so look for it in the table.
            if (rows := self._rows_of(entry)) is not None:
                return rows
            raise
        if (rows := self._rows_of(entry)) is None:
            raise LostRace
        return rows

    def _write(self, frame: DataFrame | None, changes: DataFrame | None, entry: LedgerEntry) -> None:
        """Write the frame with the entry, or the entry alone (an append of no rows) if there is no frame.

        Before that, the table is made if it does not exist, and gets the columns that it lacks (`_grown`). If there are
        `changes`, they are what a MERGE writes, made from the frame; then the entry is in settings of the session. For
        an append the entry is in its options. An exception of a job over rows becomes OfRows (`of_rows`), because a
        record may be to blame for it. Raises SinkRefused."""
        text = ledger.encode(entry).decode()
        ours = {"txnAppId": APPLICATION, "txnVersion": str(entry.number), "userMetadata": text}
        options = {**self._spec.options, **ours}
        if frame is None:
            self._append(self._spark.table(self._identifier()).limit(0), options)
            return
        whole = self._grown(frame)
        if changes is None:
            columns = json.loads(self._snapshot.metadata().json())["metaData"]["partitionColumns"]
            with of_rows():
                self._append(by_directories(fitted(frame, whole), columns), options)
        else:
            conf = {USER_METADATA: text, TXN_APPLICATION: APPLICATION, TXN_VERSION: str(entry.number)}
            self._change(changes, whole, entry.token, conf)

    def _append(self, frame: DataFrame, options: Mapping[str, str]) -> None:
        """Append a frame to the table. If the table does not exist, Spark makes it."""
        writing = frame.write.format("delta").mode("append").options(**options)
        if self._spec.partition_by:
            writing = writing.partitionBy(*self._spec.partition_by)
        if "/" in self._target:
            writing.save(self._target)
        else:
            writing.saveAsTable(self._target)

    # --- the table ---------------------------------------------------------------------------------------------------

    def _grown(self, frame: DataFrame) -> StructType:
        """Make the table if it does not exist, or add the columns and fields of the frame that it lacks. Return the
        table's columns.

        This is a commit of its own, without rows, because a commit that makes a table by name loses its `userMetadata`.
        Raises SinkRefused, also if the user's options forbid new columns."""
        from pyspark.sql.types import StructType

        of_table = None if self._snapshot is None else json.loads(self._snapshot.schema().json())
        had = StructType() if of_table is None else StructType.fromJson(of_table)
        alter = f"ALTER TABLE {self._identifier()} SET TBLPROPERTIES ('{WIDENING}' = 'true')"
        remedy = f"{REMEDY}; if all its readers know Delta's type widening, {alter} lets it grow wider"
        whole = self._columns.grown(had, frame.schema, wider=self._property(WIDENING) == "true", remedy=remedy)
        if whole != had:
            with self._making():
                self._append(fitted(frame.limit(0), whole), {"mergeSchema": "true", **self._spec.options})
            self._look()
        if self._snapshot is None:
            raise SinkRefused(f"sink {self.name}: Spark has made no table {self._target}; make it, or name another one")
        return whole

    def _property(self, name: str) -> str | None:
        """Return a property of the table as it was last looked at; None if the table or the property does not exist."""
        found = None if self._snapshot is None else self._snapshot.metadata().configuration().get(name)
        return str(found.get()) if found is not None and found.isDefined() else None

    def _look(self) -> None:
        """Read the table's state from its log, without a job of Spark's."""
        java: Any = self._spark._jvm
        session: Any = self._spark._jsparkSession
        place: Any = self._target
        if "/" not in self._target:  # a name in the catalog, not a path
            state = session.sessionState()
            place = state.sqlParser().parseTableIdentifier(self._target)
            if not state.catalog().tableExists(place):
                self._snapshot = None
                return
        snapshot = java.org.apache.spark.sql.delta.DeltaLog.forTableWithSnapshot(session, place)._2()
        self._snapshot = None if snapshot.version() < 0 else snapshot  # -1: there is no commit, so no table

    def _identifier(self) -> str:
        return f"delta.{quoted(self._target)}" if "/" in self._target else self._target

    def _refuse_one_driver_store(self) -> None:
        """Raise SinkRefused if two drivers could overwrite each other's commits. After a success this is not checked
        again."""
        if self._is_tried:
            return
        self._look()
        if "/" in self._target:
            place = self._target
        elif self._snapshot is not None:
            place = self._snapshot.deltaLog().dataPath().toString()
        else:  # the place where the table will be made
            database = self._target.rpartition(".")[0] or self._spark.catalog.currentDatabase()
            place = self._spark.catalog.getDatabase(database).locationUri
        scheme = urlsplit(place).scheme.lower()
        store = self._spark.conf.get(f"spark.delta.logStore.{scheme}.impl", None)
        if refusal := one_driver_refusal(self.name, scheme, store):
            raise SinkRefused(refusal)
        if scheme in ONE_DRIVER_SCHEMES and not is_conditional(self._spark, place):
            raise unconditional(self.name, place)
        self._is_tried = True


def one_driver_refusal(sink: str, scheme: str, store: str | None) -> str | None:
    """Return the sentence that refuses a table because several workers cannot write it exactly once; None if they can.

    `store` is the class of the log store in the settings, if any."""
    if scheme not in ONE_DRIVER_SCHEMES or (store and not store.endswith(SINGLE_DRIVER_STORE)):
        return None
    key = f"mld.spark.conf.spark.delta.logStore.{scheme}.impl"
    return (
        f"sink {sink}: Delta's log store for {scheme}:// is for a single driver: two workers, or a worker and one that "
        f"was taken for dead, overwrite each other's commits. Remove {key}: this program brings one of its own; or "
        "name there one that creates a file only if it is not there; or use format = iceberg"
    )


def is_conditional(session: SparkSession, place: str) -> bool:
    """Return whether a conditional write below `place` creates a file only if it does not exist. This is tried with two
    writers of one file. Raises Spark's exception if the trial itself fails."""
    java: Any = session._jvm
    path = java.org.apache.hadoop.fs.Path(f"{place.rstrip('/')}/_mld/probe/{java.java.util.UUID.randomUUID()}")
    files = path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
    try:
        first, second = (files.createFile(path).overwrite(True).must(CONDITION, True).build() for _ in range(2))
        first.close()  # S3A creates a file when it is closed
        try:
            second.close()
        except Exception as error:
            if is_of(error, NOT_MATCHED):
                return True
            raise
        return False
    finally:
        files.delete(path, False)
