"""What a keeper remembers of one uninterrupted possession of a lease. Rules about it: `keeper` and `carrier`."""

from __future__ import annotations

import asyncio
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
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
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
