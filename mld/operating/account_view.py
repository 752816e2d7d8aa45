"""Finds the applications of an account and region, by the form of their lease tables.

A lease table is a table whose only key is `leaseKey`. The two other tables of KCL 3.0 to 3.4 have the lease table's
name and a suffix. Only the first rows of each lease table are read. A table that may not be read is listed with the
permission that is missing.
"""

from __future__ import annotations

from typing import Any

from mld.aws.service import Service
from mld.aws.table_calls import TableCalls, table_error
from mld.core.clock import Clock
from mld.core.errors import AwsError, AwsUnreachableError, TableError
from mld.core.turns import a_few_at_a_time, in_turns
from mld.fleet.report.reports import parse_rows
from mld.leases.rows import LEASE_TABLE_KEY
from mld.operating.error_remedies import FORBIDDEN
from mld.operating.fleet_reader import status_steps
from mld.operating.open_services import REQUEST_TIMEOUT_S
from mld.operating.plan import raw_table
from mld.operating.shard_view import ViewRules
from mld.operating.short_ids import names_of

TABLES_MAX = 2_000
"""How many tables of a region are examined. Each costs one DescribeTable call; an account may make thousands of
these calls per second.
"""
ROWS_MAX = 500
"""How many rows of each lease table are read. A row is smaller than a kilobyte, and a read unit reads 8 KB, because the
reads are eventually consistent. So a table costs at most 63 read units.
"""
ENDINGS = ("-CoordinatorState", "-WorkerMetricStats")
"""Suffixes of the names of the two other tables."""
LEASE_DURATION_S = 30.0
"""The lease duration that is assumed for every application, because the tables do not store it. A worker's status that
is older than two renewals of such a lease counts as unknown.
"""


async def look_at_account(service: Service, clock: Clock) -> dict[str, Any]:
    """Return the applications in plain values, and sentences about tables that could not be read (`unseen`).

    A value that is unknown is None, and `note` gives the reason. `behindSeconds` is the largest lag of any shard.
    Raises TableError if the tables cannot be listed.
    """
    names, unseen = await _names(service)
    companions = {name for name in names if name.endswith(ENDINGS)}
    found: dict[str, dict[str, Any]] = {}

    async def look(name: str) -> None:
        """Describe one table; if it is a lease table, add what is seen in it to `found`."""
        calls = TableCalls(service, name, REQUEST_TIMEOUT_S)
        try:
            described = (await calls.send("DescribeTable", {}))["Table"]
        except TableError as error:
            unseen.append(_refused(name, "dynamodb:DescribeTable", error))
            return
        keys = [(key["AttributeName"], key["KeyType"]) for key in described["KeySchema"]]
        if keys == [(LEASE_TABLE_KEY, "HASH")]:
            own = [f"{name}{ending}" for ending in ENDINGS if f"{name}{ending}" in companions]
            unknown = dict.fromkeys(("streams", "workers", "openShards", "behindSeconds", "note"))
            found[name] = {"table": name, "companions": own} | unknown | await _look_at_table(calls, clock)

    await a_few_at_a_time(look, [name for name in names if name not in companions])
    return {"applications": [found[name] for name in sorted(found)], "unseen": sorted(unseen)}


async def _names(service: Service) -> tuple[list[str], list[str]]:
    """Return the names of all tables, up to `TABLES_MAX`, and a sentence about the rest, if there are more. Raises
    TableError.
    """
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
    """Return what the first rows of a lease table show about its application: streams, number of workers that may be
    alive, open shards and the largest lag. Return only a `note` if the rows cannot be read.
    """
    try:
        answer = await calls.send("Scan", {"Limit": ROWS_MAX})
    except TableError as error:
        return {"note": _refused("its rows", "dynamodb:Scan", error)}
    scan = raw_table(answer["Items"]).scan
    status = await in_turns(status_steps(scan, clock.wall(), ViewRules(LEASE_DURATION_S)))
    streams = {*status.labels.values()} or {shard.label for shard in status.shards if shard.label is not None}
    # Leases of a single stream do not name it, but the reports of mld's workers do.
    streams = streams or {
        name for report in parse_rows(scan.others, LEASE_TABLE_KEY).reports if (name := report.mld.get("stream"))
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
    """Return a sentence that `what` could not be read because of `error`. If the permission for the call `action` is
    missing, the sentence asks for that permission instead of quoting the error.
    """
    if any(sign in str(error) for sign in FORBIDDEN):
        return f"{what}: not seen, allow {action}"
    return f"{what}: not seen: {error}"
