"""`OtherWorkers`: which leases other workers were seen to renew, from scan to scan of the lease table. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mld.core.steps import finish
from mld.fleet.observations import Observations
from mld.leases.lease import Lease


class OtherWorkers:
    """Notes each scan of the lease table. Times are monotonic seconds."""

    def __init__(self, lease_duration_s: float) -> None:
        self._observations = Observations(lease_duration_s=lease_duration_s, handoff_timeout_s=0.0)
        self._since: dict[tuple[str, str], float] = {}
        """When a lease was first seen with this owner, by lease key and owner."""

    def looked(self, leases: Sequence[Lease], now: float) -> None:
        """Note a scan that ended at `now` and showed these leases."""
        finish(self._observations.scanned(leases, now))
        owned = {(lease.key, lease.actual_owner) for lease in leases if lease.actual_owner is not None}
        self._since = {(key, owner): self._since.get((key, owner), now) for key, owner in owned if owner is not None}

    def is_renewed(self, lease: Lease, now: float) -> bool:
        """Return whether the lease's owner was seen to renew it within a lease duration before `now`."""
        owner = lease.actual_owner
        if owner is None or self._observations.is_expired(lease, now):
            return False
        moved_at, since = self._observations.moved_at(lease), self._since.get((lease.key, owner))
        return moved_at is not None and since is not None and moved_at > since

    def at_work(self, leases: Iterable[Lease], now: float) -> frozenset[str]:
        """Return the workers that were seen to renew one of the leases."""
        return frozenset(str(lease.actual_owner) for lease in leases if self.is_renewed(lease, now))

    def undecided(self, leases: Iterable[Lease], now: float) -> bool:
        """Return whether one of the leases was not watched long enough to know whether its owner renews it."""
        owned = (lease for lease in leases if lease.actual_owner is not None and not lease.is_complete)
        return any(not self._observations.is_expired(lease, now) for lease in owned)
