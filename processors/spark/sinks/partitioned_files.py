"""Files in the directories of their partitions, as Hive lays them out, and a bound on how many of these a sink begins.

Whoever puts records may choose the values of `partitionBy`, and a directory for each of them costs every shard its
time. So an hour brings at most `mld.spark.sink.<name>.newPartitionsPerHour` new ones. A batch whose rows are all of
partitions that were written lately is written in one job. Any other one is computed once and looked at first: rows of
partitions that there are, or may be, go there, all others to `BEYOND`, which readers skip, in files that have all
columns. So do rows whose values no directory can be called by. Both are one commit, so a batch that is tried again has
each row once, wherever the bound stands then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.journal import SinkJournal
from mld.processors.spark.commit.ledger import Columns, FileMove
from mld.processors.spark.commit.store import StagingStore
from mld.processors.spark.sink_port import SinkError, SinkRefused, SinkSpec
from mld.processors.spark.sinks.files import FileSink
from mld.processors.spark.sinks.spark_write import write
from mld.processors.spark.spark_errors import failure

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
NAME_BYTES_MAX, DIRECTORY_BYTES_MAX = 255, 700
"""What file systems take as a name, and S3 as part of a key."""
PARTITIONS_MAX = 10_000
"""Partitions of one batch that are told apart; rows of the smallest ones go to `BEYOND`."""
KNOWN_MAX = 100_000
"""Partitions remembered as begun: more, and they are looked for again."""
HOUR_S = 3600.0
RECENT_MAX = 256
"""Partitions by whose values rows are told apart in one job: the plan names them."""


class NewPartitions:
    """Which partitions a sink may begin. Called on any thread."""

    def __init__(self, at_most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.at_most = at_most
        self._clock = clock
        self._lock = threading.Lock()
        self._known: set[str] = set()
        self._hour_began_at = clock()
        self._begun = 0

    def admitted(self, wanted: Sequence[str], exist: Callable[[list[str]], set[str]]) -> set[str]:
        """Return those of `wanted` that may be written: what there is, and new ones, the first ones first."""
        with self._lock:
            now = self._clock()
            if now - self._hour_began_at >= HOUR_S:
                self._hour_began_at, self._begun = now, 0
            unknown = [one for one in wanted if one not in self._known]
            there = exist(unknown)
            new = [one for one in unknown if one not in there]
            left = max(0, self.at_most - self._begun)
            self._begun += len(new[:left])
            if len(self._known) > KNOWN_MAX:
                self._known.clear()
            found = set(wanted) - set(new[left:])
            self._known |= found
            return found


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
        self._new_partitions = NewPartitions(spec.new_partitions_max)
        self._recent: tuple[str, ...] = ()
        """Keys of partitions that were written lately; none if they are too many."""
        self.rows_beyond = 0

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
        from pyspark.sql import functions as F

        names = self._spec.partition_by
        kept = frame.persist()
        try:
            texts = {name: f"p{number}" for number, name in enumerate(names)}
            columns = (kept[name].cast("string").alias(text) for name, text in texts.items())
            by = ["key", *texts.values()]
            counted = kept.select(self._key(kept).alias("key"), *columns).groupBy(*by).count()
            values = counted.orderBy(F.desc("count"), *by).limit(PARTITIONS_MAX).collect()
            found = {directory_of(names, row[1:-1]): row["key"] for row in values}
            admitted = self._new_partitions.admitted(list(filter(is_possible, found)), self._existing)
            keys = [key for directory, key in found.items() if directory in admitted]
            wanted = F.broadcast(frame.sparkSession.createDataFrame([(key,) for key in keys], "key STRING"))
            same = self._key(kept) == wanted["key"]
            beyond = kept.join(wanted, same, "left_anti")
            count = beyond.count()
            within = kept.join(wanted, same, "left_semi").repartition(*names)  # a file for each
            rows = super()._write(within, token) if keys else 0
            if count:
                self._write_beyond(beyond, token)
                self._say(count)
            recent = dict.fromkeys((*keys, *self._recent))
            self._recent = tuple(recent)[:RECENT_MAX] if len(keys) <= RECENT_MAX else ()
            return rows + count
        except SinkError:
            raise
        except Exception as error:  # Spark's and the user's, of any kind
            raise failure(error, f"sink {self.name}: looking at the values of partitionBy") from error
        finally:
            kept.unpersist()

    def _key(self, frame: DataFrame) -> Column:
        """Name the partition of a row."""
        from pyspark.sql import functions as F

        return F.to_json(F.array(*(frame[name].cast("string") for name in self._spec.partition_by)))

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
            "(mld.spark.sink.%s.newPartitionsPerHour), or of values that are no names of directories, and are in %s/%s "
            "with all their columns; partition by something coarser, or allow more",
            *(self.name, rows, self.rows_beyond, self._new_partitions.at_most, self.name),
            *(self.place.rstrip("/"), BEYOND),
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
