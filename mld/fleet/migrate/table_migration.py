"""`TableMigration`: knows in which tables the fleet's rows are, while a Java leader may move them into one table.

Rules: coordination#table-layout, coordination#table-migration-status; the decisions are in `single_table`. An mld
leader moves no rows, and does not change the row `TableMigration3.5`: the move pauses until a Java worker leads.
"""

from __future__ import annotations

import logging
from dataclasses import KW_ONLY, dataclass, field, replace

from mld.core.clock import Clock
from mld.core.error_boundary import survived
from mld.core.errors import MldError, StartupError, TableError
from mld.fleet.leader.lock import LOCK_KEY
from mld.fleet.migrate import single_table
from mld.fleet.migrate.single_table import Routes
from mld.fleet.migrate.states import CLIENT_VERSION, TABLE_MIGRATION, TableStatus, UnreadableStateError
from mld.fleet.migrate.states_table import StatesTable
from mld.leases.table_maker import LegacyTable
from mld.metrics.registry import Metrics
from mld.properties.settings import Settings
from mld.properties.values import ClientVersionConfig, MetadataLayout

log = logging.getLogger(__name__)

LEADER_CHECK_S = 5.0  # how often a leader reads the row; leadership itself is checked about once a second
UNREAD_S_MAX = 30.0  # how long a leader goes on while it cannot read the row; Java's followers read it this often
LATE_TABLE_PERIOD_S = 300.0  # how often to check whether a coordinator table has appeared, by accident; not urgent
SINGLE_TABLE_KEYS = (LOCK_KEY, CLIENT_VERSION.key, TABLE_MIGRATION.key)

ORDINALS = {
    TableStatus.INIT: 1,
    TableStatus.DEPLOYED: 2,
    TableStatus.PENDING: 3,
    TableStatus.COMPLETE: 4,
}
UNKNOWN = 0
"""The numbers by which KCL's metrics represent each status; UNKNOWN if there is no row."""


class MigrationCompletedError(MldError):
    """Raised once all rows are in the lease table, so that the lock in the legacy table must be given up."""


