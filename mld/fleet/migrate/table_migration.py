"""`TableMigration`: carries out the migration to a single table, and knows where the fleet's rows live.

Rules: coordination#table-layout, coordination#table-migration-steps; the decisions are in `single_table`. Every write
is conditional on the state that was read; after an error that leaves the outcome open, the state is read again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field, replace

from mld.core.clock import Clock
from mld.core.error_boundary import survived
from mld.core.errors import MldError, StartupError, TableError
from mld.core.stillness import Stillness
from mld.fleet.leader.lock import LOCK_KEY
from mld.fleet.migrate import single_table
from mld.fleet.migrate.row_mover import RowMover
from mld.fleet.migrate.single_table import FleetSummary, Routes, Step
from mld.fleet.migrate.states import (
    CLIENT_VERSION,
    TABLE_MIGRATION,
    TableRow,
    TableStatus,
    UnreadableStateError,
    advanced,
    first_row,
)
from mld.fleet.migrate.states_table import StatesTable
from mld.fleet.report.reports import FleetSnapshot
from mld.leases.lease import Lease
from mld.leases.rows import Place
from mld.leases.table_maker import LegacyTable
from mld.metrics.registry import Metrics
from mld.properties.settings import BAKE_SECONDS_MAX, BAKE_SECONDS_MIN, Settings
from mld.properties.values import ClientVersionConfig, MetadataLayout

log = logging.getLogger(__name__)

LEADER_CHECK_S = 5.0  # leadership is asked about once a second; nothing here is in such a hurry
UNREAD_S_MAX = 30.0  # Java followers look that often: for so long a leader goes on without having read the row
MOVE_RETRY_S = 30.0  # a move that left rows behind needs somebody's help
LATE_TABLE_PERIOD_S = 300.0  # a coordinator table that appears beside us is an accident to report, not to race with
SINGLE_TABLE_KEYS = (LOCK_KEY, CLIENT_VERSION.key, TABLE_MIGRATION.key)

ORDINALS = {
    TableStatus.INIT: 1,
    TableStatus.DEPLOYED: 2,
    TableStatus.PENDING: 3,
    TableStatus.COMPLETE: 4,
}
UNKNOWN = 0
"""What KCL counts each status as."""


class MigrationCompletedError(MldError):
    """Everything lives in the lease table from now on: the lock in the legacy table is to be given up."""


@dataclass(eq=False)
class TableMigration:
    """Where the fleet's rows live, and the leader's work to bring them into one table.

    `on_check` is the hook of the lock election. What is not known changes nothing.
    """

    states: StatesTable
    clock: Clock
    settings: Settings
    _: KW_ONLY
    worker_id: str
    coordinator: LegacyTable
    reports: LegacyTable
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        operations = self.metrics.worker.operations
        self._migrates = self.settings.fleet.migrates_to_lease_table
        self._bake_s = min(max(self.settings.fleet.bake_s, BAKE_SECONDS_MIN), BAKE_SECONDS_MAX)
        self._counts, self._moves = operations.table_migration, operations.row_moves
        self._starts, self._versions = operations.table_migration_start, operations.fleet_versions
        self._watched: Stillness[str, int] = Stillness()
        self.routes = Routes(self.settings.lease_table.name)
        """Where the fleet's rows live now."""
        self._mover = RowMover(self.states, worker_id=self.worker_id, on_moved=lambda: self._moves.batches.note(1))
        self._move: asyncio.Task[None] | None = None
        self._move_after = float("-inf")
        self.summary: FleetSummary | None = None
        """What the leader goes by; None if it cannot be told yet."""
        self._read_at: float | None = None
        """When the row was read last in this term as leader; None for others."""

    async def start(self) -> TableStatus:
        """Find out where the rows live, before anything else but the lease table is touched.

        Raises StartupError with the remedy if configuration and tables do not fit, or we may not ask; TableError or
        UnreadableStateError if it cannot be known now.
        """
        with self._starts.read_fault.faults(), self._starts.all.timed(self.clock.monotonic):
            return await self._start()

    async def _start(self) -> TableStatus:
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
        """Return whether this fleet still shares its lease table with 2.x and is to have other rows, which 2.x must
        not find there (coordination#bare-tables). Raises StartupError if there is no other place for them."""
        configured, is_several = self.settings.fleet.client_version, self.settings.is_multi_stream
        is_2x = configured is ClientVersionConfig.COMPATIBLE_WITH_2X
        may_be_2x = is_2x or (is_several and configured is not ClientVersionConfig.VERSION_3X)
        if not may_be_2x or await self.coordinator.exists():
            return False
        if not (await self.states.outline(self.routes.leases)).is_of_2x:
            return False
        if is_several:
            raise StartupError(single_table.several_streams_refusal(self.routes.lease_table))
        return True

    async def _ensure_legacy(self) -> None:
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
        """Make the legacy worker-metrics table again if a migration tool has deleted it since the start.

        The tool of 3.0 to 3.4 does so after a rollback to 2.x, and workers of these versions create the table when the
        fleet goes forward again. Without it nobody could report, and only the leader would be given leases. Errors are
        logged: a worker that cannot report goes on.
        """
        had = self.routes.reports
        if had is None or self.routes.report_place != had or self.status is TableStatus.COMPLETE:
            return
        try:
            if await self.reports.ensure():
                log.warning("table %s made again", self.reports.name, extra={"action": "reports_table_restored"})
        except Exception as error:
            failure = survived(error, "restoring the reports table")
            log.error("%s", failure, extra={"action": "reports_table_missing"})

    @property
    def status(self) -> TableStatus:
        """The status that is live."""
        return self.routes.live

    # --- the leader's check -------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Forget what was seen before leadership was won or lost, or of a table that is gone."""
        self._watched.forget_all()

    def on_loaded(self, seen: FleetSnapshot) -> None:
        """Take note of what the leader's assigner has just seen."""
        self.summary = single_table.summarise(
            seen.leases,
            seen.reports,
            wall_s=self.clock.wall(),
            at=self.clock.monotonic(),
            expired=seen.expired,
            unproven=self._unproven(seen.leases),
            report_period_s=self.settings.fleet.report_period_s,
        )
        if self.summary is not None:
            self._versions.lowest_code.note(self.summary.lowest_code)

    def _unproven(self, leases: Iterable[Lease]) -> set[str]:
        """Return the leases that this leader has neither seen move nor watched for a lease duration."""
        now = self.clock.monotonic()
        counters = {lease.key: lease.counter for lease in leases}
        self._watched.saw_all(counters, now)
        duration_s, watched = self.settings.leases.duration_s, self._watched
        return {key for key in counters if not (watched.has_moved(key) or watched.is_still(key, now, duration_s))}

    async def on_check(self, is_leader: bool) -> None:
        """Read the row and follow it; as leader, move the migration on.

        Raises MigrationCompletedError once, when the lock has moved to the lease table. Raises TableError if the row
        cannot be read: a new leader must not lead before it has seen that the lock still belongs here.
        """
        place = self.routes.coordinator
        if self.status is TableStatus.COMPLETE or place is None:
            if is_leader:
                self._counts.status.note(ORDINALS[TableStatus.COMPLETE])
            return
        now = self.clock.monotonic()
        if not is_leader:
            self._read_at = None
            self.summary = None
            self._stop_move()
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
        if is_leader:
            self._read_at = now
            self._counts.status.note(UNKNOWN if row is None else ORDINALS[row.state])
            self._count_fleet(self.summary)
        self._enter(self._refreshed(None if row is None else row.state))
        if is_leader:
            await self._lead(row, place)
            self._counts.check.note(self.clock.monotonic() - now)

    def _refreshed(self, stored: TableStatus | None) -> TableStatus:
        return single_table.refreshed_status(self.status, stored, migrate=self._migrates)

    def _count_fleet(self, summary: FleetSummary | None) -> None:
        if summary is not None:
            moved = len(summary.reporting_in_lease_table)
            self._counts.before_phase_1.note(max(0, len(summary.owners) - summary.supporting))
            self._counts.in_phase_1.note(max(0, summary.supporting - moved))
            self._counts.in_phase_2.note(moved)

    def _enter(self, status: TableStatus) -> None:
        """Raise MigrationCompletedError on COMPLETE."""
        if status is not self.status:
            log.info("rows of the fleet: %s", status.value, extra={"action": "table_status"})
        self.routes = replace(self.routes, live=status)
        if status is TableStatus.COMPLETE:
            self._stop_move()
            raise MigrationCompletedError("the leader's lock lives in the lease table now")

    async def _lead(self, row: TableRow | None, place: Place) -> None:
        try:
            step = self._next_step(row, None)
            if step is Step.LIST_LEGACY:
                items = await self.states.items(place)
                step = self._next_step(row, tuple(str(item[place.key].get("S")) for item in items))
            await self._carry_out(step, row, place)
        except MigrationCompletedError:
            raise
        except Exception as error:
            failure = survived(error, "migrating to a single table")
            log.warning("step of the table migration failed: %s", failure, extra={"action": "table_step_failed"})

    def _next_step(self, row: TableRow | None, legacy_keys: tuple[str, ...] | None) -> Step:
        return single_table.leader_step(
            self.status,
            row,
            self.summary,
            wall_ms=self._wall_ms(),
            now=self.clock.monotonic(),
            complete_bake_s=self._bake_s,
            legacy_keys=legacy_keys,
        )

    async def _carry_out(self, step: Step, row: TableRow | None, place: Place) -> None:
        """Carry out a step. A write that is refused changes nothing here: the next check reads what somebody else has
        written."""
        match step:
            case Step.CREATE_INIT | Step.CREATE_DEPLOYED:
                status = TableStatus.INIT if step is Step.CREATE_INIT else TableStatus.DEPLOYED
                first = first_row(TABLE_MIGRATION, status, self.worker_id, self._wall_ms())
                with self._counts.write_fault.faults():
                    await self.states.create(first, place)
            case Step.STOP_MOVE:
                self._stop_move()
            case Step.MOVE_ROWS:
                self._start_move(place)
            case Step.DELETE_ROW if row is not None:
                with self._counts.delete_fault.faults():
                    await self.states.delete(row, place)
            case Step.TO_DEPLOYED if row is not None:
                self._stop_move()
                if await self._update(row, TableStatus.DEPLOYED, place) and self.status is TableStatus.INIT:
                    self._enter(self._refreshed(TableStatus.DEPLOYED))
            case Step.TO_PENDING if row is not None:
                await self._update(row, TableStatus.PENDING, place)
            case Step.FINALISE if row is not None:
                complete = advanced(row, TableStatus.COMPLETE, self.worker_id, self._wall_ms())
                with self._counts.completion_fault.faults():
                    is_done = await self.states.finalise(complete, row.state, place, self.routes.leases, self.worker_id)
                if is_done:
                    self._enter(TableStatus.COMPLETE)
            case _:
                assert step in (Step.NOTHING, Step.LIST_LEGACY), f"{step} without a row"

    async def _update(self, row: TableRow, status: TableStatus, place: Place) -> bool:
        changed = advanced(row, status, self.worker_id, self._wall_ms())
        with self._counts.write_fault.faults():
            return await self.states.update(changed, row.state, place)

    def _wall_ms(self) -> int:
        return int(self.clock.wall() * 1000)

    # --- the move -----------------------------------------------------------------------------------------------------

    def _start_move(self, place: Place) -> None:
        now = self.clock.monotonic()
        if now >= self._move_after and (self._move is None or self._move.done()):
            self._move_after = now + MOVE_RETRY_S
            self._move = asyncio.create_task(self._move_rows(place))

    async def _move_rows(self, place: Place) -> None:
        try:
            with self._moves.all.timed(self.clock.monotonic):
                await self._mover.move(place, self.routes.leases)
        except Exception as error:
            failure = survived(error, "moving rows")
            log.warning("rows not moved: %s", failure, extra={"action": "move_failed"})

    def _stop_move(self) -> None:
        if self._move is not None:
            self._move.cancel()

    # --- life ---------------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Report a legacy coordinator table that appears after this worker has started without one, for ever."""
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

    def abandon(self) -> None:
        """End without waiting: what is on its way may still be applied."""
        self._stop_move()

    async def close(self) -> None:
        self._stop_move()
        if self._move is not None:
            await asyncio.gather(self._move, return_exceptions=True)
