"""When a run that is to end at the tip of the stream may end, and who else is at work. Pure; the shell is `until_tip`.

A run is over when every row of the lease table is one of these:

* at SHARD_END, with rows for its children;
* open, and at the tip once in this run: Kinesis said "0 ms behind", and the record processor had answered for
  everything up to there (`ShardMetrics.on_tip`); a processor that fails afterwards takes this back, as its records
  come again;
* in the hands of another worker that was seen to renew it.

A shard that an operator has paused is not waited for: the run ends when nothing else is left, and says so.
A run that nothing can move ends as well, unless it was given a time: when for `STALL_S` no shard that is left has got
on and no processor has a batch, it says what it waits for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from mld.core.positions import LATEST, Position
from mld.core.steps import finish
from mld.fleet.observations import Observations
from mld.leases.lease import Lease
from mld.metrics.shard import ShardActivity, ShardMetrics

STALL_S = 120.0
"""Longer than the pauses between the restarts of a failing child and between two looks at a parked shard."""
NAMED_MAX = 5
"""Shards that a sentence names."""


class CatchUpEnd(Enum):
    CAUGHT_UP = "caught up"
    TIME_OVER = "the time is over"
    STALLED = "nothing moves"
    PAUSED = "only paused shards are left"


@dataclass(frozen=True, slots=True)
class CatchUpLook:
    """The table and the consumers at one moment (`at`, monotonic seconds)."""

    at: float
    leases: Sequence[Lease]
    elsewhere: Collection[str]
    """Keys of leases that other workers were seen to renew."""
    at_work: Mapping[str, ShardMetrics]
    """What this worker's consumers of shards are about."""
    is_in_sync: bool = True
    closed: Collection[str] = ()
    """Keys of shards that take no more records, as far as they are known: they are read to their end."""


class CatchingUp:
    """One run, begun at `started_at` (monotonic seconds); `time_max_s` None: it may take as long as it gets on."""

    def __init__(self, started_at: float, time_max_s: float | None) -> None:
        self._over_at = None if time_max_s is None else started_at + time_max_s
        self._tips: set[str] = set()
        self._moved_at = started_at
        self._last: object = None
        self.remaining: dict[str, str] = {}
        """What the last look found still to do: shard, and why in words."""

    def tip(self, key: str, is_reached: bool) -> bool:
        """Note that a shard has reached the tip, or has to do so again; True if that is news."""
        if is_reached == (key in self._tips):
            return False
        if is_reached:
            self._tips.add(key)
        else:
            self._tips.discard(key)
        return True

    def seems_over(self, held: Collection[str]) -> bool:
        """Return whether all shards with a consumer of ours were at the tip, so that the table is worth a look."""
        return self._tips.issuperset(held)

    def looked(self, look: CatchUpLook) -> CatchUpEnd | None:
        """Return what follows from a look: None to go on."""
        self.remaining = _remaining(look, self._tips)
        if not self.remaining:
            return CatchUpEnd.CAUGHT_UP
        if self.remaining.keys() <= _paused(look.leases):
            return CatchUpEnd.PAUSED
        if self.is_time_over(look.at):
            return CatchUpEnd.TIME_OVER
        left = {key: look.at_work[key] for key in self.remaining if key in look.at_work}
        now = (sorted(self.remaining), frozenset(self._tips), {k: (w.delivered, w.behind_ms) for k, w in left.items()})
        if now != self._last or any(work.busy_since is not None for work in left.values()):
            self._last, self._moved_at = now, look.at
        stalled = self._over_at is None and look.at - self._moved_at >= STALL_S
        return CatchUpEnd.STALLED if stalled else None

    def is_time_over(self, now: float) -> bool:
        return self._over_at is not None and now >= self._over_at

    def time_left_s(self, now: float) -> float | None:
        return None if self._over_at is None else max(0.0, self._over_at - now)


