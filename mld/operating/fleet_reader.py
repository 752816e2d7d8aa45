"""`FleetReader`: reads the tables of a fleet, for commands that run without a daemon and for the daemon's pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mld.aws.service import Service
from mld.aws.service_time import ServiceTime
from mld.aws.table_calls import TableCalls
from mld.core.clock import Clock, LoopClock
from mld.core.errors import TableError
from mld.core.steps import Steps
from mld.core.stream_ids import keys_meant
from mld.core.turns import in_turns
from mld.fleet.leader.lock import LOCK_KEY, SeenLock, parse_lock
from mld.fleet.leader.lock_table import LockTable
from mld.fleet.migrate.states import CLIENT_VERSION, ClientVersion, StateRow
from mld.fleet.migrate.states_table import StatesTable
from mld.fleet.report.reports import ReportRules, ReportScan, WorkerReport, application_on, parse_rows
from mld.fleet.report.reports_table import ReportsTable
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.lease import Lease
from mld.leases.rows import COORDINATOR_TABLE_KEY, LEASE_TABLE_KEY, REPORTS_TABLE_KEY, UNKNOWN_KEY, Place
from mld.leases.table import LeaseTable, TableScan
from mld.operating import events
from mld.operating.fleet_status import FleetStatus, fleet_status_steps
from mld.operating.open_services import REQUEST_TIMEOUT_S, dynamo_of, if_there
from mld.operating.shard_view import LAG_MAX_S, ViewRules
from mld.properties.settings import Settings
from mld.tracking import stream_list

if TYPE_CHECKING:
    from mld.operating.plan import Change


def view_rules(settings: Settings, lag_max_s: float = LAG_MAX_S) -> ViewRules:
    """Return the rules by which shards and workers of this fleet are judged."""
    return ViewRules(
        lease_duration_s=settings.leases.duration_s,
        reports=ReportRules.of(settings.fleet),
        lag_max_s=lag_max_s,
        application=application_on(settings.stream_name),
    )


def status_steps(
    scan: TableScan,
    now_s: float,
    rules: ViewRules,
    more_reports: Iterable[WorkerReport] = (),
    legacy_lock: SeenLock = None,
) -> Steps[FleetStatus]:
    """Return the fleet that a scan of the lease table shows, computed in steps so that other tasks can run between them
    (`core.steps`).

    `more_reports` and `legacy_lock` come from the two other tables of a fleet of KCL 3.0 to 3.4.
    """
    found = parse_rows(scan.others, LEASE_TABLE_KEY)
    lock = parse_lock(_row(scan.others, LEASE_TABLE_KEY, LOCK_KEY))
    status = yield from fleet_status_steps(
        scan.leases,
        (*found.reports, *more_reports),
        lock if lock is not None else legacy_lock,
        now_s,
        rules,
        corrupt=scan.corrupt,
        labels=_labels(scan),
    )
    row = _row(scan.others, LEASE_TABLE_KEY, events.KEY)
    return replace(status, events=events.events_in(row), alerts=events.alerts_in(row))


class FleetReader:
    """Reads the lease table by one scan, and the two legacy tables if the fleet still has them."""

    def __init__(self, settings: Settings, service: Service, table: LeaseTable, clock: Clock, rules: ViewRules) -> None:
        self.settings = settings
        self.clock = clock
        self.calls = TableCalls(service, settings.lease_table.name, REQUEST_TIMEOUT_S)
        self._service = service
        self._table = table
        self._rules = rules

    def table_of(self, change: Change) -> LeaseTable:
        """Return the table that a change is written to."""
        place = change.place
        if place is None:
            return self._table
        return DynamoLeaseTable(
            self._service, self.clock, table_name=place.table, request_timeout_s=REQUEST_TIMEOUT_S, key_name=place.key
        )

    async def is_3x(self) -> bool:
        """Return whether the fleet works by the rules of 3.x, where leaders assign leases. Raises TableError."""
        states = StatesTable(self._service)
        row: StateRow[ClientVersion] | None = None
        for place in (
            Place(self.settings.lease_table.name, LEASE_TABLE_KEY),
            Place(self.settings.coordinator_state_table.name, COORDINATOR_TABLE_KEY),
        ):
            if row is None:
                row = await if_there(states.get(CLIENT_VERSION, place), None)
        return row is not None and row.state in (ClientVersion.V3X, ClientVersion.V3X_WITH_ROLLBACK)

    async def lease(self, key: str) -> Lease | None:
        """Return one lease; None if there is no such row, or no lease table. Raises TableError."""
        return await if_there(self._table.get(key, consistent=False), None)

    async def leases(self) -> Sequence[Lease]:
        """Return all leases; none if there is no lease table. Raises TableError."""
        return (await if_there(self._table.scan(), TableScan())).leases

    async def scan(self) -> TableScan:
        """Return all rows, also corrupt ones. Raises TableError; TableMissingError if there is no lease table."""
        return await self._table.scan()

    @property
    def lag_max_s(self) -> float:
        """A shard that is further behind than this, in seconds, counts as lagging."""
        return self._rules.lag_max_s

    async def look(self, known_scan: TableScan | None = None, *, is_throttled: bool = False) -> FleetStatus:
        """Return the present fleet. Raises TableError; TableMissingError if there is no lease table.

        `known_scan` is the lease table, if it was read already. `is_throttled`: the caller knows that the table refuses
        writes for lack of capacity, so that workers that do not write may be alive.
        """
        legacy = self._legacy()
        scan, (reports, lock) = (
            (known_scan, await legacy) if known_scan else await asyncio.gather(self._table.scan(), legacy)
        )
        if any(key == UNKNOWN_KEY for key, _ in scan.corrupt):
            name = self.settings.lease_table.name
            raise TableError(f"table {name} is no lease table: it has rows without the attribute {LEASE_TABLE_KEY}")
        rules = replace(self._rules, is_throttled=is_throttled)
        return await in_turns(status_steps(scan, self.clock.wall(), rules, reports, lock))

    async def _legacy(self) -> tuple[tuple[WorkerReport, ...], SeenLock]:
        """Return the reports and the leader's lock from the tables that only fleets of KCL 3.0 to 3.4 have."""
        reports = Place(self.settings.worker_metrics_table.name, REPORTS_TABLE_KEY)
        lock = Place(self.settings.coordinator_state_table.name, COORDINATOR_TABLE_KEY)
        found, held = await asyncio.gather(
            if_there(ReportsTable(self._service, reports, request_timeout_s=REQUEST_TIMEOUT_S).scan(), ReportScan()),
            if_there(LockTable(self._service, lock, request_timeout_s=REQUEST_TIMEOUT_S).read(), None),
        )
        return found.reports, held


