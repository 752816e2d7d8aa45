"""Splits, merges and scaling, with the same parents and children as on AWS."""

from __future__ import annotations

from mld.local.kinesis import errors
from mld.local.kinesis.shard import ShardState
from mld.local.kinesis.stream_state import Stream, uniform_ranges
from mld.streams import HashRange


def split(stream: Stream, shard: ShardState, new_start: int, now: float) -> list[ShardState]:
    """Close the shard; its children meet at `new_start`, which belongs to the upper one."""
    _require_open(shard)
    low, high = shard.hash_range.start, shard.hash_range.end
    if not low < new_start <= high:
        raise errors.invalid(
            f"NewStartingHashKey {new_start} used in SplitShard() on shard {shard.shard_id} in stream {stream.name} is "
            f"not both greater than one plus the shard's StartingHashKey {low} and less than the shard's "
            f"EndingHashKey {high}."
        )
    return stream.replace((shard,), [HashRange(low, new_start - 1), HashRange(new_start, high)], now)


def merge(stream: Stream, shard: ShardState, adjacent: ShardState, now: float) -> ShardState:
    """Close both shards, whose ranges must touch; their one child covers both."""
    _require_open(shard)
    _require_open(adjacent)
    lower, upper = sorted((shard.hash_range, adjacent.hash_range), key=lambda r: r.start)
    if shard is adjacent or lower.end + 1 != upper.start:
        raise errors.invalid(
            f"Shards {shard.shard_id} and {adjacent.shard_id} in stream {stream.name} are not an adjacent pair of "
            f"shards eligible for merging"
        )
    return stream.replace((shard, adjacent), [HashRange(lower.start, upper.end)], now)[0]


def scale(stream: Stream, target: int, now: float) -> None:
    """Reach `target` uniform shards: first cut at each new border, then merge what lies within one new range."""
    wanted = uniform_ranges(target)
    for border in (r.start for r in wanted[1:]):
        holder = stream.shard_for(border)
        if holder.hash_range.start != border:
            split(stream, holder, border, now)
    for goal in wanted:
        while (left := stream.shard_for(goal.start)).hash_range.end < goal.end:
            merge(stream, left, stream.shard_for(left.hash_range.end + 1), now)


def _require_open(shard: ShardState) -> None:
    if not shard.is_open:
        raise errors.invalid(f"Shard {shard.shard_id} has already been merged or split.")
