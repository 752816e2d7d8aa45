"""Reads what a fleet's tables hold, with the credentials and endpoints of a properties file, and no daemon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from mld.aws.client_factory import client_factory, service_of
from mld.aws.service import RawService, Service
from mld.aws.service_time import ServiceTime
from mld.aws.table_calls import TableCalls, table_error
from mld.core.clock import Clock, LoopClock
from mld.core.errors import AwsError, AwsUnreachableError, TableError, TableMissingError
from mld.core.steps import Steps
from mld.core.stream_ids import keys_meant
from mld.core.turns import a_few_at_a_time, in_turns
from mld.fleet.leader.lock import LOCK_KEY, SeenLock, parse_lock
from mld.fleet.leader.lock_table import LockTable
from mld.fleet.migrate.states import CLIENT_VERSION, ClientVersion, StateRow
from mld.fleet.migrate.states_table import StatesTable
from mld.fleet.report.reports import ReportRules, ReportScan, WorkerReport, parse_rows
from mld.fleet.report.reports_table import ReportsTable
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.lease import Lease
from mld.leases.rows import COORDINATOR_TABLE_KEY, LEASE_TABLE_KEY, REPORTS_TABLE_KEY, UNKNOWN_KEY, Place
from mld.leases.table import LeaseTable, TableScan
from mld.operating import events
from mld.operating.fleet_status import (
    LAG_MAX_S,
    FleetStatus,
    ViewRules,
    fleet_status_steps,
)
from mld.operating.naming import full_key, names_of
from mld.operating.options import FORBIDDEN
from mld.operating.plan import Change, raw_table
from mld.properties.settings import Settings
from mld.tracking import stream_list

T = TypeVar("T")
REQUEST_TIMEOUT_S = 10.0
THREADS = 4  # segments of a large table are scanned beside each other

# Found by what their tables look like: a lease table is one whose only key is `leaseKey`; tables of KCL 3.0 to 3.4 have
# its name with an ending. Of each the first rows are read, once. What may not be seen is said, with the
# permission that is missing.

TABLES_MAX = 2_000
"""Looked at in one region; each costs one DescribeTable, of which an account has thousands a second."""
ROWS_MAX = 500
"""Read of each lease table: at most 63 read units, as rows have less than a kilobyte."""
ENDINGS = ("-CoordinatorState", "-WorkerMetricStats")
LEASE_DURATION_S = 30.0
"""Supposed, as the table does not tell: what is older than two renewals of so long a lease is unknown."""


async def if_there(asking: Awaitable[T], otherwise: T) -> T:
    """Return what a table holds, or `otherwise` if there is no such table. Raises TableError."""
    try:
        return await asking
    except TableMissingError:
        return otherwise


@asynccontextmanager
async def opened(
    settings: Settings,
    name: str,
    label: str,
    timeout_s: float = REQUEST_TIMEOUT_S,
    service_time: ServiceTime | None = None,
) -> AsyncIterator[RawService]:
    """Open a service of a properties file, and close it; `service_time` learns from its answers. Raises errors of
    `mld.core.errors`.
    """
    service = service_of(
        client_factory(settings, service_time),
        name,
        label=label,
        threads_max=THREADS,
        read_timeout_s=timeout_s,
    )
    await service.open()
    try:
        yield service
    finally:
        await service.close()


def dynamo_of(settings: Settings, service_time: ServiceTime | None = None) -> AbstractAsyncContextManager[RawService]:
    """Open DynamoDB."""
    return opened(settings, "dynamodb", "DynamoDB", service_time=service_time)


def view_rules(settings: Settings, lag_max_s: float = LAG_MAX_S) -> ViewRules:
    """Return the rules by which this fleet is judged."""
    return ViewRules(
        lease_duration_s=settings.leases.duration_s,
        reports=ReportRules.of(settings.fleet),
        lag_max_s=lag_max_s,
    )


def status_steps(
    scan: TableScan,
    now_s: float,
    rules: ViewRules,
    more_reports: Iterable[WorkerReport] = (),
    legacy_lock: SeenLock = None,
) -> Steps[FleetStatus]:
    """Return the fleet as a scan shows it."""
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
    """Looks at a fleet's tables: one scan, and where the fleet still has its legacy tables, these as well."""

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
        """Tell whether leaders give leases to workers; by KCL 2.x workers take them. Raises TableError."""
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
        """Return one row; None if there is none, or no lease table. Raises TableError."""
        return await if_there(self._table.get(key, consistent=False), None)

    async def leases(self) -> Sequence[Lease]:
        """Return all leases; none if there is no lease table. Raises TableError."""
        return (await if_there(self._table.scan(), TableScan())).leases

    async def scan(self) -> TableScan:
        """Return all rows, also corrupt ones. Raises TableError; TableMissingError if there is no lease table."""
        return await self._table.scan()

    @property
    def lag_max_s(self) -> float:
        """Beyond which lag a shard is lagging."""
        return self._rules.lag_max_s

    async def look(self, seen: TableScan | None = None, *, is_throttled: bool = False) -> FleetStatus:
        """Return the fleet as it is now. Raises TableError; TableMissingError if there is no lease table.

        `seen` is the lease table, if it was read already. `is_throttled`: the caller knows that the table refuses
        writes for want of capacity.
        """
        legacy = self._legacy()
        scan, (reports, lock) = (seen, await legacy) if seen else await asyncio.gather(self._table.scan(), legacy)
        if any(key == UNKNOWN_KEY for key, _ in scan.corrupt):
            name = self.settings.lease_table.name
            raise TableError(f"table {name} is no lease table: it has rows without the attribute {LEASE_TABLE_KEY}")
        rules = replace(self._rules, is_throttled=is_throttled)
        return await in_turns(status_steps(scan, self.clock.wall(), rules, reports, lock))

    async def _legacy(self) -> tuple[tuple[WorkerReport, ...], SeenLock]:
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
    """Return what the list of streams calls them; nothing if it cannot be read."""
    row = _row(scan.others, LEASE_TABLE_KEY, stream_list.KEY)
    return stream_list.labels_of(stream_list.parse(row or {}))


