"""`mld apps`: the applications of an account and region, found by what their tables look like.

A lease table is one whose only key is `leaseKey`; tables of KCL 3.0 to 3.4 beside it have its name with an ending. Of
each the first rows are read, once. What may not be seen is said, with the permission that is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mld.aws.service import Service
from mld.aws.table_calls import TableCalls, table_error
from mld.core.clock import Clock, a_few_at_a_time, in_turns
from mld.core.errors import AwsError, AwsUnreachableError, TableError
from mld.fleet.report.reports import parse_rows
from mld.leases.rows import LEASE_TABLE_KEY
from mld.operating.fleet_reader import REQUEST_TIMEOUT_S, status_steps
from mld.operating.fleet_status import ViewRules, duration
from mld.operating.listings import Listing
from mld.operating.naming import names_of
from mld.operating.options import FORBIDDEN
from mld.operating.plan import raw_table

TABLES_MAX = 2_000
"""Looked at in one region; each costs one DescribeTable, of which an account has thousands a second."""
ROWS_MAX = 500
"""Read of each lease table: at most 63 read units, as rows have less than a kilobyte."""
ENDINGS = ("-CoordinatorState", "-WorkerMetricStats")
LEASE_DURATION_S = 30.0
"""Supposed, as the table does not tell: what is older than two renewals of so long a lease is unknown."""


@dataclass(frozen=True, slots=True)
class App:
    """One application; None is what nobody knows, for the reason in `note`."""

    table: str
    companions: tuple[str, ...]
    streams: tuple[str, ...] = ()
    workers: int | None = None
    open_shards: int | None = None
    behind_s: float | None = None
    """Of the shard that is furthest behind."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Account:
    """What was found; `unseen` are sentences about what was not."""

    apps: tuple[App, ...]
    unseen: tuple[str, ...]


async def look_at_account(service: Service, clock: Clock) -> Account:
    """Return the applications. Raises TableError if the tables cannot be listed."""
    names, unseen = await _names(service)
    companions = {name for name in names if name.endswith(ENDINGS)}
    found: dict[str, App] = {}

    async def look(name: str) -> None:
        calls = TableCalls(service, name, REQUEST_TIMEOUT_S)
        own = tuple(f"{name}{ending}" for ending in ENDINGS if f"{name}{ending}" in companions)
        try:
            described = (await calls.send("DescribeTable", {}))["Table"]
        except TableError as error:
            unseen.append(_refused(name, "dynamodb:DescribeTable", error))
            return
        keys = [(key["AttributeName"], key["KeyType"]) for key in described["KeySchema"]]
        if keys == [(LEASE_TABLE_KEY, "HASH")]:
            found[name] = await _look_at_table(calls, own, clock)

    await a_few_at_a_time(look, [name for name in names if name not in companions])
    return Account(tuple(found[name] for name in sorted(found)), tuple(sorted(unseen)))


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


async def _look_at_table(calls: TableCalls, companions: tuple[str, ...], clock: Clock) -> App:
    try:
        answer = await calls.send("Scan", {"Limit": ROWS_MAX})
    except TableError as error:
        return App(calls.table_name, companions, note=_refused("its rows", "dynamodb:Scan", error))
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
    return App(
        calls.table_name,
        companions,
        tuple(sorted(streams)),
        sum(worker.is_alive is not False for worker in status.workers),
        len(status.open_shards),
        status.behind_s,
        "; ".join(notes),
    )


def _refused(what: str, action: str, error: TableError) -> str:
    """Say what was not seen, and which permission is missing if that is why."""
    if any(sign in str(error) for sign in FORBIDDEN):
        return f"{what}: not seen, allow {action}"
    return f"{what}: not seen: {error}"


# --- what is printed --------------------------------------------------------------------------------------------------


def apps_listing(account: Account) -> Listing:
    """Return one row for each application, and what was not seen."""
    columns = ("application", False), ("streams", False), ("workers", True), ("open shards", True)
    more = ("furthest behind", True), ("note", False)
    rows = tuple(map(_row, account.apps))
    return Listing(
        "", (*columns, *more), rows, (f"{len(rows)} application{'' if len(rows) == 1 else 's'}", *account.unseen)
    )


def _row(app: App) -> tuple[str, ...]:
    workers, shards = ("" if count is None else str(count) for count in (app.workers, app.open_shards))
    behind = "" if app.open_shards == 0 else duration(app.behind_s)
    beside = ["tables of KCL 3.0 to 3.4 beside it"] if app.companions else []
    note = "; ".join((*beside, *([app.note] if app.note else ())))
    return app.table, names_of(app.streams) or "unknown", workers, shards, behind, note


def account_value(account: Account) -> Mapping[str, Any]:
    """Return all of it, in plain values."""
    return {"applications": [_value(app) for app in account.apps], "unseen": list(account.unseen)}


def _value(app: App) -> Mapping[str, Any]:
    return {
        "table": app.table,
        "companions": list(app.companions),
        "streams": list(app.streams) or None,
        "workers": app.workers,
        "openShards": app.open_shards,
        "behindSeconds": app.behind_s,
        "note": app.note or None,
    }
