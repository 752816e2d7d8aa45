"""What one daemon says of itself over its control socket: its own shards, without a look at any table. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mld.metrics.snapshot import ShardValue, Snapshot
from mld.operating.verdicts import RANKS


@dataclass(frozen=True, slots=True)
class DaemonFacts:
    """What is not in a snapshot. The two reasons are None while the daemon is well."""

    pid: int
    up_s: float
    mode: str
    log_level: str
    why_not_alive: str | None
    why_not_ready: str | None


def own_status(snapshot: Snapshot, facts: DaemonFacts) -> dict[str, Any]:
    """The daemon in plain values; times in seconds, None for what is unknown. Shards in trouble come first, then the
    furthest behind."""
    me = snapshot.identity
    worst_first = sorted(
        snapshot.shards,
        key=lambda shard: (RANKS.get(shard.activity.value, len(RANKS)), -(shard.behind_s or 0.0), shard.key),
    )
    return {
        "application": me.application,
        "stream": me.stream,
        "worker": me.worker,
        "version": me.version,
        "pid": facts.pid,
        "upSeconds": round(facts.up_s, 3),
        "takenAt": snapshot.wall_s,
        "mode": facts.mode,
        "isLeader": snapshot.is_leader,
        "isAlive": facts.why_not_alive is None,
        "whyNotAlive": facts.why_not_alive,
        "isReady": facts.why_not_ready is None,
        "whyNotReady": facts.why_not_ready,
        "logLevel": facts.log_level,
        "behindSeconds": snapshot.behind_s,
        "leasesLost": snapshot.leases_lost,
        "unexpectedErrors": snapshot.unexpected_errors,
        "shards": [_shard(shard) for shard in worst_first],
    }


def _shard(shard: ShardValue) -> dict[str, Any]:
    return {
        "shard": shard.shard_id,
        "stream": shard.stream_label,
        "streamId": shard.stream_id,
        "key": shard.key,
        "state": shard.activity.value,
        "behindSeconds": shard.behind_s,
        "toldSecondsAgo": shard.behind_age_s,
        "busySeconds": shard.busy_s,
        "records": shard.records,
        "recordBytes": shard.record_bytes,
        "checkpointSecondsAgo": shard.checkpoint_age_s,
        "delivered": shard.delivered,
        "restarts": sum(shard.restarts.values()),
        "why": shard.why,
        "lastError": shard.last_error,
        "lastErrorAt": None if shard.last_error is None else shard.last_error_wall_s,
    }
