"""What a keeper remembers of one uninterrupted possession of a lease, and of its writes beyond that.

Rules: `keeper`, `validity` and `resumer`.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from dataclasses import dataclass, field
from typing import Protocol

from mld.leases.lease import Failing, Lease, Throughput
from mld.leases.table import Refusal
from mld.metrics.registry import LeaseMove


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease of ours at one moment. `token` names the holding: a later one of the same key has another."""

    lease: Lease
    token: str


@dataclass(slots=True)
class Carried:
    """How the worker's heartbeat stands for the renewals of a holding. `HeartbeatValidity` writes it."""

    is_certain: bool = False
    """The row is known to be marked with our heartbeat's epoch: the lease is carried."""
    is_possible: bool = False
    """The lease may be carried: a write of the mark, or of its removal, may be under way."""
    capped_at: float = math.inf
    """Send time of the heartbeat that limits the belief while the mark is not certain."""
    samples: list[float] = field(default_factory=list)
    """Throughput samples since a figure was written last."""
    told_at: float = 0.0
    """When that was."""
    telling: bool = False
    """A write with a figure is under way."""
    figures: int = 0
    """How many have been written by this holding."""
    refresh_s: float = 0.0
    """How long after the last figure the row is written for the next one."""


@dataclass(eq=False, slots=True)
class Holding:
    lease: Lease
    token: str
    throughput: Throughput
    lock: asyncio.Lock
    """Held during each write of the row by this worker."""
    confirmed_at: float = -math.inf
    """Send time of what last confirmed the row itself: an accepted write, or a read. `Validity` writes it."""
    carried: Carried = field(default_factory=Carried)
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


class Holder(Protocol):
    """What the keeper's collaborators need of it."""

    def has(self, key: str) -> bool: ...

    def is_current(self, holding: Holding) -> bool: ...

    def adopt(self, lease: Lease, sent_at: float, how: LeaseMove) -> object | None: ...

    def lose(self, holding: Holding, refusal: Refusal) -> None: ...

    def note_news(self, holding: Holding, before: Lease, row: Lease) -> None: ...

    def lapse_noticed(self) -> None: ...


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
