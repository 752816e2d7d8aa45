"""One shard of a table's stream: a part of the items, for a part of the time."""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from mld.local.kinesis.throttle import Bucket

_COUNTER_UNIT = 10**20
GET_RECORDS_PER_S = 10.0
"""With enforced limits: two readers, each five times a second."""


def sequence_number(counter: int, index: int) -> int:
    """Return a number of at least 21 digits, increasing over the whole stream; the lower ones name the shard."""
    return counter * _COUNTER_UNIT + index


def index_of(number: int) -> int:
    """Return the index of the shard that a number was given to."""
    return number % _COUNTER_UNIT


def shard_id(created_ms: int, arn: str, index: int) -> str:
    """Return a shard's id as the service writes it: milliseconds in 20 digits, then eight hexadecimal digits."""
    return f"shardId-{created_ms:020d}-{zlib.crc32(f'{arn} {index}'.encode()):08x}"


@dataclass(frozen=True, slots=True)
class KeySpan:
    """The hashes of partition keys from `low` up to, but not including, `high`; clients do not see them."""

    low: int
    high: int

    def halves(self) -> tuple[KeySpan, KeySpan]:
        middle = (self.low + self.high) // 2
        return KeySpan(self.low, middle), KeySpan(middle, self.high)


@dataclass(frozen=True, slots=True)
class ChangePage:
    """Records one after another. `last` is the number of the last one; `ended`: none will follow."""

    fragments: list[bytes]
    last: int | None
    ended: bool


class ChangeShard:
    """Open until `close` is called; times are epoch seconds."""

    __slots__ = (
        "_fragments",
        "_numbers",
        "_times",
        "_totals",
        "_trimmed_bytes",
        "closed_s",
        "created_s",
        "ending",
        "index",
        "parent_id",
        "reads",
        "shard_id",
        "span",
        "starting",
        "trimmed_through",
        "window_records",
        "window_s",
    )

    def __init__(
        self, identity: str, index: int, span: KeySpan, starting: int, created_s: float, parent_id: str | None
    ) -> None:
        self.shard_id = identity
        self.index = index
        self.span = span
        self.starting = starting
        self.created_s = created_s
        self.parent_id = parent_id
        self.ending: int | None = None
        self.closed_s: float | None = None
        self.trimmed_through = starting - 1
        """The number of the newest record that is gone."""
        self.window_s = created_s
        self.window_records = 0
        self.reads = Bucket(GET_RECORDS_PER_S)
        self._numbers: list[int] = []
        self._times: list[float] = []
        self._fragments: list[bytes] = []
        self._totals: list[int] = []
        self._trimmed_bytes = 0

    @property
    def is_open(self) -> bool:
        return self.closed_s is None

    def close(self, ending: int, closed_s: float) -> None:
        assert self.is_open and ending >= self.starting
        self.ending = ending
        self.closed_s = max(closed_s, self.created_s)

    def append(self, number: int, at_s: float, size_bytes: int, fragment: bytes) -> None:
        assert self.is_open and number > (self._numbers[-1] if self._numbers else self.starting)
        self._totals.append((self._totals[-1] if self._totals else self._trimmed_bytes) + size_bytes)
        self._numbers.append(number)
        # A clock that was set back must not change the order in which records expire.
        self._times.append(max(at_s, self._times[-1] if self._times else at_s))
        self._fragments.append(fragment)

    def count_write(self, now: float, window_s: float) -> int:
        """Count a record; the number of them since the current window of time began."""
        if not 0 <= now - self.window_s <= window_s:
            self.window_s, self.window_records = now, 0
        self.window_records += 1
        return self.window_records

    def trim(self, horizon_s: float) -> None:
        """Forget what is older than `horizon_s`."""
        if (count := bisect_left(self._times, horizon_s)) == 0:
            return
        self.trimmed_through = self._numbers[count - 1]
        self._trimmed_bytes = self._totals[count - 1]
        for column in (self._numbers, self._times, self._fragments, self._totals):
            del column[:count]

    def page(self, position: int, *, limit: int, bytes_max: int) -> ChangePage:
        """Return the records of number `position` and after, within the limits, but at least one if there is any."""
        start = bisect_left(self._numbers, position)
        wanted = min(len(self._numbers), start + limit)
        before = self._totals[start - 1] if start else self._trimmed_bytes
        stop = max(bisect_right(self._totals, before + bytes_max, start, wanted), min(start + 1, wanted))
        return ChangePage(
            fragments=self._fragments[start:stop],
            last=self._numbers[stop - 1] if stop > start else None,
            ended=not self.is_open and stop == len(self._numbers),
        )
