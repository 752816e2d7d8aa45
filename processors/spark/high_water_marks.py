"""High-water marks: how far a sink holds each shard, and the rules that keep a record from being written twice.

A high-water mark is the position of the last record of a shard that a sink holds. Records at or below the mark are
never written again. A sink takes a `ShardSpan` only if its mark is still the one by which the batch was trimmed.
`positions` has positions and spans; `writer_identity` tells whose marks they are.

Pure: values in, values out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from mld.processors.spark.positions import AFTER_ANY, RecordPosition, ShardSpan, StreamShard

ENDED = RecordPosition(AFTER_ANY)
"""The mark of a shard that has ended. It is higher than any record: the sink holds the whole shard."""
HighWaterMarks: TypeAlias = Mapping[StreamShard, RecordPosition]
"""The mark of each shard. A shard without a mark has no records in the sink yet."""
ShardSpans: TypeAlias = Mapping[StreamShard, ShardSpan]
"""The part of each shard that one batch holds."""
Preceding: TypeAlias = Mapping[StreamShard, HighWaterMarks]
"""For each shard, the marks that a sink must have before it takes the next records: the shard's own mark right before
them, and, if they are the shard's first records, the ends of its parent shards.
"""
Gap: TypeAlias = tuple[StreamShard, RecordPosition, RecordPosition]
"""A sink holds this shard up to the first position, but the next records come after the second one."""


def fresh(position: RecordPosition, mark: RecordPosition | None) -> bool:
    """Return whether a record at `position` is above the mark, so that the sink does not hold it yet."""
    return mark is None or position > mark


def gaps(preceding: Preceding, marks: HighWaterMarks) -> dict[StreamShard, Gap]:
    """Return the shards whose next records a sink with these marks may not take, each with one gap before them.

    A shard without a mark is new to the sink, so the sink begins with it and needs no earlier records of it. But of its
    parent shards, the sink must hold to the end those of which it holds anything. Once a shard has a mark, its parents
    are not checked again: a person may have accepted a gap in them."""
    found: dict[StreamShard, Gap] = {}
    for shard, wanted in preceding.items():
        for one, upto in wanted.items():
            if (one == shard or shard not in marks) and one in marks and fresh(upto, marks[one]):
                found.setdefault(shard, (one, marks[one], upto))
    return found


def spans(ends: HighWaterMarks, marks: HighWaterMarks) -> dict[StreamShard, ShardSpan]:
    """Return for each shard the span of its records after its mark, up to its end in `ends`. Shards without such
    records are left out.
    """
    return {shard: ShardSpan(marks.get(shard), upto) for shard, upto in ends.items() if fresh(upto, marks.get(shard))}


def moved(batch: ShardSpans, marks: HighWaterMarks) -> dict[StreamShard, RecordPosition | None]:
    """Return the shards of the batch whose mark is not the one by which the batch was trimmed, with their marks now."""
    return {shard: marks.get(shard) for shard, span in batch.items() if marks.get(shard) != span.after}


def advanced(marks: HighWaterMarks, batch: ShardSpans) -> dict[StreamShard, RecordPosition]:
    """Return the marks after the batch is in the sink. Call it only if nothing has `moved`."""
    return {**marks, **{shard: span.upto for shard, span in batch.items()}}


def lowest(every: list[HighWaterMarks], shard: StreamShard) -> RecordPosition | None:
    """Return the position up to which all sinks hold a shard, so that it may be checkpointed. None if a sink holds none
    of it."""
    known = [marks[shard] for marks in every if shard in marks]
    return min(known) if known and len(known) == len(every) else None


def encode_marks(marks: HighWaterMarks) -> dict[str, dict[str, str]]:
    """Encode stream name -> shard id -> position, sorted, for JSON. Ended shards are left out."""
    value: dict[str, dict[str, str]] = {}
    for shard, mark in sorted(marks.items()):
        if mark != ENDED:
            value.setdefault(shard.stream, {})[shard.shard] = mark.encode()
    return value


def decode_marks(value: object) -> dict[StreamShard, RecordPosition]:
    """Decode what `encode_marks` returned. Raises ValueError that names the wrong part."""
    if not isinstance(value, Mapping) or not all(isinstance(shards, Mapping) for shards in value.values()):
        raise ValueError("the marks are no object of objects")
    return {
        StreamShard(stream, shard): RecordPosition.decode(position)
        for stream, shards in value.items()
        for shard, position in shards.items()
    }