@dataclass(eq=False)
class TableMigration:
    """Keeps `routes`, the tables of the fleet's rows, up to date while this worker runs.

    `on_check` is the hook of the lock election: each check of the lock also reads the row of the migration. If the row
    cannot be read, `routes` stay as they are.
    """

    states: StatesTable
    clock: Clock
    settings: Settings
    _: KW_ONLY
    coordinator: LegacyTable
    reports: LegacyTable
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        operations = self.metrics.worker.operations
        self._migrates = self.settings.fleet.migrates_to_lease_table
        self._counts, self._starts = operations.table_migration, operations.table_migration_start
        self.routes = Routes(self.settings.lease_table.name)
        """The tables of the fleet's rows now."""
        self._read_at: float | None = None
        """When the row was last read since this worker leads; None if it does not lead."""

    async def start(self) -> TableStatus:
        """Find out in which tables the rows are. Before that only the lease table may be used.

        Raises StartupError with the remedy if the configuration contradicts the tables, or if IAM denies the calls that
        are needed; TableError or UnreadableStateError if a table or the row cannot be read now.
        """
        with self._starts.read_fault.faults(), self._starts.all.timed(self.clock.monotonic):
            return await self._start()

    async def _start(self) -> TableStatus:
        """Find out which tables exist and what the row `TableMigration3.5` says, and choose the routes accordingly. If
        the legacy tables are to be used and do not exist, create them first.
        """
        if self.settings.fleet.metadata_layout is MetadataLayout.LEGACY or await self._is_on_the_way_from_2x():
            await self._ensure_legacy()
        routes = Routes(self.routes.lease_table)
        if await self.coordinator.exists():
            reports = self.reports.name if await self.reports.exists() else None
            routes = replace(routes, coordinator_table=self.coordinator.name, reports_table=reports)
        place = routes.coordinator
        row = None if place is None else await self.states.get(TABLE_MIGRATION, place)
        status = single_table.initial_status(
            None if row is None else row.state, coordinator_table=routes.coordinator_table, migrate=self._migrates
        )
        self.routes = replace(routes, at_start=status, live=status)
        log.info("rows of the fleet: %s", status.value, extra={"action": "table_status"})
        warning = single_table.missing_reports_warning(self.routes, self.reports.name)
        if warning is not None:
            log.error(warning, extra={"action": "reports_table_missing"})
        return status

    async def _is_on_the_way_from_2x(self) -> bool:
        """Return whether this fleet shares its lease table with 2.x, so that its other rows must be kept out of the
        table (coordination#bare-tables). Raises StartupError if there is no other table for them.
        """
        configured, has_several_streams = self.settings.fleet.client_version, self.settings.is_multi_stream
        is_2x = configured is ClientVersionConfig.COMPATIBLE_WITH_2X
        may_be_2x = is_2x or (has_several_streams and configured is not ClientVersionConfig.VERSION_3X)
        if not may_be_2x or await self.coordinator.exists():
            return False
        if not (await self.states.outline(self.routes.leases)).is_of_2x:
            return False
        if has_several_streams:
            raise StartupError(single_table.several_streams_refusal(self.routes.lease_table))
        return True

    async def _ensure_legacy(self) -> None:
        """Create the two legacy tables if they are missing. Raises StartupError if the fleet already uses a single
        table.
        """
        if not await self.coordinator.exists():
            leases = self.routes.leases
            for key in SINGLE_TABLE_KEYS:
                if await self.states.get_item(key, leases) is not None:
                    raise StartupError(
                        f"mld.metadataLayout=legacy, but the fleet uses a single table: {leases.table} has the row "
                        f"{key}, and there is no table {self.coordinator.name}. Remove mld.metadataLayout"
                    )
        for table in (self.coordinator, self.reports):
            await table.ensure()

    async def restore_reports_table(self) -> None:
        """Create the legacy worker-metrics table again if a migration tool has deleted it since the start.

        KCL's tool deletes it after a rollback to 2.x. When the fleet then enters 3.x again, workers of 3.0 to 3.4
        create it. Without the table no worker could report, so only the leader would get leases. Errors are only
        logged, because a worker works even if it cannot report.
        """
        legacy = self.routes.reports
        if legacy is None or self.routes.report_place != legacy or self.status is TableStatus.COMPLETE:
            return
        try:
            if await self.reports.ensure():
                log.warning("table %s made again", self.reports.name, extra={"action": "reports_table_restored"})
        except Exception as error:
            failure = survived(error, "restoring the reports table")
            log.error("%s", failure, extra={"action": "reports_table_missing"})

    @property
    def status(self) -> TableStatus:
        """The present status."""
        return self.routes.live

    async def on_check(self, is_leader: bool) -> None:
        """Read the row `TableMigration3.5` and adopt its status; a leader does so only once in `LEADER_CHECK_S`.

        Raises MigrationCompletedError once the lock has moved to the lease table. Raises TableError if a new leader
        cannot read the row: it must not lead before it has seen that the lock still belongs in this table. A leader
        that has read the row before goes on without it for `UNREAD_S_MAX`.
        """
        place = self.routes.coordinator
        if self.status is TableStatus.COMPLETE or place is None:
            if is_leader:
                self._counts.status.note(ORDINALS[TableStatus.COMPLETE])
            return
        now = self.clock.monotonic()
        if not is_leader:
            self._read_at = None
        elif self._read_at is not None and now - self._read_at < LEADER_CHECK_S:
            return
        try:
            with self._counts.read_fault.faults():
                row = await self.states.get(TABLE_MIGRATION, place)
        except UnreadableStateError as error:
            log.error("%s", error, extra={"action": "table_status_unreadable"})
            return
        except TableError as error:
            if self._read_at is None or now - self._read_at > UNREAD_S_MAX:
                raise
            log.warning("status of the table migration unknown: %s", error, extra={"action": "table_status_unread"})
            return
        stored = None if row is None else row.state
        if is_leader:
            is_new_leader, self._read_at = self._read_at is None, now
            self._counts.status.note(UNKNOWN if stored is None else ORDINALS[stored])
            if is_new_leader and self._migrates and stored is not TableStatus.COMPLETE:
                log.warning(
                    "the move to a single table rests while this worker leads: only a Java leader moves rows. Restart "
                    "this worker until a Java worker of 3.5 leads",
                    extra={"action": "table_move_rests"},
                )
        self._enter(single_table.refreshed_status(self.status, stored, migrate=self._migrates))

    def _enter(self, status: TableStatus) -> None:
        """Enter a status. If it is COMPLETE, raise MigrationCompletedError: the election, which is checking the lock in
        the old table, then releases that lock.
        """
        if status is not self.status:
            log.info("rows of the fleet: %s", status.value, extra={"action": "table_status"})
        self.routes = replace(self.routes, live=status)
        if status is TableStatus.COMPLETE:
            raise MigrationCompletedError("the leader's lock lives in the lease table now")

    async def watch(self) -> None:
        """Check regularly whether a legacy coordinator table has appeared although this worker has started without
        one. Log an error if so, and return.
        """
        while self.routes.coordinator is None:
            await self.clock.sleep(LATE_TABLE_PERIOD_S)
            try:
                appeared = await self.coordinator.exists()
            except Exception as error:
                survived(error, "looking for late tables")
                continue
            if appeared:
                log.error(
                    "table %s has appeared: workers of KCL 3.0 to 3.4 have started beside this fleet, which keeps "
                    "its state in the lease table, and both have a leader. Stop those workers and delete the table, "
                    "or stop all workers and start these with mld.metadataLayout=legacy. On the way from 2.x to 3.x: "
                    "restart this worker, which finds the table then",
                    self.coordinator.name,
                    extra={"action": "layout_conflict"},
                )
                return
