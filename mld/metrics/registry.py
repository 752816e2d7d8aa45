"""`Metrics`: everything that one worker counts, with a part for the worker and a part for each shard of a held lease.

Each component of the worker holds the part that it counts in; pages and publishers read the metrics that the parts
declare (`mld.metrics.declaring`). The part of a shard ends with its lease, so that no series outlives its shard. Its
counts are then added to the sums of the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mld.metrics.activity import NO_READER, ShardActivity
from mld.metrics.declaring import Instant, shown
from mld.metrics.events import EventBuffer
from mld.metrics.progress import Progress
from mld.metrics.shard import SLOW_READS, ShardMetrics, nobody_asks, none_waits
from mld.metrics.words import DYNAMODB, KINESIS
from mld.metrics.worker import LeaseMove, WorkerMetrics

ENDED_MAX = 1_000
"""How many parts of lost leases may wait to be published. If there are more, the oldest are dropped."""

LOSS_SHOWN_S = 86_400.0
"""How long a loss of records is shown. Somebody has to notice it and send the records again from their source."""
RENEWALS = "renewals"
"""Name of the loop that renews all leases, for `Progress`."""


@dataclass(slots=True, eq=False)
class Metrics:
    """Everything that one worker counts."""

    worker: WorkerMetrics = field(init=False, default_factory=WorkerMetrics)
    progress: Progress = field(init=False, default_factory=Progress)
    shards: dict[str, ShardMetrics] = field(init=False, default_factory=dict)
    on_tip: Callable[[str, bool], None] = field(init=False, default=nobody_asks)
    """Passed to each part as its `ShardMetrics.on_tip`."""
    stream_labels: Mapping[str, str] = field(init=False, default_factory=dict)
    """The names of several streams that people see, by the stream's identifier."""
    is_published: bool = field(init=False, default=False)
    """Whether a publisher takes the values in `ended`. If not, parts of lost leases are not kept."""
    events: EventBuffer = field(init=False, default_factory=EventBuffer)
    """Events that `mld events` and the status page show."""
    ended: list[ShardMetrics] = field(init=False, default_factory=list)
    """Parts of lost leases whose last values are not published yet; the publisher empties the list."""

    def begin(self, key: str, now: float) -> ShardMetrics:
        """Return a new part for a shard whose lease is held from now on. If the shard has a part from an earlier
        holding, that part is ended first.
        """
        if key in self.shards:
            self.end(self.shards[key])
        part = self.shards[key] = ShardMetrics(key, now, self.progress)
        part.on_tip, part.events = self.on_tip, self.events
        if part.stream_id is not None:
            part.stream_label = self.stream_labels.get(part.stream_id, part.stream_id)
        return part

    def end(self, part: ShardMetrics) -> None:
        """End the part of a lost lease: add its counts to those of the worker, and keep it until its last values are
        published. Does nothing if the lease was acquired again and has a newer part.
        """
        if self.shards.get(part.key) is part:
            del self.shards[part.key]
            self.worker.records += int(part.batches.total)
            self.worker.record_bytes += int(part.record_bytes.total)
            self.worker.child_restarts += part.restarts.total
            part.waiting_bytes = none_waits  # drop the callback, which keeps the reader and its buffer alive
            if self.is_published:
                self.ended.append(part)
                del self.ended[:-ENDED_MAX]

    def lost_lately(self, wall_s: float) -> dict[str, str]:
        """Return for each shard that lost records in the last day a text about the loss, by lease key.

        The records left the stream, at the end of its retention, before they were read.
        """
        return {
            key: part.lost_words
            for key, part in self.shards.items()
            if part.losses and wall_s - part.lost_wall_s < LOSS_SHOWN_S
        }

    def contested(self, wall_s: float) -> dict[str, str]:
        """Return for each shard whose subscription is taken over again and again a text about that, by lease key."""
        parts = self.shards.items()
        return {key: part.contested_words for key, part in parts if wall_s < part.contested_until_s}

    def spent_budgets(self, wall_s: float) -> dict[str, str]:
        """Return for each shard whose records used up a budget lately a text about that, by lease key."""
        found = {}
        for key, part in self.shards.items():
            words = [words for words, until_s in part.spent_words.values() if wall_s < until_s]
            if words:
                found[key] = "; ".join(words)
        return found

    def slow_services(self, now: float) -> dict[str, str]:
        """Return, by service, a text about how late its answers are, for services that slow this worker down."""
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
        """Count a lease that this worker lost although it wanted to keep it. `how` is LOST, TWIN or EXPIRED."""
        self.worker.lease_moves.add(how.value)
        self.worker.leases_lost += 1
        self.worker.operations.renewals.lost_one()

    def ticked(self, held: int, now: float, period_s: float) -> None:
        """Note that the renewal of all `held` leases begins now, and begins again after `period_s`."""
        self.progress.step(RENEWALS, now, period_s)
        self.worker.operations.renewals.ticked(held, now)

    def renewed(self, key: str, ok: bool, sent_at: float, now: float) -> None:
        """Count a renewal that was sent at `sent_at`, and was answered or failed at `now`."""
        self.worker.operations.renewals.answered(ok, sent_at, now)
        part = self.shards.get(key)
        if ok and part is not None:
            part.renewed_at = now

    def furthest_behind_s(self, at: Instant) -> float | None:
        """Return the greatest lag of all shards, in seconds; None if no lag is known."""
        known = (part.behind_s(at) for part in self.shards.values())
        return max((behind_s for behind_s in known if behind_s is not None), default=None)

    def in_activity(self, activity: ShardActivity, at: Instant) -> int:
        """Return how many shards are in this activity."""
        return sum(part.activity_at(at.wall_s) is activity for part in self.shards.values())

    def why_unread(self, wall_s: float) -> str | None:
        """Return why none of the shards can be read; None if at least one can, or if there are no shards."""
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
