"""`Routes`: knows in which table each of the fleet's rows other than leases is. Pure.

KCL 3.0 to 3.4 keeps these rows in two further tables, the coordinator table and the worker-metrics table (the *legacy*
tables); KCL 3.5 keeps them in the lease table.

Rules: coordination#table-layout, coordination#table-migration-status. A Java leader moves the rows from three tables
into one, and writes its progress into the row `TableMigration3.5` of the legacy coordinator table. Each worker derives
its own status from that row and its configuration. A leader of mld never changes the row.
"""

from __future__ import annotations

from dataclasses import dataclass

from mld.core.errors import StartupError
from mld.fleet.migrate.states import TABLE_MIGRATION, TableStatus
from mld.leases.rows import COORDINATOR_TABLE_KEY, LEASE_TABLE_KEY, REPORTS_TABLE_KEY, Place
from mld.properties.values import ClientVersionConfig

# --- local status ----------------------------------------------------------------------------------------------------


def initial_status(stored: TableStatus | None, *, coordinator_table: str | None, migrate: bool) -> TableStatus:
    """Return the status in which a worker starts. `stored` is the status in the row, None if there is no row;
    `coordinator_table` is None if there is no legacy table; `migrate` is the value of migrateAllEntitiesToLeaseTable.

    Raises StartupError if the fleet is not ready for migrate=true.
    """
    if coordinator_table is None:
        return TableStatus.COMPLETE
    if migrate and stored in (None, TableStatus.INIT):
        found = "no row" if stored is None else "INIT in the row"
        raise StartupError(
            f"migrateAllEntitiesToLeaseTable=true is too early: the coordinator table {coordinator_table} exists and "
            f"has {found} {TABLE_MIGRATION.key}, so not every worker is known to support a single table. Start all "
            "workers with migrateAllEntitiesToLeaseTable=false and wait until the row says "
            f"{TableStatus.DEPLOYED.value}: a Java worker of 3.5 writes that when it has led the fleet for an hour "
            "without an older worker. A fleet of mld alone stays on its three tables"
        )
    return refreshed_status(TableStatus.INIT, stored, migrate=migrate)


def refreshed_status(current: TableStatus, stored: TableStatus | None, *, migrate: bool) -> TableStatus:
    """Return the status of a running worker after it has read the row again; `stored` is the status in the row.
    COMPLETE is final.

    If the row is missing and `migrate` is set, the status stays as it is: a Java leader will write the row again.
    """
    if current is TableStatus.COMPLETE:
        return current
    match stored:
        case None:
            return current if migrate else TableStatus.INIT
        case TableStatus.INIT | TableStatus.COMPLETE:
            return stored
        case _:
            return TableStatus.PENDING if migrate else TableStatus.DEPLOYED


# --- routing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Routes:
    """The tables of an application's rows. A legacy table is None if it did not exist when the worker started.

    Where a worker writes its rows depends on the status at its start (`at_start`), and does not change while it runs.
    Where it reads rows, and where the lock is, depends on the present status (`live`).
    """

    lease_table: str
    coordinator_table: str | None = None
    reports_table: str | None = None
    at_start: TableStatus = TableStatus.COMPLETE
    live: TableStatus = TableStatus.COMPLETE

    @property
    def leases(self) -> Place:
        return Place(self.lease_table, LEASE_TABLE_KEY)

    @property
    def coordinator(self) -> Place | None:
        return None if self.coordinator_table is None else Place(self.coordinator_table, COORDINATOR_TABLE_KEY)

    @property
    def reports(self) -> Place | None:
        return None if self.reports_table is None else Place(self.reports_table, REPORTS_TABLE_KEY)

    @property
    def lock_place(self) -> Place:
        """The present place of the leader's lock."""
        return self.read_places[0]

    @property
    def read_places(self) -> tuple[Place, ...]:
        """The places in which coordinator rows may be now, in the order in which they are searched."""
        return self._with_legacy(self.coordinator)

    @property
    def report_read_places(self) -> tuple[Place, ...]:
        """The places in which worker reports may be now."""
        return self._with_legacy(self.reports)

    @property
    def write_place(self) -> Place:
        """The place in which this worker writes and deletes coordinator rows, for as long as it runs."""
        return self.leases if self._writes_into_lease_table or self.coordinator is None else self.coordinator

    @property
    def report_place(self) -> Place | None:
        """The place of this worker's own report, for as long as it runs; None if the table for it is missing."""
        return self.leases if self._writes_into_lease_table else self.reports

    @property
    def _writes_into_lease_table(self) -> bool:
        """Whether this worker writes its rows other than leases into the lease table, too."""
        return self.at_start in (TableStatus.COMPLETE, TableStatus.PENDING)

    def _with_legacy(self, legacy: Place | None) -> tuple[Place, ...]:
        """Return the places to search: the legacy table, if rows may still be there, and the lease table."""
        return (self.leases,) if self.live is TableStatus.COMPLETE or legacy is None else (legacy, self.leases)


def several_streams_refusal(lease_table: str) -> str:
    """Return why a worker of several streams does not start on a table that KCL 2.x may use."""
    return (
        f"mld.streams: their list would be a row of the lease table {lease_table}, whose leases KCL 2.x has made, and "
        "2.x could not read the table any more. When no worker of 2.x is left, set "
        f"clientVersionConfig={ClientVersionConfig.VERSION_3X.value}; until then read the streams with Java"
    )


def missing_reports_warning(routes: Routes, reports_name: str) -> str | None:
    """Return a warning if the legacy coordinator table exists without its worker-metrics table, else None."""
    if routes.report_place is not None:
        return None
    return (
        f"the coordinator table {routes.coordinator_table} exists and the worker-metrics table {reports_name} does "
        "not: this worker cannot report and is given no leases. Set mld.metadataLayout=legacy to have the table "
        "created, or correct workerMetricsTableName"
    )
