"""The migration to a single table: where rows that are not leases live, and how the fleet gets there. Pure.

Rules: coordination#table-layout, coordination#table-migration-status, coordination#table-migration-steps. The row
`TableMigration3.5` always rules from the legacy coordinator table. Each worker derives a local status from it and its
own configuration; the leader moves it on.

A bake of an hour or a day must survive a change of the leader and a crashed worker. So what the leader does not know
changes nothing: without a fresh summary of the fleet it does nothing at all (Java takes that for "not met"), and as
long as silent owners may be dead there is no summary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeVar

from mld.core.errors import StartupError
from mld.fleet.leader.lock import LOCK_KEY
from mld.fleet.migrate.states import TABLE_MIGRATION, TableRow, TableStatus
from mld.fleet.report.reports import SUPPORT_CODE, WorkerReport
from mld.leases.lease import Lease
from mld.leases.rows import COORDINATOR_TABLE_KEY, LEASE_TABLE_KEY, REPORTS_TABLE_KEY, Place
from mld.properties.values import ClientVersionConfig

T = TypeVar("T")

STAYING = frozenset({LOCK_KEY, TABLE_MIGRATION.key})
"""Rows that never leave the legacy coordinator table."""

DEPLOYED_BAKE_S = 3600.0  # Java's
SUPPORT_AGE_S_MAX = 90.0  # Java's: three reports
SUMMARY_AGE_S_MAX = 90.0  # an assigner that has failed for longer than a support code lasts knows nothing
MOVED_TOGETHER_MAX = 25  # Java's; with the fence 51 of the 100 actions DynamoDB allows


# --- local status ----------------------------------------------------------------------------------------------------


def initial_status(stored: TableStatus | None, *, coordinator_table: str | None, migrate: bool) -> TableStatus:
    """Return the status a worker starts in. `coordinator_table` is None if there is no legacy table; `migrate` is
    the key migrateAllEntitiesToLeaseTable.

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
            f"{TableStatus.DEPLOYED.value} (an hour after the last older worker has gone)"
        )
    return refreshed_status(TableStatus.INIT, stored, migrate=migrate)


def refreshed_status(current: TableStatus, stored: TableStatus | None, *, migrate: bool) -> TableStatus:
    """Return the status of a running worker after it has read the row again. COMPLETE is final.

    A worker with migrate=true and no row stays what it is: its leader writes the row again.
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
    """Where the rows of an application live. A legacy table is None if it did not exist when the worker started.

    What a worker writes stays where it was `at_start`; what it reads, and the lock, goes by the status that is `live`.
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
        """Where the leader's lock is now."""
        return self.read_places[0]

    @property
    def read_places(self) -> tuple[Place, ...]:
        """Where to look for a coordinator row now, in this order. Also where to list them."""
        return self._with_legacy(self.coordinator)

    @property
    def report_read_places(self) -> tuple[Place, ...]:
        """Where to list worker reports now."""
        return self._with_legacy(self.reports)

    @property
    def write_place(self) -> Place:
        """Where to write and delete coordinator rows, for as long as the worker runs."""
        return self.leases if self._writes_leases or self.coordinator is None else self.coordinator

    @property
    def report_place(self) -> Place | None:
        """Where to write the own report, for as long as the worker runs. None: it belongs into a missing table."""
        return self.leases if self._writes_leases else self.reports

    @property
    def _writes_leases(self) -> bool:
        return self.at_start in (TableStatus.COMPLETE, TableStatus.PENDING)

    def _with_legacy(self, legacy: Place | None) -> tuple[Place, ...]:
        return (self.leases,) if self.live is TableStatus.COMPLETE or legacy is None else (legacy, self.leases)


def several_streams_refusal(lease_table: str) -> str:
    """Return why a worker of several streams does not start on a table that KCL 2.x may use."""
    return (
        f"mld.streams: their list would be a row of the lease table {lease_table}, whose leases KCL 2.x has made, and "
        "2.x could not read the table any more. When no worker of 2.x is left, set "
        f"clientVersionConfig={ClientVersionConfig.VERSION_3X.value}; until then read the streams with Java"
    )


def missing_reports_warning(routes: Routes, reports_name: str) -> str | None:
    """Return what to tell the operator of a legacy coordinator table without its worker-metrics table."""
    if routes.report_place is not None:
        return None
    return (
        f"the coordinator table {routes.coordinator_table} exists and the worker-metrics table {reports_name} does "
        "not: this worker cannot report and is given no leases. Set mld.metadataLayout=legacy to have the table "
        "created, or correct workerMetricsTableName"
    )


# --- what the leader knows of the fleet ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FleetSummary:
    """The owners of leases and what they support, as of `at` (monotonic seconds)."""

    at: float
    owners: frozenset[str]
    reporting_in_lease_table: frozenset[str]
    reporting_in_legacy_table: frozenset[str]
    lowest_code: int
    """The smallest support code of an owner, or of a worker that reports; 0 if there are no owners."""
    supporting: int = field(default=0, compare=False)
    """How many workers have said that they support a single table."""

    @property
    def all_support(self) -> bool:
        return self.lowest_code >= SUPPORT_CODE

    @property
    def all_moved(self) -> bool:
        """Every owner reports, and nobody reports in the legacy table any more."""
        return self.owners <= self.reporting_in_lease_table and not self.reporting_in_legacy_table


