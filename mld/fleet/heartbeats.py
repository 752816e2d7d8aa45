"""Worker heartbeats: the attribute of a worker's report, its conditional writes, and which workers are Java's. Pure.

Why it is safe: `leases.validity`. Nothing here concerns a fleet whose workers all renew lease by lease.

    value of `mldHeartbeat` on a report     meaning
    <16 hex digits>.<number>                the epoch, and how many heartbeats it has had
    fenced by <worker>                      its leases are being given to others; the epoch is over
    absent                                  this worker renews each lease

`mldShards` beside it tells people how the covered shards are (`leases.lease.pack`); nothing is decided by it.

A leader that sees a Java worker tells each worker that sends heartbeats, by `mldStranger` on its report; the answer to
the next heartbeat shows it. A Java leader tells nobody, so every such worker also looks at the leader's lock.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mld.fleet.report import reports
from mld.fleet.report.reports import ReportRules
from mld.fleet.values import LEASE_TABLE_KEY, EntityType, WorkerReport
from mld.leases.lease import Lease
from mld.leases.rows import OwnAttribute, Row, names_in, room_for, some_text

Request: TypeAlias = dict[str, Any]

HEARTBEAT = reports.HEARTBEAT
SHARDS = reports.SHARDS
GROWTH_BYTES = 128
"""By how much a report may grow before the next heartbeat: a dozen samples more, or longer ones."""
JAVA_PEER = "mldStranger"
FENCED = "fenced by "
EPOCH_BITS = 64

_PEER = OwnAttribute(JAVA_PEER, "S", some_text(), "worker-1 (Java)")
_VALUE = re.compile(r"([0-9a-f]{16})\.([0-9]{1,18})", re.ASCII)
_IS_OURS = f"#{reports.ENTITY_TYPE} = :report AND attribute_exists(#{reports.VERSION})"
_REPORT = {":report": {"S": EntityType.WORKER_METRIC_STATS.value}}


@dataclass(frozen=True, slots=True)
class HeartbeatRow:
    """What a worker's report says about heartbeats. `value` None: it sends none."""

    value: str | None
    java_peer: str | None = None
    is_mld: bool = True
    room: int = field(default=0, compare=False)
    """Bytes that `mldShards` may have on this row without costing a write unit."""


# --- values -----------------------------------------------------------------------------------------------------------


def value_of(epoch: str, number: int) -> str:
    return f"{epoch}.{number}"


def epoch_of(value: str | None) -> str | None:
    """Return the epoch of a heartbeat; None if there is none that could go on."""
    match = _VALUE.fullmatch(value or "")
    return match[1] if match else None


def is_fenced(value: str | None) -> bool:
    return value is not None and value.startswith(FENCED)


def is_news(before: str | None, value: str | None) -> bool:
    """Return whether `value`, read after `before`, shows that something was written since.

    Reads may be eventually consistent: an earlier number of the same epoch is no news.
    """
    old, new = _VALUE.fullmatch(before or ""), _VALUE.fullmatch(value or "")
    if old and new and old[1] == new[1]:
        return int(new[2]) > int(old[2])
    return before != value


def parse(row: Row) -> HeartbeatRow:
    """Damage is as good as absence."""
    is_mld = reports.OWN_MEMBERS["version"].read(row) is not None
    return HeartbeatRow(_value(row), _PEER.read(row), is_mld, room_for(row, SHARDS, GROWTH_BYTES))


def heartbeats_among(rows: Iterable[Row]) -> dict[str, str]:
    """Return the heartbeats by worker in rows of the lease table, also of reports that cannot be read otherwise."""
    found = {}
    for row in rows:
        if HEARTBEAT in row and reports.is_report(row, LEASE_TABLE_KEY):
            worker, value = row[LEASE_TABLE_KEY].get("S"), _value(row)
            if worker and value is not None:
                found[worker] = value
    return found


def may_assign(current: str | None, marks: Collection[str]) -> bool:
    """Return whether no heartbeat stands for rows with these marks, given their owner's heartbeat as just read."""
    return epoch_of(current) not in marks


# --- Java workers -----------------------------------------------------------------------------------------------------


