"""High-water marks, and the rules by which they prevent that a record is written twice.

The high-water mark of a shard, in short its mark, is the position up to which the records of the shard are in a sink.
Records at or before the mark are never written again. To trim a batch means to drop the records that the sink has
already. A sink takes a `ShardSpan` only if the sink's mark for this shard is still the mark by which the batch was
trimmed. `positions` defines positions and spans. Every writer has marks of its own (`writer_identity`).

Pure: values in, values out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from mld.processors.spark.positions import AFTER_ANY, RecordPosition, ShardSpan, StreamShard

ENDED = RecordPosition(AFTER_ANY)
"""The mark of a shard that has ended: all its records are in the sink. It is greater than any record's position."""
HighWaterMarks: TypeAlias = Mapping[StreamShard, RecordPosition]
"""The mark of each shard. A shard without a mark has no records in the sink yet."""
ShardSpans: TypeAlias = Mapping[StreamShard, ShardSpan]
"""The part of each shard that one batch holds."""
Preceding: TypeAlias = Mapping[StreamShard, HighWaterMarks]
"""For each shard, the marks that a sink must have reached before it takes the shard's next records: the position of the
record right before them, and, if they are the shard's first records, the ends of its parent shards.
"""
Gap: TypeAlias = tuple[StreamShard, RecordPosition, RecordPosition]
"""A sink has the records of this shard only up to the first position, but the next records begin after the second."""


def fresh(position: RecordPosition, mark: RecordPosition | None) -> bool:
    """Return whether a record at `position` is after the mark, so that it is not in the sink yet. None: no mark yet."""
    return mark is None or position > mark


def gaps(preceding: Preceding, marks: HighWaterMarks) -> dict[StreamShard, Gap]:
    """Return the shards whose next records a sink with these marks may not take, each with one gap before them.
    `preceding` has the marks that the sink must have reached before it takes these records.

    A shard without a mark is new to the sink, so the sink needs no earlier records of it. But if the sink has any
    record of a parent shard, it must have all records of that parent. Once a shard has a mark, its parents are not
    checked again, because a person may have accepted a gap in them.
    """
    found: dict[StreamShard, Gap] = {}
    for shard, wanted in preceding.items():
        for earlier, upto in wanted.items():  # `earlier` is the shard itself, or one of its parents
            is_checked = earlier == shard or shard not in marks
            if is_checked and earlier in marks and fresh(upto, marks[earlier]):
                found.setdefault(shard, (earlier, marks[earlier], upto))
    return found


def spans(ends: HighWaterMarks, marks: HighWaterMarks) -> dict[StreamShard, ShardSpan]:
    """Return for each shard the span of its records after its mark, up to its end in `ends`. Shards without such
    records are left out.
    """
    return {shard: ShardSpan(marks.get(shard), upto) for shard, upto in ends.items() if fresh(upto, marks.get(shard))}


def moved(batch: ShardSpans, marks: HighWaterMarks) -> dict[StreamShard, RecordPosition | None]:
    """Return the shards of the batch whose mark is no longer the one by which the batch was trimmed, with their present
    marks."""
    return {shard: marks.get(shard) for shard, span in batch.items() if marks.get(shard) != span.after}


def advanced(marks: HighWaterMarks, batch: ShardSpans) -> dict[StreamShard, RecordPosition]:
    """Return the marks after the batch is in the sink. Call it only if nothing has `moved`."""
    return {**marks, **{shard: span.upto for shard, span in batch.items()}}


def lowest(every: list[HighWaterMarks], shard: StreamShard) -> RecordPosition | None:
    """Return the position up to which the records of a shard are in all sinks, so that it may be checkpointed. None: at
    least one sink has no records of the shard. `every` has the marks of each sink."""
    known = [marks[shard] for marks in every if shard in marks]
    return min(known) if known and len(known) == len(every) else None


def encode_marks(marks: HighWaterMarks) -> dict[str, dict[str, str]]:
    """Encode the marks for JSON: stream name -> shard id -> position, sorted. Ended shards are left out."""
    value: dict[str, dict[str, str]] = {}
    for shard, mark in sorted(marks.items()):
        if mark != ENDED:
            value.setdefault(shard.stream, {})[shard.shard] = mark.encode()
    return value


def decode_marks(value: object) -> dict[StreamShard, RecordPosition]:
    """Decode the result of `encode_marks`. Raises ValueError that names the wrong part."""
    if not isinstance(value, Mapping) or not all(isinstance(shards, Mapping) for shards in value.values()):
        raise ValueError("the marks are no object of objects")
    return {
        StreamShard(stream, shard): RecordPosition.decode(position)
        for stream, shards in value.items()
        for shard, position in shards.items()
    }