def _row(
    rows: Iterable[Mapping[str, Mapping[str, Any]]], key: str, name: str
) -> Mapping[str, Mapping[str, Any]] | None:
    return next((row for row in rows if row.get(key, {}).get("S") == name), None)


async def with_stream(settings: Settings, name: str) -> str:
    """Return the key of the only lease that `name` may mean; `name` if it names a stream, or nothing is known of it.

    Raises ActRefusedError if several streams have such a shard, TableError.
    """
    if not settings.is_multi_stream or ":" in name:
        return name
    async with fleet_reader(settings) as reader:
        status = await if_there(reader.look(), None)
    if status is None:
        return name
    keys = [shard.key for shard in status.shards]
    return full_key(keys, name, status.labels) if keys_meant(keys, name, status.labels) else name


# --- the applications of an account -----------------------------------------------------------------------------------


async def look_at_account(service: Service, clock: Clock) -> dict[str, Any]:
    """Return the applications, and sentences about what was not seen. Raises TableError if the tables cannot be listed.

    None is what nobody knows, for the reason in `note`; `behindSeconds` is that of the shard furthest behind.
    """
    names, unseen = await _names(service)
    companions = {name for name in names if name.endswith(ENDINGS)}
    found: dict[str, dict[str, Any]] = {}

    async def look(name: str) -> None:
        calls = TableCalls(service, name, REQUEST_TIMEOUT_S)
        try:
            described = (await calls.send("DescribeTable", {}))["Table"]
        except TableError as error:
            unseen.append(_refused(name, "dynamodb:DescribeTable", error))
            return
        keys = [(key["AttributeName"], key["KeyType"]) for key in described["KeySchema"]]
        if keys == [(LEASE_TABLE_KEY, "HASH")]:
            own = [f"{name}{ending}" for ending in ENDINGS if f"{name}{ending}" in companions]
            nothing = dict.fromkeys(("streams", "workers", "openShards", "behindSeconds", "note"))
            found[name] = {"table": name, "companions": own} | nothing | await _look_at_table(calls, clock)

    await a_few_at_a_time(look, [name for name in names if name not in companions])
    return {"applications": [found[name] for name in sorted(found)], "unseen": sorted(unseen)}


async def _names(service: Service) -> tuple[list[str], list[str]]:
    names: list[str] = []
    params: dict[str, Any] = {}
    while len(names) < TABLES_MAX:
        try:
            answer = await service.call("ListTables", params, timeout_s=REQUEST_TIMEOUT_S)
        except (AwsError, AwsUnreachableError) as error:
            failure = table_error(error, "")
            raise type(failure)(_refused("the tables", "dynamodb:ListTables", failure)) from error
        names += answer["TableNames"]
        if not (last := answer.get("LastEvaluatedTableName")):
            return names, []
        params = {"ExclusiveStartTableName": last}
    return names[:TABLES_MAX], [f"there are more than {TABLES_MAX} tables; the first by name were looked at"]


async def _look_at_table(calls: TableCalls, clock: Clock) -> dict[str, Any]:
    try:
        answer = await calls.send("Scan", {"Limit": ROWS_MAX})
    except TableError as error:
        return {"note": _refused("its rows", "dynamodb:Scan", error)}
    scan = raw_table(answer["Items"]).scan
    status = await in_turns(status_steps(scan, clock.wall(), ViewRules(LEASE_DURATION_S)))
    streams = {*status.labels.values()} or {shard.label for shard in status.shards if shard.label is not None}
    streams = streams or {
        name for one in parse_rows(scan.others, LEASE_TABLE_KEY).reports if (name := one.mld.get("stream"))
    }
    notes = [f"of the first {ROWS_MAX} rows"] if "LastEvaluatedKey" in answer else []
    silent = [shard for shard in status.open_shards if shard.behind_s is None]
    if silent:
        why = names_of(sorted({shard.why for shard in silent if shard.why})) or "nobody works on them"
        notes.append(f"{len(silent)} of {len(status.open_shards)} shards do not tell: {why}")
    return {
        "streams": sorted(streams) or None,
        "workers": sum(worker.is_alive is not False for worker in status.workers),
        "openShards": len(status.open_shards),
        "behindSeconds": status.behind_s,
        "note": "; ".join(notes) or None,
    }


def _refused(what: str, action: str, error: TableError) -> str:
    """Say what was not seen, and which permission is missing if that is why."""
    if any(sign in str(error) for sign in FORBIDDEN):
        return f"{what}: not seen, allow {action}"
    return f"{what}: not seen: {error}"
