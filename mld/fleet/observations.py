"""`Observations`: when each lease was last seen to move, and since when a handoff is pending, from repeated reads of
the table. Pure.

Rules: coordination#expired-leases, coordination#pending-handoffs. Time is monotonic seconds, passed in with each
observation.

    a read shows                                moved_at
    a lease for the first time, without owner   long ago (`NEVER`)
    a lease for the first time, with owner      now
    another counter or actual owner             now; also a smaller counter, as a table may be restored
    another heartbeat of its owner              now (leases#marked-rows)
    none of these                               as before
    (we have assigned the lease)                now, with the counter in the answer

    a read shows                                handoff deadline
    no `checkpointOwner`                        none
    a pending handoff, new or of other owners   now + handoff timeout + lease duration
    a pending handoff of the same owners        as before

A lease is *expired* if it has no owner, or has not moved for more than a lease duration. It is *blocked* while it has a
pending handoff that the leader should leave alone. A handoff is *stuck* if it is past its deadline and its owner lives.

A new leader knows nothing (`forget`): it has to watch for a lease duration before it may call a lease expired. Single
rows that are read between two scans (`saw`) count in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mld.core.steps import Steps
from mld.core.stillness import NEVER, Stillness
from mld.leases.lease import Lease

STEP_LEASES = 200  # a fraction of a millisecond of work between two yields


class Observations:
    """One worker's observations of every lease."""

    def __init__(self, *, lease_duration_s: float, handoff_timeout_s: float) -> None:
        self._lease_duration_s = lease_duration_s
        self._patience_s = handoff_timeout_s + lease_duration_s
        self._rows: Stillness[str, tuple[int, str | None, str | None]] = Stillness()
        """Counter, actual owner, and heartbeat of the owner if it replaces renewals (`Lease.heartbeat`)."""
        self._handoffs: Stillness[str, tuple[str | None, str | None]] = Stillness()
        """The next and the present owner of each pending handoff."""

    def forget(self) -> None:
        """Forget everything, because this worker has just begun to lead or the table is gone."""
        self._rows.forget_all()
        self._handoffs.forget_all()

    def scanned(self, leases: Sequence[Lease], now: float) -> Steps[None]:
        """Note all leases of a scan that ended at `now`; forget leases that are not among them."""
        for number, lease in enumerate(leases):
            self.saw(lease, now)
            if number % STEP_LEASES == STEP_LEASES - 1:
                yield
        if len(self._rows) > len(leases):
            there = {lease.key for lease in leases}
            self._rows.keep(there)
            self._handoffs.keep(there)

    def saw(self, lease: Lease, now: float) -> None:
        """Note one row, read at `now`."""
        self._rows.saw(lease.key, _shown(lease), now, NEVER if lease.actual_owner is None else now)
        if lease.checkpoint_owner is None:
            self._handoffs.forget(lease.key)
        else:
            self._handoffs.saw(lease.key, (lease.owner, lease.checkpoint_owner), now)

    def assigned(self, lease: Lease, now: float) -> None:
        """Note that we have assigned a lease; `lease` is the row in the answer. The new owner has a whole lease
        duration to begin its renewals.
        """
        self._rows.begin(lease.key, _shown(lease), now)
        self._handoffs.forget(lease.key)

    def handoff_begun(self, lease: Lease, now: float) -> None:
        """Note that we have begun a handoff, which leaves the counter alone; `lease` is the row in the answer."""
        if lease.key not in self._rows:
            self._rows.begin(lease.key, _shown(lease), now)
        self._handoffs.begin(lease.key, (lease.owner, lease.checkpoint_owner), now)

    def moved_at(self, key: str) -> float:
        """Return when an observed lease was last seen to move; `NEVER` if it has had no owner since the first read."""
        return self._rows.since(key)

    def is_expired(self, lease: Lease, now: float) -> bool:
        """Return whether a lease has no owner, or has not moved for more than a lease duration. A lease with an owner
        that was never observed does not count as expired.
        """
        return lease.actual_owner is None or self._rows.is_still(lease.key, now, self._lease_duration_s)

    def is_blocked(self, lease: Lease, now: float) -> bool:
        """Return whether a pending handoff must be left alone: its owner lives, its shard is not complete, and its
        deadline has not passed.
        """
        if lease.checkpoint_owner is None or lease.is_complete or self.is_expired(lease, now):
            return False
        return not self._handoffs.is_still(lease.key, now, self._patience_s)


def _shown(lease: Lease) -> tuple[int, str | None, str | None]:
    """Return the parts of a row that show that its lease has moved."""
    return lease.counter, lease.actual_owner, lease.heartbeat


def expired_keys(observations: Observations, leases: Iterable[Lease], now: float) -> Steps[frozenset[str]]:
    """Return the keys of the expired leases, found in steps."""
    expired = []
    for number, lease in enumerate(leases):
        if observations.is_expired(lease, now):
            expired.append(lease.key)
        if number % STEP_LEASES == STEP_LEASES - 1:
            yield
    return frozenset(expired)
