"""One shard: its hash range, lifetime, parents, children and records.

Records stand in columns, so that a page of them is two bisects and a slice. The JSON text of each is made once, when it
is put; reading joins ready pieces and never looks inside.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from mld.core.streams import ChildShard, HashRange, Shard
from mld.local.kinesis.throttle import ShardLimits

_DROP_RECORDS_MIN = 1024
"""Expired records are hidden at once but freed in lots of this size: freeing the head of a list moves the rest."""


@dataclass(frozen=True, slots=True)
class LogSpan:
    """Some records one after another: their texts, and the number of the last one, None if there is none.

    `more` come after, which would have come along but for their size if `cut_by_size`. With `more`, `seen_s` is when
    the last one arrived, or the next one if there is none.
    """

    fragments: list[bytes]
    last: int | None
    seen_s: float
    size_bytes: int
    more: bool
    cut_by_size: bool


class ShardLog:
    """Append-only, except at its old end."""

    __slots__ = ("_arrivals", "_base_bytes", "_fragments", "_numbers", "_totals")

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._arrivals: list[float] = []
        self._totals: list[int] = []
        self._fragments: list[bytes] = []
        self._base_bytes = 0

    @property
    def last_arrival(self) -> float:
        """Arrival of the newest record, epoch seconds; minus infinity if there is none."""
        return self._arrivals[-1] if self._arrivals else float("-inf")

    def append(self, number: int, arrival: float, size_bytes: int, fragment: bytes) -> None:
        assert not self._numbers or (number > self._numbers[-1] and arrival >= self._arrivals[-1])
        self._totals.append((self._totals[-1] if self._totals else self._base_bytes) + size_bytes)
        self._numbers.append(number)
        self._arrivals.append(arrival)
        self._fragments.append(fragment)

    def trim(self, horizon: float) -> int:
        """Index of the first record that arrived at `horizon` or later; older ones are freed in lots."""
        if not self._arrivals or self._arrivals[0] >= horizon:
            return 0
        first = bisect_left(self._arrivals, horizon)
        if first < _DROP_RECORDS_MIN and first < len(self._arrivals):
            return first
        self._base_bytes = self._totals[first - 1]
        for column in (self._numbers, self._arrivals, self._totals, self._fragments):
            del column[:first]
        return 0

    def span(self, position: int, *, first: int, limit: int, bytes_max: int) -> LogSpan:
        """Return the records with a number of `position` or more, from index `first` on, within the limits; at least
        one if there is any.
        """
        start = max(first, bisect_left(self._numbers, position))
        wanted = min(len(self._numbers), start + limit)
        before = self._totals[start - 1] if start else self._base_bytes
        stop = bisect_right(self._totals, before + bytes_max, start, wanted)
        if stop == start and wanted > start:
            stop = start + 1
        size = self._totals[stop - 1] - before if stop > start else 0
        more = stop < len(self._numbers)
        seen = stop - 1 if stop > start else stop
        return LogSpan(
            fragments=self._fragments[start:stop],
            last=self._numbers[stop - 1] if stop > start else None,
            seen_s=self._arrivals[seen] if more else 0.0,
            size_bytes=size,
            more=more,
            cut_by_size=stop < wanted,
        )

    def number_at_time(self, timestamp: float) -> int | None:
        """Return the number of the first record that arrived at `timestamp` or later; None if there is none."""
        index = bisect_left(self._arrivals, timestamp)
        return self._numbers[index] if index < len(self._numbers) else None


def shard_id(index: int) -> str:
    return f"shardId-{index:012d}"


def shard_index(text: str) -> int | None:
    """Return the index in a shard id such as ``shardId-000000000007`` or ``7``; None if it is none."""
    digits = text.removeprefix("shardId-")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 12 else None


class ShardState:
    """A shard as the model keeps it. Open until `close` is called; times are epoch seconds."""

    __slots__ = (
        "adjacent_parent",
        "children",
        "closed_s",
        "created_s",
        "ending",
        "hash_range",
        "index",
        "limits",
        "log",
        "parent",
        "shard_id",
        "starting",
    )

    def __init__(
        self,
        index: int,
        hash_range: HashRange,
        starting: int,
        created_s: float,
        parents: tuple[int, ...] = (),
    ) -> None:
        self.index = index
        self.shard_id = shard_id(index)
        self.hash_range = hash_range
        self.starting = starting
        self.created_s = created_s
        self.parent = parents[0] if parents else None
        self.adjacent_parent = parents[1] if len(parents) > 1 else None
        self.ending: int | None = None
        self.closed_s: float | None = None
        self.children: tuple[ChildShard, ...] = ()
        self.log = ShardLog()
        self.limits = ShardLimits()

    @property
    def is_open(self) -> bool:
        return self.closed_s is None

    def close(self, ending: int, closed_s: float) -> None:
        assert self.is_open and ending >= self.starting
        self.ending = ending
        self.closed_s = closed_s

    def as_child(self) -> ChildShard:
        parents = (self.parent, self.adjacent_parent)
        return ChildShard(self.shard_id, frozenset(shard_id(p) for p in parents if p is not None), self.hash_range)

    def view(self) -> Shard:
        """Return the shard as ListShards shows it."""
        return Shard(
            shard_id=self.shard_id,
            hash_range=self.hash_range,
            starting_sequence=str(self.starting),
            ending_sequence=None if self.ending is None else str(self.ending),
            parent_id=None if self.parent is None else shard_id(self.parent),
            adjacent_parent_id=None if self.adjacent_parent is None else shard_id(self.adjacent_parent),
        )
