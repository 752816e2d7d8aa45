"""`own_shards`: the shards of this worker as plain values, for `mld status`. No table is read for it. Pure."""

from __future__ import annotations

import math
from typing import Any

from mld.metrics.declaring import Instant
from mld.metrics.registry import Metrics
from mld.metrics.shard import ShardMetrics
from mld.operating.shard_view import (
    RANKS,
)


def own_shards(metrics: Metrics, at: Instant) -> list[dict[str, Any]]:
    """Return the shards of this worker as plain values: first the shards in trouble; among equals, the largest lag
    first.
    """
    return sorted(
        (_shard(part, at) for part in metrics.shards.values()),
        key=lambda one: (RANKS.get(one["state"], len(RANKS)), -(one["behindSeconds"] or 0.0), one["key"]),
    )


def processes_value(own: ShardMetrics, at: Instant) -> dict[str, Any]:
    """Return the load of each of several children of a shard; an empty object for a shard with one child."""
    return {} if own.children is None else {"childProcesses": own.children.value(at.now)}


def _shard(part: ShardMetrics, at: Instant) -> dict[str, Any]:
    """Return one shard as plain values; None for values that are not known."""
    return {
        "shard": part.shard_id,
        "stream": part.stream_label,
        "streamId": part.stream_id,
        "key": part.key,
        "state": part.activity_at(at.wall_s).value,
        "behindSeconds": part.behind_s(at),
        "toldSecondsAgo": part.behind_age_s(at),
        "busySeconds": part.busy_s(at),
        **processes_value(part, at),
        "records": math.floor(part.batches.total),
        "recordBytes": math.floor(part.record_bytes.total),
        "checkpointSecondsAgo": part.checkpoint_age_s(at),
        "delivered": None if part.delivered is None else str(part.delivered),
        "restarts": part.restarts.total,
        "why": part.why_at(at.wall_s),
        "lastError": part.last_error,
        "lastErrorAt": None if part.last_error is None else part.last_error_wall_s,
    }
