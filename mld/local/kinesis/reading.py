"""Reading a shard: where a position starts, and what one page holds (retrieval#starting-point).

A *position* inside the model is the lowest sequence number to deliver. The data of a record is never decoded here.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from functools import cached_property

from mld.core.streams import ChildShard, IteratorType, StartingPoint
from mld.local.kinesis import errors, sequence
from mld.local.kinesis.shard import ShardState
from mld.local.kinesis.stream_state import Stream

PAGE_RECORDS_MAX = 10_000
PAGE_BYTES_MAX = 10 * 1024 * 1024


@dataclass(frozen=True)
class StoredRecord:
    """A record as a Python value. `arrival_s` is epoch seconds."""

    sequence: str
    arrival_s: float
    data_base64: str
    partition_key: str | None

    @property
    def data(self) -> bytes:
        return base64.b64decode(self.data_base64)


@dataclass(frozen=True)
class LogPage:
    """One answer. `position` is where the next one starts; None at the end of a closed shard, and only then are there
    `children`. `fragments` are the JSON texts of the records."""

    fragments: list[bytes]
    size_bytes: int
    last: int | None
    position: int | None
    millis_behind_latest: int
    children: tuple[ChildShard, ...]
    at_tip: bool
    cut_by_size: bool

    @cached_property
    def records(self) -> list[StoredRecord]:
        return [
            StoredRecord(
                fields["SequenceNumber"],
                fields["ApproximateArrivalTimestamp"],
                fields["Data"],
                fields.get("PartitionKey"),
            )
            for fields in map(json.loads, self.fragments)
        ]


def start_position(stream: Stream, shard: ShardState, start: StartingPoint, now: float) -> int:
    """Return the position of a GetShardIterator or SubscribeToShard start. Raises InvalidArgument for a number that
    does not belong to the shard, and for a time to come.
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
    if timestamp_s is None:
        raise errors.invalid("Must specify timestampInMillis parameter for iterator of type AT_TIMESTAMP.")
    if timestamp_s > now:
        raise errors.invalid(
            f"The timestampInMillis parameter cannot be greater than the currentTimestampInMillis. "
            f"timestampInMillis: {round(timestamp_s * 1000)}, currentTimestampInMillis: {round(now * 1000)}"
        )
    number = shard.log.number_at_time(timestamp_s)
    return stream.sequencer.tip(shard.index) + 1 if number is None else number


def _own_number(stream: Stream, shard: ShardState, text: str | None) -> int:
    if text is None:
        raise errors.invalid("Must specify startingSequenceNumber parameter for this iterator type.")
    number = int(text)
    top = stream.sequencer.tip(shard.index) if shard.ending is None else shard.ending
    if sequence.shard_index(number) != shard.index or not shard.starting <= number <= top:
        raise errors.invalid(
            f"StartingSequenceNumber {text} used in GetShardIterator on shard {shard.shard_id} in stream "
            f"{stream.name} is invalid because it did not come from this stream."
        )
    return number


def read_page(
    stream: Stream, shard: ShardState, position: int, now: float, *, limit: int, bytes_max: int = PAGE_BYTES_MAX
) -> LogPage:
    """Return the records at `position` and after, within `limit` and `bytes_max`, but at least one if there is any."""
    first = shard.log.trim(stream.horizon_s(now))
    span = shard.log.span(position, first=first, limit=limit, bytes_max=bytes_max)
    ended = not span.more and not shard.is_open
    following = position if span.last is None else span.last + 1
    return LogPage(
        fragments=span.fragments,
        size_bytes=span.size_bytes,
        last=span.last,
        position=None if ended else following,
        millis_behind_latest=max(1, round((now - span.seen_s) * 1000)) if span.more else 0,
        children=shard.children if ended else (),
        at_tip=not span.more,
        cut_by_size=span.cut_by_size,
    )
