"""One shard: its hash range, lifetime, parents, children and records.

Records stand in columns, so that a page of them is two bisects and a slice. The JSON text of each is made once, when it
is put; reading joins ready pieces and never looks inside.

The limits of a shard are token buckets over passed-in time (retrieval#service-limits), used only if the model enforces
them: a bucket never sleeps or queues, it says yes or no. Which shards a ListShards call names is one predicate for each
filter (shards#listing-filter; API: ShardFilter).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from enum import Enum

from mld.core.streams import ChildShard, HashRange, Shard

READS_PER_S = 5
READ_BYTES_PER_S = 2 * 1024 * 1024
WRITE_BYTES_PER_S = 1024 * 1024
WRITE_RECORDS_PER_S = 1000
FULL_PAGE_PAUSE_S = 5.0
"""After a response of the full 10 MiB, calls within this time are refused."""


class Bucket:
    """`rate` tokens flow in each second; it holds those of one second at most."""

    __slots__ = ("_at", "_level", "_rate")

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._level = rate
        self._at: float | None = None

    def level(self, now: float) -> float:
        if self._at is not None and now > self._at:
            self._level = min(self._rate, self._level + (now - self._at) * self._rate)
        if self._at is None or now > self._at:
            self._at = now
        return self._level

    def has(self, amount: float, now: float) -> bool:
        """Return whether `amount` may pass; more than the whole bucket may pass when the bucket is full."""
        return self.level(now) >= min(amount, self._rate)

    def take(self, amount: float) -> None:
        """Spend, even below zero: the debt is paid by waiting."""
        self._level -= amount


class ShardLimits:
    """What one shard still allows."""

    __slots__ = ("_iterators", "_read_bytes", "_reads", "_refuse_until", "_write_bytes", "_write_records")

    def __init__(self) -> None:
        self._reads = Bucket(READS_PER_S)
        self._iterators = Bucket(READS_PER_S)
        self._read_bytes = Bucket(READ_BYTES_PER_S)
        self._write_bytes = Bucket(WRITE_BYTES_PER_S)
        self._write_records = Bucket(WRITE_RECORDS_PER_S)
        self._refuse_until = float("-inf")

    def admit_iterator(self, now: float) -> bool:
        if not self._iterators.has(1, now):
            return False
        self._iterators.take(1)
        return True

    def admit_read(self, now: float) -> bool:
        """Return whether a GetRecords call may go on; its bytes are reported to `spent` afterwards."""
        if now < self._refuse_until or self._read_bytes.level(now) <= 0 or not self._reads.has(1, now):
            return False
        self._reads.take(1)
        return True

    def spent(self, size_bytes: int, now: float, *, full_page: bool) -> None:
        self._read_bytes.take(size_bytes)
        if full_page:
            self._refuse_until = now + FULL_PAGE_PAUSE_S

    def admit_write(self, size_bytes: int, now: float) -> bool:
        if not (self._write_records.has(1, now) and self._write_bytes.has(size_bytes, now)):
            return False
        self._write_records.take(1)
        self._write_bytes.take(size_bytes)
        return True


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

    __slots__ = ("_arrivals", "_base_bytes", "_first", "_fragments", "_numbers", "_totals", "trimmed_through")

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._arrivals: list[float] = []
        self._totals: list[int] = []
        self._fragments: list[bytes] = []
        self._base_bytes = 0
        self._first = 0
        self.trimmed_through: int | None = None
        """The number of the newest record that is hidden or freed."""

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

    def trim(self, horizon: float) -> None:
        """Hide the records that arrived before `horizon`; they are freed in lots."""
        self._first = bisect_left(self._arrivals, horizon)
        if not self._first:
            return
        self.trimmed_through = self._numbers[self._first - 1]
        if self._first < _DROP_RECORDS_MIN and self._first < len(self._arrivals):
            return
        self._base_bytes = self._totals[self._first - 1]
        for column in (self._numbers, self._arrivals, self._totals, self._fragments):
            del column[: self._first]
        self._first = 0

    def span(self, position: int, *, limit: int, bytes_max: int) -> LogSpan:
        """Return the records with a number of `position` or more that are not hidden, within the limits; at least one
        if there is any.
        """
        start = max(self._first, bisect_left(self._numbers, position))
        wanted = min(len(self._numbers), start + limit)
        before = self._totals[start - 1] if start else self._base_bytes
        stop = max(bisect_right(self._totals, before + bytes_max, start, wanted), min(start + 1, wanted))
        more = stop < len(self._numbers)
        seen = max(start, stop - 1)
        return LogSpan(
            fragments=self._fragments[start:stop],
            last=self._numbers[stop - 1] if stop > start else None,
            seen_s=self._arrivals[seen] if more else 0.0,
            size_bytes=self._totals[stop - 1] - before if stop > start else 0,
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


class FilterType(Enum):
    AFTER_SHARD_ID = "AFTER_SHARD_ID"
    AT_TRIM_HORIZON = "AT_TRIM_HORIZON"
    FROM_TRIM_HORIZON = "FROM_TRIM_HORIZON"
    AT_LATEST = "AT_LATEST"
    AT_TIMESTAMP = "AT_TIMESTAMP"
    FROM_TIMESTAMP = "FROM_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class ListFilter:
    """`shard_id` goes with AFTER_SHARD_ID, `timestamp_s` (epoch seconds) with the two timestamp filters."""

    type: FilterType
    shard_id: str | None = None
    timestamp_s: float | None = None


def matches(shard: ShardState, wanted: ListFilter, horizon_s: float) -> bool:
    """Return whether a shard inside retention passes the filter.

    `horizon_s` is the trim horizon: the end of retention, or the birth of the stream if that is later. A time before
    it counts as the horizon itself; AWS documents that for FROM_TIMESTAMP, we assume it of AT_TIMESTAMP.
    """
    match wanted.type:
        case FilterType.AT_LATEST:
            return shard.is_open
        case FilterType.FROM_TRIM_HORIZON:
            return True
        case FilterType.AFTER_SHARD_ID:
            return shard.shard_id > (wanted.shard_id or "")
        case FilterType.AT_TRIM_HORIZON:
            return shard.created_s <= horizon_s and (shard.closed_s is None or shard.closed_s > horizon_s)
        case FilterType.AT_TIMESTAMP:
            time_s = max(wanted.timestamp_s or 0.0, horizon_s)
            return shard.created_s <= time_s and (shard.closed_s is None or shard.closed_s >= time_s)
        case FilterType.FROM_TIMESTAMP:
            return shard.closed_s is None or shard.closed_s >= max(wanted.timestamp_s or 0.0, horizon_s)