def summarise(
    leases: Iterable[Lease],
    reports: Sequence[WorkerReport],
    *,
    wall_s: float,
    at: float,
    expired: Collection[str] = (),
    unproven: Collection[str] = (),
    report_period_s: float,
) -> FleetSummary | None:
    """Return the summary of one load; None if it is not known yet who is alive.

    `expired`: keys of leases whose counter has stood still for a lease duration; their owners are dead and do not
    count. `unproven`: keys watched for less than that and not seen to move. Who owns no other leases and does not
    report may be dead: the leader that just took over sees the leases of its crashed predecessor like that.
    """
    owned = [(lease.key, lease.owner) for lease in leases if lease.owner is not None and lease.key not in expired]
    owners = frozenset(owner for _, owner in owned)
    proven = {owner for key, owner in owned if key not in unproven}
    active = [report for report in reports if _is_active(report, wall_s, report_period_s)]
    in_lease_table = frozenset(report.worker for report in active if not report.legacy)
    in_legacy_table = frozenset(report.worker for report in active if report.legacy)
    if owners - proven - in_lease_table - in_legacy_table:
        return None
    codes = _support_codes(reports, wall_s)
    # As KCL from 3.5.3 on: a worker that reports counts without a lease too, as it may have one in a moment.
    lowest = min(codes.get(one, 0) for one in owners | in_lease_table | in_legacy_table) if owners else 0
    supporting = sum(code >= SUPPORT_CODE for code in codes.values())
    return FleetSummary(at, owners, in_lease_table, in_legacy_table, lowest, supporting)


def _is_active(report: WorkerReport, wall_s: float, report_period_s: float) -> bool:
    return report.updated_at_s is not None and wall_s - report.updated_at_s <= 2 * report_period_s


def _support_codes(reports: Sequence[WorkerReport], wall_s: float) -> dict[str, int]:
    """Return what each worker said last about itself, unless that is too old."""
    newest: dict[str, tuple[int, int]] = {}
    for report in reports:
        if report.support_at_s is None or report.support_code is None:
            continue
        if wall_s - report.support_at_s <= SUPPORT_AGE_S_MAX:
            said = (report.support_at_s, report.support_code)
            newest[report.worker] = max(newest.get(report.worker, said), said)
    return {worker: code for worker, (_, code) in newest.items()}


# --- what the leader does --------------------------------------------------------------------------------------------


class Step(Enum):
    """What the leader does in one check."""

    NOTHING = auto()
    DELETE_ROW = auto()
    """The fleet has an owner that does not support a single table: the bake begins anew."""
    CREATE_INIT = auto()
    CREATE_DEPLOYED = auto()
    TO_DEPLOYED = auto()
    """Write DEPLOYED over the state read, and stop a move."""
    LIST_LEGACY = auto()
    """Read the legacy coordinator table and decide again."""
    MOVE_ROWS = auto()
    STOP_MOVE = auto()
    TO_PENDING = auto()
    FINALISE = auto()


def leader_step(
    local: TableStatus,
    stored: TableRow | None,
    summary: FleetSummary | None,
    *,
    wall_ms: int,
    now: float,
    complete_bake_s: float,
    legacy_keys: Collection[str] | None = None,
) -> Step:
    """Return the leader's next step. `local` is its status after reading `stored`; `legacy_keys` are the keys of the
    legacy coordinator table if it was listed just now.

    Without a fresh summary only what needs none is done.
    """
    if summary is not None and now - summary.at > SUMMARY_AGE_S_MAX:
        summary = None
    match local:
        case TableStatus.INIT:
            return _step_of_init(stored, summary, wall_ms)
        case TableStatus.DEPLOYED:
            rolled_back = stored is not None and stored.state is TableStatus.PENDING
            return Step.TO_DEPLOYED if rolled_back else Step.NOTHING
        case TableStatus.PENDING:
            return _step_of_pending(stored, summary, wall_ms, complete_bake_s, legacy_keys)
        case TableStatus.COMPLETE:
            return Step.NOTHING


def _step_of_init(stored: TableRow | None, summary: FleetSummary | None, wall_ms: int) -> Step:
    if summary is None or (stored is not None and stored.state is not TableStatus.INIT):
        return Step.NOTHING
    if not summary.all_support:
        return Step.NOTHING if stored is None else Step.DELETE_ROW
    if stored is None:
        return Step.CREATE_INIT
    return Step.TO_DEPLOYED if _baked(stored, wall_ms, DEPLOYED_BAKE_S) else Step.NOTHING


def _step_of_pending(
    stored: TableRow | None,
    summary: FleetSummary | None,
    wall_ms: int,
    complete_bake_s: float,
    legacy_keys: Collection[str] | None,
) -> Step:
    if stored is None:
        return Step.CREATE_DEPLOYED
    if summary is None or stored.state not in (TableStatus.DEPLOYED, TableStatus.PENDING):
        return Step.NOTHING
    baking = stored.state is TableStatus.PENDING
    if not summary.all_moved:
        return Step.TO_DEPLOYED if baking else Step.STOP_MOVE
    if legacy_keys is None:
        return Step.LIST_LEGACY
    if rows_to_move(legacy_keys):
        return Step.TO_DEPLOYED if baking else Step.MOVE_ROWS
    if not baking:
        return Step.TO_PENDING
    return Step.FINALISE if _baked(stored, wall_ms, complete_bake_s) else Step.NOTHING


def _baked(stored: TableRow, wall_ms: int, bake_s: float) -> bool:
    return stored.at_ms is not None and wall_ms - stored.at_ms >= bake_s * 1000


def rows_to_move(keys: Iterable[str]) -> tuple[str, ...]:
    """Return the keys of the legacy coordinator table that belong into the lease table."""
    return tuple(key for key in keys if key not in STAYING)


def chunks(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """Return what is moved in one transaction each."""
    return (rows[start : start + MOVED_TOGETHER_MAX] for start in range(0, len(rows), MOVED_TOGETHER_MAX))
