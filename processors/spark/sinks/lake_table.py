"""Tables of a lake house, exactly once: the ledger's entry is part of the table's atomic commit (`delta`, `iceberg`).

A writer that lost the race reads the ledger, checks its shards, and writes again: unlike files, its rows are not kept.
That goes for writers of other applications and streams as well, whose marks are in the same entry.
Readers see whole commits. The newest entry has to stay in the table's history (Delta: `delta.logRetentionDuration`,
Iceberg: `expire_snapshots`), so do not let a table's history expire to less than the time in which nothing is written.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.admission import AdmittedSink, admission_of
from mld.processors.spark.commit.journal import UPGRADE, signature
from mld.processors.spark.commit.ledger import LedgerEntry
from mld.processors.spark.commit_stages import stage
from mld.processors.spark.high_water_marks import HighWaterMarks, ShardSpans, advanced
from mld.processors.spark.sink_port import Published, SinkError, SinkRefused, SinkSpec
from mld.processors.spark.spark_errors import failure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APPLICATION = "mld"
"""One name for all writers of a table, whoever they are: an entry has the marks of all of them, so two entries of one
number must not both be there. Whose marks are whose stands in the entry (`mld.processors.spark.commit.admission`)."""
RACES_MAX = 20
"""Each lost race costs a write; who loses so many in a row lets its host back off."""
MISSING = (
    "TABLE_OR_VIEW_NOT_FOUND",
    "PATH_NOT_FOUND",
    "DELTA_MISSING_DELTA_TABLE",
    "DELTA_TABLE_NOT_FOUND",
    "DELTA_TABLE_ONLY",
)

Result = TypeVar("Result")


class LostRace(Exception):
    """Somebody else committed first; nothing of ours is in the table."""


class LakeSink(AdmittedSink):
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
        """Return the writer's marks. Those of version 1 become its own by a commit without rows, before they are
        used.
        """
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
        """Return the newest entry; what `_commit` is bound to."""

    @abstractmethod
    def _commit(self, frame: DataFrame, entry: LedgerEntry) -> None:
        """Append the frame with the entry, atomically, if the head is still the one read last. Raises LostRace."""

    @abstractmethod
    def _nothing(self) -> DataFrame | None:
        """Return a frame without rows that fits the table; None if there is no table."""

    def _decoded(self, text: str) -> LedgerEntry:
        try:
            return ledger.decode(text.encode())
        except ValueError as error:
            raise SinkRefused(f"sink {self.name}: the ledger in {self._target} is damaged: {error}") from error
