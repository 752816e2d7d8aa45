"""How long a held lease may be believed, and when its next write is sent.

Rules: leases#send-time-validity, leases#answers-slower-than-leases, leases#local-expiry, leases#holding-tokens,
leases#overlapping-writes, leases#retries-inside-the-lease.

Why two workers never believe in one lease. D is the lease duration. The holder believes in its lease until D after it
*sent* the last write that the row accepted. That write raised the row's counter, so an observer sees the counter move
after the sending. The observer takes the lease only when it has seen the row unchanged for D, and by then the holder
has stopped. The observer's write is conditional on the counter that it saw. If the holder was faster after all, that
write is refused, and the holder keeps the lease. If the observer was faster, every later write of the holder is
refused. So a holder that was paused or cut off can neither renew nor checkpoint a lease that another worker has. Both
clocks are monotonic, and only durations are compared, never the times of two machines.

One case needs more care: an answer that took almost D confirms a lease that is nearly over. Such a write counts from
the sending of a later write that followed without a pause (`counts_from`, leases#answers-slower-than-leases). A late
write is not given up either: the next one is sent while the first still waits for its answer (`again_at`), and
`own_writes` keeps account of how all of them may have changed the row. After an error, back-off is exponential,
jittered, and stays within the lease's remaining life.

A `Holding` is one uninterrupted possession of a lease. Nothing is sent from here: the keeper sends.
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
"""When the next write is sent although the last is unanswered: after this share of the belief that was left when the
last was sent."""
AGAIN_S_MIN_SHARE = 0.1
"""The shortest time between two such writes, as a share of the lease duration: it leaves nine tenths for the answer."""
LATE_SHARE = 0.8
"""As a share of the lease duration: an answer that took longer leaves no time to act on it, see `counts_from`."""
SUSPENDED_DURATIONS = 2.0
"""How long a suspended holding (one that is no longer believed) waits for an answer which shows that nobody else had
the lease; in lease durations."""
SPENT_SHARE = 0.3
"""How often the row of a suspended holding is written, as a share of the lease duration; less than `CHAIN_SHARE`."""
CHAIN_SHARE = 0.4
"""As a share of the lease duration: a longer gap between two writes shows that this worker itself stood still."""


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A held lease, as it was at one moment. `token` names the holding: a later holding of the same key has another."""

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
    lease: Lease
    token: str
    throughput: Throughput
    duration_s: float
    """The lease duration."""
    confirmed_at: float = -math.inf
    """From when the belief counts: the send time of the last accepted write, or a later one, see `counts_from`."""
    failing: Failing | None = None
    """The note of failures that the next renewal writes into the row, if the row lacks it."""
    answered_at: float = -math.inf
    """Send time of the last write that was answered, whether or not it counts from then."""
    storing: Storing | None = None
    """The checkpoint for which the consumer waits."""
    storing_one: asyncio.Lock = field(default_factory=asyncio.Lock)
    believed: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared while the holding is suspended."""
    expired: bool = False
    renewing: bool = False
    """A renewal is about to be sent."""
    leaving: bool = False
    """The lease is being given away."""
    handoff_by: float | None = None
    """Deadline of a pending handoff: then the lease is given away even if the consumer has not finished."""

    @property
    def until(self) -> float:
        """When the belief in this lease ends, in monotonic seconds."""
        return self.confirmed_at + self.duration_s

    @property
    def ends_at(self) -> float:
        """When a suspended holding ends: nothing has been heard of its row for too long."""
        return self.until + SUSPENDED_DURATIONS * self.duration_s

    def confirm(self, from_s: float) -> None:
        """Note that an accepted write counts from `from_s`. Later writes may have been answered before it."""
        self.confirmed_at = max(self.confirmed_at, from_s)


def retry_delay_s(attempt: int, remaining_s: float, rng: random.Random) -> float | None:
    """Return how many seconds to wait after failed attempt number `attempt` (from 1), at most half of `remaining_s`.

    None if hardly any time remains.
    """
    assert attempt >= 1
    if remaining_s < FIRST_DELAY_S:
        return None
    ceiling_s = min(DELAY_S_MAX, FIRST_DELAY_S * 2 ** min(attempt - 1, DOUBLINGS_MAX))
    return min(rng.uniform(ceiling_s / 2, ceiling_s), remaining_s / 2)


def again_at(sent_at: float, until: float, lease_duration_s: float) -> float:
    """Return when to send the next write if the one sent at `sent_at` is still unanswered.

    `until` is when the belief ends. If answers come within half a lease duration, the next regular renewal is sooner.
    If no belief is left, writes only have to follow each other without a pause (`chain_end`); more of them would only
    slow down a busy table.
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
    """Return the time from which an accepted write counts: its own sending, or `followed_until` if the answer came too
    late.

    `followed_until` is the send time of the last write that followed it without a pause, see
    leases#answers-slower-than-leases.
    """
    return sent_at if answered_at - sent_at <= LATE_SHARE * lease_duration_s else followed_until


def may_be_applied(error: MldError) -> bool:
    """Return whether a failed write may have been applied; throttling and a missing table rule that out."""
    return not isinstance(error, TableThrottledError | TableMissingError)
