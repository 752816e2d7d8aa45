"""Tables of a lake house, exactly once: the ledger's entry is part of the table's atomic commit (`delta`, `iceberg`).

A writer that lost the race reads the ledger, checks its shards, and writes again: unlike files, its rows are not kept.
That goes for writers of other applications and streams as well, whose marks are in the same entry.
Readers see whole commits. The newest entry has to stay in the table's history (Delta: `delta.logRetentionDuration`,
Iceberg: `expire_snapshots`), so do not let a table's history expire to less than the time in which nothing is written.

Rows beyond the bound on new partitions are in the same commit, and whole: the columns that the table is partitioned by
are null in them, and their values are in columns of the same types beside them, `mld_beyond_<column>`.
"""

from __future__ import annotations

import json
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.admission import AdmittedSink, admission_of
from mld.processors.spark.commit.journal import UPGRADE, signature
from mld.processors.spark.commit.ledger import LedgerEntry
from mld.processors.spark.commit_stages import stage
from mld.processors.spark.high_water_marks import HighWaterMarks, ShardSpans, advanced
from mld.processors.spark.sink_port import Published, SinkError, SinkRefused, SinkSpec
from mld.processors.spark.sinks.merge import quoted
from mld.processors.spark.sinks.new_partitions import KEY, PartitionBound, by_partition, computed, frame_of, key_of
from mld.processors.spark.sinks.partitioned_files import directory_of, is_possible
from mld.processors.spark.spark_errors import failure

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger("mld.spark")

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

MANY = 16
"""More partitions in a batch have one file each: otherwise each task writes one for each that it has rows of."""
BEYOND = "mld_beyond_"
"""Begins the names of columns that keep the values of rows beyond the bound on new partitions."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One of what a table is partitioned by."""

    column: str
    """The column of the table that it is made from."""
    value: Column
    """Its value for a row of a frame."""
    stored: str
    """An expression for it over the frame of what the table has."""
    takes_null: bool = True


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
        self._bound = PartitionBound(spec.name, spec.new_partitions_max)
        self._is_warned = False

    def open(self) -> HighWaterMarks:
        return self._raced(self._opened, f"reading the ledger of {self._target}")

    def publish(self, frame: DataFrame | None, batch: ShardSpans, batch_id: str) -> Published:
        with self._bound.reported():
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
        rows = self._commit(frame, entry)
        stage("committed")
        return Published(self._admission.marks(entry), entry.number, rows)

    @contextmanager
    def _bounded(self, frame: DataFrame) -> Iterator[DataFrame]:
        """Give the frame as it is to be appended: with rows beyond the bound on new partitions set aside."""
        have = {name.lower(): name for name in frame.columns}
        fields = [field for field in self._partition_fields() if field.column.lower() in have]
        if fixed := [field.column for field in fields if not field.takes_null]:
            self._warn(fixed)
        fields = [field for field in fields if field.takes_null]
        if not fields:
            yield frame
            return
        columns = list(dict.fromkeys(have[field.column.lower()] for field in fields))
        if clash := [have[own.lower()] for column in columns if (own := f"{BEYOND}{column}").lower() in have]:
            raise SinkRefused(f"sink {self.name}: the column {clash[0]} is the sink's own; rename it in the pipeline")
        key = key_of(field.value for field in fields)

        def exist(wanted: list[str]) -> set[str]:
            return self._there(fields, frame_of(wanted, frame))

        def can_be(key: str) -> bool:
            return is_possible(self._directory(fields, json.loads(key)))

        with computed(frame):
            found = self._bound.look(frame, key, exist, can_be)
            bounded = frame
            if found.rows_beyond:
                bounded = _set_aside(frame, columns, key, frame_of(found.keys, frame))
                where = ", ".join(f"{BEYOND}{column}" for column in columns)
                self._bound.note(found.rows_beyond, f"the table without values there, which are in {where}")
            yield by_partition(bounded, map(quoted, columns)) if len(found.keys) > MANY else bounded

    def _directory(self, fields: list[PartitionField], values: list[str | None]) -> str:
        """Return the directory of a partition, as the writer of the table names it."""
        return directory_of([field.column for field in fields], values)

    def _there(self, fields: list[PartitionField], wanted: DataFrame) -> set[str]:
        """Return those of the partitions wanted that the table has."""
        stored = self._stored_partitions()
        if stored is None:
            return set()
        from pyspark.sql.functions import expr

        keys = stored.select(key_of(expr(field.stored) for field in fields).alias(KEY))
        return {row[KEY] for row in keys.join(wanted, KEY, "left_semi").distinct().collect()}

    def _warn(self, columns: list[str]) -> None:
        if not self._is_warned:
            log.warning(
                "sink %s: the values of %s, by which %s is partitioned, begin as many partitions as there are "
                "(mld.spark.sink.%s.newPartitionsPerHour does not hold), because the column is generated, or takes no "
                "null: ALTER COLUMN … DROP NOT NULL, if producers choose them",
                *(self.name, ", ".join(columns), self._target, self.name),
            )
        self._is_warned = True

    @abstractmethod
    def _partition_fields(self) -> list[PartitionField]:
        """Return what the table is partitioned by, or will be."""

    @abstractmethod
    def _stored_partitions(self) -> DataFrame | None:
        """Return the partitions of the files of the table; None if there is no table."""

    @abstractmethod
    def _head(self) -> LedgerEntry | None:
        """Return the newest entry; what `_commit` is bound to."""

    @abstractmethod
    def _commit(self, frame: DataFrame, entry: LedgerEntry) -> int:
        """Append the frame with the entry, atomically, if the head is still the one read last; how many rows that
        were. Raises LostRace.
        """

    @abstractmethod
    def _nothing(self) -> DataFrame | None:
        """Return a frame without rows that fits the table; None if there is no table."""

    def _decoded(self, text: str) -> LedgerEntry:
        try:
            return ledger.decode(text.encode())
        except ValueError as error:
            raise SinkRefused(f"sink {self.name}: the ledger in {self._target} is damaged: {error}") from error


def _set_aside(frame: DataFrame, columns: list[str], key: Column, wanted: DataFrame) -> DataFrame:
    """Move the values of `columns` to columns of their own in rows whose partition is none of those wanted."""
    from pyspark.sql import functions as F

    of_row, within = (f"{KEY}_{uuid4().hex}" for _ in range(2))  # no column is called so
    marked = frame.withColumn(of_row, key)
    joined = marked.join(wanted.withColumnRenamed(KEY, within), F.col(of_row) == F.col(within), "left")
    is_within = F.col(within).isNotNull()
    kept = {f"{BEYOND}{column}": F.when(~is_within, F.col(quoted(column))) for column in columns}
    emptied = {column: F.when(is_within, F.col(quoted(column))) for column in columns}
    return joined.withColumns(kept).withColumns(emptied).drop(of_row, within)
