"""How long a held lease may be believed, what its writes must say for that, and when the next one is sent.

Rules: leases#send-time-validity, leases#answers-slower-than-leases, leases#local-expiry, leases#holding-tokens,
leases#overlapping-writes, leases#retries-inside-the-lease. A `Holding` is one uninterrupted possession of a lease. What
its belief rests on (`confirmed_at`, `covered`) is written by `Validity` and nowhere else; `own_writes` knows our writes
beyond one holding. No requests are sent here: the keeper asks. A lease is valid for its duration from the sending of
the last write that confirmed it. A write that is late is not given up: the next one goes out beside it (`again_at`).
After an error back-off is exponential, jittered, and stays inside the lease's remaining life.

*Rows covered by a heartbeat* (`mld.heartbeat=worker`) are kept alive by it instead of renewals of their own.

Without it every held lease is written every third of the lease duration. With it one row per worker is, the worker's
report: `mldHeartbeat` = "epoch.number". An *epoch* is a random name for one unbroken series of heartbeats; each write
is conditional on the value that the one before has left. A lease row that carries the epoch as its mark
(`mldHeartbeat`) is *covered*: it lives as long as its actual owner's heartbeat is of that epoch and moves. The mark is
written and taken away by the holder's renewals only, and goes when the owner changes; a mark of another epoch than the
actual owner's heartbeat means nothing. So rows that are renewed one by one and covered rows can coexist, even under
one owner, and workers of both settings can share a table.

Why nobody believes in a lease while somebody else may act on it. D is the lease duration.

1. The holder's belief. A covered lease is valid until D after the *earlier* of: the sending of the last accepted
   heartbeat; the sending of the last thing that confirmed the row itself, an accepted write or a consistent read. Its
   own writes alone do not prolong it. When a mark is about to be written, the validity is cut down to the heartbeat's
   before that is sent; when one is about to be removed, heartbeats cease to prolong it before that is sent.
2. A dead owner. An observer holds a covered lease for expired when it has seen neither its counter nor the owner's
   heartbeat move for more than D. Before it touches the lease it *fences*: it overwrites the heartbeat on condition
   that it still has the value observed. If that works, no heartbeat was accepted since the observation began, more than
   D ago, and none will be: by 1 nobody believes any more. If it is refused, the owner lives and keeps everything. Only
   after that is the lease assigned, on condition that its counter stands where it was seen, because the owner may have
   begun a new epoch and renewed the row.
3. A fenced owner that lives after all (it was paused or cut off) finds its next heartbeat refused and drops every
   lease that is or may be covered, at once. A heartbeat without an answer is sent again as it was: a row that has
   exactly the value sent is our own success, counted from the first sending. What is still ours in the table is found
   again by discovery and renewed, under a new epoch. An epoch that was replaced (a restart under the same id) is no
   proof of death: observers wait D from when they see the change.
4. One lease that is taken from a living holder without a handoff: by the force that ends a stuck handoff, by hand, by a
   twin. The heartbeat shows nothing of it. By 1 the holder stops at the latest D after its last look at the row, hence
   D after the change at most, as with renewals; it looks after 0.6 D at the latest, and at once at a lease that the
   owner index does not name as its own any more (usually a second later). Its checkpoints are refused from the first
   moment, because the change of owner has raised the counter. A handoff is no such case: until the holder has seen it
   and given the lease away, it stays the actual owner and its heartbeat counts.
5. Java knows nothing of all this and would judge the rows by their counters. Hence the mode ends when a Java worker
   appears (`mld.fleet.heartbeat_writer`): every lease is renewed and its mark removed while the heartbeat still goes
   on.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import fmean

from mld.core.clock import Clock
from mld.core.errors import MldError, TableMissingError, TableThrottledError
from mld.core.positions import Position
from mld.leases.lease import Failing, Lease, Throughput


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease of ours at one moment. `token` names the holding: a later one of the same key has another."""

    lease: Lease
    token: str


@dataclass(slots=True)
class Covered:
    """How the worker's heartbeat stands for the renewals of a holding. `Validity` writes it."""

    is_certain: bool = False
    """The row is known to be marked with our heartbeat's epoch: the lease is covered."""
    is_possible: bool = False
    """The lease may be covered: a write of the mark, or of its removal, may be under way."""
    capped_at: float = math.inf
    """Send time of the heartbeat that limits the belief while the mark is not certain."""
    samples: list[float] = field(default_factory=list)
    """Throughput samples since a figure was written last."""
    stored_at: float = 0.0
    """When that was."""
    storing: bool = False
    """A write with a figure is under way."""
    figures: int = 0
    """How many have been written by this holding."""
    refresh_s: float = 0.0
    """How long after the last figure the row is written for the next one."""


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
    confirmed_at: float = -math.inf
    """Send time of what last confirmed the row itself: an accepted write, or a read. `Validity` writes it."""
    covered: Covered = field(default_factory=Covered)
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


