"""`Observations`: who renews each lease, and since when a handoff is pending, look after look. Pure.

Rules: coordination#expired-leases, coordination#pending-handoffs. Time is monotonic seconds, passed in with each
observation.

    seen                                        moved_at
    first time, nobody's lease                  long ago (`NEVER`)
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

from mld.core.steps import Steps
from mld.core.stillness import NEVER, Stillness
from mld.leases.lease import Lease

STEP_LEASES = 200  # a fraction of a millisecond of work between two yields


class Observations:
    """The leader's view of every lease, over its runs."""

    def __init__(self, *, lease_duration_s: float, handoff_timeout_s: float) -> None:
        self._lease_duration_s = lease_duration_s
        self._patience_s = handoff_timeout_s + lease_duration_s
        self._rows: Stillness[str, tuple[int, str | None, str | None]] = Stillness()
        """Counter, actual owner, and heartbeat of the owner, where that stands for renewals (`Lease.heartbeat`)."""
        self._handoffs: Stillness[str, tuple[str | None, str | None]] = Stillness()
        """The next owner and the one that is to hand over, of each pending handoff."""

    def forget(self) -> None:
        """Forget what was seen before leadership was won, or of a table that is gone."""
        self._rows.forget_all()
        self._handoffs.forget_all()

    def scanned(self, leases: Sequence[Lease], now: float) -> Steps[None]:
        """Take note of these leases, and no others, shown by a scan that ended at `now`."""
        for number, lease in enumerate(leases):
            self.saw(lease, now)
            if number % STEP_LEASES == STEP_LEASES - 1:
                yield
        if len(self._rows) > len(leases):
            there = {lease.key for lease in leases}
            self._rows.keep(there)
            self._handoffs.keep(there)

    def saw(self, lease: Lease, now: float) -> None:
        """Take note of one row, read at `now`."""
        self._rows.saw(lease.key, _shown(lease), now, NEVER if lease.actual_owner is None else now)
        if lease.checkpoint_owner is None:
            self._handoffs.forget(lease.key)
        else:
            self._handoffs.saw(lease.key, (lease.owner, lease.checkpoint_owner), now)

    def assigned(self, lease: Lease, now: float) -> None:
        """Note that our own assignment was confirmed with this row; its new owner has a whole lease duration to
        start.
        """
        self._rows.begin(lease.key, _shown(lease), now)
        self._handoffs.forget(lease.key)

    def handoff_begun(self, lease: Lease, now: float) -> None:
        """Note that our own handoff was confirmed with this row, whose counter it left alone."""
        if lease.key not in self._rows:
            self._rows.begin(lease.key, _shown(lease), now)
        self._handoffs.begin(lease.key, (lease.owner, lease.checkpoint_owner), now)

    def moved_at(self, key: str) -> float:
        """Return when a lease that was observed was last seen to move; `NEVER` if it was nobody's from the start."""
        return self._rows.since(key)

    def is_expired(self, lease: Lease, now: float) -> bool:
        """Return whether it is nobody's, or has stood still for longer than a lease duration; False if it was never
        observed.
        """
        return lease.actual_owner is None or self._rows.is_still(lease.key, now, self._lease_duration_s)

    def is_blocked(self, lease: Lease, now: float) -> bool:
        """Return whether a pending handoff has to be left alone: alive, not complete, deadline not passed."""
        if lease.checkpoint_owner is None or lease.is_complete or self.is_expired(lease, now):
            return False
        return not self._handoffs.is_still(lease.key, now, self._patience_s)


def _shown(lease: Lease) -> tuple[int, str | None, str | None]:
    return lease.counter, lease.actual_owner, lease.heartbeat


def expired_keys(observations: Observations, leases: Iterable[Lease], now: float) -> Steps[frozenset[str]]:
    """Find the leases that are nobody's or expired."""
    expired = []
    for number, lease in enumerate(leases):
        if observations.is_expired(lease, now):
            expired.append(lease.key)
        if number % STEP_LEASES == STEP_LEASES - 1:
            yield
    return frozenset(expired)
