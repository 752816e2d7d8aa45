"""What a leader has seen of each lease over its runs: who renews, and since when a handoff is pending. Pure.

Rules: coordination#expired-leases, coordination#pending-handoffs. Time is monotonic seconds, passed in with each
observation.

    seen                                        moved_at
    first time, nobody's lease                  never
    first time, somebody's lease                now
    counter greater than before                 now
    counter equal or smaller                    as before: reads are eventually consistent, an older row is no news
    assigned by ourselves                       now, counter as in the answer
    covered by its owner's heartbeat            as the heartbeat, if that is later (`leases.validity`)
    covered until now, epoch replaced or gone   now: the owner may believe in its last heartbeat, which we have not seen
    covered until now, fenced                   as before: whoever fenced it has waited

    seen                                        handoff deadline
    no `checkpointOwner`                        none
    pending, first time or with other owners    now + handoff timeout + lease duration
    pending, same owners                        as before

A lease is *expired* if it is nobody's or has not moved for more than a lease duration, *blocked* while a handoff that
the leader should leave alone is pending. One past its deadline though its owner lives is *stuck*.

A new leader knows nothing (`forget`): it has to watch for a lease duration before it may call anything expired. Between
two runs single rows may be read as well (`saw`); what they tell counts the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mld.core.steps import Steps
from mld.fleet.heartbeats import epoch_of, is_fenced, is_news
from mld.leases.lease import Lease

STEP_LEASES = 200  # a fraction of a millisecond of work between two yields


class Handoff(NamedTuple):
    """A pending handoff: the owner pair it was seen with, and when it may be forced."""

    owner: str | None
    checkpoint_owner: str
    deadline: float


class Seen(NamedTuple):
    """What is known of one lease. `moved_at` None: never seen to move."""

    counter: int
    moved_at: float | None
    handoff: Handoff | None = None
    covered: bool = False
    """The owner's heartbeat stood for it."""


class Pulse(NamedTuple):
    """A worker's heartbeat, and when it was last seen to move."""

    value: str
    moved_at: float


class Observations:
    """The leader's view of every lease, over its runs."""

    def __init__(self, *, lease_duration_s: float, handoff_timeout_s: float) -> None:
        self._lease_duration_s = lease_duration_s
        self._patience_s = handoff_timeout_s + lease_duration_s
        self._seen: dict[str, Seen] = {}
        self._pulses: dict[str, Pulse] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def seen(self) -> Mapping[str, Seen]:
        return self._seen

    def forget(self) -> None:
        """Forget what was seen before leadership was won."""
        self._seen.clear()
        self._pulses.clear()

    def heard(self, heartbeats: Mapping[str, str], now: float) -> None:
        """Take note of the heartbeats, by worker, that a scan showed which ended at `now`, before its leases."""
        pulses = {}
        for worker, value in heartbeats.items():
            before = self._pulses.get(worker)
            if before is None or (is_news(before.value, value) and not is_fenced(value)):
                pulses[worker] = Pulse(value, now)
            elif is_fenced(value):
                pulses[worker] = Pulse(value, before.moved_at)
            else:
                pulses[worker] = before
        self._pulses = pulses

    def heartbeat_of(self, worker: str) -> str | None:
        """Return the heartbeat that the worker was last seen with."""
        pulse = self._pulses.get(worker)
        return None if pulse is None else pulse.value

    def scanned(self, leases: Sequence[Lease], now: float) -> Steps[None]:
        """Take note of these leases, and no others, shown by a scan that ended at `now`."""
        for number, lease in enumerate(leases):
            self.saw(lease, now)
            if number % STEP_LEASES == STEP_LEASES - 1:
                yield
        if len(self._seen) > len(leases):
            there = {lease.key for lease in leases}
            for key in [key for key in self._seen if key not in there]:
                del self._seen[key]

    def saw(self, lease: Lease, now: float) -> None:
        """Take note of one row, read at `now`."""
        before = self._seen.get(lease.key)
        if before is None:
            moved_at = None if lease.actual_owner is None else now
            covered = self._covering(lease) is not None
            self._seen[lease.key] = Seen(lease.counter, moved_at, self._handoff(None, lease, now), covered)
            return
        counter, moved_at, handoff, covered = before
        if lease.counter > counter:
            counter, moved_at = lease.counter, now
        if covered or lease.heartbeat is not None:
            moved_at, covered = self._covered(lease, covered, moved_at, now)
        if handoff is not None or lease.checkpoint_owner is not None:
            handoff = self._handoff(handoff, lease, now)
        self._seen[lease.key] = Seen(counter, moved_at, handoff, covered)

    def _covering(self, lease: Lease) -> Pulse | None:
        """Return the heartbeat that stands for the lease."""
        if lease.heartbeat is None:
            return None
        pulse = self._pulses.get(lease.actual_owner or "")
        return pulse if pulse is not None and epoch_of(pulse.value) == lease.heartbeat else None

    def _covered(self, lease: Lease, before: bool, moved_at: float | None, now: float) -> tuple[float | None, bool]:
        """Return (when it moved, whether it is covered)."""
        if (pulse := self._covering(lease)) is not None:
            return pulse.moved_at if moved_at is None else max(moved_at, pulse.moved_at), True
        if before and not is_fenced(self.heartbeat_of(lease.actual_owner or "")):
            return now, False
        return moved_at, False

    def assigned(self, lease: Lease, now: float) -> None:
        """Note that our own assignment was confirmed with this row; its new owner has a whole lease duration to
        start.
        """
        self._seen[lease.key] = Seen(lease.counter, now)

    def handoff_begun(self, lease: Lease, now: float) -> None:
        """Note that our own handoff was confirmed with this row, whose counter it left alone."""
        before = self._seen.get(lease.key)
        seen = before if before is not None else Seen(lease.counter, now)
        self._seen[lease.key] = seen._replace(handoff=self._handoff(None, lease, now))

    def moved_at(self, lease: Lease) -> float | None:
        """Return when the lease was last seen to move; None means never, as for a lease that was nobody's from the
        start.
        """
        seen = self._seen.get(lease.key)
        return None if seen is None else seen.moved_at

    def is_expired(self, lease: Lease, now: float) -> bool:
        """Return whether it is nobody's, or has stood still for longer than a lease duration; False if it was never
        observed.
        """
        if lease.owner is None and lease.checkpoint_owner is None:
            return True
        seen = self._seen.get(lease.key)
        if seen is None:
            return False
        return seen.moved_at is None or now - seen.moved_at > self._lease_duration_s

    def is_blocked(self, lease: Lease, now: float) -> bool:
        """Return whether a pending handoff has to be left alone: alive, not complete, deadline not passed."""
        if lease.checkpoint_owner is None or lease.is_complete or self.is_expired(lease, now):
            return False
        seen = self._seen.get(lease.key)
        return seen is None or seen.handoff is None or now <= seen.handoff.deadline

    def _handoff(self, before: Handoff | None, lease: Lease, now: float) -> Handoff | None:
        if lease.checkpoint_owner is None:
            return None
        if before is not None and before[:2] == (lease.owner, lease.checkpoint_owner):
            return before
        return Handoff(lease.owner, lease.checkpoint_owner, now + self._patience_s)


def expired_keys(observations: Observations, leases: Iterable[Lease], now: float) -> Steps[frozenset[str]]:
    """Find the leases that are nobody's or expired."""
    expired = []
    for number, lease in enumerate(leases):
        if observations.is_expired(lease, now):
            expired.append(lease.key)
        if number % STEP_LEASES == STEP_LEASES - 1:
            yield
    return frozenset(expired)
