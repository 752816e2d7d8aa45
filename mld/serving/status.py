"""What `/status.json` and the page show: the whole fleet by its tables, and more of the shards of this worker. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mld.metrics.rings import History
from mld.metrics.snapshot import ShardValue, Snapshot
from mld.operating.fleet_status import FleetStatus, ShardView, Verdict, share_of
from mld.operating.listings import shard_value, worker_value

ENDED = "ended"
STOPPED = "stopped"
UNKNOWN = "unknown"


def document(
    snapshot: Snapshot,
    fleet: FleetStatus | None,
    history: History,
    *,
    mode: str,
    trouble: str | None = None,
    spark: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The page's data. `fleet` None: the tables could not be read, `trouble` says why; this worker's shards remain."""
    own = {shard.key: shard for shard in snapshot.shards}
    me = snapshot.identity
    shards = (
        [_own_only(shard, snapshot) for shard in snapshot.shards]
        if fleet is None
        else [_shard(view, own.get(view.key)) for view in fleet.shards]
    )
    for shard in shards:
        shard["behindHistory"], shard["rateHistory"] = history.behind(shard["shard"]), history.rate(shard["shard"])
        shard["recordsPerSecond"] = history.rate(shard["shard"])[-1] if history.rate(shard["shard"]) else None
    workers = [] if fleet is None else [worker_value(worker) for worker in fleet.workers]
    return {
        "application": me.application,
        "stream": me.stream,
        "version": me.version,
        "worker": me.worker,
        "mode": mode,
        "takenAt": snapshot.wall_s,
        "trouble": trouble,
        "shards": shards,
        "workers": [worker | {"isHere": worker["worker"] == me.worker} for worker in workers],
        "holes": [] if fleet is None else [{"from": a, "to": b} for a, b in map(share_of, fleet.holes)],
        "corrupt": [] if fleet is None else [{"key": key, "reason": why} for key, why in fleet.corrupt],
        "spark": list(spark),
    }


def _shard(view: ShardView, own: ShardValue | None) -> dict[str, Any]:
    value = shard_value(view) | {"busySeconds": None, "restarts": None, "lastError": value_error(view)}
    if view.verdict is Verdict.ENDED:
        value["state"] = ENDED
    elif view.verdict is Verdict.STOPPED:
        value["state"] = STOPPED
    elif own is not None:
        value |= _of_own(own)
    elif view.status is None:
        value["state"] = UNKNOWN
    else:
        value["state"] = view.status.activity
    return value


def value_error(view: ShardView) -> str | None:
    """What the row says of failures, for shards of other workers."""
    return None if view.failing is None else f"failed {view.failing.failures} times"


def _of_own(own: ShardValue) -> dict[str, Any]:
    """What only this worker knows of a shard of its own, and what it knows better."""
    return {
        "state": own.activity.value,
        "behindSeconds": own.behind_s,
        "busySeconds": own.busy_s,
        "restarts": sum(own.restarts.values()),
        "lastError": own.last_error,
        "delivered": own.delivered,
    }


def _own_only(own: ShardValue, snapshot: Snapshot) -> dict[str, Any]:
    return {
        "shard": own.key,
        "verdict": Verdict.UNKNOWN.value,
        "owner": snapshot.identity.worker,
        "handoffTo": None,
        "checkpoint": "",
        "kbPerSecond": None,
        "parents": [],
        "children": [],
        "from": None,
        "to": None,
        "failures": 0,
        "note": "",
        **_of_own(own),
    }
