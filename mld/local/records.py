"""`store`: puts records into the model: checks limits, chooses the shard, and makes the JSON text of a record. Pure."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii

from mld.core.streams import HASH_KEY_MAX, HashRange
from mld.local.kinesis_errors import KinesisError, invalid, missing, validation
from mld.local.shard_reading import LogPage
from mld.local.shard_subscription import SubscriptionEvent
from mld.local.stream_state import ShardState, Stream, hash_of

PUT_RECORDS_MAX = 500
PUT_BYTES_MAX = 10 * 1024 * 1024
PARTITION_KEY_CHARS_MAX = 256
TAKEOVER_S = 5.0
"""For this long after a successful SubscribeToShard, a second call is refused. A later call takes over."""

ITERATOR_LIFE_S = 300.0
"""Iterators and page tokens expire after five minutes."""


@dataclass(frozen=True, slots=True)
class PutEntry:
    """A record to put. `data_base64` is kept unchanged. `explicit_hash_key` is used in place of the hash of the
    partition key.

    A stream that chooses the shards of records itself needs neither key, and ignores both.
    """

    data_base64: str
    partition_key: str | None
    explicit_hash_key: int | None = None

    @classmethod
    def of(cls, data: bytes, partition_key: str | None, explicit_hash_key: int | None = None) -> PutEntry:
        return cls(base64.b64encode(data).decode(), partition_key, explicit_hash_key)


@dataclass(frozen=True, slots=True)
class PutResult:
    """The shard and the sequence number of a record that was put. If `error` is set, the record was refused with this
    code and text.
    """

    shard_id: str = ""
    sequence: str = ""
    error: tuple[str, str] | None = None


def timestamp_text(seconds: float) -> str:
    """Return a time as Kinesis writes it in JSON: seconds with milliseconds, in exponent form
    (``1.700000000123E9``).
    """
    ms = str(round(seconds * 1000))
    return f"{ms[0]}.{ms[1:]}E{len(ms) - 4}" if len(ms) > 4 else f"{seconds:.3f}"


def check_entries(stream: Stream, entries: Sequence[PutEntry]) -> list[int]:
    """Return the size of each entry in bytes, data and partition key together. Raises KinesisError if one exceeds a
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
    """Return the size of an entry in bytes. Raises KinesisError if it exceeds a limit or is malformed."""
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
    # Data and key count together. Decoding the data here checks it, so nothing needs to check it later.
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
    """Return the shard that gets this record."""
    if stream.distributes or entry.partition_key is None:
        return stream.next_shard()
    key = entry.explicit_hash_key
    return stream.shard_for(hash_of(entry.partition_key) if key is None else key)


def store(stream: Stream, shard: ShardState, entry: PutEntry, size_bytes: int, now: float) -> PutResult:
    """Append a record to the shard. If `now` is before the arrival of the last record, that time is used instead, so
    that arrival times never decrease.
    """
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


def hash_range_json(hash_range: HashRange) -> dict[str, str]:
    return {"StartingHashKey": str(hash_range.start), "EndingHashKey": str(hash_range.end)}


def page_json(page: LogPage, place_key: str, place: str | None) -> bytes:
    """Return a page as JSON, for GetRecords and SubscribeToShard. `place`, the start of the next page, is its member
    `place_key`.
    """
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
    """Return the payload of an event's frame."""
    return page_json(event.page, "ContinuationSequenceNumber", event.continuation)
