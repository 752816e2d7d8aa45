"""What both migrations want to know of the fleet: read for the client version, and heard from the leader's runs for the
tables."""

from __future__ import annotations

from collections.abc import Iterable

from mld.core.clock import Clock
from mld.fleet.migrate import single_table
from mld.fleet.migrate.table_migration import TableMigration
from mld.fleet.migrate.versions import FleetView
from mld.fleet.report.reports import EXPIRED_AFTER_PERIODS, ReportRules
from mld.fleet.report.reports_table import StoredReports
from mld.fleet.values import FleetSnapshot
from mld.leases.lease import Lease
from mld.leases.table import IndexStatus, LeaseIndex, LeaseTable
from mld.metrics.registry import Metrics


class ReadinessReader:
    """Reads what the readiness monitor looks at (coordination#readiness-for-3x-mode)."""

    def __init__(
        self, table: LeaseTable, index: LeaseIndex, reports: StoredReports, rules: ReportRules, clock: Clock
    ) -> None:
        self._table = table
        self._index = index
        self._reports = reports
        self._rules = rules
        self._clock = clock

    async def read(self) -> FleetView:
        """Raise TableError."""
        index = await self._index.status()
        scan = await self._table.scan()
        now = self._clock.wall()
        believed_s = EXPIRED_AFTER_PERIODS * self._rules.report_period_s
        reporting = frozenset(
            report.worker
            for report in await self._reports.beside(scan)
            if report.updated_at_s is not None and report.updated_at_s + believed_s > now
        )
        return FleetView(index is IndexStatus.ACTIVE, {lease.key: lease.owner for lease in scan.leases}, reporting)


class Summaries:
    """Tells the table migration what the leader's assigner has just read (coordination#table-migration-steps)."""

    def __init__(
        self,
        migration: TableMigration,
        clock: Clock,
        *,
        lease_duration_s: float,
        report_period_s: float,
        metrics: Metrics | None = None,
    ) -> None:
        self._counts = (Metrics() if metrics is None else metrics).worker.operations.fleet_versions
        self._migration = migration
        self._clock = clock
        self._lease_duration_s = lease_duration_s
        self._report_period_s = report_period_s
        self._first_seen: dict[str, tuple[int, float]] = {}

    def forget(self) -> None:
        """Forget what was seen before leadership was won or lost."""
        self._first_seen = {}

    def on_loaded(self, seen: FleetSnapshot) -> None:
        """See `assigner.Listener`."""
        summary = single_table.summarise(
            seen.leases,
            seen.reports,
            wall_s=self._clock.wall(),
            at=self._clock.monotonic(),
            expired=seen.expired,
            unproven=self._unproven(seen.leases),
            report_period_s=self._report_period_s,
        )
        if summary is not None:
            self._counts.lowest_code.note(summary.lowest_code)
        self._migration.push(summary)

    def _unproven(self, leases: Iterable[Lease]) -> set[str]:
        """Return leases that this leader has neither seen move nor watched for a lease duration."""
        now = self._clock.monotonic()
        self._first_seen = {lease.key: self._first_seen.get(lease.key, (lease.counter, now)) for lease in leases}
        return {
            lease.key
            for lease in leases
            if self._first_seen[lease.key][0] == lease.counter
            and now - self._first_seen[lease.key][1] <= self._lease_duration_s
        }
