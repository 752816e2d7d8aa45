"""Putting records: limits, routing, and the JSON text under which a record will be read. And reading them: where a
position starts, and what one page holds (retrieval#starting-point).

A *position* inside the model is the lowest sequence number to deliver. Reading never decodes the data of a record.

A subscription of enhanced fan-out is a value that is asked for its next event (retrieval#service-limits). The holder
calls `next_step(now)` when the shard got records, when the time of the last `Idle` has come, and after each event. The
subscription itself never waits.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple

from mld.core.streams import HASH_KEY_MAX, ChildShard, HashRange, IteratorType, StartingPoint
from mld.local.stream_state import (
    READ_BYTES_PER_S,
    KinesisError,
    LogSpan,
    ShardState,
    Stream,
    hash_of,
    index_of_number,
    invalid,
    missing,
    validation,
)

PUT_RECORDS_MAX = 500
PUT_BYTES_MAX = 10 * 1024 * 1024
PARTITION_KEY_CHARS_MAX = 256

PAGE_RECORDS_MAX = 10_000
PAGE_BYTES_MAX = 10 * 1024 * 1024

LIFE_S = 300.0
TAKEOVER_S = 5.0
"""A second call within this time of a successful one is refused; later it takes the subscription over."""
HEARTBEAT_S = 5.0
EVENT_BYTES_MAX = 1024 * 1024
Find = Callable[[float], tuple[Stream, ShardState]]

ITERATOR_LIFE_S = 300.0
"""Iterators and page tokens expire five minutes after they were given out."""
_CHECKSUM_BYTES = 4

SHARD_ITERATOR, SHARDS_TOKEN = "I", "S"


@dataclass(frozen=True, slots=True)
class PutEntry:
    """A record to put. `data_base64` is kept as it is; `explicit_hash_key` overrides the partition key's hash.

    A stream that distributes records needs no key, and passes over both.
    """

    data_base64: str
    partition_key: str | None
    explicit_hash_key: int | None = None

    @classmethod
    def of(cls, data: bytes, partition_key: str | None, explicit_hash_key: int | None = None) -> PutEntry:
        return cls(base64.b64encode(data).decode(), partition_key, explicit_hash_key)


@dataclass(frozen=True, slots=True)
class PutResult:
    """Where a record went; or, if `error` is set, the code and text of its refusal."""

    shard_id: str = ""
    sequence: str = ""
    error: tuple[str, str] | None = None


def timestamp_text(seconds: float) -> str:
    """Return a time as Kinesis writes it in JSON: seconds with three places in exponent form (``1.700000000123E9``)."""
    ms = str(round(seconds * 1000))
    return f"{ms[0]}.{ms[1:]}E{len(ms) - 4}" if len(ms) > 4 else f"{seconds:.3f}"


def check_entries(stream: Stream, entries: Sequence[PutEntry]) -> list[int]:
    """Return the sizes of the entries (data and partition key, bytes); raises KinesisError if one of them breaks a
    limit.
    """
    if not 1 <= len(entries) <= PUT_RECORDS_MAX:
        raise validation(
            f"Value at 'records' failed to satisfy constraint: Member must have length between 1 and {PUT_RECORDS_MAX}"
        )
    sizes = [_check_entry(stream, entry) for entry in entries]
    if sum(sizes) > PUT_BYTES_MAX:
        raise invalid(f"Records size exceeds {PUT_BYTES_MAX} bytes")
    return sizes


def _check_entry(stream: Stream, entry: PutEntry) -> int:
    key = entry.partition_key
    if key is None and not stream.distributes:
        raise missing("partitionKey")
    if key is not None and not 1 <= len(key) <= PARTITION_KEY_CHARS_MAX:
        raise validation(
            "Value at 'partitionKey' failed to satisfy constraint: Member must have length between 1 and 256"
        )
    if entry.explicit_hash_key is not None and not 0 <= entry.explicit_hash_key <= HASH_KEY_MAX:
        raise invalid(
            f"Invalid ExplicitHashKey. ExplicitHashKey must be in the range: [0, 2^128-1]. Specified value was "
            f"{entry.explicit_hash_key}"
        )
    # Both parts count together. Decoding the data here checks it once and for all.
    try:
        size = len(binascii.a2b_base64(entry.data_base64, strict_mode=True)) + len((key or "").encode())
    except ValueError as error:
        text = f"Data is not base64, or PartitionKey not Unicode: {error}"
        raise KinesisError("SerializationException", text) from None
    limit = stream.record_kib_max * 1024
    if size > limit:
        raise validation(
            f"Value at 'data' failed to satisfy constraint: Member must have length less than or equal to {limit}"
        )
    return size


def shard_of(stream: Stream, entry: PutEntry) -> ShardState:
    if stream.distributes or entry.partition_key is None:
        return stream.next_shard()
    key = entry.explicit_hash_key
    return stream.shard_for(hash_of(entry.partition_key) if key is None else key)


def store(stream: Stream, shard: ShardState, entry: PutEntry, size_bytes: int, now: float) -> PutResult:
    """Append to the shard. Arrival times of a shard never go back, even if `now` does."""
    number = stream.sequencer.take(shard.index)
    arrival = max(now, shard.log.last_arrival)
    key = entry.partition_key
    named = "" if key is None else f',"PartitionKey":{encode_basestring_ascii(key)}'
    text = (
        f'{{"SequenceNumber":"{number}","ApproximateArrivalTimestamp":{timestamp_text(arrival)},'
        f'"Data":"{entry.data_base64}"{named}}}'
    )
    shard.log.append(number, arrival, size_bytes, text.encode())
    return PutResult(shard.shard_id, str(number))


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogPage:
    """One answer. `position` is where the next one starts; None at the end of a closed shard, and only then are there
    `children`."""

    span: LogSpan
    position: int | None
    millis_behind_latest: int
    children: tuple[ChildShard, ...]


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
        raise invalid("Must specify timestampInMillis parameter for iterator of type AT_TIMESTAMP.")
    if timestamp_s > now:
        raise invalid(
            f"The timestampInMillis parameter cannot be greater than the currentTimestampInMillis. "
            f"timestampInMillis: {round(timestamp_s * 1000)}, currentTimestampInMillis: {round(now * 1000)}"
        )
    number = shard.log.number_at_time(timestamp_s)
    return stream.sequencer.tip(shard.index) + 1 if number is None else number


def _own_number(stream: Stream, shard: ShardState, text: str | None) -> int:
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
    """Return the records at `position` and after, within `limit` and `bytes_max`, but at least one if there is any."""
    shard.log.trim(stream.horizon_s(now))
    span = shard.log.span(position, limit=limit, bytes_max=bytes_max)
    ended = not span.more and not shard.is_open
    position = position if span.last is None else span.last + 1
    behind_ms = max(1, round((now - span.seen_s) * 1000)) if span.more else 0
    return LogPage(span, None if ended else position, behind_ms, shard.children if ended else ())


# --- subscriptions of enhanced fan-out --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SubscriptionEvent:
    """A SubscribeToShardEvent. `continuation` None: the shard has ended and the response ends after this event."""

    page: LogPage
    continuation: str | None


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing to send before `until_s`, unless the shard changes."""

    until_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The response ends, after `error` as an exception event if there is one."""

    error: KinesisError | None = None


Step = SubscriptionEvent | Idle | Finished


class ShardSubscription:
    """`find` looks stream and shard up again, because either may vanish; it raises KinesisError if so."""

    def __init__(self, find: Find, position: int, now: float, *, enforce: bool) -> None:
        self.started_s = now
        self.stopped: Finished | None = None
        self.event_records_max = PAGE_RECORDS_MAX
        self._find = find
        self._position = position
        self._heartbeat_s = now
        self._paced_until_s = now
        self._enforce = enforce

    @property
    def is_live(self) -> bool:
        return self.stopped is None

    def stop(self, error: KinesisError | None = None) -> None:
        """End it from outside: the client went away, another subscriber took over, the consumer was deregistered."""
        if self.stopped is None:
            self.stopped = Finished(error)

    def next_step(self, now: float) -> Step:
        if self.stopped is None and now - self.started_s >= LIFE_S:
            self.stop()
        if self.stopped is not None:
            return self.stopped
        try:
            stream, shard = self._find(now)
        except KinesisError as error:
            self.stop(error)
            return Finished(error)
        if self._enforce and now < self._paced_until_s:
            return Idle(self._paced_until_s)
        page = read_page(stream, shard, self._position, now, limit=self.event_records_max, bytes_max=EVENT_BYTES_MAX)
        if not page.span.fragments and page.position is not None and now < self._heartbeat_s:
            return Idle(min(self._heartbeat_s, self.started_s + LIFE_S))
        return self._send(stream, shard, page, now)

    def _send(self, stream: Stream, shard: ShardState, page: LogPage, now: float) -> SubscriptionEvent:
        self._heartbeat_s = now + HEARTBEAT_S
        self._paced_until_s = max(self._paced_until_s, now) + page.span.size_bytes / READ_BYTES_PER_S
        if page.position is None:
            self.stop()
            return SubscriptionEvent(page, None)
        # At the tip the continuation is the tip itself: it moves on even when this shard gets no records.
        at_tip = not page.span.more and shard.is_open
        number = stream.sequencer.tip(shard.index) if at_tip else page.span.last or self._position - 1
        self._position = number + 1
        return SubscriptionEvent(page, str(number))


def hash_range_json(hash_range: HashRange) -> dict[str, str]:
    return {"StartingHashKey": str(hash_range.start), "EndingHashKey": str(hash_range.end)}


def page_json(page: LogPage, place_key: str, place: str | None) -> bytes:
    """Return a page as GetRecords and the events of SubscribeToShard show it; `place` is where the next one starts."""
    tail: dict[str, object] = {"MillisBehindLatest": page.millis_behind_latest}
    if place is not None:
        tail[place_key] = place
    if page.children:
        tail["ChildShards"] = [
            {
                "ShardId": child.shard_id,
                "ParentShards": sorted(child.parents),
                "HashKeyRange": hash_range_json(child.hash_range),
            }
            for child in page.children
        ]
    return b'{"Records":[' + b",".join(page.span.fragments) + b"]," + json.dumps(tail).encode()[1:]


def event_json(event: SubscriptionEvent) -> bytes:
    """Return the payload of the event's frame."""
    return page_json(event.page, "ContinuationSequenceNumber", event.continuation)


