"""`Departure`: what becomes of the leases of a worker that stops.

Rules: coordination#leaving-workers, leases#release-on-stop. Before this the worker says on its report that it leaves.
It gives each lease to a living worker as soon as its consumer is done (`LeaseKeeper.leave_to`), instead of leaving it
to the next assignment run: one scan tells who is there. Who leaves, is drained or is dead gets nothing (`Roster`), and
as a consumer may take long to end, the receiver's report is read once more before each gift. At the end it releases the
leases that were assigned to it meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from mld.core.clock import Clock
from mld.core.errors import TableError
from mld.core.surviving import ours
from mld.fleet.report.stored_reports import StoredReports
from mld.fleet.roster import Roster
from mld.leases import writes
from mld.leases.keeper import LeaseKeeper
from mld.leases.table import LeaseIndex, LeaseTable, TableScan

log = logging.getLogger(__name__)

SCAN_TIMEOUT_S = 2.0  # who is still there: worth a moment, not the time that the children need to stop
LAST_LOOK_TIMEOUT_S = 2.0


class Departure:
    """Whom the leases of `worker_id` go to; nobody gets more than `leases_max`."""

    def __init__(
        self,
        table: LeaseTable,
        index: LeaseIndex,
        keeper: LeaseKeeper,
        reports: StoredReports,
        roster: Roster,
        clock: Clock,
        *,
        worker_id: str,
        leases_max: int,
    ) -> None:
        self._table = table
        self._index = index
        self._keeper = keeper
        self._reports = reports
        self._roster = roster
        self._clock = clock
        self._worker_id = worker_id
        self._leases_max = leases_max
        self._receivers: dict[str, str] = {}
        self._asking: dict[str, asyncio.Future[bool]] = {}

    async def name_receivers(self) -> None:
        """Tell the keeper who gets each lease that is held; nobody does if that cannot be known in time."""
        try:
            async with asyncio.timeout(SCAN_TIMEOUT_S):
                self._receivers = await ours(self._receivers_of_held(), "looking for receivers")
                self._keeper.leave_to(self._receiver_now)
        except (TableError, TimeoutError) as error:
            log.warning("leases are released without receivers: %s", error, extra={"action": "heirs_unknown"})

    async def _receiver_now(self, key: str) -> str | None:
        """Who gets this lease now; None if it left meanwhile, or cannot be asked for."""
        receiver = self._receivers.get(key)
        if receiver is None:
            return None
        if receiver not in self._asking:
            self._asking[receiver] = asyncio.ensure_future(self._may_receive(receiver))
            self._asking[receiver].add_done_callback(lambda _: self._asking.pop(receiver))
        return receiver if await asyncio.shield(self._asking[receiver]) else None

    async def _may_receive(self, receiver: str) -> bool:
        try:
            return await ours(self._reports.may_receive(receiver), "looking for a receiver")
        except TableError as error:
            log.info("receiver %s is not known to be there: %s", receiver, error, extra={"action": "heirs_unknown"})
            return False

    async def release_late_leases(self) -> None:
        """Release the leases that were assigned to us and never held."""
        try:
            async with asyncio.timeout(LAST_LOOK_TIMEOUT_S):
                await ours(self._release_late_leases(), "taking a last look")
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

    async def _release_late_leases(self) -> None:
        found = [await self._table.get(key) for key in await self._index.keys_owned_by(self._worker_id)]
        for lease in found:
            if lease is None or lease.actual_owner != self._worker_id:
                continue
            if await self._table.apply(writes.release(lease)):
                log.info("late lease %s released", lease.key, extra={"action": "late_lease", "shard": lease.key})
