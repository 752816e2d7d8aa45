"""`Lease`: the values of one lease row, in memory. Pure. Rule: leases#row-attributes.

`rows` converts rows of DynamoDB into these values, `writes` makes the writes of rows, and `keeper` knows which leases
this worker holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mld.core.positions import Position
from mld.core.streams import HashRange

if TYPE_CHECKING:
    from mld.metrics.declaring import Instant
    from mld.metrics.shard import ShardMetrics


@dataclass(frozen=True, slots=True)
class PendingCheckpoint:
    """A prepared checkpoint (KCL's two-phase checkpoint); `state` holds opaque bytes of the application."""

    position: Position
    state: bytes | None = None


@dataclass(frozen=True, slots=True)
class Failing:
    """A note in the row of a shard whose record processor keeps failing. It is for the next owner, and for people who
    read the table.

    The note is about one `checkpoint`: if the row has another one, there was progress since, and the note is obsolete.
    """

    failures: int
    """Consecutive failures without checkpoint progress. 0 means that the processor works again, and removes the
    note."""
    since_s: int
    """When the first of these failures happened, in epoch seconds."""
    checkpoint: Position
    attempts: int = 0
    """How often the batch over which the processor fails was delivered; 0 if it had no batch."""
    first: Position | None = None
    """The position of the first record of that batch; None if there was no batch."""


@dataclass(frozen=True, slots=True)
class ChildFigures:
    """What a shard's child does, as its holder measured it."""

    records_per_s: float | None
    """Records given to the child per second, rounded to a tenth; None before the second measurement."""
    busy_s: int | None
    """For how many seconds the child has worked on its present batch; None if it has none."""
    restarts: int
    """Restarts of the child since the holder got the lease."""


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """The state of a shard, which its holder writes into the row with each renewal. It is for people, and for the next
    holder, which notices by it if records are missing (`read_to_s`) and continues the trend. It never decides who gets
    the lease.
    """

    activity: str
    """processing, idle, stalled, unreadable, failing, parked, ending or paused."""
    at_s: int
    """The time of this status, in epoch seconds of the holder's clock."""
    behind_ms: int | None = None
    """How far the shard was behind the tip; None if Kinesis has not reported it."""
    delivered: Position | None = None
    """The newest position that was given to the child."""
    why: str | None = None
    """A text that says since when the shard is in trouble, and why; None if the shard is not in trouble, or if the
    reason is not known."""
    trend: str | None = None
    """Lag in the last hour, see `metrics.shard.Trend`; None if unknown."""
    child: ChildFigures | None = None
    """The figures of the shard's child; None if the holder (an earlier version of mld) does not report them."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One lease row. While a handoff is pending, `checkpoint_owner` is the present owner, and `owner` the next one.
    Otherwise `checkpoint_owner` is None, and `owner` is the owner; None if the lease has no owner.

    `parents` and `children` are shard ids, never keys.
    """

    key: str
    checkpoint: Position
    counter: int = 0
    owner: str | None = None
    checkpoint_owner: str | None = None
    owner_switches: int = 0
    pending: PendingCheckpoint | None = None
    parents: frozenset[str] = frozenset()
    children: frozenset[str] = frozenset()
    hash_range: HashRange | None = None
    throughput_kbps: float | None = None
    heartbeat: str | None = None
    """The mark that a worker of mld 0.2 wrote instead of renewing the row. A scan of the whole table replaces it by
    that worker's heartbeat, which changes as long as the worker lives. Our first write of the row removes the mark.
    """
    failing: Failing | None = None
    paused: str | None = None
    """A text that says who paused the shard, when and why; None if it is not paused. Records of a paused shard are not
    delivered."""
    left_out: frozenset[str] = frozenset()
    """Records that must not be delivered, because an operator has saved them; each is ``SEQUENCE`` or
    ``SEQUENCE/SUB``."""
    restart: str | None = None
    """A text that says who last asked for a new child, when and why. The holder starts a new child when this text
    changes."""
    pinned_until_s: int | None = None
    """The time until which the lease stays with the worker to which an operator gave it, in epoch seconds."""
    stream: str | None = None
    """The stream's identifier, ``account:name:epoch``, in a table of several streams; the key begins with it."""
    status: ShardStatus | None = field(default=None, compare=False)

    @property
    def shard_id(self) -> str:
        """The shard's id. In a table of one stream the id is also the key."""
        return self.key if self.stream is None else self.key.removeprefix(f"{self.stream}:")

    @property
    def actual_owner(self) -> str | None:
        """The worker that may renew and checkpoint now; while a handoff is pending, that is the old owner. None:
        nobody.
        """
        return self.checkpoint_owner if self.checkpoint_owner is not None else self.owner

    @property
    def handoff_to(self) -> str | None:
        """The worker that gets the lease once its actual owner has finished; None if no handoff is pending."""
        return self.owner if self.checkpoint_owner is not None else None

    @property
    def wishes(self) -> tuple[str | None, frozenset[str], str | None]:
        """The operator's requests to the holder: the pause, the records to leave out, the restart of the child."""
        return self.paused, self.left_out, self.restart

    @property
    def is_complete(self) -> bool:
        return self.checkpoint.is_shard_end

    @property
    def is_load(self) -> bool:
        """Whether the lease counts towards maxLeasesForWorker (leases#load-of-a-worker): the shard has to be read."""
        return not self.is_complete

    @property
    def failing_now(self) -> Failing | None:
        """The note of failures, if it still holds. A worker that does not know such notes moves the checkpoint without
        removing the note; then this is None.
        """
        return None if self.failing is None or self.failing.checkpoint != self.checkpoint else self.failing

    def lacking(self, note: Failing | None) -> Failing | None:
        """Return `note` if this row must still be changed to agree with it: the note must be written or, with 0
        failures, the row's note removed. Return None if the row agrees already, or if the note is about another
        checkpoint than the row's.
        """
        if note is None or note.checkpoint != self.checkpoint:
            return None
        agrees = note == self.failing if note.failures else self.failing is None
        return None if agrees else note


def loads_of(leases: Iterable[Lease]) -> Counter[str]:
    """Return how many unfinished leases each worker owns or is about to get (leases#load-of-a-worker).

    The lease of a finished shard does not count: nobody reads the shard any more, but its row is kept until its
    children have begun, and if it counted, it would take the place that its own children need. A lease that is being
    handed off counts for both workers: the old owner still reads the shard, and the next one will.
    """
    load = [lease for lease in leases if lease.is_load]
    counts = Counter(lease.owner for lease in load if lease.owner is not None)
    counts.update(lease.checkpoint_owner for lease in load if lease.checkpoint_owner is not None)
    return counts


def within_stream(lease: Lease) -> Lease:
    """Return the lease with the plain shard id as its key, as in a table of only its stream."""
    return lease if lease.stream is None else replace(lease, key=lease.shard_id, stream=None)


def status_of(part: ShardMetrics | None, at: Instant) -> ShardStatus | None:
    """Return the status of a shard from its metrics; None if it has none."""
    if part is None:
        return None
    lag_ms, why = part.lag_ms(at.wall_s), part.why_at(at.wall_s)
    trend = part.trend.noted(lag_ms, at.wall_s)
    activity = part.activity_at(at.wall_s).value
    return ShardStatus(activity, int(at.wall_s), lag_ms, part.delivered, why, trend, child_figures(part, at))


def child_figures(part: ShardMetrics, at: Instant) -> ChildFigures:
    """Return the figures of a shard's child from the shard's metrics."""
    rate, busy_s = part.records_per_s, part.busy_s(at)
    return ChildFigures(
        None if rate is None else round(rate, 1), None if busy_s is None else int(busy_s), int(part.restarts.total)
    )


def read_to_s(lease: Lease) -> float | None:
    """Return the time (epoch seconds) up to which the shard is processed: by the status in the row, all records that
    arrived before it are checkpointed.

    Return None if the row has no status with a lag, or if the status shows that records were delivered after the
    checkpoint.
    """
    status = lease.status
    if status is None or status.behind_ms is None:
        return None
    if status.delivered is not None and status.delivered > lease.checkpoint:
        return None
    return status.at_s - status.behind_ms / 1000