FRESH_SHARE = 0.5
"""Rows are marked only while this share of the heartbeat's validity has not passed: a mark gives the lease no more."""
REFRESH_S = 600.0
"""How often a covered lease is written to store its throughput, by which leaders balance; checkpoints do that too."""
FIRST_REFRESH_DURATIONS = 2
SECOND_REFRESH_S = 90.0
"""The same for a lease just acquired, the first in lease durations: before a leader can move it on by the figure of its
former holder, as it would again and again."""
REFRESH_JITTER = 0.2
CHECKPOINT_KBPS_S = 60.0
"""The least time between two stored figures: one sample, taken in a burst, would otherwise stay there for minutes."""
CHANGED_S = 120.0
"""The same if the throughput has changed by a factor of `CHANGE`: leaders balance by the stored figure."""
CHANGE = 2.0
SAMPLES_MAX = 36
"""Two minutes of samples by default: the mean covers that time."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """An accepted heartbeat: its epoch, and when (monotonic) the first request that covered it was sent."""

    epoch: str
    sent_at: float


def refresh_s(figures: int, lease_duration_s: float) -> float:
    """Return how long after its last figure a covered lease gets the next one; `figures` were written so far."""
    first_s = FIRST_REFRESH_DURATIONS * lease_duration_s
    return (first_s, max(first_s, SECOND_REFRESH_S), REFRESH_S)[min(figures, 2)]


def is_refresh_due(stored_kbps: float | None, samples: Sequence[float], stored_s: float, refresh_s: float) -> bool:
    """Return whether to write a covered lease for its throughput, `stored_s` after the last figure."""
    if not samples or stored_s < min(refresh_s, CHANGED_S):
        return False
    if stored_s >= refresh_s or stored_kbps is None:
        return True
    kbps = fmean(samples)
    return max(kbps, stored_kbps) > CHANGE * min(kbps, stored_kbps)


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


@dataclass(eq=False)
class Validity:
    """How long this worker may believe in its leases; owner of the fact which heartbeat of it was accepted last.

    Without a heartbeat all leases are renewed one by one. The numbers are those of the page's list.
    """

    clock: Clock
    rng: Random
    lease_duration_s: float

    def __post_init__(self) -> None:
        self.has_heartbeat = asyncio.Event()
        """Set while leases may be covered, and their rows have to be read."""
        self._heartbeat: Heartbeat | None = None
        self._marks = True

    # --- the heartbeat ------------------------------------------------------------------------------------------------

    def cover(self, heartbeat: Heartbeat) -> None:
        """Let our heartbeat, just accepted, stand for the renewals of the leases marked with its epoch.

        A new epoch may begin only when nothing is held under the old one: after `end_epoch` and `drop_covered`.
        """
        before = self._heartbeat
        assert before is None or (heartbeat.epoch == before.epoch and heartbeat.sent_at >= before.sent_at)
        self._heartbeat = heartbeat
        self.has_heartbeat.set()

    def end_epoch(self) -> None:
        """End the heartbeat (3): the keeper must drop every lease that it may stand for, at once."""
        self._heartbeat = None
        self.has_heartbeat.clear()

    def stop_marking(self) -> None:
        """Have leases renewed one by one from now on (5)."""
        self._marks = False

    def covers(self, row: Lease) -> bool:
        """Return whether our heartbeat stands for this row of ours."""
        return self._heartbeat is not None and row.heartbeat == self._heartbeat.epoch

    # --- belief (1) ---------------------------------------------------------------------------------------------------

    def until(self, holding: Holding) -> float:
        """Return when the belief in this lease ends (monotonic)."""
        limit = holding.covered.capped_at
        if holding.covered.is_certain:
            limit = math.inf if self._heartbeat is None else self._heartbeat.sent_at
        return min(holding.confirmed_at, limit) + self.lease_duration_s

    def ends_at(self, holding: Holding) -> float:
        """Return when a holding ends that is suspended until then: nothing was heard of its row for so long."""
        return self.until(holding) + SUSPENDED_DURATIONS * self.lease_duration_s

    def accept_late(self, holding: Holding, sent_at: float) -> None:
        """Note that a write was accepted before the one that has made the row what is known of it."""
        holding.confirmed_at = max(holding.confirmed_at, sent_at)

    def accept(self, holding: Holding, row: Lease, sent_at: float) -> None:
        """Note that a write of `holding` that counts from `sent_at` has made the row what it is."""
        was_covered = holding.covered.is_certain
        self._believe(holding, row, sent_at)
        covered = holding.covered
        if not covered.is_certain or (was_covered and not covered.storing):
            return
        covered.figures = covered.figures + 1 if was_covered else 0
        covered.storing = False
        covered.samples.clear()
        covered.stored_at = self.clock.monotonic()
        jitter = self.rng.uniform(1 - REFRESH_JITTER, 1 + REFRESH_JITTER)
        covered.refresh_s = jitter * refresh_s(covered.figures, self.lease_duration_s)

    def confirm(self, holding: Holding, row: Lease, sent_at: float) -> None:
        """Note that a consistent read of a covered lease, sent at `sent_at`, shows that the row still is ours."""
        if self.covers(row):
            self._believe(holding, row, max(sent_at, holding.confirmed_at))
        else:  # somebody has taken the mark away; others judge it by its counter, which a read does not move
            self._let_go(holding)
            holding.covered.is_possible = False

    def mark(self) -> str | None:
        """Return the heartbeat's mark for a row that is written now; None if no heartbeat may stand for it."""
        heartbeat = self._heartbeat if self._marks else None
        if heartbeat is None or self.clock.monotonic() - heartbeat.sent_at > FRESH_SHARE * self.lease_duration_s:
            return None
        return heartbeat.epoch

    def mark_for_renewal(self, holding: Holding) -> str | None:
        """Return the mark for a renewal that is sent now, and cut the belief down to what either outcome allows."""
        mark = self.mark()
        if mark is None:
            self._let_go(holding)
        else:
            assert self._heartbeat is not None
            holding.covered.is_possible = True
            holding.covered.capped_at = min(holding.covered.capped_at, self._heartbeat.sent_at)
        return mark

    def has_lost_mark(self, row: Lease) -> bool:
        """Return whether a row of ours bears a mark that means nothing any more: written, and overtaken by a new
        epoch.
        """
        return row.heartbeat is not None and not self.covers(row)

    def _believe(self, holding: Holding, row: Lease, sent_at: float) -> None:
        holding.confirmed_at = max(holding.confirmed_at, sent_at)
        covered = holding.covered
        covered.is_certain = covered.is_possible = self.covers(row)
        covered.capped_at = math.inf

    def _let_go(self, holding: Holding) -> None:
        """Let later heartbeats not prolong the belief any more."""
        covered = holding.covered
        if covered.is_certain and self._heartbeat is not None:
            covered.capped_at = self._heartbeat.sent_at
        covered.is_certain = False

    # --- what is written, and when ------------------------------------------------------------------------------------

    def is_renewal_due(self, holding: Holding) -> bool:
        """Return whether the lease is to be renewed now. Asked at every tick, it samples the throughput of a covered
        lease.
        """
        covered = holding.covered
        if not covered.is_certain or not self._marks or self.clock.monotonic() >= self.until(holding):
            return True
        kbps = holding.throughput.sample_kbps()
        if kbps is not None:
            covered.samples.append(kbps)
            del covered.samples[:-SAMPLES_MAX]
        if self.mark() is None:
            return False  # the heartbeat has trouble: nothing is gained by giving it up for this lease
        stored_s = self.clock.monotonic() - covered.stored_at
        is_due = is_refresh_due(holding.lease.throughput_kbps, covered.samples, stored_s, covered.refresh_s)
        return is_due or holding.lease.lacking(holding.failing) is not None

    def kbps_for_renewal(self, holding: Holding) -> float | None:
        """Return the throughput to write: for a covered lease, for minutes, the mean since the last figure."""
        covered = holding.covered
        if not covered.is_certain:
            return holding.throughput.sample_kbps()
        if not covered.samples:
            return None
        covered.storing = True
        return round(fmean(covered.samples) if covered.figures else covered.samples[-1], 6)

    def kbps_for_checkpoint(self, holding: Holding) -> float | None:
        """Return the throughput to write, if renewals do not store it often enough."""
        covered = holding.covered
        stored_s = self.clock.monotonic() - covered.stored_at
        is_due = covered.is_certain and stored_s >= min(covered.refresh_s, CHECKPOINT_KBPS_S)
        return self.kbps_for_renewal(holding) if is_due else None
