"""How long a held lease may be believed, and when its next write is sent.

Rules: leases#send-time-validity, leases#answers-slower-than-leases, leases#local-expiry, leases#holding-tokens,
leases#overlapping-writes, leases#retries-inside-the-lease.

Why no two workers believe in one lease. D is the lease duration. The holder believes until D after it *sent* the last
write that the row accepted. That write raised the row's counter, so an observer saw the counter move after the sending,
and takes the lease only when it has seen the row stand still for D: by then the holder has stopped. The observer's
write is conditional on the counter as it was seen. If the holder was faster after all, that write is refused and
the holder keeps the lease; if the observer was faster, every later write of the holder is refused. So a holder that was
paused or cut off can neither renew nor checkpoint what somebody else has. Both clocks are monotonic, and only durations
are compared, never times of two machines.

One case needs more care: an answer that took almost D confirms a lease that is nearly over. It counts from a later
write that followed without a pause, see `counts_from` and leases#answers-slower-than-leases. A write that is late is
not given up either: the next one goes out beside it (`again_at`), and `own_writes` knows what all of them may have made
of the row. After an error back-off is exponential, jittered, and stays inside the lease's remaining life.

A `Holding` is one uninterrupted possession of a lease. No requests are sent here: the keeper asks.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from mld.core.errors import MldError, TableMissingError, TableThrottledError
from mld.core.positions import Position
from mld.leases.lease import Failing, Lease
from mld.leases.throughput import Throughput

FIRST_DELAY_S = 0.05  # most throttling and network trouble is over by then
DELAY_S_MAX = 2.0  # well below any sensible lease duration, so that several attempts fit into one
DOUBLINGS_MAX = 10  # keeps the power of two small
AGAIN_SHARE = 0.5
"""A write that is not answered when this share of the belief left at its sending has passed is followed by another."""
AGAIN_S_MIN_SHARE = 0.1
"""The least time between two such writes, as a share of the lease duration: it leaves nine tenths for the answer."""
LATE_SHARE = 0.8
"""Of the lease duration: an answer that took longer leaves no time to act on it, see `counts_from`."""
SUSPENDED_DURATIONS = 2.0
"""How long an answer is waited for that shows that nobody else has had a lease that is not believed any more."""
SPENT_SHARE = 0.3
"""Of the lease duration: how often a lease is written that is not believed; less than `CHAIN_SHARE`."""
CHAIN_SHARE = 0.4
"""Of the lease duration: writes that follow each other more slowly than this show a worker that stood still itself."""


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease of ours at one moment. `token` names the holding: a later one of the same key has another."""

    lease: Lease
    token: str


@dataclass(eq=False, slots=True)
class Storing:
    """A checkpoint on its way: `stored` when an answer shows the row at `position` or beyond, or that it is lost."""

    position: Position
    sent_at: float
    stored: asyncio.Future[Position]


@dataclass(eq=False, slots=True)
class Holding:
    lease: Lease
    token: str
    throughput: Throughput
    duration_s: float
    """That of the lease."""
    confirmed_at: float = -math.inf
    """Since when it is believed: the send time of the last accepted write, see `counts_from`."""
    failing: Failing | None = None
    """What the next renewal notes on the row, if that lacks it."""
    answered_at: float = -math.inf
    """Send time of the last write that was answered, whatever that counted from."""
    storing: Storing | None = None
    """The checkpoint that its consumer waits for."""
    storing_one: asyncio.Lock = field(default_factory=asyncio.Lock)
    believed: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared while it is suspended."""
    expired: bool = False
    renewing: bool = False
    """A renewal is about to be sent."""
    leaving: bool = False
    """Being given away."""
    handoff_by: float | None = None
    """When a pending handoff is completed, whether or not the consumer has finished."""

    @property
    def until(self) -> float:
        """When the belief in this lease ends (monotonic)."""
        return self.confirmed_at + self.duration_s

    @property
    def ends_at(self) -> float:
        """When this holding ends if it is suspended until then: nothing was heard of its row for so long."""
        return self.until + SUSPENDED_DURATIONS * self.duration_s

    def confirm(self, from_s: float) -> None:
        """Note an accepted write of the row that counts from then. A later one may have been answered before."""
        self.confirmed_at = max(self.confirmed_at, from_s)


def retry_delay_s(attempt: int, remaining_s: float, rng: random.Random) -> float | None:
    """Return seconds to wait after failed attempt number `attempt` (from 1), at most half of what remains.

    None if hardly anything remains.
    """
    assert attempt >= 1
    if remaining_s < FIRST_DELAY_S:
        return None
    ceiling_s = min(DELAY_S_MAX, FIRST_DELAY_S * 2 ** min(attempt - 1, DOUBLINGS_MAX))
    return min(rng.uniform(ceiling_s / 2, ceiling_s), remaining_s / 2)


def again_at(sent_at: float, until: float, lease_duration_s: float) -> float:
    """Return when the next write goes out beside one sent at `sent_at` that is not answered yet.

    `until` is when the belief ends. With answers within half a lease duration the next regular renewal is sooner. Where
    no belief is left, writes only have to follow each other (`chain_end`): more of them would but hold up a busy table.
    """
    if until <= sent_at:
        return sent_at + SPENT_SHARE * lease_duration_s
    return sent_at + max(AGAIN_SHARE * (until - sent_at), AGAIN_S_MIN_SHARE * lease_duration_s)


def chain_end(sent_at: float, others: Iterable[float], gap_s: float) -> float:
    """Return the last of the sendings that followed one without a pause above `gap_s`; `others` are in order."""
    end = sent_at
    for other in others:
        if end < other <= end + gap_s:
            end = other
    return end


def counts_from(sent_at: float, answered_at: float, followed_until: float, lease_duration_s: float) -> float:
    """Return the time from which an accepted write counts: its sending; a later write's, if the answer came too late.

    `followed_until` is the sending of the last write that followed it without a pause: see
    leases#answers-slower-than-leases.
    """
    return sent_at if answered_at - sent_at <= LATE_SHARE * lease_duration_s else followed_until


def may_be_applied(error: MldError) -> bool:
    """Return whether a failed write may be in the row all the same. Throttling and a missing table are plain
    answers.
    """
    return not isinstance(error, TableThrottledError | TableMissingError)