@asynccontextmanager
async def fleet_reader(settings: Settings, lag_max_s: float = LAG_MAX_S) -> AsyncIterator[FleetReader]:
    """Open a reader of the fleet that a properties file names."""
    service_time = ServiceTime()
    clock = LoopClock(service_time.now)
    async with dynamo_of(settings, service_time) as service:
        table = DynamoLeaseTable(
            service,
            clock,
            table_name=settings.lease_table.name,
            scan_segments=settings.leases.scan_segments,
            request_timeout_s=REQUEST_TIMEOUT_S,
        )
        yield FleetReader(settings, service, table, clock, view_rules(settings, lag_max_s))


def _labels(scan: TableScan) -> Mapping[str, str]:
    """Return the labels of streams by identifier, from the list in the table; none if the list cannot be read."""
    row = _row(scan.others, LEASE_TABLE_KEY, stream_list.KEY)
    return stream_list.labels_of(stream_list.parse(row or {}))


def _row(
    rows: Iterable[Mapping[str, Mapping[str, Any]]], key: str, name: str
) -> Mapping[str, Mapping[str, Any]] | None:
    """Return the row whose attribute `key` is `name`; None if there is none."""
    return next((row for row in rows if row.get(key, {}).get("S") == name), None)


async def with_stream(settings: Settings, name: str) -> str:
    """Return the lease key that an operator means by `name`, if the file names several streams.

    Returns `name` itself if it already names a stream, or if it fits no known lease. If several
    streams have such a shard, the error names them by their labels, the names that the file gives them.

    Raises ActRefusedError if several streams have such a shard, TableError.
    """
    if not settings.is_multi_stream or ":" in name:
        return name
    from mld.operating.naming import full_key

    async with fleet_reader(settings) as reader:
        status = await if_there(reader.look(), None)
    if status is None:
        return name
    keys = [shard.key for shard in status.shards]
    return full_key(keys, name, status.labels) if keys_meant(keys, name, status.labels) else name
