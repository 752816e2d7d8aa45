"""High-water marks: the position up to which a sink holds each shard, and rules that prevent writing a record twice.

A high-water mark is the position of the last record of a shard that a sink holds. Records at or before the mark are
never written again. To trim a batch means to drop the records that the sink holds already. A sink takes a `ShardSpan`
only if the sink's mark for this shard is still the mark by which the batch was trimmed. `positions` defines positions
and spans. Every writer has marks of its own (`writer_identity`).

Pure: values in, values out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from mld.processors.spark.positions import AFTER_ANY, RecordPosition, ShardSpan, StreamShard

ENDED = RecordPosition(AFTER_ANY)
"""The mark of a shard that has ended: the sink holds the whole shard. It is greater than the position of any record."""
HighWaterMarks: TypeAlias = Mapping[StreamShard, RecordPosition]
"""The mark of each shard. A shard without a mark has no records in the sink yet."""
ShardSpans: TypeAlias = Mapping[StreamShard, ShardSpan]
"""The part of each shard that one batch holds."""
Preceding: TypeAlias = Mapping[StreamShard, HighWaterMarks]
"""For each shard, the marks that a sink must have reached before it takes the shard's next records: the position of the
record right before them, and, if they are the shard's first records, the ends of its parent shards.
"""
Gap: TypeAlias = tuple[StreamShard, RecordPosition, RecordPosition]
"""A sink holds this shard only up to the first position, but the next records begin after the second position."""


def fresh(position: RecordPosition, mark: RecordPosition | None) -> bool:
    """Return whether a record at `position` is after the mark, so that the sink does not hold it yet."""
    return mark is None or position > mark


def gaps(preceding: Preceding, marks: HighWaterMarks) -> dict[StreamShard, Gap]:
    """Return the shards whose next records a sink with these marks may not take, each with one gap before them.
    `preceding` has the marks that the sink must have reached before it takes these records.

    A shard without a mark is new to the sink, so the sink needs no earlier records of it. But if the sink holds
    anything of a parent shard, it must hold that parent to its end. Once a shard has a mark, its parents are not
    checked again, because a person may have accepted a gap in them.
    """
    found: dict[StreamShard, Gap] = {}
    for shard, wanted in preceding.items():
        for earlier, upto in wanted.items():
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
    """Return the shards of the batch whose mark is no longer the one by which the batch was trimmed, with their marks
    now."""
    return {shard: marks.get(shard) for shard, span in batch.items() if marks.get(shard) != span.after}


def advanced(marks: HighWaterMarks, batch: ShardSpans) -> dict[StreamShard, RecordPosition]:
    """Return the marks after the batch is in the sink. Call it only if nothing has `moved`."""
    return {**marks, **{shard: span.upto for shard, span in batch.items()}}


def lowest(every: list[HighWaterMarks], shard: StreamShard) -> RecordPosition | None:
    """Return the position up to which all sinks hold a shard, so that it may be checkpointed. Return None if at least
    one sink holds nothing of it. `every` has the marks of each sink."""
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
