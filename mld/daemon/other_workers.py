"""`OtherWorkers`: finds out which leases other workers renew, by comparing scans of the lease table. Pure.

A run until the tip (`RunUntilTip`) ends at once if others are at work, and does not wait for shards that others read.
"""

from __future__ import annotations

from collections.abc import Iterable

from mld.core.stillness import Stillness
from mld.leases.lease import Lease


class OtherWorkers:
    """Keeps when each lease row last changed from one scan of the table to the next. Times are monotonic seconds."""

    def __init__(self, lease_duration_s: float) -> None:
        self._lease_duration_s = lease_duration_s
        self._rows: Stillness[tuple[str, str | None], tuple[int, str | None]] = Stillness()
        """The counter and heartbeat of each lease row, by its key and owner."""

    def looked(self, leases: Iterable[Lease], now: float) -> None:
        """Note the leases that a scan of the table has returned. The scan ended at `now`."""
        self._rows.saw_all({_of_owner(lease): (lease.counter, lease.heartbeat) for lease in leases}, now)

    def is_renewed(self, lease: Lease, now: float) -> bool:
        """Return whether the lease's owner was seen to renew it within a lease duration before `now`."""
        return lease.actual_owner is not None and self._rows.has_moved(_of_owner(lease)) and self._may_live(lease, now)

    def at_work(self, leases: Iterable[Lease], now: float) -> frozenset[str]:
        """Return the workers that were seen to renew at least one of the leases."""
        return frozenset(str(lease.actual_owner) for lease in leases if self.is_renewed(lease, now))

    def undecided(self, leases: Iterable[Lease], now: float) -> bool:
        """Return whether there is a lease that has not been watched for long enough to know whether its owner renews
        it.
        """
        owned = (lease for lease in leases if lease.actual_owner is not None and not lease.is_complete)
        return any(self._may_live(lease, now) for lease in owned)

    def _may_live(self, lease: Lease, now: float) -> bool:
        """Return whether the row has changed, or was first seen with this owner, within the last lease duration."""
        return not self._rows.is_still(_of_owner(lease), now, self._lease_duration_s)


def _of_owner(lease: Lease) -> tuple[str, str | None]:
    """Return the key under which a row is kept: a lease that changes its owner begins anew."""
    return lease.key, lease.actual_owner
