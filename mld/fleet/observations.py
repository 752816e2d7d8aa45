"""`Observations`: derives from repeated reads of the table when each lease last moved, and since when its handoff has
been pending. Pure.

Rules: coordination#expired-leases, coordination#pending-handoffs. Time is monotonic seconds, passed in with each
observation. A lease *moves* when its row changes as a renewal or a new owner changes it:

    event                                            when the lease last moved (`moved_at`)
    we read the row for the first time, no owner     long ago (`NEVER`)
    we read the row for the first time, with owner   now
    we read another counter or actual owner          now; even if the counter is smaller: a table may be restored
    we read another heartbeat of the owner           now (leases#marked-rows)
    we read the same                                 as before
    we have assigned the lease ourselves             now, with the counter in the answer

    event                                            deadline of the handoff
    we read a row without `checkpointOwner`          none
    we read a new handoff, or one of other owners    now + handoff timeout + lease duration
    we read the same handoff again                   as before

A lease is *expired* if it has no owner, or has not moved for more than a lease duration. It is *blocked* while it has a
pending handoff that the leader should leave alone. A handoff is *stuck* if it is past its deadline and its owner lives.

A new leader begins without observations (`forget`), so it has to watch a lease for a lease duration before it may call
the lease expired. Single rows that are read between two scans (`saw`) count in the same way.
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
        """For each lease: its counter, its actual owner, and the owner's heartbeat if that replaces renewals
        (`Lease.heartbeat`).
        """
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
            present = {lease.key for lease in leases}
            self._rows.keep(present)
            self._handoffs.keep(present)

    def saw(self, lease: Lease, now: float) -> None:
        """Note one row, read at `now`, and which handoff is pending in it, if any. A row that is new here counts as
        unchanged since `now`; if nobody has the lease, since `NEVER`.
        """
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
    """Return the parts of a row by which its lease is seen to move: if one of them changes, the lease has moved."""
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
