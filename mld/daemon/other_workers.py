"""`OtherWorkers`: which leases other workers were seen to renew, from scan to scan of the lease table. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from mld.core.stillness import Stillness
from mld.leases.lease import Lease


class OtherWorkers:
    """Notes each scan of the lease table. Times are monotonic seconds."""

    def __init__(self, lease_duration_s: float) -> None:
        self._lease_duration_s = lease_duration_s
        self._rows: Stillness[tuple[str, str | None], tuple[int, str | None]] = Stillness()
        """Counter and heartbeat, by lease key and owner."""

    def looked(self, leases: Iterable[Lease], now: float) -> None:
        """Note a scan that ended at `now` and showed these leases."""
        self._rows.saw_all({_of_owner(lease): (lease.counter, lease.heartbeat) for lease in leases}, now)

    def is_renewed(self, lease: Lease, now: float) -> bool:
        """Return whether the lease's owner was seen to renew it within a lease duration before `now`."""
        return lease.actual_owner is not None and self._rows.has_moved(_of_owner(lease)) and self._may_live(lease, now)

    def at_work(self, leases: Iterable[Lease], now: float) -> frozenset[str]:
        """Return the workers that were seen to renew one of the leases."""
        return frozenset(str(lease.actual_owner) for lease in leases if self.is_renewed(lease, now))

    def undecided(self, leases: Iterable[Lease], now: float) -> bool:
        """Return whether one of the leases was not watched long enough to know whether its owner renews it."""
        owned = (lease for lease in leases if lease.actual_owner is not None and not lease.is_complete)
        return any(self._may_live(lease, now) for lease in owned)

    def _may_live(self, lease: Lease, now: float) -> bool:
        return not self._rows.is_still(_of_owner(lease), now, self._lease_duration_s)


def _of_owner(lease: Lease) -> tuple[str, str | None]:
    return lease.key, lease.actual_owner
