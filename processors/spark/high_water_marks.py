"""High-water marks: how far a sink holds each shard, with the rules that keep a record from being written twice.

A high-water mark is the last position of a shard that a sink holds; what stands at or below it is never written again.
A sink takes a `ShardSpan` only if its own mark is still the one at which the batch was trimmed. Positions and spans are
in `positions`; `writer_identity` says whose marks they are.

Pure: values in, values out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from mld.processors.spark.positions import AFTER_ANY, RecordPosition, ShardSpan, StreamShard

ENDED = RecordPosition(AFTER_ANY)
"""The mark of a shard that has ended, after any record: all of it is in the sink, and nothing of it is new again."""
HighWaterMarks: TypeAlias = Mapping[StreamShard, RecordPosition]
"""The last position of each shard that a sink holds; a shard that is absent has nothing in it yet."""
ShardSpans: TypeAlias = Mapping[StreamShard, ShardSpan]
"""What one batch holds of each shard."""
Preceding: TypeAlias = Mapping[StreamShard, HighWaterMarks]
"""What stands before the next records of a shard: itself up to the position right before them, unless they are its
first, and the shards that it follows, all of which had to end."""
Gap: TypeAlias = tuple[StreamShard, RecordPosition, RecordPosition]
"""A sink holds a shard up to a mark, and what is delivered now comes after another position of it."""


def fresh(position: RecordPosition, mark: RecordPosition | None) -> bool:
    """Return whether a record at `position` is not in the sink yet."""
    return mark is None or position > mark


def gaps(preceding: Preceding, marks: HighWaterMarks) -> dict[StreamShard, Gap]:
    """Return the shards before whose next records a sink with these marks lacks something, and what.

    A shard without a mark is new to the sink, which begins there, and it never held what came before: of the shards
    that it follows, those that it holds have to be there to their ends. Once a shard is begun they are not asked for:
    somebody may have accepted what is missing of them."""
    found: dict[StreamShard, Gap] = {}
    for shard, wanted in preceding.items():
        for one, upto in wanted.items():
            if (one == shard or shard not in marks) and one in marks and fresh(upto, marks[one]):
                found.setdefault(shard, (one, marks[one], upto))
    return found


def spans(ends: HighWaterMarks, marks: HighWaterMarks) -> dict[StreamShard, ShardSpan]:
    """Return what is left of batches that end at `ends` once everything at or below `marks` is dropped."""
    return {shard: ShardSpan(marks.get(shard), upto) for shard, upto in ends.items() if fresh(upto, marks.get(shard))}


def moved(batch: ShardSpans, marks: HighWaterMarks) -> dict[StreamShard, RecordPosition | None]:
    """Return the shards of the batch whose mark is no longer the one it was trimmed at, with the mark as it is."""
    return {shard: marks.get(shard) for shard, span in batch.items() if marks.get(shard) != span.after}


def advanced(marks: HighWaterMarks, batch: ShardSpans) -> dict[StreamShard, RecordPosition]:
    """Return the marks once the batch is in the sink; to be asked only if nothing has `moved`."""
    return {**marks, **{shard: span.upto for shard, span in batch.items()}}


def lowest(every: list[HighWaterMarks], shard: StreamShard) -> RecordPosition | None:
    """Return what all sinks hold of a shard: up to here a checkpoint may go. None if one of them holds nothing."""
    held = [marks.get(shard) for marks in every]
    known = [mark for mark in held if mark is not None]
    return min(known) if known and len(known) == len(held) else None


def encode_marks(marks: HighWaterMarks) -> dict[str, dict[str, str]]:
    """Encode stream name -> shard id -> position, sorted, for JSON; what has ended is left out."""
    value: dict[str, dict[str, str]] = {}
    for shard, mark in sorted(marks.items()):
        if mark != ENDED:
            value.setdefault(shard.stream, {})[shard.shard] = mark.encode()
    return value


def decode_marks(value: object) -> dict[StreamShard, RecordPosition]:
    """Return the inverse of `encode_marks`. Raises ValueError that names what is wrong."""
    if not isinstance(value, Mapping) or not all(isinstance(shards, Mapping) for shards in value.values()):
        raise ValueError("the marks are no object of objects")
    return {
        StreamShard(stream, shard): RecordPosition.decode(position)
        for stream, shards in value.items()
        for shard, position in shards.items()
    }
