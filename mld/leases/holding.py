"""What a keeper remembers: of one uninterrupted possession of a lease, and of its writes beyond that.

Rules about it: `keeper`, `carrier` and `resuming`.
"""

from __future__ import annotations

import asyncio
import weakref
from dataclasses import dataclass, field

from mld.leases.lease import Failing, Lease
from mld.leases.throughput import Throughput


@dataclass(eq=False, slots=True)
class Holding:
    lease: Lease
    token: str
    valid_until: float
    throughput: Throughput
    confirmed_at: float
    """Send time of what last confirmed the row itself: an accepted write, or a read."""
    lock: asyncio.Lock
    """Of all writes of the row by this worker."""
    carried: bool = False
    """The row is known to be marked with our heartbeat's epoch."""
    may_be_carried: bool = False
    """It may be: a write of the mark, or of its removal, may be under way."""
    samples: list[float] = field(default_factory=list)
    """Throughput samples of a carried lease since one was written last."""
    told_at: float = 0.0
    """When that was."""
    telling: bool = False
    """A write with a figure is under way."""
    figures: int = 0
    """How many have been written by this holding."""
    refresh_s: float = 0.0
    """How long after that a carried lease is written for its throughput's sake."""
    failing: Failing | None = None
    """What the next renewal notes on the row, if that lacks it."""
    unknown_since: float | None = None
    """Send time of the first write with the current counter whose outcome is unknown."""
    expired: bool = False
    renewing: bool = False
    leaving: bool = False
    """Being given away."""
    handoff_by: float | None = None
    """When a pending handoff is completed, whether or not the consumer has finished."""

    @property
    def due_at(self) -> float:
        """When something must be done about this holding at the latest."""
        if self.handoff_by is None or self.leaving:
            return self.valid_until
        return min(self.valid_until, self.handoff_by)


class RowsWritten:
    """Our writes of each row, which may outlive the holding that sent them."""

    def __init__(self) -> None:
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._unknown: dict[str, int] = {}
        """The counter over which the last write was sent, until its outcome is known."""

    def lock_of(self, key: str) -> asyncio.Lock:
        """Makes each write wait for the one before. Kept while somebody holds it, or the lease."""
        return self._locks.setdefault(key, asyncio.Lock())

    def sent(self, over: Lease) -> None:
        """A write that raises the counter of the row as seen is sent."""
        self._unknown[over.key] = over.counter

    def is_unknown(self, seen: Lease) -> bool:
        """Whether a write of ours may have raised the counter of the row since it was seen so."""
        return self._unknown.get(seen.key) == seen.counter

    def settled(self, key: str) -> None:
        """No write of unknown outcome can be in the row any more."""
        self._unknown.pop(key, None)

    def confirmed(self, row: Lease) -> None:
        """The row is known to be so by a write of ours: those over lower counters are history."""
        if self._unknown.get(row.key, row.counter) < row.counter:
            self.settled(row.key)
