"""`ChildAdopter`: takes leases of child shards that this worker has just created (coordination#child-leases).

It takes as many as this worker has room for. The others are left without an owner; some worker of the fleet gets them a
moment later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass

from mld.core.background_tasks import BackgroundTasks
from mld.core.error_boundary import contained
from mld.core.errors import TableError
from mld.fleet.departure import Departure
from mld.leases import writes
from mld.leases.discovery import LeaseDiscovery
from mld.leases.keeper import LeaseKeeper
from mld.leases.lease import loads_of
from mld.leases.table import LeaseTable, Refusal

log = logging.getLogger(__name__)


@dataclass(eq=False)
class ChildAdopter:
    """Assigns leases of child shards to `worker_id` in the background, one at a time: the next lease is looked at only
    when the one before is held or left to others.
    """

    table: LeaseTable
    keeper: LeaseKeeper
    discovery: LeaseDiscovery
    departure: Departure
    _: KW_ONLY
    worker_id: str

    def __post_init__(self) -> None:
        self._one_by_one = asyncio.Lock()  # held while a lease is being taken
        self._adopting = BackgroundTasks()
        self._stopped = False

    def adopt(self, keys: Iterable[str]) -> None:
        """Take those of the leases `keys` that still have no owner. Errors are logged."""
        self._adopting.spawn(self._adopt(keys))

    def stop(self) -> None:
        """Take no more leases."""
        self._stopped = True

    def abandon(self) -> None:
        """Cancel the adoptions that are under way, without waiting for their end."""
        self._adopting.cancel()

    async def _adopt(self, keys: Iterable[str]) -> None:
        """Take the leases one after the other. A lease whose row cannot be read or written is left to the leader."""
        for key in keys:
            try:
                async with self._one_by_one:
                    await self._adopt_one(key)
            except TableError as error:
                log.info("child lease %s left to the leader: %s", key, error, extra={"action": "child_not_adopted"})

    async def _adopt_one(self, key: str) -> None:
        """Assign the lease to this worker and renew it at once, if it has no owner and this worker has room."""
        lease = await contained(self.table.get(key), "adopting a child lease", key)
        if lease is None or lease.actual_owner is not None or self._stopped or not self._has_room():
            return
        row = await contained(self.table.apply(writes.assign(lease, self.worker_id)), "adopting")
        if not isinstance(row, Refusal):
            await self.keeper.resumer.reacquire([row])

    def _has_room(self) -> bool:
        """Return whether this worker may have one more lease, in addition to those that it holds and those that are
        assigned to it but still held by their previous owners.
        """
        loads = loads_of(held.lease for held in self.keeper.held().values())
        return loads[self.worker_id] + len(self.discovery.pending) < self.departure.room
