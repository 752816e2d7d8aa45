"""Workers that are not mld, among workers that send heartbeats: kept out at the start, told of later.

Rules: `heartbeats` and, for why they cannot live together, `leases.carried`. Every leader looks, whichever way it
renews itself; while nobody sends heartbeats this costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from mld.core.clock import Clock
from mld.core.errors import StartupError
from mld.core.surviving import survived
from mld.core.turns import a_few_at_a_time
from mld.fleet.heartbeat.beats import epoch_of, java_workers, refusal_text, unreported_owners
from mld.fleet.heartbeat.heartbeat_table import HeartbeatTable
from mld.fleet.loops import Tasks
from mld.fleet.report.reports import ReportRules
from mld.fleet.report.stored_reports import StoredReports
from mld.fleet.values import FleetSnapshot
from mld.leases.table import LeaseTable

log = logging.getLogger(__name__)

UNREPORTED_S_MIN = 8.0
"""A young mld worker has its first report within three seconds; a few attempts may fail."""


class JavaPeers:
    """Which Java workers share the table, and who must know of them. Rules of reports: `rules`."""

    def __init__(
        self,
        table: LeaseTable,
        stored: StoredReports,
        heartbeats: HeartbeatTable,
        clock: Clock,
        *,
        lease_duration_s: float,
        rules: ReportRules,
    ) -> None:
        self._table = table
        self._stored = stored
        self._heartbeats = heartbeats
        self._clock = clock
        self._unreported_s_max = max(lease_duration_s, UNREPORTED_S_MIN)
        self._rules = rules
        self._unreported: dict[str, tuple[float, tuple[str, int]]] = {}
        self._telling = Tasks()

    async def refuse(self) -> None:
        """Raises StartupError if a Java worker is alive, TableError if it cannot be known now."""
        found = await self._stored.beside(await self._table.scan())
        if java := java_workers(found, self._clock.wall(), self._rules):
            raise StartupError(refusal_text(java[0]))

    def look(self, seen: FleetSnapshot) -> tuple[str, tuple[str, ...]] | None:
        """As leader: (a Java worker, the workers that must know of it), from what an assignment run has read."""
        listeners = tuple(
            report.worker
            for report in seen.reports
            if not report.legacy and epoch_of(report.mld.get("heartbeat")) is not None
        )
        if not listeners:
            self._unreported.clear()
            return None
        java = java_workers(seen.reports, self._clock.wall(), self._rules) or self._late(seen)
        return (java[0], listeners) if java else None

    def _late(self, seen: FleetSnapshot) -> list[str]:
        """Owners that have gone on renewing for longer than a young mld worker is without a report."""
        now = self._clock.monotonic()
        owners = unreported_owners(seen.leases, seen.reports, seen.expired)
        self._unreported = {owner: self._unreported.get(owner, (now, seen)) for owner, seen in owners.items()}
        counters = {lease.key: lease.counter for lease in seen.leases}
        return sorted(
            owner
            for owner, (since, (key, counter)) in self._unreported.items()
            if now - since > self._unreported_s_max and counters.get(key, counter) > counter
        )

    def on_loaded(self, seen: FleetSnapshot) -> None:
        """As leader: let those who send heartbeats know of a Java worker."""
        if (found := self.look(seen)) is not None:
            self._telling.spawn(self.tell(*found))

    def abandon(self) -> None:
        """End without waiting."""
        self._telling.cancel()

    async def tell(self, java_worker: str, listeners: Sequence[str]) -> None:
        """Let these workers know. Who was not reached is told after the next run."""

        async def tell(worker: str) -> None:
            try:
                await self._heartbeats.tell(worker, java_worker)
            except Exception as error:
                failure = survived(error, "telling of a Java peer")
                log.info("%s not told of %s: %s", worker, java_worker, failure, extra={"action": "stranger_not_told"})

        await a_few_at_a_time(tell, listeners)
