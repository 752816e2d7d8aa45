"""A bound on the partitions that a sink begins: whoever puts records may choose the values by which it is partitioned.

Each new partition costs every shard its time. So a sink begins at most `mld.spark.sink.<name>.newPartitionsPerHour` of
them in an hour. A batch is computed once and looked at before it is written; rows of partitions that there are, or may
be, go there. All others go, in the same commit, where the sink has a place for them, so a batch that is tried again has
each row once, wherever the bound stands then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

log = logging.getLogger("mld.spark")

PARTITIONS_MAX = 10_000
"""Partitions of one batch that are told apart; rows of the smallest ones are beyond, whether known or not."""
KNOWN_MAX = 100_000
"""Partitions remembered as begun: more, and they are looked for again."""
HOUR_S = 3600.0
KEY = "mld_partition"


@dataclass(frozen=True, slots=True)
class Admitted:
    """What may be written of a batch."""

    keys: list[str]
    """Partitions, as `key_of` names them."""
    rows_beyond: int
    """Rows of all others."""


class PartitionBound:
    """The bound of one sink, and what is reported of rows beyond it. `admitted` is called on any thread."""

    def __init__(self, sink: str, at_most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._sink, self._at_most, self._clock = sink, at_most, clock
        self._lock = threading.Lock()
        self._known: set[str] = set()
        self._hour_began_at = clock()
        self._begun = 0
        self.rows_beyond = 0
        self._rows, self._where = 0, ""
        """How many rows of the batch under way are beyond, and where."""

    def look(
        self,
        frame: DataFrame,
        key: Column,
        exist: Callable[[list[str]], set[str]],
        can_be: Callable[[str], bool],
        name: Callable[[str], str] = str,
    ) -> Admitted:
        """Count the rows of each partition in a frame, which should be kept, and decide which may be written. `name`
        says how the sink calls a partition; `exist`, which of those names there are; `can_be`, whether there can be
        one called so.
        """
        from pyspark.sql import functions as F

        counted = frame.groupBy(key.alias(KEY)).count().orderBy(F.desc("count"), KEY)
        rows = {row[KEY]: row["count"] for row in counted.limit(PARTITIONS_MAX).collect()}
        total = frame.count() if len(rows) == PARTITIONS_MAX else sum(rows.values())
        names = {key: name(key) for key in rows}
        admitted = self.admitted(list(dict.fromkeys(names.values())), exist, can_be)
        keys = [key for key, found in names.items() if found in admitted]
        return Admitted(keys, total - sum(rows[key] for key in keys))

    def admitted(
        self, wanted: Sequence[str], exist: Callable[[list[str]], set[str]], can_be: Callable[[str], bool]
    ) -> set[str]:
        """Return those of `wanted` that may be written: what there is, and new ones that can be, the first ones
        first.
        """
        with self._lock:
            now = self._clock()
            if now - self._hour_began_at >= HOUR_S:
                self._hour_began_at, self._begun = now, 0
            if len(self._known) > KNOWN_MAX:
                self._known.clear()
            unknown = [one for one in wanted if one not in self._known]
            there = exist(unknown) if unknown else set()
            new = [one for one in unknown if one not in there and can_be(one)][: self._at_most - self._begun]
            self._begun += len(new)
            self._known |= there.union(new)
            return self._known.intersection(wanted)

    def note(self, rows: int, where: str) -> None:
        """Remember that the rows are beyond the bound, until their batch is published."""
        self._rows, self._where = rows, where

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Publish a batch; if that has succeeded, log the rows beyond the bound."""
        self._rows = 0
        yield
        if not self._rows:
            return
        self.rows_beyond += self._rows
        log.error(
            "sink %s: %d rows, %d since the start, are of more than %d new partitions in an hour "
            "(mld.spark.sink.%s.newPartitionsPerHour), or %d in a batch, or of values that are no names of "
            "directories, and are in %s; partition by something coarser, or allow more",
            *(self._sink, self._rows, self.rows_beyond, self._at_most, self._sink, PARTITIONS_MAX, self._where),
        )


@contextmanager
def computed(frame: DataFrame) -> Iterator[None]:
    """Keep what is computed of a frame; where somebody keeps it already, it stays theirs."""
    level = frame.storageLevel
    if level.useMemory or level.useDisk:
        yield
        return
    frame.persist()
    try:
        yield
    finally:
        frame.unpersist()


def key_of(values: Iterable[Column]) -> Column:
    """Return an expression that names the partition of a row by its values; null and an empty text are one."""
    from pyspark.sql import functions as F

    texts = (value.cast("string") for value in values)
    return F.to_json(F.array(*(F.when(text != "", text) for text in texts)))


def frame_of(keys: Iterable[str], frame: DataFrame) -> DataFrame:
    """Return a small frame of keys, to join with others of the session of `frame`."""
    from pyspark.sql import functions as F

    return F.broadcast(frame.sparkSession.createDataFrame([(key,) for key in keys], f"{KEY} STRING"))


def by_partition(frame: DataFrame, columns: Iterable[str]) -> DataFrame:
    """Return the frame with the rows of a partition in one task, so that they are one file."""
    return frame.repartition(frame.sparkSession.sparkContext.defaultParallelism, *columns)
