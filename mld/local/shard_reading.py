"""`start_position`, `read_page`: find a starting point in a shard of the model, and read a page from there. Pure.

Rule: retrieval#starting-point. A *position* in the model is the lowest sequence number to deliver. Reading never
decodes the data of a record.
"""

from __future__ import annotations

from dataclasses import dataclass

from mld.core.streams import ChildShard, IteratorType, StartingPoint
from mld.local.kinesis_errors import invalid
from mld.local.shard_log import LogSpan
from mld.local.stream_state import ShardState, Stream, index_of_number

PAGE_BYTES_MAX = 10 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogPage:
    """One page. `position` is that of the next page. At the end of a closed shard it is None, and `children` are the
    shard's children; otherwise `children` is empty.
    """

    span: LogSpan
    position: int | None
    millis_behind_latest: int
    children: tuple[ChildShard, ...]


def start_position(stream: Stream, shard: ShardState, start: StartingPoint, now: float) -> int:
    """Return the position of a starting point, for GetShardIterator and SubscribeToShard.

    Raises InvalidArgument for a sequence number that does not belong to the shard, and for a time in the future.
    """
    match start.type:
        case IteratorType.TRIM_HORIZON:
            return shard.starting
        case IteratorType.LATEST:
            return stream.sequencer.tip(shard.index) + 1
        case IteratorType.AT_TIMESTAMP:
            return _position_at_time(stream, shard, start.timestamp_s, now)
        case IteratorType.AT_SEQUENCE_NUMBER:
            return _own_number(stream, shard, start.sequence)
        case IteratorType.AFTER_SEQUENCE_NUMBER:
            return _own_number(stream, shard, start.sequence) + 1


def _position_at_time(stream: Stream, shard: ShardState, timestamp_s: float | None, now: float) -> int:
    """Return the position of the first record that arrived at this time or later; without one, the tip of the shard."""
    if timestamp_s is None:
        raise invalid("Must specify timestampInMillis parameter for iterator of type AT_TIMESTAMP.")
    if timestamp_s > now:
        raise invalid(
            f"The timestampInMillis parameter cannot be greater than the currentTimestampInMillis. "
            f"timestampInMillis: {round(timestamp_s * 1000)}, currentTimestampInMillis: {round(now * 1000)}"
        )
    number = shard.log.number_at_time(timestamp_s)
    return stream.sequencer.tip(shard.index) + 1 if number is None else number


def _own_number(stream: Stream, shard: ShardState, text: str | None) -> int:
    """Return the sequence number in a request, which has to belong to this shard. Raises InvalidArgument."""
    if text is None:
        raise invalid("Must specify startingSequenceNumber parameter for this iterator type.")
    number = int(text)
    top = stream.sequencer.tip(shard.index) if shard.ending is None else shard.ending
    if index_of_number(number) != shard.index or not shard.starting <= number <= top:
        raise invalid(
            f"StartingSequenceNumber {text} used in GetShardIterator on shard {shard.shard_id} in stream "
            f"{stream.name} is invalid because it did not come from this stream."
        )
    return number


def read_page(
    stream: Stream, shard: ShardState, position: int, now: float, *, limit: int, bytes_max: int = PAGE_BYTES_MAX
) -> LogPage:
    """Return a page: the records from `position` on, within `limit` and `bytes_max`, but at least one if there is
    any.
    """
    shard.log.trim(stream.horizon_s(now))
    span = shard.log.span(position, limit=limit, bytes_max=bytes_max)
    ended = not span.more and not shard.is_open
    position = position if span.last is None else span.last + 1
    behind_ms = max(1, round((now - span.seen_s) * 1000)) if span.more else 0  # 0 means that nothing follows
    return LogPage(span, None if ended else position, behind_ms, shard.children if ended else ())
