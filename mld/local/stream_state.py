"""`Stream`: one stream of the embedded Kinesis, with its shards. Pure.

The status of a stream follows from times: it is CREATING until `active_s`, UPDATING until `updated_s`, and, if `gone_s`
is set, DELETING until `gone_s`. A split or merge takes effect at once, although the status is UPDATING for a while.

Sequence numbers have 56 digits, and increase over a whole stream. From the highest bits to the lowest, a number
consists of the version 2 (from bit 184), the time of the stream's last split or merge in milliseconds (from bit 128), a
counter of all numbers of the stream (from bit 40), and the index of the shard. Version and time never decrease, and the
counter always increases. So the first number of a child is higher than the last number of its parent, and a stream that
is deleted and created again has higher numbers than before.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

from mld.core.streams import HASH_KEY_MAX, ChildShard, HashRange, Shard
from mld.local.kinesis_errors import invalid
from mld.local.shard_limits import ShardLimits
from mld.local.shard_log import ShardLog

_VERSION_BIT = 184
_EPOCH_BIT = 128
_COUNTER_BIT = 40
_INDEX_MASK = (1 << 32) - 1
_VERSION = 2

DEFAULT_RETENTION_H = 24
RETENTION_H_MAX = 8760
ON_DEMAND_SHARDS = 4
DEFAULT_RECORD_KIB = 1024
_RESHARD_STEP_S = 0.001
"""Two splits or merges of a stream are at least this far apart in time, so that filters by time can tell them apart."""


def shard_id(index: int) -> str:
    return f"shardId-{index:012d}"


def shard_index(text: str) -> int | None:
    """Return the index in a shard id such as ``shardId-000000000007`` or ``7``; None for other texts."""
    digits = text.removeprefix("shardId-")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 12 else None


class ShardState:
    """A shard of the model, open until `close` is called. Times are epoch seconds."""

    __slots__ = (
        "adjacent_parent",
        "children",
        "closed_s",
        "created_s",
        "ending",
        "hash_range",
        "index",
        "limits",
        "log",
        "parent",
        "shard_id",
        "starting",
    )

    def __init__(
        self,
        index: int,
        hash_range: HashRange,
        starting: int,
        created_s: float,
        parents: tuple[int, ...] = (),
    ) -> None:
        self.index = index
        self.shard_id = shard_id(index)
        self.hash_range = hash_range
        self.starting = starting
        self.created_s = created_s
        self.parent = parents[0] if parents else None
        self.adjacent_parent = parents[1] if len(parents) > 1 else None
        self.ending: int | None = None
        self.closed_s: float | None = None
        self.children: tuple[ChildShard, ...] = ()
        self.log = ShardLog()
        self.limits = ShardLimits()

    @property
    def is_open(self) -> bool:
        return self.closed_s is None

    def close(self, ending: int, closed_s: float) -> None:
        """End the shard. `ending` is the last sequence number that belongs to it."""
        assert self.is_open and ending >= self.starting
        self.ending = ending
        self.closed_s = closed_s

    def as_child(self) -> ChildShard:
        """Return the shard as the end of its parents names it."""
        parents = (self.parent, self.adjacent_parent)
        return ChildShard(self.shard_id, frozenset(shard_id(p) for p in parents if p is not None), self.hash_range)

    def view(self) -> Shard:
        """Return the shard as ListShards shows it."""
        return Shard(
            shard_id=self.shard_id,
            hash_range=self.hash_range,
            starting_sequence=str(self.starting),
            ending_sequence=None if self.ending is None else str(self.ending),
            parent_id=None if self.parent is None else shard_id(self.parent),
            adjacent_parent_id=None if self.adjacent_parent is None else shard_id(self.adjacent_parent),
        )


def index_of_number(number: int) -> int | None:
    """Return the index of the shard to which a sequence number belongs; None if the number was not made here."""
    return number & _INDEX_MASK if number >> _VERSION_BIT == _VERSION else None


class Sequencer:
    """Makes the sequence numbers of one stream."""

    __slots__ = ("_counter", "_epoch_ms")

    def __init__(self, epoch_ms: int) -> None:
        self._epoch_ms = epoch_ms
        self._counter = 0

    def start_epoch(self, epoch_ms: int) -> None:
        """Note a split or merge at this time. A time before the last one is ignored."""
        self._epoch_ms = max(self._epoch_ms, epoch_ms)

    def take(self, index: int) -> int:
        """Return the next number, for the shard with this index."""
        self._counter += 1
        return self.tip(index)

    def tip(self, index: int) -> int:
        """Return a number for this shard: below all later numbers of the stream, and at least as high as the shard's
        earlier ones.
        """
        return _VERSION << _VERSION_BIT | self._epoch_ms << _EPOCH_BIT | self._counter << _COUNTER_BIT | index


def uniform_ranges(count: int) -> list[HashRange]:
    """Split the range of all hash keys into `count` ranges of equal width; the last one also gets the remainder."""
    width = (HASH_KEY_MAX + 1) // count
    starts = [i * width for i in range(count)]
    return [HashRange(s, e) for s, e in zip(starts, [s - 1 for s in starts[1:]] + [HASH_KEY_MAX], strict=True)]


@dataclass(slots=True)
class Consumer:
    """A registered consumer of enhanced fan-out. It is CREATING until `active_s`, and, if `gone_s` is set, DELETING
    until `gone_s`.
    """

    name: str
    arn: str
    stream_arn: str
    created_s: float
    active_s: float
    gone_s: float | None = None

    def status(self, now: float) -> str:
        """Return the status of the consumer."""
        if self.gone_s is not None:
            return "DELETING"
        return "ACTIVE" if now >= self.active_s else "CREATING"

    def is_gone(self, now: float) -> bool:
        return self.gone_s is not None and now >= self.gone_s


class Stream:
    """A stream of the model. Attributes such as `retention_h` may be set from outside."""

    def __init__(self, name: str, arn: str, now: float, *, shard_count: int, on_demand: bool, active_s: float) -> None:
        self.name = name
        self.arn = arn
        self.created_s = now
        self.on_demand = on_demand
        self.retention_h = DEFAULT_RETENTION_H
        self.record_kib_max = DEFAULT_RECORD_KIB
        self.distributes = False
        """Whether records go to the shards in turn, regardless of keys (RecordDistributionStrategy AUTO)."""
        self.consumers: dict[str, Consumer] = {}
        self.active_s = active_s
        self.updated_s = float("-inf")
        self.gone_s: float | None = None
        self.sequencer = Sequencer(self.created_ms)
        self.shards: dict[int, ShardState] = {}
        self._next_index = 0
        self._turn = 0  # how many records were given to shards in turn (`next_shard`)
        self._changed_s = now  # when shards were split or merged last
        self._closed: deque[tuple[float, int]] = deque()  # closed shards: when each was closed, and its index
        self._open: list[ShardState] = []
        self._starts: list[int] = []  # the first hash key of each shard in `_open`
        self._replace((), uniform_ranges(shard_count), now)

    @property
    def created_ms(self) -> int:
        return round(self.created_s * 1000)

    def status(self, now: float) -> str:
        """Return the status of the stream."""
        if self.gone_s is not None:
            return "DELETING"
        if now < self.active_s:
            return "CREATING"
        return "UPDATING" if now < self.updated_s else "ACTIVE"

    # --- shards ------------------------------------------------------------------------------------------------------

    @property
    def open_shards(self) -> list[ShardState]:
        """The open shards, in the order of their hash ranges."""
        return self._open

    def shard(self, shard_id: str) -> ShardState | None:
        """Return the shard with this id; None if there is none."""
        index = shard_index(shard_id)
        return None if index is None else self.shards.get(index)

    def shard_for(self, hash_key: int) -> ShardState:
        """Return the open shard whose range contains a hash key."""
        return self._open[bisect_right(self._starts, hash_key) - 1]

    def next_shard(self) -> ShardState:
        """Return the shard that gets the next record, for a stream that chooses shards itself. All take turns."""
        self._turn += 1
        return self._open[self._turn % len(self._open)]

    def split(self, shard: ShardState, new_start: int, now: float) -> None:
        """Close the shard, and make two children. `new_start` is the first hash key of the upper child."""
        _require_open(shard)
        low, high = shard.hash_range.start, shard.hash_range.end
        if not low < new_start <= high:
            raise invalid(
                f"NewStartingHashKey {new_start} used in SplitShard() on shard {shard.shard_id} in stream {self.name} "
                f"is not both greater than one plus the shard's StartingHashKey {low} and less than the shard's "
                f"EndingHashKey {high}."
            )
        self._replace((shard,), [HashRange(low, new_start - 1), HashRange(new_start, high)], now)

    def merge(self, shard: ShardState, adjacent: ShardState, now: float) -> None:
        """Close both shards, whose ranges must be adjacent, and make one child for both ranges."""
        _require_open(shard)
        _require_open(adjacent)
        lower, upper = sorted((shard.hash_range, adjacent.hash_range), key=lambda r: r.start)
        if shard is adjacent or lower.end + 1 != upper.start:
            raise invalid(
                f"Shards {shard.shard_id} and {adjacent.shard_id} in stream {self.name} are not an adjacent pair of "
                f"shards eligible for merging"
            )
        self._replace((shard, adjacent), [HashRange(lower.start, upper.end)], now)

    def scale(self, target: int, now: float) -> None:
        """Make `target` shards of equal width: split at each new border, then merge the shards within each new
        range.
        """
        wanted = uniform_ranges(target)
        for border in (r.start for r in wanted[1:]):
            holder = self.shard_for(border)
            if holder.hash_range.start != border:
                self.split(holder, border, now)
        for goal in wanted:
            while (left := self.shard_for(goal.start)).hash_range.end < goal.end:
                self.merge(left, self.shard_for(left.hash_range.end + 1), now)

    def _replace(self, parents: tuple[ShardState, ...], ranges: list[HashRange], now: float) -> None:
        """Close `parents`, and open a shard for each range. The ranges cover the same hash keys as the parents."""
        is_first = self._next_index == 0  # the shards with which the stream is created
        at = now if is_first else max(now, self._changed_s + _RESHARD_STEP_S)
        self._changed_s = at
        self.sequencer.start_epoch(round(at * 1000))
        for parent in parents:
            parent.close(self.sequencer.take(parent.index), at)
            self._closed.append((at, parent.index))
        made = [self._open_shard(r, at, tuple(p.index for p in parents)) for r in ranges]
        for parent in parents:
            parent.children = tuple(shard.as_child() for shard in made)
        self._open = sorted((s for s in self.shards.values() if s.is_open), key=lambda s: s.hash_range.start)
        self._starts = [s.hash_range.start for s in self._open]

    def _open_shard(self, hash_range: HashRange, at: float, parents: tuple[int, ...]) -> ShardState:
        """Add a shard that is open from `at` on, with the next free number, and return it."""
        index = self._next_index
        self._next_index += 1
        shard = ShardState(index, hash_range, self.sequencer.take(index), at, parents)
        self.shards[index] = shard
        return shard

    # --- retention ---------------------------------------------------------------------------------------------------

    def horizon_s(self, now: float) -> float:
        """Return the trim horizon (epoch seconds): records that arrived before it cannot be read."""
        return now - self.retention_h * 3600.0

    def drop_expired_shards(self, now: float) -> None:
        """Remove the shards that were closed before the trim horizon, because all their records are trimmed."""
        horizon = self.horizon_s(now)
        while self._closed and self._closed[0][0] < horizon:
            del self.shards[self._closed.popleft()[1]]


def _require_open(shard: ShardState) -> None:
    """Raise InvalidArgument if the shard is closed."""
    if not shard.is_open:
        raise invalid(f"Shard {shard.shard_id} has already been merged or split.")


def hash_of(partition_key: str) -> int:
    """Return the hash key of a partition key: its MD5 as a 128-bit number, as in Kinesis."""
    return int.from_bytes(hashlib.md5(partition_key.encode(), usedforsecurity=False).digest(), "big")
