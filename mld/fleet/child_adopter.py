"""`ChildAdopter`: takes the leases of child shards that this worker has just created (coordination#child-leases)."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from mld.errors import TableError
from mld.fleet.loops import Tasks
from mld.leases.discovery import LeaseDiscovery
from mld.leases.table import LeaseTable, Refusal
from mld.surviving import ours

log = logging.getLogger(__name__)


class ChildAdopter:
    """Assigns them to `worker_id` in the background; `discovery` begins to hold them."""

    def __init__(self, table: LeaseTable, discovery: LeaseDiscovery, *, worker_id: str) -> None:
        self._table = table
        self._discovery = discovery
        self._worker_id = worker_id
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
                lease = await ours(self._table.get(key), "adopting a child lease", key)
                if lease is None or lease.actual_owner is not None or self._stopped:
                    continue
                if not isinstance(await ours(self._table.assign(lease, self._worker_id), "adopting"), Refusal):
                    self._discovery.wake((key,))
            except TableError as error:
                log.info("child lease %s left to the leader: %s", key, error, extra={"action": "child_not_adopted"})