# --- shard iterators and page tokens ---------------------------------------------------------------------------------


def pack(kind: str, *fields: object) -> str:
    """Return an opaque text for clients to hand back: base64 of a checksum and of JSON. The fields describe the place
    themselves, so that a model remembers none. Each names its stream by the time of creation too; a stream made again
    under the same name refuses the old ones.
    """
    body = json.dumps([kind, *fields]).encode()
    return base64.b64encode(zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big") + body).decode()


def unpack(kind: str, text: str) -> list[Any] | None:
    """Return the fields of a text of this kind; None if we did not make it."""
    try:
        raw = binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
        checksum, body = raw[:_CHECKSUM_BYTES], raw[_CHECKSUM_BYTES:]
        found, *fields = json.loads(body) if zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big") == checksum else [None]
    except ValueError:
        return None
    return fields if found == kind else None


def unpacked(kind: str, text: str, refusal: str = "NextToken is invalid.") -> list[Any]:
    """Return the fields of a text of this kind. Raises KinesisError for a text we did not make."""
    fields = unpack(kind, text)
    if fields is None:
        raise invalid(refusal)
    return fields


class ShardIterator(NamedTuple):
    """`position` is the lowest sequence number to deliver; `issued_s` epoch seconds."""

    account: str
    stream: str
    created_ms: int
    shard_index: int
    position: int
    issued_s: float


def decode_iterator(text: str) -> ShardIterator:
    """Decode an iterator. Raises KinesisError for a text we did not make."""
    return ShardIterator(*unpacked(SHARD_ITERATOR, text, "Invalid ShardIterator."))


def account_of_token(text: str) -> str | None:
    """Return the account that an iterator or a page token of shards names; None for other texts."""
    fields = unpack(SHARD_ITERATOR, text) or unpack(SHARDS_TOKEN, text)
    return fields[0] if fields else None
