"""Converts the fleet, its shards, workers and events to plain values, for the JSON of commands with -o json. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mld.metrics.events import Event
from mld.operating.faults import FleetFault, fault_value
from mld.operating.fleet_status import FleetStatus
from mld.operating.listings import note
from mld.operating.shard_view import (
    ShardView,
)
from mld.operating.worker_view import WorkerView


def event_value(event: Event) -> dict[str, Any]:
    """Return one event, in plain values."""
    return {
        "at": event.at_s,
        "event": event.kind.value,
        "worker": event.worker,
        "shard": event.shard or None,
        "text": event.text,
        "lines": list(event.lines),
    }


def shard_value(shard: ShardView, remedy: str | None = None) -> dict[str, Any]:
    """Return one shard in plain values: times in seconds, None for an unknown value."""
    share = shard.share
    return {
        "shard": shard.lease.shard_id,
        "stream": shard.label,
        "streamId": shard.lease.stream,
        "key": shard.key,
        "verdict": shard.verdict.value,
        "state": shard.state,
        "owner": shard.owner,
        "handoffTo": shard.lease.handoff_to,
        "behindSeconds": shard.behind_s,
        "toldSecondsAgo": shard.age_s,
        "isProbed": shard.is_probed,
        "checkpoint": str(shard.lease.checkpoint),
        "delivered": None if shard.status is None or shard.status.delivered is None else str(shard.status.delivered),
        "kbPerSecond": shard.lease.throughput_kbps,
        "parents": sorted(shard.lease.parents),
        "children": sorted(shard.lease.children),
        "from": None if share is None else share[0],
        "to": None if share is None else share[1],
        "failures": 0 if shard.failing is None else shard.failing.failures,
        "why": shard.why,
        "note": note(shard),
        "remedy": remedy,
    }


def worker_value(worker: WorkerView) -> dict[str, Any]:
    """Return one worker, in plain values."""
    return {
        "worker": worker.worker,
        "kind": worker.kind,
        "host": worker.place.host,
        "pid": worker.place.pid,
        "startedAt": worker.place.started_s,
        "stream": worker.application,
        "leases": worker.leases,
        "share": worker.share,
        "isAlive": worker.is_alive,
        "isLeader": worker.is_leader,
        "heardSeconds": worker.heard_s,
        "cpu": worker.cpu_percent,
        "behindSeconds": worker.behind_s,
        "drained": worker.drained,
        "why": worker.why,
    }


def shard_values(shards: Iterable[ShardView], faults: Iterable[FleetFault]) -> list[dict[str, Any]]:
    """Return shards in plain values, each with the remedy for its fault."""
    remedies = {fault.shard: fault.remedy for fault in faults}
    return [shard_value(shard, remedies.get(shard.key)) for shard in shards]


def fleet_value(
    status: FleetStatus, shards: Iterable[ShardView] | None = None, faults: Sequence[FleetFault] = ()
) -> dict[str, Any]:
    """Return the whole fleet in plain values; with `shards` only these of its shards."""
    return {
        "takenAt": status.taken_s,
        "leader": status.leader,
        "behindSeconds": status.behind_s,
        "faults": [fault_value(fault) for fault in faults],
        "shards": shard_values(status.shards if shards is None else shards, faults),
        "workers": [worker_value(worker) for worker in status.workers],
        "holes": [
            {"stream": label, "from": str(hole.start), "to": str(hole.end)}
            for label, holes in status.holes_of.items()
            for hole in holes
        ],
        "corrupt": [{"key": key, "reason": why} for key, why in status.corrupt],
    }
