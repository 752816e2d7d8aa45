"""Decides how long a worker may believe that a lease is its own, and when the next write of the lease is sent.

Rules: leases#send-time-validity, leases#answers-slower-than-leases, leases#local-expiry, leases#holding-tokens,
leases#overlapping-writes, leases#retries-inside-the-lease.

This is why two workers never believe in the same lease at the same time. Let D be the lease duration. The holder
believes in its lease until D after it *sent* the last write that was applied to the row. That write raised the row's
counter, so any other worker sees the counter change after the write was sent. The other worker takes the lease only
when it has seen the row unchanged for D, and by then the holder has stopped using the lease. The taking write is
conditional on the counter that the other worker saw. If the holder wrote first after all, the taking write is refused,
and the holder keeps the lease. If the other worker wrote first, every later write of the holder is refused. So a holder
that was paused or cut off can neither renew nor checkpoint a lease that another worker has. Both clocks are monotonic,
and only durations are compared, never the times of two machines.

One case needs more care: an answer that took almost D confirms a lease whose time is nearly over. Then the belief
counts not from the write that was answered, but from the send time of a later one, if writes have followed each other
without a pause (`counts_from`, leases#answers-slower-than-leases). For that, the next write is sent while the last one
still waits for its answer (`again_at`); `own_writes` keeps account of how all of them may have changed the row. After
an error, the back-off is exponential with jitter, and stays within the remaining time of the lease.

A `Holding` is one uninterrupted possession of a lease. This module sends nothing; the keeper does.
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
"""If the last write is unanswered, the next one is sent after this share of the time that was left of the belief when
the last write was sent."""
AGAIN_S_MIN_SHARE = 0.1
"""The shortest time between two such writes, as a share of the lease duration. Nine tenths are left for the answer."""
LATE_SHARE = 0.8
"""An answer that took longer than this share of the lease duration counts as too late, see `counts_from`."""
SUSPENDED_DURATIONS = 2.0
"""How long a suspended holding (one that is no longer believed) waits for an answer which shows that nobody else had
the lease; in lease durations."""
SPENT_SHARE = 0.3
"""The time between two writes of the row of a suspended holding, as a share of the lease duration. It is less than
`CHAIN_SHARE`, so that the chain of writes is not broken."""
CHAIN_SHARE = 0.4
"""If the time between two writes is longer than this share of the lease duration, this worker itself must have stood
still. So writes with longer gaps do not belong to one chain (`chain_end`)."""


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A held lease, as its row was at one moment. `token` identifies the holding: a later holding of the same key has
    another token.
    """

    lease: Lease
    token: str


@dataclass(eq=False, slots=True)
class Storing:
    """A checkpoint that is being stored. `stored` is set when an answer shows that the row is at `position` or later,
    or that the lease is lost.
    """

    position: Position
    sent_at: float
    stored: asyncio.Future[Position]


@dataclass(eq=False, slots=True)
class Holding:
    """One uninterrupted possession of a lease, with what the keeper knows about it. Times are monotonic seconds."""

    lease: Lease
    token: str
    throughput: Throughput
    duration_s: float
    """The lease duration."""
    confirmed_at: float = -math.inf
    """The time from which the belief counts: when the last accepted write was sent, or later (`counts_from`)."""
    failing: Failing | None = None
    """The note about a failing processor that the next renewal writes into the row, unless the row has it."""
    answered_sent_at: float = -math.inf
    """When the latest of the answered writes was sent, even if the belief counts from another time."""
    storing: Storing | None = None
    """The checkpoint for which the consumer waits."""
    storing_one: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a checkpoint is stored, so that there is one at a time."""
    believed: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared while the holding is suspended."""
    expired: bool = False
    """Whether the holding has ended because it was not confirmed in time."""
    renewing: bool = False
    """Whether a renewal is about to be sent."""
    leaving: bool = False
    """Whether the lease is being given away."""
    handoff_by: float | None = None
    """Deadline of a pending handoff: at this time the lease is given away even if the consumer has not finished."""

    @property
    def until(self) -> float:
        """When the belief in this lease ends, in monotonic seconds."""
        return self.confirmed_at + self.duration_s

    @property
    def ends_at(self) -> float:
        """When a suspended holding ends, because no write of its row has been confirmed for too long."""
        return self.until + SUSPENDED_DURATIONS * self.duration_s

    def confirm(self, from_s: float) -> None:
        """Note that the belief counts from `from_s`, because of an accepted write. An earlier time changes nothing:
        answers may come in another order than the writes were sent.
        """
        self.confirmed_at = max(self.confirmed_at, from_s)


def retry_delay_s(attempt: int, remaining_s: float, rng: random.Random) -> float | None:
    """Return how many seconds to wait after failed attempt number `attempt` (counted from 1), at most half of
    `remaining_s`.

    Return None if hardly any time remains.
    """
    assert attempt >= 1
    if remaining_s < FIRST_DELAY_S:
        return None
    ceiling_s = min(DELAY_S_MAX, FIRST_DELAY_S * 2 ** min(attempt - 1, DOUBLINGS_MAX))
    return min(rng.uniform(ceiling_s / 2, ceiling_s), remaining_s / 2)


def again_at(sent_at: float, until: float, lease_duration_s: float) -> float:
    """Return when to send the next write if the one sent at `sent_at` is still unanswered.

    `until` is when the belief ends. As long as answers come within half a lease duration, the next regular renewal is
    sent before the returned time, and no additional write is needed. If the belief has ended, writes only have to
    follow each other without a pause (`chain_end`); more writes would only slow down a busy table.
    """
    if until <= sent_at:
        return sent_at + SPENT_SHARE * lease_duration_s
    return sent_at + max(AGAIN_SHARE * (until - sent_at), AGAIN_S_MIN_SHARE * lease_duration_s)


def chain_end(sent_at: float, others: Iterable[float], gap_s: float) -> float:
    """Return the send time of the last write in the chain that begins with the write sent at `sent_at`.

    Each write of the chain was sent at most `gap_s` after the one before. `others` are send times, in order.
    """
    end = sent_at
    for other in others:
        if end < other <= end + gap_s:
            end = other
    return end


def counts_from(sent_at: float, answered_at: float, followed_until: float, lease_duration_s: float) -> float:
    """Return the time from which the belief counts because of an accepted write: when it was sent, or
    `followed_until` if its answer came too late.

    `followed_until` is the send time of the last write in the chain that began with this one (`chain_end`), see
    leases#answers-slower-than-leases.
    """
    return sent_at if answered_at - sent_at <= LATE_SHARE * lease_duration_s else followed_until


def may_be_applied(error: MldError) -> bool:
    """Return whether a failed write may have been applied. After throttling, or if the table is missing, it was not."""
    return not isinstance(error, TableThrottledError | TableMissingError)
