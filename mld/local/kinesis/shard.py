"""One shard: its hash range, lifetime, parents, children and records."""

from __future__ import annotations

from mld.local.kinesis.shard_log import ShardLog
from mld.local.kinesis.throttle import ShardLimits
from mld.streams import ChildShard, HashRange, Shard


def shard_id(index: int) -> str:
    return f"shardId-{index:012d}"


def shard_index(text: str) -> int | None:
    """The index in a shard id such as ``shardId-000000000007`` or ``7``; None if it is none."""
    digits = text.removeprefix("shardId-")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 12 else None


class ShardState:
    """A shard as the model keeps it. Open until `close` is called; times are epoch seconds."""

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
        assert self.is_open and ending >= self.starting
        self.ending = ending
        self.closed_s = closed_s

    def as_child(self) -> ChildShard:
        parents = (self.parent, self.adjacent_parent)
        return ChildShard(self.shard_id, frozenset(shard_id(p) for p in parents if p is not None), self.hash_range)

    def view(self) -> Shard:
        """The shard as ListShards shows it."""
        return Shard(
            shard_id=self.shard_id,
            hash_range=self.hash_range,
            starting_sequence=str(self.starting),
            ending_sequence=None if self.ending is None else str(self.ending),
            parent_id=None if self.parent is None else shard_id(self.parent),
            adjacent_parent_id=None if self.adjacent_parent is None else shard_id(self.adjacent_parent),
        )
