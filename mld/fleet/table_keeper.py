"""`TableKeeper`: makes the lease table again that somebody has deleted under a living fleet (leases#lost-table)."""

from __future__ import annotations

import logging

from mld.core.clock import Clock
from mld.core.errors import TableError
from mld.leases.table import StoredTable

log = logging.getLogger(__name__)

LOOK_S = 1.0


class TableKeeper:
    """Looks whether the table is gone; what it knows of that is the table's own."""

    def __init__(self, table: StoredTable, clock: Clock, worker_id: str, lease_duration_s: float) -> None:
        self._table = table
        self._clock = clock
        self._worker_id = worker_id
        self._lease_duration_s = lease_duration_s

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self._clock.sleep(LOOK_S)
            if self._table.lost_since is not None:
                await self._recover(self._table.lost_since)

    async def _recover(self, lost_since: float) -> None:
        """After a lease duration nobody believes to hold a lease, and whoever deleted the table has had time to see."""
        log.error(
            "the lease table is gone; unless this worker is stopped, it is made again after %.0f s, with the positions "
            "known here",
            self._lease_duration_s,
            extra={"action": "table_lost"},
        )
        await self._clock.sleep(max(0.0, lost_since + self._lease_duration_s - self._clock.monotonic()))
        try:
            count = await self._table.restore(self._worker_id)
        except TableError as error:
            log.error("the lease table cannot be made again yet: %s", error, extra={"action": "table_lost"})
            return
        log.error("the lease table was made again, %d rows of it here", count, extra={"action": "table_restored"})
