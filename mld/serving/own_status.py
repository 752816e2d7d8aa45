"""What one daemon says of itself over its control socket: its own shards, without a look at any table. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mld.metrics.declaring import Instant
from mld.metrics.registry import Identity, Metrics
from mld.metrics.shard import ShardMetrics
from mld.operating.verdicts import RANKS


@dataclass(frozen=True, slots=True)
class DaemonFacts:
    """What is no metric. The two reasons are None while the daemon is well."""

    pid: int
    up_s: float
    mode: str
    log_level: str
    why_not_alive: str | None
    why_not_ready: str | None


def own_status(metrics: Metrics, me: Identity, at: Instant, facts: DaemonFacts) -> dict[str, Any]:
    """Return the daemon in plain values; times in seconds, None for what is unknown. Shards in trouble come first,
    then the furthest behind.
    """
    worst_first = sorted(
        (_shard(part, at) for part in metrics.shards.values()),
        key=lambda one: (RANKS.get(one["state"], len(RANKS)), -(one["behindSeconds"] or 0.0), one["key"]),
    )
    return {
        "application": me.application,
        "stream": me.stream,
        "worker": me.worker,
        "version": me.version,
        "pid": facts.pid,
        "upSeconds": round(facts.up_s, 3),
        "takenAt": at.wall_s,
        "mode": facts.mode,
        "isLeader": metrics.worker.is_leader,
        "isAlive": facts.why_not_alive is None,
        "whyNotAlive": facts.why_not_alive,
        "isReady": facts.why_not_ready is None,
        "whyNotReady": facts.why_not_ready,
        "logLevel": facts.log_level,
        "behindSeconds": metrics.furthest_behind_s(at),
        "leasesLost": metrics.worker.leases_lost,
        "unexpectedErrors": metrics.worker.unexpected_errors,
        "shards": worst_first,
    }


def _shard(part: ShardMetrics, at: Instant) -> dict[str, Any]:
    return {
        "shard": part.shard_id,
        "stream": part.stream_label,
        "streamId": part.stream_id,
        "key": part.key,
        "state": part.activity_at(at.wall_s).value,
        "behindSeconds": part.behind_s(at),
        "toldSecondsAgo": part.behind_age_s(at),
        "busySeconds": part.busy_s(at),
        "records": math.floor(part.batches.total),
        "recordBytes": math.floor(part.record_bytes.total),
        "checkpointSecondsAgo": part.checkpoint_age_s(at),
        "delivered": None if part.delivered is None else str(part.delivered),
        "restarts": part.restarts.total,
        "why": part.why_at(at.wall_s),
        "lastError": part.last_error,
        "lastErrorAt": None if part.last_error is None else part.last_error_wall_s,
    }
