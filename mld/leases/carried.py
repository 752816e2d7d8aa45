"""Leases that a worker's heartbeat keeps alive instead of renewals of their own (`mld.heartbeat=worker`). Pure.

Without it every held lease is written every third of the lease duration. With it one row per worker is, the worker's
report: `mldHeartbeat` = "epoch.number". An *epoch* is a random name for one unbroken series of heartbeats; each write
is conditional on the value that the one before has left. A lease row that carries the epoch as its mark
(`mldHeartbeat`) is *carried*: it lives as long as its actual owner's heartbeat is of that epoch and moves. The mark is
written and taken away by the holder's renewals only, and goes when the owner changes; a mark of another epoch than the
actual owner's heartbeat means nothing. So rows that are renewed one by one and carried rows can coexist, even under
one owner, and workers of both settings can share a table.

Why nobody believes in a lease while somebody else may act on it. D is the lease duration.

1. The holder's belief. A carried lease is valid until D after the *earlier* of: the sending of the last accepted
   heartbeat; the sending of the last thing that confirmed the row itself, an accepted write or a consistent read. Its
   own writes alone do not prolong it. When a mark is about to be written, the validity is cut down to the heartbeat's
   before that is sent; when one is about to be removed, heartbeats cease to prolong it before that is sent.
2. A dead owner. An observer holds a carried lease for expired when it has seen neither its counter nor the owner's
   heartbeat move for more than D. Before it touches the lease it *fences*: it overwrites the heartbeat on condition
   that it still has the value observed. If that works, no heartbeat was accepted since the observation began, more than
   D ago, and none will be: by 1 nobody believes any more. If it is refused, the owner lives and keeps everything. Only
   after that is the lease assigned, on condition that its counter stands where it was seen, because the owner may have
   begun a new epoch and renewed the row.
3. A fenced owner that lives after all (it was paused or cut off) finds its next heartbeat refused and drops every
   lease that is or may be carried, at once. A heartbeat without an answer is sent again as it was: a row that has
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
   appears (`fleet.heartbeat.heart`): every lease is renewed and its mark removed while the heartbeat still goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from mld.leases.lease import Lease

FRESH_SHARE = 0.5
"""Rows are marked only while this share of the heartbeat's validity has not passed: a mark gives the lease no more."""
REFRESH_S = 600.0
"""How often a carried lease is written to store its throughput, by which leaders balance; checkpoints do that too."""
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
class Beat:
    """An accepted heartbeat: its epoch, and when (monotonic) the first request that carried it was sent."""

    epoch: str
    sent_at: float


def is_carried(row: Lease, beat: Beat | None) -> bool:
    """Whether the heartbeat stands for this row of its worker."""
    return beat is not None and row.heartbeat == beat.epoch


def valid_until(confirmed_at: float, carried_by: Beat | None, lease_duration_s: float) -> float:
    """When the holder must stop believing; `carried_by` None: the lease is renewed by itself."""
    since = confirmed_at if carried_by is None else min(confirmed_at, carried_by.sent_at)
    return since + lease_duration_s


def mark_for(beat: Beat | None, now: float, lease_duration_s: float) -> str | None:
    """The mark that a row written now should get; None if no heartbeat is recent enough."""
    if beat is None or now - beat.sent_at > FRESH_SHARE * lease_duration_s:
        return None
    return beat.epoch


def refresh_s(figures: int, lease_duration_s: float) -> float:
    """How long after its last figure a carried lease is written for the next one; `figures` were written so far."""
    first_s = FIRST_REFRESH_DURATIONS * lease_duration_s
    return (first_s, max(first_s, SECOND_REFRESH_S), REFRESH_S)[min(figures, 2)]


def is_refresh_due(told_kbps: float | None, samples: Sequence[float], told_s: float, refresh_s: float) -> bool:
    """Whether to write a carried lease for its throughput, `told_s` after the last figure."""
    if not samples or told_s < min(refresh_s, CHANGED_S):
        return False
    if told_s >= refresh_s or told_kbps is None:
        return True
    kbps = fmean(samples)
    return max(kbps, told_kbps) > CHANGE * min(kbps, told_kbps)