def java_workers(found: Iterable[WorkerReport], now_s: float, rules: ReportRules) -> list[str]:
    """Return workers with a live report that was not written by mld."""
    return sorted(
        report.worker
        for report in reports.newest_of_each(found)
        if "version" not in report.mld
        and report.updated_at_s is not None
        and not reports.is_expired(report, now_s, rules)
    )


def unreported_owners(
    leases: Iterable[Lease], found: Iterable[WorkerReport], expired: Collection[str]
) -> dict[str, tuple[str, int]]:
    """Return owners of living leases that have no report: (key, counter) of one lease of each. Young mld workers
    look so, too.

    Those report within seconds, so a worker that goes on renewing without a report is a Java worker.
    """
    known = {report.worker for report in found}
    owners: dict[str, tuple[str, int]] = {}
    for lease in leases:
        owner = lease.actual_owner
        if owner is None or owner in known or lease.key in expired:
            continue
        if owner not in owners or lease.key < owners[owner][0]:
            owners[owner] = (lease.key, lease.counter)
    return owners


def refusal_text(java_peer: str) -> str:
    """Return why a worker does not start, with the remedy."""
    return (
        f"mld.heartbeat=worker, but {java_peer} shares the lease table and is no mld worker: Java workers would take "
        "leases that are not renewed one by one for dead. Set mld.heartbeat=lease, or stop the Java workers and wait "
        "until their reports have expired (a minute)"
    )


# --- requests ---------------------------------------------------------------------------------------------------------


def read(worker: str) -> Request:
    return {"Key": {LEASE_TABLE_KEY: {"S": worker}}, "ConsistentRead": True}


def claim(worker: str, seen: str | None, value: str) -> Request:
    """Begin an epoch on our own report, over what was seen there. What a leader told an earlier epoch is forgotten."""
    values = _REPORT | {":next": {"S": value}}
    if seen is None:
        condition = f"{_IS_OURS} AND attribute_not_exists(#{HEARTBEAT})"
    else:
        condition = f"{_IS_OURS} AND #{HEARTBEAT} = :seen"
        values[":seen"] = {"S": seen}
    return _update(worker, condition, f"SET #{HEARTBEAT} = :next REMOVE #{JAVA_PEER}", values)


def following(worker: str, last: str, value: str, shards: bytes | None = None) -> Request:
    """Return the next heartbeat, if the row still has the last one. `shards` None: nothing is told of them from now
    on.
    """
    values: dict[str, Any] = {":last": {"S": last}, ":next": {"S": value}}
    update = f"SET #{HEARTBEAT} = :next"
    if shards is None:
        update += f" REMOVE #{SHARDS}"
    else:
        update += f", #{SHARDS} = :shards"
        values[":shards"] = {"B": shards}
    return _update(worker, f"#{HEARTBEAT} = :last", update, values)


def clear(worker: str, last: str) -> Request:
    """Return the request that ends the heartbeats."""
    return _update(worker, f"#{HEARTBEAT} = :last", f"REMOVE #{HEARTBEAT}, #{SHARDS}", {":last": {"S": last}})


def fence(worker: str, seen: str, by: str) -> Request:
    """End the epoch of a worker whose heartbeat stands still."""
    values = {":seen": {"S": seen}, ":fence": {"S": FENCED + by}}
    return _update(worker, f"#{HEARTBEAT} = :seen", f"SET #{HEARTBEAT} = :fence", values)


def tell(worker: str, java_peer: str) -> Request:
    """Let a worker that sends heartbeats know that `java_peer` is no mld worker."""
    condition = f"{_IS_OURS} AND attribute_exists(#{HEARTBEAT})"
    return _update(worker, condition, f"SET #{JAVA_PEER} = :java_peer", _REPORT | {":java_peer": {"S": java_peer}})


def _update(worker: str, condition: str, update: str, values: Mapping[str, Any]) -> Request:
    return {
        "Key": {LEASE_TABLE_KEY: {"S": worker}},
        "ConditionExpression": condition,
        "UpdateExpression": update,
        "ExpressionAttributeNames": names_in(condition + update),
        "ExpressionAttributeValues": dict(values),
        "ReturnValues": "ALL_NEW",
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


def _value(row: Row) -> str | None:
    return reports.OWN_MEMBERS["heartbeat"].read(row)
