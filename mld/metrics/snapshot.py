"""The worker's metrics at one moment, as values: what every view is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from mld.metrics.instruments import SpreadValue
from mld.metrics.registry import Metrics, ShardActivity, ShardMetrics, SparkFigures
from mld.steps import Steps, at_once

SLICE = 25  # shards between two turns of the loop, 30 µs for each


@dataclass(frozen=True, slots=True)
class Identity:
    """Who speaks. `mode` is how the fleet works together, in the words of the log."""

    application: str
    stream: str
    worker: str
    version: str


@dataclass(frozen=True, slots=True)
class ShardValue:
    """One shard. Ages and times are seconds; None is what nobody knows."""

    key: str
    shard_id: str
    """The shard's own name."""
    stream_id: str | None
    """The stream's identifier among several, else None; so is its label, which people call it by."""
    stream_label: str | None
    activity: ShardActivity
    records: int
    record_bytes: int
    batches: int
    behind_s: float | None
    behind_age_s: float | None
    checkpoint_age_s: float | None
    renewal_age_s: float
    busy_s: float | None
    prefetch_bytes: int
    is_subscribed: bool
    process_records: SpreadValue
    fetch: SpreadValue
    checkpoint: SpreadValue
    fetches: Mapping[str, int]
    checkpoints: Mapping[str, int]
    restarts: Mapping[str, int]
    subscriptions: Mapping[str, int]
    dropped_aggregates: Mapping[str, int]
    delivered: str | None
    last_error: str | None
    last_error_wall_s: float
    unread_s: float
    """How long reads have failed; 0 while they succeed."""
    why: str | None
    """Since when it is in trouble, and why, in words."""


@dataclass(frozen=True, slots=True)
class FleetValue:
    """What only the leader, or whoever last read the whole table, knows. None: this worker has not looked."""

    workers: int | None = None
    unassigned: int | None = None
    holes: int | None = None
    corrupt: int | None = None
    without_room: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    identity: Identity
    wall_s: float
    """When it was taken, in epoch seconds."""
    shards: tuple[ShardValue, ...]
    is_leader: bool
    leases_lost: int
    unexpected_errors: int
    log_lines_dropped: int
    prefetch_limit_bytes: int
    loop_delay: SpreadValue
    lease_moves: Mapping[str, int] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    requests: Mapping[str, int] = field(default_factory=dict)
    framed_records: Mapping[str, int] = field(default_factory=dict)
    units: Mapping[str, float] = field(default_factory=dict)
    fleet: FleetValue = FleetValue()
    spark: SparkFigures | None = None

    @property
    def behind_s(self) -> float | None:
        """How far the shard that is furthest behind is; None if no shard knows."""
        return max((shard.behind_s for shard in self.shards if shard.behind_s is not None), default=None)

    def count(self, activity: ShardActivity) -> int:
        """How many shards are about this."""
        return sum(shard.activity is activity for shard in self.shards)


def snapshot_steps(
    metrics: Metrics,
    identity: Identity,
    now: float,
    wall_s: float,
    *,
    prefetch_limit_bytes: int = 0,
    fleet: FleetValue | None = None,
) -> Steps[Snapshot]:
    """The values of now (`now` monotonic, `wall_s` epoch seconds). Changes nothing.

    `fleet` replaces what this worker has seen of the table itself.
    """
    shards = []
    for number, (_, part) in enumerate(sorted(metrics.shards.items())):
        if number % SLICE == 0:
            yield
        shards.append(value_of(part, now, wall_s))
    worker, table = metrics.worker, metrics.worker.table
    return Snapshot(
        identity=identity,
        wall_s=wall_s,
        shards=tuple(shards),
        is_leader=worker.is_leader,
        leases_lost=worker.leases_lost,
        unexpected_errors=worker.unexpected_errors,
        log_lines_dropped=worker.log_lines_dropped,
        prefetch_limit_bytes=prefetch_limit_bytes,
        loop_delay=worker.loop_delay.value(),
        lease_moves=worker.lease_moves.value(),
        rows=worker.rows.value(),
        requests=worker.requests.value(),
        framed_records=worker.framed_records.value(),
        units=worker.units.value(),
        spark=worker.spark,
        fleet=fleet or FleetValue(table.workers, table.unassigned, table.holes, table.corrupt, table.without_room),
    )


take_snapshot = at_once(snapshot_steps)


def value_of(part: ShardMetrics, now: float, wall_s: float) -> ShardValue:
    """One shard's part at `now`, in monotonic seconds, which is `wall_s` in epoch seconds."""
    lag_ms = part.lag_ms(wall_s)
    return ShardValue(
        key=part.key,
        shard_id=part.shard_id,
        stream_id=part.stream_id,
        stream_label=part.stream_label,
        activity=part.activity_at(wall_s),
        records=math.floor(part.batches.total),
        record_bytes=math.floor(part.record_bytes.total),
        batches=part.batches.count,
        behind_s=None if lag_ms is None else lag_ms / 1000,
        behind_age_s=None if part.behind_ms is None else max(0.0, wall_s - part.behind_wall_s),
        checkpoint_age_s=_age(part.checkpoint_at, now),
        renewal_age_s=max(0.0, now - part.renewed_at),
        busy_s=_age(part.busy_since, now),
        prefetch_bytes=part.waiting_bytes(),
        is_subscribed=part.is_subscribed,
        process_records=part.process_records.value(),
        fetch=part.fetch.seconds.value(),
        checkpoint=part.checkpoints.seconds.value(),
        fetches=part.fetches.value(),
        checkpoints=part.checkpoints_by.value(),
        restarts=part.restarts.value(),
        subscriptions=part.subscriptions.value(),
        dropped_aggregates=part.dropped_aggregates.value(),
        delivered=None if part.delivered is None else str(part.delivered),
        last_error=part.last_error,
        last_error_wall_s=part.last_error_wall_s,
        unread_s=part.failed_reads.for_s(wall_s),
        why=part.why_at(wall_s),
    )


def _age(at: float | None, now: float) -> float | None:
    return None if at is None else max(0.0, now - at)
