"""What one worker counts: `Metrics` has a part for the worker and one for each shard that it works on.

The shells hold the part that concerns them and raise its instruments; the views read what is declared with each of them
(`mld.metrics.declaring`). A shard's part ends with its lease, so that no series outlives what it speaks of; what it
counted stays in the worker's sums.

`OF_SHARD`, `OF_WORKER` and the tables of KCL's names collect every name under which metrics are published, as they are
declared. `docs/use/metrics.md` is written from them, and the alerts and the dashboard name only what stands here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from mld.metrics.configuration import ConfigurationMetrics
from mld.metrics.declaring import (
    Declared,
    Instant,
    JavaMetric,
    Metric,
    declared,
    metrics_of,
    shown,
)
from mld.metrics.disks import DiskMetrics
from mld.metrics.events import EventBuffer
from mld.metrics.operations import OPERATIONS
from mld.metrics.progress import Progress
from mld.metrics.shard import NO_READER, SLOW_READS, ShardActivity, ShardMetrics, nobody_asks, none_waits
from mld.metrics.worker import SparkFigures, TableMetrics, WorkerMetrics

ENDED_MAX = 1_000
"""Parts of ended shards that wait for a publisher; beyond that the oldest go unpublished."""

DYNAMODB, KINESIS = "DynamoDB", "Kinesis"
LOSS_SHOWN_S = 86_400.0
"""How long a loss is shown: somebody has to fetch the records from where they came from."""
CREATED, DELETED = "created", "deleted"
RENEWALS = "renewals"
"""Name of the loop that renews all leases, for `Progress`."""

OF_SHARD: tuple[Metric, ...] = tuple(metrics_of(ShardMetrics, "shard"))
"""Read from the part of each shard."""

JAVA_OF_SHARD: tuple[Declared, ...] = tuple(declared(ShardMetrics))
JAVA_METRICS: tuple[JavaMetric, ...] = (
    *(metric for one in JAVA_OF_SHARD for metric in one.metrics),
    *(metric for _, ones in OPERATIONS for one in ones for metric in one.metrics),
)
"""Every name of KCL's under which something is sent."""
JAVA_BY_NAME: Mapping[tuple[str, str], JavaMetric] = {(one.operation, one.name): one for one in JAVA_METRICS}


@dataclass(frozen=True, slots=True)
class Identity:
    """Who speaks."""

    application: str
    stream: str
    worker: str
    version: str


class LeaseMove(Enum):
    """How a lease came to this worker or went from it."""

    TAKEN = "taken"
    ASSIGNED = "assigned"
    RESUMED = "resumed"
    HANDED_OFF = "handed_off"
    RELEASED = "released"
    LOST = "lost"
    TWIN = "twin"
    EXPIRED = "expired"


