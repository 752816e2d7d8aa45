"""Instruments: counters and histograms for code on the event loop, without locks and without a library.

Counting costs an attribute access and an addition, so code that runs for every record may use instruments.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

SECONDS_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the buckets of a `Spread`, in seconds. One more bucket without a bound follows."""


@dataclass(frozen=True, slots=True)
class SpreadValue:
    """A `Spread` at one moment. `buckets` has one count more than SECONDS_BOUNDS."""

    count: int
    total: float
    buckets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StatisticSet:
    """A summary of several values, as CloudWatch gets it: their number, their sum, the least and the greatest."""

    count: int
    total: float
    least: float
    greatest: float

    def __add__(self, other: StatisticSet) -> StatisticSet:
        """Return the summary of the values of both."""
        return StatisticSet(
            self.count + other.count,
            self.total + other.total,
            min(self.least, other.least),
            max(self.greatest, other.greatest),
        )


class Spread:
    """Noted values: their number, sum and histogram since the start, and a statistic set since the last `take`."""

    __slots__ = ("_taken_count", "_taken_total", "buckets", "count", "greatest", "least", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.buckets = [0] * (len(SECONDS_BOUNDS) + 1)
        self.least = math.inf
        self.greatest = -math.inf
        self._taken_count = 0
        self._taken_total = 0.0

    def note(self, value: float) -> None:
        """Add a value. The histogram takes it as seconds."""
        self.count += 1
        self.total += value
        self.buckets[bisect_left(SECONDS_BOUNDS, value)] += 1
        if value < self.least:
            self.least = value
        if value > self.greatest:
            self.greatest = value

    @property
    def has_news(self) -> bool:
        """Whether values were noted since the last `take`."""
        return self.count != self._taken_count

    def value(self) -> SpreadValue:
        return SpreadValue(self.count, self.total, tuple(self.buckets))

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Note 1 if the `with` block raises, else 0. A cancelled block is not counted."""
        try:
            yield
        except Exception:
            self.note(1)
            raise
        self.note(0)

    def take(self) -> StatisticSet | None:
        """Return the values since the last `take`; None if there were none. Only one publisher may call it."""
        if not self.has_news:
            return None
        taken = StatisticSet(
            self.count - self._taken_count,
            self.total - self._taken_total,
            self.least,
            self.greatest,
        )
        self._taken_count, self._taken_total = self.count, self.total
        self.least, self.greatest = math.inf, -math.inf
        return taken


class Tally:
    """Counts or amounts by name, for example by result or by reason.

    The names must come from code, never from input.
    """

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[str, float] = {}

    def add(self, name: str, count: float = 1) -> None:
        self._counts[name] = self._counts.get(name, 0) + count

    def value(self) -> Mapping[str, float]:
        """Return the counts, sorted by name."""
        return dict(sorted(self._counts.items()))

    @property
    def total(self) -> int:
        """The sum of all counts."""
        return int(sum(self._counts.values()))

    def __getitem__(self, name: str) -> float:
        return self._counts.get(name, 0)


class Successes:
    """Numbers of attempts and failures. As in KCL's `Success` metrics, a success is sent as 1 and a failure as 0."""

    __slots__ = ("_taken_count", "_taken_failed", "count", "failed")

    def __init__(self) -> None:
        self.count = 0
        self.failed = 0
        self._taken_count = 0
        self._taken_failed = 0

    def take(self) -> StatisticSet | None:
        """Return the attempts since the last `take`; None if there were none. Only one publisher may call it."""
        count, failed = self.count - self._taken_count, self.failed - self._taken_failed
        if count == 0:
            return None
        self._taken_count, self._taken_failed = self.count, self.failed
        return StatisticSet(count, float(count - failed), 0.0 if failed else 1.0, 1.0 if failed < count else 0.0)


class Calls:
    """Attempts at one thing: how many succeeded, how many failed, and how long they took."""

    __slots__ = ("ok", "seconds")

    def __init__(self) -> None:
        self.ok = Successes()
        self.seconds = Spread()

    @property
    def failed(self) -> int:
        return self.ok.failed

    def note(self, ok: bool, seconds: float) -> None:
        """Note a call that succeeded or failed, and how long it took."""
        self.ok.count += 1
        if not ok:
            self.ok.failed += 1
        self.seconds.note(seconds)

    @contextmanager
    def timed(self, now: Callable[[], float]) -> Iterator[None]:
        """Count the `with` block as one attempt, failed if the block raises. `now` returns monotonic seconds.

        A cancelled block is not counted.
        """
        began_at = now()
        try:
            yield
        except Exception:
            self.note(False, now() - began_at)
            raise
        self.note(True, now() - began_at)
