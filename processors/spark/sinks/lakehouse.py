"""Delta and Iceberg tables, exactly once: the ledger's entry is a part of the table's own atomic commit.

Delta: the entry stands in the commit's `userMetadata`, its number is the `txnVersion` of the application `mld`. Delta
refuses a second transaction of the same version that runs at the same time, and skips one that comes later; so after
each write the table is asked whose entry has the number.

Iceberg: the entry stands in the snapshot's summary. The rows are appended to a branch that starts at the snapshot in
which the marks were read, and `main` is then fast-forwarded to it, which fails if `main` has moved since.

A writer that lost the race reads the ledger, checks its shards, and writes again: unlike files, its rows are not kept.
That goes for writers of other applications and streams as well, whose marks are in the same entry.
Readers see whole commits. The newest entry has to stay in the table's history (Delta: `delta.logRetentionDuration`,
Iceberg: `expire_snapshots`), so do not let a table's history expire to less than the time in which nothing is written.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from processors.spark.commit import ledger
from processors.spark.commit.admission import admission_of
from processors.spark.commit.journal import UPGRADE, signature
from processors.spark.commit.ledger import LedgerEntry
from processors.spark.commit_stages import stage
from processors.spark.high_water_marks import HighWaterMarks, ShardSpans, advanced
from processors.spark.sink_port import JobFailed, Published, SinkError, SinkRefused, SinkSpec
from processors.spark.spark_errors import failure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APPLICATION = "mld"
"""One name for all writers of a table, whoever they are: an entry has the marks of all of them, so two entries of one
number must not both be there. Whose marks are whose stands in the entry (`processors.spark.commit.admission`)."""
RACES_MAX = 20
"""Each lost race costs a write; who loses so many in a row lets its host back off."""
HISTORY_STEPS = (16, 256, 100_000)
"""How far back the newest entry is looked for; commits of others, such as OPTIMIZE, lie between."""
MISSING = (
    "TABLE_OR_VIEW_NOT_FOUND",
    "PATH_NOT_FOUND",
    "DELTA_MISSING_DELTA_TABLE",
    "DELTA_TABLE_NOT_FOUND",
    "DELTA_TABLE_ONLY",
)
ABANDONED_S = 24 * 3600
"""A branch of that age has no writer any more."""
BRANCH = "mld_"


Result = TypeVar("Result")


class LostRace(Exception):
    """Somebody else committed first; nothing of ours is in the table."""


class LakeSink:
    """What both have in common: read the head, write what follows it, start again if somebody was faster."""

    exactly_once = True

    def __init__(self, spec: SinkSpec, spark: SparkSession) -> None:
        assert spec.path is not None
        self._spec, self._spark = spec, spark
        self.name = spec.name
        self._target = spec.path
        self._admission = admission_of(spec.writer, spec.name, spec.path, shared=spec.shared)

    def open(self) -> HighWaterMarks:
        return self._raced(self._opened, f"reading the ledger of {self._target}")

    def publish(self, frame: DataFrame | None, batch: ShardSpans, batch_id: str) -> Published:
        return self._raced(lambda: self._attempt(frame, batch, batch_id), f"writing a batch as {self._spec.format}")

    def _raced(self, attempt: Callable[[], Result], doing: str) -> Result:
        for _ in range(RACES_MAX):
            try:
                return attempt()
            except LostRace:
                continue
            except SinkError:
                raise
            except Exception as error:
                raise failure(error, f"sink {self.name}: {doing}") from error
        raise SinkError(f"sink {self.name}: {RACES_MAX} other commits came first, nothing was published")

    def _opened(self) -> HighWaterMarks:
        """The writer's marks. Those of version 1 become its own by a commit without rows, before they are used."""
        head = self._head()
        marks = self._admission.marks(head)
        return self._attempt(None, {}, UPGRADE).marks if self._admission.upgrades(head) else marks

    def _attempt(self, frame: DataFrame | None, batch: ShardSpans, batch_id: str) -> Published:
        head = self._head()
        self._admission.check(head, batch)
        if frame is None:
            frame = self._nothing()
            if frame is None:  # no table yet: an empty batch that comes again is as empty
                return Published(advanced(self._admission.marks(head), batch))
        entry = self._admission.following(
            head,
            batch,
            uuid4().hex,
            layout=self._spec.format,
            batch_id=batch_id,
            **signature(),
        )
        stage("staging")
        self._commit(frame, entry)
        stage("committed")
        return Published(self._admission.marks(entry), entry.number)

    @abstractmethod
    def _head(self) -> LedgerEntry | None:
        """The newest entry; what `_commit` is bound to."""

    @abstractmethod
    def _commit(self, frame: DataFrame, entry: LedgerEntry) -> None:
        """Append the frame with the entry, atomically, if the head is still the one read last. Raises LostRace."""

    @abstractmethod
    def _nothing(self) -> DataFrame | None:
        """A frame without rows that fits the table; None if there is no table."""

    def _decoded(self, text: str) -> LedgerEntry:
        try:
            return ledger.decode(text.encode())
        except ValueError as error:
            raise SinkRefused(f"sink {self.name}: the ledger in {self._target} is damaged: {error}") from error


class DeltaSink(LakeSink):
    """A Delta table, named by its path, or by its name in the catalog."""

    def _head(self) -> LedgerEntry | None:
        for limit in HISTORY_STEPS:
            rows = self._history(limit)
            for row in rows:
                if row.userMetadata and f'"application":"{APPLICATION}"' in row.userMetadata:
                    return self._decoded(row.userMetadata)
            if len(rows) < limit:
                break
        return None

    def _history(self, limit: int):  # type: ignore[no-untyped-def]
        try:
            history = self._spark.sql(f"DESCRIBE HISTORY {self._identifier()} LIMIT {limit}")
            return history.select("version", "userMetadata").orderBy("version", ascending=False).collect()
        except Exception as error:
            if any(condition in str(error) for condition in MISSING):
                return []
            raise

    def _identifier(self) -> str:
        return f"delta.`{self._target.replace('`', '``')}`" if "/" in self._target else self._target

    def _commit(self, frame: DataFrame, entry: LedgerEntry) -> None:
        said = ledger.encode(entry, application=APPLICATION).decode()
        options = {"txnAppId": APPLICATION, "txnVersion": str(entry.number), "userMetadata": said}
        writing = frame.write.format("delta").mode("append").options(**{**self._spec.options, **options})
        if self._spec.partition_by:
            writing = writing.partitionBy(*self._spec.partition_by)
        try:
            if "/" in self._target:
                writing.save(self._target)
            else:
                writing.saveAsTable(self._target)
        except Exception as error:
            # Whatever it was, the commit may have happened: only the table knows.
            if self._is_head(entry):
                return
            if "CONCURRENT" in str(error).upper() or "ProtocolChanged" in str(error):
                raise LostRace from error
            raise
        if not self._is_head(entry):
            raise LostRace

    def _is_head(self, entry: LedgerEntry) -> bool:
        """Whether the number is ours. Others may have followed already, hence the look further back."""
        return any(row.userMetadata and entry.token in row.userMetadata for row in self._history(HISTORY_STEPS[1]))

    def _nothing(self) -> DataFrame | None:
        if not self._history(1):
            return None
        if "/" in self._target:
            return self._spark.read.format("delta").load(self._target).limit(0)
        return self._spark.table(self._target).limit(0)


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
