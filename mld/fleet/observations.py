"""`Observations`: who renews each lease, and since when a handoff is pending, look after look. Pure.

Rules: coordination#expired-leases, coordination#pending-handoffs. Time is monotonic seconds, passed in with each
observation.

    seen                                        moved_at
    first time, nobody's lease                  never
    first time, somebody's lease                now
    another counter or actual owner             now: also a smaller counter, for a table may be made again or restored
    another heartbeat of its owner              now (leases#marked-rows)
    none of these                               as before
    assigned by ourselves                       now, counter as in the answer

    seen                                        handoff deadline
    no `checkpointOwner`                        none
    pending, first time or with other owners    now + handoff timeout + lease duration
    pending, same owners                        as before

A lease is *expired* if it is nobody's or has not moved for more than a lease duration, *blocked* while a handoff that
the leader should leave alone is pending. A handoff past its deadline whose owner lives is *stuck*.

A new leader knows nothing (`forget`): it has to watch for a lease duration before it may call anything expired. Between
two runs single rows may be read as well (`saw`); they count the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mld.core.steps import Steps
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
    actual_owner: str | None
    moved_at: float | None
    handoff: Handoff | None = None
    heartbeat: str | None = None
    """Of its owner, where that stands for renewals (`Lease.heartbeat`)."""


class Observations:
    """The leader's view of every lease, over its runs."""

    def __init__(self, *, lease_duration_s: float, handoff_timeout_s: float) -> None:
        self._lease_duration_s = lease_duration_s
        self._patience_s = handoff_timeout_s + lease_duration_s
        self.seen: dict[str, Seen] = {}

    def forget(self) -> None:
        """Forget what was seen before leadership was won."""
        self.seen.clear()

    def scanned(self, leases: Sequence[Lease], now: float) -> Steps[None]:
        """Take note of these leases, and no others, shown by a scan that ended at `now`."""
        for number, lease in enumerate(leases):
            self.saw(lease, now)
            if number % STEP_LEASES == STEP_LEASES - 1:
                yield
        if len(self.seen) > len(leases):
            there = {lease.key for lease in leases}
            for key in [key for key in self.seen if key not in there]:
                del self.seen[key]

    def saw(self, lease: Lease, now: float) -> None:
        """Take note of one row, read at `now`."""
        before = self.seen.get(lease.key)
        if before is None:
            moved_at = None if lease.actual_owner is None else now
            handoff = self._handoff(None, lease, now)
            self.seen[lease.key] = Seen(lease.counter, lease.actual_owner, moved_at, handoff, lease.heartbeat)
            return
        counter, owner, moved_at, handoff, heartbeat = before
        if lease.counter != counter or lease.actual_owner != owner or lease.heartbeat != heartbeat:
            counter, owner, moved_at, heartbeat = lease.counter, lease.actual_owner, now, lease.heartbeat
        if handoff is not None or lease.checkpoint_owner is not None:
            handoff = self._handoff(handoff, lease, now)
        self.seen[lease.key] = Seen(counter, owner, moved_at, handoff, heartbeat)

    def assigned(self, lease: Lease, now: float) -> None:
        """Note that our own assignment was confirmed with this row; its new owner has a whole lease duration to
        start.
        """
        self.seen[lease.key] = Seen(lease.counter, lease.actual_owner, now)

    def handoff_begun(self, lease: Lease, now: float) -> None:
        """Note that our own handoff was confirmed with this row, whose counter it left alone."""
        before = self.seen.get(lease.key)
        seen = before if before is not None else Seen(lease.counter, lease.actual_owner, now)
        self.seen[lease.key] = seen._replace(handoff=self._handoff(None, lease, now))

    def moved_at(self, lease: Lease) -> float | None:
        """Return when the lease was last seen to move; None means never, as for a lease that was nobody's from the
        start.
        """
        seen = self.seen.get(lease.key)
        return None if seen is None else seen.moved_at

    def is_expired(self, lease: Lease, now: float) -> bool:
        """Return whether it is nobody's, or has stood still for longer than a lease duration; False if it was never
        observed.
        """
        if lease.owner is None and lease.checkpoint_owner is None:
            return True
        seen = self.seen.get(lease.key)
        if seen is None:
            return False
        return seen.moved_at is None or now - seen.moved_at > self._lease_duration_s

    def is_blocked(self, lease: Lease, now: float) -> bool:
        """Return whether a pending handoff has to be left alone: alive, not complete, deadline not passed."""
        if lease.checkpoint_owner is None or lease.is_complete or self.is_expired(lease, now):
            return False
        seen = self.seen.get(lease.key)
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