@dataclass(slots=True, eq=False)
class Metrics:
    """Everything that one worker counts."""

    worker: WorkerMetrics = field(init=False, default_factory=WorkerMetrics)
    progress: Progress = field(init=False, default_factory=Progress)
    shards: dict[str, ShardMetrics] = field(init=False, default_factory=dict)
    on_tip: Callable[[str, bool], None] = field(init=False, default=nobody_asks)
    """That of every part that is begun."""
    stream_labels: Mapping[str, str] = field(init=False, default_factory=dict)
    """What people call each of several streams, by identifier."""
    is_published: bool = field(init=False, default=False)
    """Whether somebody takes the last values of shards whose leases are gone; else they are not kept."""
    events: EventBuffer = field(init=False, default_factory=EventBuffer)
    """What happened, for people."""
    ended: list[ShardMetrics] = field(init=False, default_factory=list)
    """Parts whose lease is gone and whose last values nobody has published; emptied by the publisher."""

    def begin(self, key: str, now: float) -> ShardMetrics:
        """Return the part of a shard whose lease is held from now on."""
        if key in self.shards:
            self.end(self.shards[key])
        part = self.shards[key] = ShardMetrics(key, now, self.progress)
        part.on_tip, part.events = self.on_tip, self.events
        if part.stream_id is not None:
            part.stream_label = self.stream_labels.get(part.stream_id, part.stream_id)
        return part

    def end(self, part: ShardMetrics) -> None:
        """End the part of a lease that is gone. A part that another one has followed has ended before."""
        if self.shards.get(part.key) is part:
            del self.shards[part.key]
            self.worker.records += int(part.batches.total)
            self.worker.record_bytes += int(part.record_bytes.total)
            self.worker.child_restarts += part.restarts.total
            part.waiting_bytes = none_waits  # it holds the reader, and that its buffer
            if self.is_published:
                self.ended.append(part)
                del self.ended[:-ENDED_MAX]

    def lost_lately(self, wall_s: float) -> dict[str, str]:
        """Return what shards have lost to retention in the last day, in words, by the key of the lease."""
        return {
            key: part.lost_words
            for key, part in self.shards.items()
            if part.losses and wall_s - part.lost_wall_s < LOSS_SHOWN_S
        }

    def contested(self, wall_s: float) -> dict[str, str]:
        """Return in words whose subscriptions somebody else takes again and again, by the key of the lease."""
        parts = self.shards.items()
        return {key: part.contested_words for key, part in parts if wall_s < part.contested_until_s}

    def slow_services(self, now: float) -> dict[str, str]:
        """Return which services answer so late that this worker suffers from it, and how late, in words."""
        slow = {}
        if now < self.worker.late_until:
            slow[DYNAMODB] = self.worker.late_words
        took_s = [part.read_took_s for part in self.shards.values() if part.slow_reads >= SLOW_READS]
        if took_s:
            slow[KINESIS] = f"reads of {len(took_s)} of {len(self.shards)} shards take up to {max(took_s):.1f} s"
        return slow

    @property
    def records(self) -> int:
        """Records given to children, since the worker's start."""
        return self.worker.records + sum(int(part.batches.total) for part in self.shards.values())

    @property
    def record_bytes(self) -> int:
        """Payload bytes given to children, since the worker's start."""
        return self.worker.record_bytes + sum(int(part.record_bytes.total) for part in self.shards.values())

    @property
    def child_restarts(self) -> int:
        """Restarts of children, since the worker's start."""
        return self.worker.child_restarts + sum(part.restarts.total for part in self.shards.values())

    def lost(self, how: LeaseMove) -> None:
        """Count a lease that is gone and that we wanted to keep."""
        self.worker.lease_moves.add(how.value)
        self.worker.leases_lost += 1
        self.worker.operations.renewals.lost_one()

    def ticked(self, held: int, now: float, period_s: float) -> None:
        """Note that the renewals of all leases are started, and are started again after `period_s`."""
        self.progress.step(RENEWALS, now, period_s)
        self.worker.operations.renewals.ticked(held, now)

    def renewed(self, key: str, ok: bool, sent_at: float, now: float) -> None:
        """Count a renewal that was begun at `sent_at`, and was answered or failed at `now`."""
        self.worker.operations.renewals.answered(ok, sent_at, now)
        part = self.shards.get(key)
        if ok and part is not None:
            part.renewed_at = now

    def furthest_behind_s(self, at: Instant) -> float | None:
        """Return the lag of the shard that is furthest behind; None if no shard knows."""
        known = (part.behind_s(at) for part in self.shards.values())
        return max((behind_s for behind_s in known if behind_s is not None), default=None)

    def in_activity(self, activity: ShardActivity, at: Instant) -> int:
        """Return how many shards are about this."""
        return sum(part.activity_at(at.wall_s) is activity for part in self.shards.values())

    def why_unread(self, wall_s: float) -> str | None:
        """Return why none of the shards can be read; None if one can, or there is none."""
        parts = self.shards.values()
        if not parts or any(part.activity_at(wall_s) not in NO_READER for part in parts):
            return None
        return f"none of its {len(parts)} shards can be read: {next(iter(parts)).why_at(wall_s)}"

    @shown("mld_leases", "Leases held.", java="RenewAllLeases CurrentLeases")
    def held(self, _: Instant) -> int:
        return len(self.shards)

    @shown("mld_shards_parked", "Shards that wait for an operator.")
    def parked(self, at: Instant) -> int:
        return self.in_activity(ShardActivity.PARKED, at)

    @shown("mld_shards_paused", "Shards that an operator has paused.")
    def paused(self, at: Instant) -> int:
        return self.in_activity(ShardActivity.PAUSED, at)

    @shown("mld_subscribed_shards", "Shards with an open subscription.")
    def subscribed(self, _: Instant) -> int:
        return sum(part.is_subscribed for part in self.shards.values())

    @shown("mld_prefetch_bytes", "Payload that waits in memory for children.")
    def prefetch_bytes(self, _: Instant) -> int:
        return sum(part.waiting_bytes() for part in self.shards.values())


OF_WORKER: tuple[Metric, ...] = (
    *metrics_of(Metrics),
    *metrics_of(WorkerMetrics, reach=lambda metrics: metrics.worker),
    *metrics_of(TableMetrics, reach=lambda metrics: metrics.worker.table),
    *metrics_of(ConfigurationMetrics, reach=lambda metrics: metrics.worker.configuration),
    *metrics_of(DiskMetrics, reach=lambda metrics: metrics.worker.disks),
    *metrics_of(SparkFigures, reach=lambda metrics: metrics.worker.spark),
)
"""Read from `Metrics`."""