def _remaining(look: CatchUpLook, tips: Collection[str]) -> dict[str, str]:
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
    """Return keys of the paused shards, and of those that wait for them."""
    found = {lease.key for lease in leases if lease.paused is not None}
    waiting = [lease for lease in leases if lease.key not in found and not lease.is_complete]
    while more := {lease.key for lease in waiting if lease.key not in found and lease.parents & found}:
        found |= more
    return found


def _why(lease: Lease, work: ShardMetrics | None, left: Collection[str]) -> str:
    parents = sorted(lease.parents & set(left))
    if lease.paused is not None:
        return f"is paused ({lease.paused}); `mld resume` goes on with it"
    if parents:
        return f"waits for its parent {parents[0]}"
    if work is None:
        owner = lease.actual_owner
        return "nobody works on it" if owner is None else f"belongs to {owner}, which was not seen to work on it"
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
    """Return the shards that are left, a few of them by name."""
    named = [f"{key} {why}" if key else why for key, why in sorted(remaining.items())[:NAMED_MAX]]
    more = len(remaining) - len(named)
    return "; ".join(named) + (f"; and {more} more" if more > 0 else "")


# --- who else is at work ----------------------------------------------------------------------------------------------


class OtherWorkers:
    """Whose leases were seen to be renewed, look after look; times are monotonic seconds."""

    def __init__(self, lease_duration_s: float) -> None:
        self._observations = Observations(lease_duration_s=lease_duration_s, handoff_timeout_s=0.0)
        self._since: dict[tuple[str, str], float] = {}
        """When a lease was first seen in these hands."""

    def looked(self, leases: Sequence[Lease], now: float) -> None:
        """Note a scan that ended at `now` and showed these leases."""
        finish(self._observations.scanned(leases, now))
        owned = {(lease.key, lease.actual_owner) for lease in leases if lease.actual_owner is not None}
        self._since = {(key, owner): self._since.get((key, owner), now) for key, owner in owned if owner is not None}

    def is_renewed(self, lease: Lease, now: float) -> bool:
        """Return whether its owner was seen to renew it, within a lease duration before `now`."""
        owner = lease.actual_owner
        if owner is None or self._observations.is_expired(lease, now):
            return False
        moved_at, since = self._observations.moved_at(lease), self._since.get((lease.key, owner))
        return moved_at is not None and since is not None and moved_at > since

    def at_work(self, leases: Iterable[Lease], now: float) -> frozenset[str]:
        """Return the workers that were seen to renew one of the leases."""
        return frozenset(str(lease.actual_owner) for lease in leases if self.is_renewed(lease, now))

    def undecided(self, leases: Iterable[Lease], now: float) -> bool:
        """Return whether somebody may still turn out to be at work on one of the leases."""
        owned = (lease for lease in leases if lease.actual_owner is not None and not lease.is_complete)
        return any(not self._observations.is_expired(lease, now) for lease in owned)


# --- the beginning and the end ----------------------------------------------------------------------------------------


def begins_at_latest(leases: Iterable[Lease], is_default_latest: bool) -> str | None:
    """Return why runs that end would skip records, in words; None if they would not.

    A shard without a checkpoint that starts at LATEST starts there again in every run: what comes between two runs is
    never read. `is_default_latest`: rows that are made will start there.
    """
    there = [lease for lease in leases if not lease.is_complete]
    at_latest = sorted(lease.key for lease in there if lease.checkpoint == LATEST)
    if at_latest:
        return f"the checkpoint of {at_latest[0]} is LATEST"
    return "an application without checkpoints would start at LATEST" if is_default_latest and not there else None


def not_checkpointed(leases: Iterable[Lease], delivered: Mapping[str, Position]) -> dict[str, str]:
    """Return shards whose rows are behind what their processors had been given: these records come again."""
    return {
        lease.key: f"was given {delivered[lease.key]}, and its checkpoint is {lease.checkpoint}"
        for lease in leases
        if lease.key in delivered and lease.checkpoint < delivered[lease.key]
    }
