"""What a worker does for the lease table itself: its index of leases by owner (leases#owner-index), and the table made
again that somebody has deleted under a living fleet (leases#lost-table)."""

from __future__ import annotations

import logging

from mld.core.clock import Clock
from mld.core.errors import TableError
from mld.leases.table import IndexStatus, LeaseIndex, StoredTable

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


async def keep_table(table: StoredTable, clock: Clock, worker_id: str, lease_duration_s: float) -> None:
    """Make a lost table again, until cancelled.

    After a lease duration nobody believes to hold a lease, and whoever deleted the table has had time to see.
    """
    while True:
        await clock.sleep(LOST_TABLE_LOOK_S)
        if (lost_since := table.lost_since) is None:
            continue
        log.error(
            "the lease table is gone; unless this worker is stopped, it is made again after %.0f s, with the positions "
            "known here",
            lease_duration_s,
            extra={"action": "table_lost"},
        )
        await clock.sleep(max(0.0, lost_since + lease_duration_s - clock.monotonic()))
        try:
            count = await table.restore(worker_id)
        except TableError as error:
            log.error("the lease table cannot be made again yet: %s", error, extra={"action": "table_lost"})
        else:
            log.error("the lease table was made again, %d rows of it here", count, extra={"action": "table_restored"})
