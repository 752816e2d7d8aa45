"""Decides when `mld run --until-caught-up` may end. Pure; `until_tip` acts on the decisions.

The run has caught up when each row of the lease table is one of these:

* a shard that was read to its end (SHARD_END) and whose child shards have rows;
* an open shard that has reached the tip in this run: Kinesis reported 0 ms behind, and the record processor had
  answered for all records up to there (`ShardMetrics.on_tip`). If the processor fails afterwards, the shard has to
  reach the tip again, because its records come again;
* a shard whose lease another worker was seen to renew.

The run does not wait for shards that an operator has paused: when only such shards are left, it ends and names them.
A run without a time limit also ends if for `STALL_S` none of the remaining shards has made progress and no processor
has a batch. It then names the shards that it was waiting for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from mld.core.positions import LATEST, Position
from mld.leases.lease import Lease
from mld.metrics.activity import ShardActivity
from mld.metrics.shard import ShardMetrics

STALL_S = 120.0
"""A run without a time limit ends after this long without progress. It is longer than the pause before a failing child
is restarted, and than the pause between two attempts at a parked shard.
"""
NAMED_MAX = 5
"""Messages name at most this many shards."""


class CatchUpEnd(Enum):
    CAUGHT_UP = "caught up"
    TIME_OVER = "the time is over"
    STALLED = "nothing moves"
    PAUSED = "only paused shards are left"


@dataclass(frozen=True, slots=True)
class CatchUpLook:
    """The lease table and this worker's consumers at one moment."""

    at: float
    """Monotonic seconds."""
    leases: Sequence[Lease]
    elsewhere: Collection[str]
    """Keys of leases that other workers were seen to renew."""
    at_work: Mapping[str, ShardMetrics]
    """Metrics of the shards that this worker consumes, by lease key."""
    is_in_sync: bool = True
    """Whether each listed shard has a lease row."""
    closed: Collection[str] = ()
    """Keys of shards that get no more records. It is not enough that they have reached the tip: they have to be read to
    their end.
    """


class CatchingUp:
    """Keeps the progress of one run, and decides whether the run ends."""

    def __init__(self, started_at: float, time_max_s: float | None) -> None:
        """Begin a run at `started_at` (monotonic seconds). Without `time_max_s` it may last while it makes progress."""
        self._over_at = None if time_max_s is None else started_at + time_max_s
        """When the time of the run is over; None if it is not limited."""
        self._tips: set[str] = set()  # lease keys of the shards that have reached the tip
        self._moved_at = started_at
        """When a look last found progress, or a shard at work."""
        self._progress: object = None  # how far the shards were at the last look; any change is progress
        self.remaining: dict[str, str] = {}
        """Shards that the last look found unfinished, each with the reason in words."""

    def tip(self, key: str, is_reached: bool) -> bool:
        """Note whether a shard has reached the tip, and return whether this differs from what was noted before.

        `is_reached` is False if the shard's processor has failed: then the shard has to reach the tip once more.
        """
        if is_reached == (key in self._tips):
            return False
        if is_reached:
            self._tips.add(key)
        else:
            self._tips.discard(key)
        return True

    def seems_over(self, held: Collection[str]) -> bool:
        """Return whether all held shards have reached the tip, so that the lease table should be read."""
        return self._tips.issuperset(held)

    def looked(self, look: CatchUpLook) -> CatchUpEnd | None:
        """Return how the run ends, according to this state of the table and the consumers; None if it goes on.

        A run without a time limit counts as stalled if no unfinished shard has made progress for `STALL_S` and none has
        given a batch to its processor.
        """
        self.remaining = _remaining(look, self._tips)
        if not self.remaining:
            return CatchUpEnd.CAUGHT_UP
        if self.remaining.keys() <= _paused(look.leases):
            return CatchUpEnd.PAUSED
        if self.is_time_over(look.at):
            return CatchUpEnd.TIME_OVER
        left = {key: look.at_work[key] for key in self.remaining if key in look.at_work}
        delivered = {key: (work.delivered, work.behind_ms) for key, work in left.items()}
        progress = (sorted(self.remaining), frozenset(self._tips), delivered)
        if progress != self._progress or any(work.busy_since is not None for work in left.values()):
            self._progress, self._moved_at = progress, look.at
        stalled = self._over_at is None and look.at - self._moved_at >= STALL_S
        return CatchUpEnd.STALLED if stalled else None

    def is_time_over(self, now: float) -> bool:
        return self._over_at is not None and now >= self._over_at

    def time_left_s(self, now: float) -> float | None:
        """Return the seconds that are left of the time limit; None if there is no limit."""
        return None if self._over_at is None else max(0.0, self._over_at - now)


