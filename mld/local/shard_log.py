"""`ShardLog`: the records of a shard. Pure.

Each field of the records is in a list of its own, so that two bisections and a slice find a page. The JSON text of a
record is made once, when the record is put. Reading joins these texts and never parses them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

_DROP_RECORDS_MIN = 1024
"""Expired records are hidden at once, but removed from the lists only if there are this many, because removing the head
of a list moves all the rest."""


@dataclass(frozen=True, slots=True)
class LogSpan:
    """Consecutive records: their texts (`fragments`), and the sequence number of the last one (None: no records).

    `more` says that other records follow, and `cut_by_size` that these were left out only because of the limit of
    bytes. If others follow, `seen_s` is the arrival time of the last record in the span, or of the next record if the
    span is empty.
    """

    fragments: list[bytes]
    last: int | None
    seen_s: float
    size_bytes: int
    more: bool
    cut_by_size: bool


class ShardLog:
    """The records of a shard. New records are appended, old ones trimmed."""

    __slots__ = ("_arrivals", "_base_bytes", "_first", "_fragments", "_numbers", "_totals", "trimmed_through")

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._arrivals: list[float] = []
        self._totals: list[int] = []
        """For each record, the size of all records of the shard up to this one, in bytes."""
        self._fragments: list[bytes] = []
        self._base_bytes = 0
        """The size of all records that were removed from the lists."""
        self._first = 0
        """Index of the first record that is not hidden."""
        self.trimmed_through: int | None = None
        """Sequence number of the newest trimmed record."""

    @property
    def last_arrival(self) -> float:
        """Arrival time of the newest record in epoch seconds; minus infinity if the log has no records."""
        return self._arrivals[-1] if self._arrivals else float("-inf")

    def append(self, number: int, arrival: float, size_bytes: int, fragment: bytes) -> None:
        """Add a record: its sequence number, arrival, size, and JSON text (`fragment`). Numbers must rise, and arrivals
        must not fall.
        """
        assert not self._numbers or (number > self._numbers[-1] and arrival >= self._arrivals[-1])
        self._totals.append((self._totals[-1] if self._totals else self._base_bytes) + size_bytes)
        self._numbers.append(number)
        self._arrivals.append(arrival)
        self._fragments.append(fragment)

    def trim(self, horizon: float) -> None:
        """Hide the records that arrived before `horizon`. They are removed from memory when there are enough of
        them.
        """
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
        """Return the records from sequence number `position` on, within the limits of records and bytes, but at least
        one if there is any. Bisections find the place of the first record by its number, and that of the last by the
        sizes.

        If records follow the span, it also has an arrival time (`LogSpan.seen_s`), from which the lag of the reader is
        computed.
        """
        start = max(self._first, bisect_left(self._numbers, position))
        end = min(len(self._numbers), start + limit)  # where the span would end without the limit of bytes
        before = self._totals[start - 1] if start else self._base_bytes
        end_by_size = bisect_right(self._totals, before + bytes_max, start, end)
        stop = max(end_by_size, min(start + 1, end))  # at least one record if there is any, however large it is
        more = stop < len(self._numbers)
        last_or_next = max(start, stop - 1)
        return LogSpan(
            fragments=self._fragments[start:stop],
            last=self._numbers[stop - 1] if stop > start else None,
            seen_s=self._arrivals[last_or_next] if more else 0.0,
            size_bytes=self._totals[stop - 1] - before if stop > start else 0,
            more=more,
            cut_by_size=stop < end,
        )

    def number_at_time(self, timestamp: float) -> int | None:
        """Return the sequence number of the first record that arrived at `timestamp` or later; None: no record did."""
        index = bisect_left(self._arrivals, timestamp)
        return self._numbers[index] if index < len(self._numbers) else None
