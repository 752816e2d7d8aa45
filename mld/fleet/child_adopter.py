"""`ChildAdopter`: takes the leases of child shards that this worker has just created (coordination#child-leases).

As many as this worker has room for; the others are left to the fleet, and taken by anybody a moment later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from mld.core.errors import TableError
from mld.core.surviving import ours
from mld.fleet.loops import Tasks
from mld.leases import writes
from mld.leases.discovery import LeaseDiscovery
from mld.leases.keeper import LeaseKeeper
from mld.leases.room import loads_of
from mld.leases.table import LeaseTable, Refusal

log = logging.getLogger(__name__)


class ChildAdopter:
    """Assigns them to `worker_id` in the background, one after the other, each held before the next."""

    def __init__(
        self, table: LeaseTable, keeper: LeaseKeeper, discovery: LeaseDiscovery, *, worker_id: str, leases_max: int
    ) -> None:
        self._table = table
        self._keeper = keeper
        self._discovery = discovery
        self._worker_id = worker_id
        self._leases_max = leases_max
        self._one_by_one = asyncio.Lock()
        self._adopting = Tasks()
        self._stopped = False

    def adopt(self, keys: Iterable[str]) -> None:
        """Take those of these leases that are still nobody's. Errors are logged."""
        self._adopting.spawn(self._adopt(keys))

    def stop(self) -> None:
        """Take no more."""
        self._stopped = True

    def abandon(self) -> None:
        """End without waiting."""
        self._adopting.cancel()

    async def _adopt(self, keys: Iterable[str]) -> None:
        for key in keys:
            try:
                async with self._one_by_one:
                    await self._adopt_one(key)
            except TableError as error:
                log.info("child lease %s left to the leader: %s", key, error, extra={"action": "child_not_adopted"})

    async def _adopt_one(self, key: str) -> None:
        lease = await ours(self._table.get(key), "adopting a child lease", key)
        if lease is None or lease.actual_owner is not None or self._stopped or not self._has_room():
            return
        row = await ours(self._table.apply(writes.assign(lease, self._worker_id)), "adopting")
        if not isinstance(row, Refusal):
            await self._keeper.reacquire([row])

    def _has_room(self) -> bool:
        held = loads_of(one.lease for one in self._keeper.held().values())
        return held[self._worker_id] + len(self._discovery.pending) < self._leases_max