def _remaining(look: CatchUpLook, tips: Collection[str]) -> dict[str, str]:
    """Return the shards that are not finished, by lease key, each with the reason in words. The key "" stands for
    shards without a lease row.
    """
    if not look.leases:
        return {"": "there are no lease rows yet"}
    left = {
        lease.key: lease
        for lease in look.leases
        if not lease.is_complete
        and (lease.key not in tips or lease.key in look.closed)
        and lease.key not in look.elsewhere
    }
    remaining = {key: _why(lease, look.at_work.get(key), left) for key, lease in left.items()}
    if not look.is_in_sync:
        remaining[""] = "shards have no lease rows yet"
    return remaining


def _paused(leases: Iterable[Lease]) -> set[str]:
    """Return the keys of the paused shards, and of their descendants, which wait for them."""
    found = {lease.key for lease in leases if lease.paused is not None}
    waiting = [lease for lease in leases if lease.key not in found and not lease.is_complete]
    while more := {lease.key for lease in waiting if lease.key not in found and lease.parents & found}:
        found |= more
    return found


def _why(lease: Lease, work: ShardMetrics | None, left: Collection[str]) -> str:
    """Return in words why a shard is not finished. `left` has the keys of all unfinished shards."""
    parents = sorted(lease.parents & set(left))
    if lease.paused is not None:
        return f"is paused ({lease.paused}); `mld resume` continues it"
    if parents:
        return f"waits for its parent {parents[0]}"
    if work is None:
        owner = lease.actual_owner
        return "has no owner" if owner is None else f"belongs to {owner}, which was not seen to renew its lease"
    if work.busy_since is not None:
        return "its record processor has a batch"
    match work.activity:
        case ShardActivity.PARKED:
            return f"is parked: {work.last_error or 'for an unknown reason'}"
        case ShardActivity.FAILING:
            return f"its record processor fails: {work.last_error or 'for an unknown reason'}"
        case ShardActivity.ENDING:
            return "is about to end"
    return "is being read" if work.behind_ms is None else f"is {work.behind_ms / 1000:g} s behind"


def in_words(remaining: Mapping[str, str]) -> str:
    """Return a text that names a few of the unfinished shards, each with its reason."""
    named = [f"{key} {why}" if key else why for key, why in sorted(remaining.items())[:NAMED_MAX]]
    more = len(remaining) - len(named)
    return "; ".join(named) + (f"; and {more} more" if more > 0 else "")


def begins_at_latest(leases: Iterable[Lease], is_default_latest: bool) -> str | None:
    """Return why records would be skipped between two runs; None if none would be.

    A shard that starts at LATEST and has no checkpoint starts at LATEST in every run, so records that arrive between
    two runs are never read. `is_default_latest` is whether new lease rows start at LATEST.
    """
    unfinished = [lease for lease in leases if not lease.is_complete]
    at_latest = sorted(lease.key for lease in unfinished if lease.checkpoint == LATEST)
    if at_latest:
        return f"the checkpoint of {at_latest[0]} is LATEST"
    # Rows that exist keep their own checkpoints, so the default counts only for an application without unfinished rows.
    return "an application without checkpoints would start at LATEST" if is_default_latest and not unfinished else None


def not_checkpointed(leases: Iterable[Lease], delivered: Mapping[str, Position]) -> dict[str, str]:
    """Return the shards whose processors got records after the checkpoint, each with a text that has both positions.

    These records come again in the next run.
    """
    return {
        lease.key: f"was given records up to {delivered[lease.key]}, but its checkpoint is {lease.checkpoint}"
        for lease in leases
        if lease.key in delivered and lease.checkpoint < delivered[lease.key]
    }
