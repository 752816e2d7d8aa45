"""`Departure`: what becomes of the leases of a worker that stops.

Rules: coordination#leaving-workers, leases#release-on-stop. A worker that stops gives each lease to a living worker as
soon as its consumer is done (`LeaseKeeper.leave_to`), instead of leaving it to the next assignment run: one scan tells
who is there. At the end it looks once more for leases that were assigned to it meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from mld.clock import Clock
from mld.errors import TableError
from mld.fleet.report.stored_reports import StoredReports
from mld.fleet.roster import Roster
from mld.leases.keeper import LeaseKeeper
from mld.leases.table import LeaseTable, Refusal, TableScan
from mld.surviving import ours

log = logging.getLogger(__name__)

SCAN_TIMEOUT_S = 2.0  # who is still there: worth a moment, not the time that the children need to stop
LAST_LOOK_TIMEOUT_S = 2.0


class Departure:
    """Whom the leases of `worker_id` go to; nobody gets more than `leases_max`."""

    def __init__(
        self,
        table: LeaseTable,
        keeper: LeaseKeeper,
        reports: StoredReports,
        roster: Roster,
        clock: Clock,
        *,
        worker_id: str,
        leases_max: int,
    ) -> None:
        self._table = table
        self._keeper = keeper
        self._reports = reports
        self._roster = roster
        self._clock = clock
        self._worker_id = worker_id
        self._leases_max = leases_max

    async def name_receivers(self) -> None:
        """Tell the keeper who gets each lease that is held; nobody does if that cannot be known in time."""
        try:
            async with asyncio.timeout(SCAN_TIMEOUT_S):
                self._keeper.leave_to(await ours(self._receivers_of_held(), "looking for receivers"))
        except (TableError, TimeoutError) as error:
            log.warning("leases are released without receivers: %s", error, extra={"action": "heirs_unknown"})

    async def give_on_late_leases(self) -> None:
        """Leases that were assigned to us and never held go to the receivers of the others, else they are released."""
        try:
            async with asyncio.timeout(LAST_LOOK_TIMEOUT_S):
                await ours(self._give_on_late_leases(), "taking a last look")
        except (TableError, TimeoutError) as error:
            log.info("no last look for leases: %s", error, extra={"action": "last_look_failed"})

    async def receivers_of(self, keys: Iterable[str]) -> dict[str, str]:
        """Return who of the others gets these leases while we stay, by key; no drained one, which would give them back.

        Raises TableError.
        """
        found = await self._find_receivers(await self._table.scan(), keys)
        return {key: worker for key, worker in found.items() if worker not in self._roster.drained}

    async def _receivers_of_held(self) -> dict[str, str]:
        return await self._find_receivers(await self._table.scan(), self._keeper.held())

    async def _find_receivers(self, scan: TableScan, keys: Iterable[str]) -> dict[str, str]:
        now = self._clock.wall()
        found = await self._reports.beside(scan)
        return self._roster.receivers(keys, scan.leases, found, now, self._leases_max)

    async def _give_on_late_leases(self) -> None:
        found = [await self._table.get(key) for key in await self._table.keys_owned_by(self._worker_id)]
        late = [lease for lease in found if lease is not None and lease.actual_owner == self._worker_id]
        if not late:
            return
        receivers = await self._find_receivers(await self._table.scan(), [lease.key for lease in late])
        for lease in late:
            receiver = receivers.get(lease.key)
            if receiver is None:
                await self._table.release(lease)
            elif not isinstance(await self._table.assign(lease, receiver), Refusal):
                fields = {"action": "late_lease", "shard": lease.key}
                log.info("late lease %s given to %s", lease.key, receiver, extra=fields)
