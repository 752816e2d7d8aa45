"""What a worker does for the lease table itself: keeps its index of leases by owner, and makes a lost table again.

Rules: leases#owner-index, leases#lost-table. A table is made again only if somebody has deleted it under a living
fleet.
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
"""An index that is missing (a migration tool deletes it) or forbidden is asked for again after that."""
LOST_TABLE_LOOK_S = 1.0


async def ensure_index(index: LeaseIndex) -> None:
    """Create the index if it is missing. Raises TableError."""
    if await index.ensure() is IndexStatus.FORBIDDEN:
        log.warning(
            "the index of leases by owner cannot be created: allow dynamodb:UpdateTable and dynamodb:DescribeTable "
            "on the lease table. Until then leases are found by scans",
            extra={"action": "index_forbidden"},
        )


async def keep_index(index: LeaseIndex, clock: Clock) -> None:
    """Ask for the index again whenever it is missing, until cancelled."""
    while True:
        await clock.sleep(INDEX_RETRY_S)
        try:
            if await index.status() is IndexStatus.MISSING:
                await ensure_index(index)
        except TableError as error:
            log.warning("owner index unknown: %s", error, extra={"action": "index_unknown"})


@dataclass(eq=False)
class LostTable:
    """Makes a lost table again. `on_lost` are called when it is gone, and when it was made again."""

    table: StoredTable
    clock: Clock
    worker_id: str
    on_lost: Sequence[Callable[[], None]]
    metrics: Metrics

    async def keep(self, lease_duration_s: float) -> None:
        """Watch the table until cancelled.

        After a lease duration nobody believes to hold a lease, and whoever deleted the table has had time to see.
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
        """End what was believed of the rows."""
        for forget in self.on_lost:
            forget()

    async def _restore(self, lost_since: float) -> None:
        try:
            count = await self.table.restore(self.worker_id)
        except TableError as error:
            log.error("the lease table cannot be made again yet: %s", error, extra={"action": "table_lost"})
            return
        self._forget()
        log.error("the lease table was made again, %d rows of it here", count, extra={"action": "table_restored"})
        if count:  # the others have found all rows there, and need not say so too
            ago_s = self.clock.monotonic() - lost_since
            self.metrics.events.note(EventKind.TABLE, "the lease table is gone", ago_s=ago_s)
            self.metrics.events.note(EventKind.TABLE, f"the lease table was made again, {count} rows by this worker")
