"""Files in the directories of their partitions, as Hive lays them out, and a bound on how many of these a sink begins.

Whoever puts records may choose the values of `partitionBy`, and a directory for each of them costs every shard its
time. So an hour brings at most `mld.spark.sink.<name>.newPartitionsPerHour` new ones. A batch is written as it is, and
only looked at. If it has too many, it is written once more, as are those of the next hour, by what its values are: rows
of partitions that there are, or may be, go there, all others to `BEYOND`, which readers skip, in files that have all
columns. Both are one commit, so a batch that is tried again has each row once, wherever the bound stands then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import and_
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from processors.spark.commit import ledger
from processors.spark.commit.journal import SinkJournal
from processors.spark.commit.ledger import Columns, FileMove
from processors.spark.commit.store import StagingStore
from processors.spark.sink_port import SinkError, SinkRefused, SinkSpec, StagedFrame
from processors.spark.sinks.files import FileSink
from processors.spark.sinks.spark_write import write
from processors.spark.spark_errors import failure

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

log = logging.getLogger("mld.spark")

BEYOND = "_mld_beyond"
"""Where the rows of partitions are that a sink has not begun."""
STAGED_BEYOND = f"{BEYOND}=rows"
"""The same in a staging area, with a name under which data is kept."""
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
ESCAPED = frozenset("\"#%'*/:=?\\\x7f{[]^") | frozenset(map(chr, range(1, 0x20)))
"""What Spark does not write into the name of a directory as it is."""
FILES_MAX = 20_000
"""Files of one batch that is written as it is."""
PARTITIONS_MAX = 10_000
"""Partitions of one batch that are told apart; rows of the smallest ones go to `BEYOND`."""
KNOWN_MAX = 100_000
"""Partitions remembered as begun: more, and they are looked for again."""
HOUR_S = 3600.0


class NewPartitions:
    """Which partitions a sink may begin. Called on any thread."""

    def __init__(self, at_most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.at_most = at_most
        self._clock = clock
        self._lock = threading.Lock()
        self._known: set[str] = set()
        self._hour_began_at = clock()
        self._begun = 0
        self._careful_until = clock()

    @property
    def is_careful(self) -> bool:
        """Whether a batch had too many within the last hour."""
        return self._clock() < self._careful_until

    def admitted(self, wanted: Sequence[str], exist: Callable[[list[str]], set[str]], *, all_or_none: bool) -> set[str]:
        """Those of `wanted` that may be written, the first ones first; with `all_or_none` none if one may not."""
        with self._lock:
            now = self._clock()
            if now - self._hour_began_at >= HOUR_S:
                self._hour_began_at, self._begun = now, 0
            unknown = [one for one in wanted if one not in self._known]
            there = exist(unknown[:PARTITIONS_MAX])
            new = [one for one in unknown if one not in there]
            left = max(0, self.at_most - self._begun)
            if len(new) > left:
                self._careful_until = now + HOUR_S
                if all_or_none:
                    return set()
            self._begun += len(new[:left])
            if len(self._known) > KNOWN_MAX:
                self._known.clear()
            found = set(wanted) - set(new[left:])
            self._known |= found
            return found


def directory_of(columns: Sequence[str], values: Iterable[str | None]) -> str:
    """The directory of a partition, as Spark names it."""
    return "/".join(
        f"{_escaped(column)}={_escaped(value) if value else NULL_PARTITION}"
        for column, value in zip(columns, values, strict=True)
    )


def _escaped(text: str) -> str:
    return "".join(f"%{ord(one):02X}" if one in ESCAPED else one for one in text)


class PartitionedSink(FileSink):
    """Hive's layout."""

    def __init__(
        self, spec: SinkSpec, store: StagingStore, journal: SinkJournal | None = None, place: str | None = None
    ) -> None:
        super().__init__(spec, store, journal, place)
        self._new_partitions = NewPartitions(spec.new_partitions_max)
        self.rows_beyond = 0

    def stage(self, frame: DataFrame | None) -> StagedFrame:
        if frame is None or not self._spec.partition_by:
            return super().stage(frame)
        if not self._new_partitions.is_careful:
            staged = super().stage(frame)
            wanted = sorted({str(PurePosixPath(file).parent) for file in staged.files})
            if not wanted or self._may_begin(wanted, len(staged.files)):
                return staged
            self.discard(staged)
        return self._stage_by_values(frame)

    def _may_begin(self, directories: list[str], files: int) -> bool:
        admitted = self._new_partitions.admitted(directories, self._existing, all_or_none=True)
        return files <= FILES_MAX and bool(admitted)

    def _stage_by_values(self, frame: DataFrame) -> StagedFrame:
        from pyspark.sql import functions as F

        columns, names = self._columns(frame), self._spec.partition_by
        doing = f"sink {self.name}: looking at the values of partitionBy"
        kept = frame.persist()
        try:
            texts = {name: f"p{number}" for number, name in enumerate(names)}
            values = kept.select(*(kept[name].cast("string").alias(text) for name, text in texts.items()))
            by = list(texts.values())
            counted = values.groupBy(*by).count().orderBy(F.desc("count"), *by).limit(PARTITIONS_MAX)
            found = {directory_of(names, row[:-1]): row[:-1] for row in counted.collect()}
            admitted = self._new_partitions.admitted(list(found), self._existing, all_or_none=False)
            schema = ", ".join(f"{text} STRING" for text in by)
            wanted = F.broadcast(frame.sparkSession.createDataFrame([found[one] for one in sorted(admitted)], schema))
            each = (kept[name].cast("string").eqNullSafe(wanted[text]) for name, text in texts.items())
            same: Column = reduce(and_, each)
            beyond = kept.join(wanted, same, "left_anti")
            count = beyond.count()
            with self._journal.staged() as token:
                within = kept.join(wanted, same, "left_semi").repartition(*names)  # a file for each
                rows = self._write(within, token) if admitted else 0
                if count:
                    self._write_beyond(beyond, token)
                    self._say(count)
                return StagedFrame(token, frame, columns, tuple(self._clean(token, rows + count)), rows + count)
        except SinkError:
            raise
        except Exception as error:  # Spark's and the user's, of any kind
            raise failure(error, doing) from error
        finally:
            kept.unpersist()

    def _write_beyond(self, frame: DataFrame, token: str) -> None:
        write(
            frame,
            sink=self.name,
            format=self._spec.format,
            options={**self._spec.options, **self._write_options},
            mode="error",
            path=self._store.uri(f"{self._journal.data(token)}/{STAGED_BEYOND}"),
        )

    def _say(self, rows: int) -> None:
        self.rows_beyond += rows
        log.error(
            "sink %s: %d rows, %d since the start, are of more than %d new partitions in an hour "
            "(mld.spark.sink.%s.newPartitionsPerHour) and are in %s/%s with all their columns; partition by something "
            "coarser, or allow more",
            *(self.name, rows, self.rows_beyond, self._new_partitions.at_most, self.name),
            *(self.place.rstrip("/"), BEYOND),
        )

    def _existing(self, directories: list[str]) -> set[str]:
        return set(filter(self._store.exists, directories))

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
