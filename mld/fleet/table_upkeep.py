"""Creates what is missing of the lease table while a worker runs: the index of leases by owner (`keep_index`), and the
table itself, if somebody deletes it while the fleet uses it (`LostTable`).

Rules: leases#owner-index, leases#lost-table.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mld.core.clock import Clock
from mld.core.errors import TableError
from mld.leases.table import IndexStatus, LeaseIndex, StoredTable
from mld.metrics.events import EventKind
from mld.metrics.registry import Metrics

log = logging.getLogger(__name__)

INDEX_RETRY_S = 60.0
"""How often to check whether the index is missing (a migration tool deletes it)."""
LOST_TABLE_LOOK_S = 1.0
"""How often to check whether requests have found the table missing."""


async def ensure_index(index: LeaseIndex) -> None:
    """Create the index if it is missing. Raises TableError."""
    if await index.ensure() is IndexStatus.FORBIDDEN:
        log.warning(
            "the index of leases by owner cannot be created: allow dynamodb:UpdateTable and dynamodb:DescribeTable "
            "on the lease table. Until then leases are found by scans",
            extra={"action": "index_forbidden"},
        )


async def keep_index(index: LeaseIndex, clock: Clock) -> None:
    """Create the index whenever it is missing, until cancelled."""
    while True:
        await clock.sleep(INDEX_RETRY_S)
        try:
            if await index.status() is IndexStatus.MISSING:
                await ensure_index(index)
        except TableError as error:
            log.warning("owner index unknown: %s", error, extra={"action": "index_unknown"})


@dataclass(eq=False)
class LostTable:
    """Restores a lost table. The callbacks `on_lost` are called when the table is gone, and again when it is
    restored.
    """

    table: StoredTable
    clock: Clock
    worker_id: str
    on_lost: Sequence[Callable[[], None]]
    metrics: Metrics

    async def keep(self, lease_duration_s: float) -> None:
        """Watch the table until cancelled, and restore it if it is lost.

        It is restored a lease duration after the loss. By then no worker believes any more that it holds a lease, and
        the person who deleted the table has had time to see the error in the log.
        """
        while True:
            await self.clock.sleep(LOST_TABLE_LOOK_S)
            if (lost_since := self.table.lost_since) is None:
                continue
            log.error(
                "the lease table is gone; unless this worker is stopped, it is made again after %.0f s, with the "
                "positions known here",
                lease_duration_s,
                extra={"action": "table_lost"},
            )
            self.metrics.worker.tables_lost += 1
            self._forget()
            await self.clock.sleep(max(0.0, lost_since + lease_duration_s - self.clock.monotonic()))
            while self.table.lost_since is not None:
                await self._restore(lost_since)
                if self.table.lost_since is not None:
                    await self.clock.sleep(lease_duration_s)

    def _forget(self) -> None:
        """Have all parts of the worker forget the rows that they have seen."""
        for forget in self.on_lost:
            forget()

    async def _restore(self, lost_since: float) -> None:
        """Try once to restore the table, and record it in the history if this worker has created rows."""
        try:
            count = await self.table.restore(self.worker_id)
        except TableError as error:
            log.error("the lease table cannot be made again yet: %s", error, extra={"action": "table_lost"})
            return
        self._forget()
        log.error("the lease table was made again, %d rows of it here", count, extra={"action": "table_restored"})
        if count:  # else another worker has restored all rows, and reports it
            ago_s = self.clock.monotonic() - lost_since
            self.metrics.events.note(EventKind.TABLE, "the lease table is gone", ago_s=ago_s)
            self.metrics.events.note(EventKind.TABLE, f"the lease table was made again, {count} rows by this worker")
