"""Files in the directories of their partitions, as Hive lays them out, with a bound on how many of these a sink begins.

A batch whose rows are all of partitions that were written lately is written in one job. Any other one is looked at
first (`new_partitions`); rows beyond the bound, and rows whose values no directory can be called by, go to `BEYOND`,
which readers skip, in files that have all columns. Both are one commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.journal import SinkJournal
from mld.processors.spark.commit.ledger import Columns, FileMove
from mld.processors.spark.commit.store import StagingStore
from mld.processors.spark.high_water_marks import ShardSpans
from mld.processors.spark.sink_port import Published, SinkError, SinkRefused, SinkSpec
from mld.processors.spark.sinks.files import FileSink, write
from mld.processors.spark.sinks.new_partitions import KEY, PartitionBound, by_partition, computed, frame_of, key_of
from mld.processors.spark.spark_errors import failure

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BEYOND = "_mld_beyond"
"""Where the rows of partitions are that a sink has not begun."""
STAGED_BEYOND = f"{BEYOND}=rows"
"""The same in a staging area, with a name under which data is kept."""
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
ESCAPED = frozenset("\"#%'*/:=?\\\x7f{[]^") | frozenset(map(chr, range(1, 0x20)))
"""What Spark does not write into the name of a directory as it is."""
NAME_BYTES_MAX, DIRECTORY_BYTES_MAX = 255, 700
"""What file systems take as a name, and S3 as part of a key."""
RECENT_MAX = 256
"""Partitions by whose values rows are told apart in one job: the plan names them, and each may have several files."""


def directory_of(columns: Sequence[str], values: Iterable[str | None]) -> str:
    """Return the directory of a partition, as Spark names it."""
    return "/".join(
        f"{_escaped(column)}={_escaped(value) if value else NULL_PARTITION}"
        for column, value in zip(columns, values, strict=True)
    )


def is_possible(directory: str) -> bool:
    """Return whether a directory can be called so, wherever the sink is."""
    names = [name.encode() for name in directory.split("/")]
    sizes = list(map(len, names))
    return b"\0" not in b"".join(names) and max(sizes) <= NAME_BYTES_MAX and sum(sizes) <= DIRECTORY_BYTES_MAX


def _escaped(text: str) -> str:
    return "".join(f"%{ord(one):02X}" if one in ESCAPED else one for one in text)


class PartitionedSink(FileSink):
    """Hive's layout."""

    def __init__(
        self, spec: SinkSpec, store: StagingStore, journal: SinkJournal | None = None, place: str | None = None
    ) -> None:
        super().__init__(spec, store, journal, place)
        self._bound = PartitionBound(spec.name, spec.new_partitions_max)
        self._recent: tuple[str, ...] = ()
        """Keys of partitions that were written lately; none if they are too many."""

    def publish(self, frame: DataFrame | None, batch: ShardSpans, batch_id: str) -> Published:
        with self._bound.reported():
            return super().publish(frame, batch, batch_id)

    def _write(self, frame: DataFrame, token: str) -> int:
        if not self._spec.partition_by:
            return super()._write(frame, token)
        if self._recent:
            from pyspark.sql import Observation
            from pyspark.sql import functions as F

            is_recent, others = self._key(frame).isin(*self._recent), Observation()
            seen = frame.observe(others, F.count_if(~is_recent).alias("rows"))
            rows = super()._write(seen.filter(is_recent), token)
            if not others.get["rows"]:
                return rows
            self._store.remove(self._journal.data(token))
        return self._write_by_values(frame, token)

    def _write_by_values(self, frame: DataFrame, token: str) -> int:
        try:
            with computed(frame):
                found = self._bound.look(frame, self._key(frame), self._begun, is_possible, self._directory)
                wanted = frame_of(found.keys, frame)
                same = self._key(frame) == wanted[KEY]
                within = by_partition(frame.join(wanted, same, "left_semi"), self._spec.partition_by)
                rows = super()._write(within, token) if found.keys else 0
                if found.rows_beyond:
                    self._write_beyond(frame.join(wanted, same, "left_anti"), token)
                    where = f"{self.place.rstrip('/')}/{BEYOND} with all their columns"
                    self._bound.note(found.rows_beyond, where)
            recent = dict.fromkeys((*found.keys, *self._recent))
            is_calm = not found.rows_beyond and len(found.keys) <= RECENT_MAX  # else the next one is looked at at once
            self._recent = tuple(recent)[:RECENT_MAX] if is_calm else ()
            return rows + found.rows_beyond
        except SinkError:
            raise
        except Exception as error:  # Spark's and the user's, of any kind
            raise failure(error, f"sink {self.name}: looking at the values of partitionBy") from error

    def _key(self, frame: DataFrame) -> Column:
        """Name the partition of a row."""
        return key_of(frame[name] for name in self._spec.partition_by)

    def _directory(self, key: str) -> str:
        return directory_of(self._spec.partition_by, json.loads(key))

    def _begun(self, directories: list[str]) -> set[str]:
        return self._existing(list(filter(is_possible, directories)))

    def _write_beyond(self, frame: DataFrame, token: str) -> None:
        write(
            frame,
            sink=self.name,
            format=self._spec.format,
            options={**self._spec.options, **self._write_options},
            mode="error",
            path=self._store.uri(f"{self._journal.data(token)}/{STAGED_BEYOND}"),
        )

    def _check_columns(self, columns: Columns) -> None:
        names = {name.lower() for name, _ in columns}
        for column in self._spec.partition_by:
            if column.lower() not in names:
                raise SinkRefused(f"sink {self.name}: partitionBy names {column}, the frame has no such column")
            if column.startswith(("_", ".")):
                raise SinkRefused(f"sink {self.name}: readers skip directories like {column}=; rename the column")

    def _moves(self, number: int, files: list[str], layout: str) -> tuple[FileMove, ...]:
        prefix = f"c{number:0{ledger.NUMBER_DIGITS}d}-"
        paths = map(PurePosixPath, files)
        return tuple(FileMove(f"data/{path}", _target(path.with_name(prefix + path.name))) for path in paths)


def _target(path: PurePosixPath) -> str:
    first, *rest = path.parts
    return str(PurePosixPath(BEYOND if first == STAGED_BEYOND else first, *rest))
