"""DynamoDB Streams: all streams of all tables, found by ARN, and the four operations as AWS JSON 1.0. Pure.

Times are epoch seconds, passed as `now`. Refusals are `DynamoStreamsError`. Limits of throughput are enforced only if
asked; limits of form always.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from mld.local.dynamo_streams.table_stream import (
    ChangeShard,
    DynamoStreamsError,
    ItemChange,
    TableStream,
    TableStreamKey,
    ViewType,
    index_of,
    not_found,
)
from mld.local.kinesis.errors import ServiceError
from mld.local.kinesis.json_api import OperationRequest, parse
from mld.local.kinesis.json_api import error_body as plain_error_body
from mld.local.kinesis.shard import Bucket
from mld.local.kinesis.tokens import pack, unpack

CONTENT_TYPE = "application/x-amz-json-1.0"
CODE_PREFIX = "com.amazonaws.dynamodb.v20120810#"
"""On the wire, in front of every code."""
ITERATOR_LIFE_S = 15 * 60.0
PAGE_RECORDS_MAX = 1000
PAGE_BYTES_MAX = 1024 * 1024
LIST_MAX = 100
_ITERATOR_KIND = "D"
_SEQUENCE_NUMBER = re.compile(r"[0-9]{21,40}")
_SHARD_ID = re.compile(r"[a-zA-Z0-9_.-]{28,65}")


class _ShardFilterType(Enum):
    CHILD_SHARDS = "CHILD_SHARDS"


class _IteratorType(Enum):
    """Those of Kinesis, but for AT_TIMESTAMP."""

    TRIM_HORIZON = "TRIM_HORIZON"
    LATEST = "LATEST"
    AT_SEQUENCE_NUMBER = "AT_SEQUENCE_NUMBER"
    AFTER_SEQUENCE_NUMBER = "AFTER_SEQUENCE_NUMBER"


@dataclass(frozen=True, slots=True)
class _ChangeIterator:
    """`position` is the lowest number to deliver; `walked` pages of the empty stretch before it were answered."""

    arn: str
    shard_id: str
    position: int
    issued_s: float
    walked: int = 0

    @classmethod
    def decode(cls, text: str) -> _ChangeIterator:
        arn, _, packed = text.partition("|1|")
        fields = unpack(_ITERATOR_KIND, packed, 4)
        if fields is None:
            raise _invalid("Invalid ShardIterator")
        return cls(arn, fields[0], int(fields[1]), float(fields[2]), int(fields[3]))

    def __str__(self) -> str:
        packed = pack(_ITERATOR_KIND, self.shard_id, self.position, f"{self.issued_s:.3f}", self.walked)
        return f"{self.arn}|1|{packed}"


class TableStreams:
    """Mutable; `enforce` and `stretch_pages` may be changed at any time.

    So many pages without records are answered before each one with records, and before the end of a shard: the service
    leads through the parts of a shard in which nothing happened.
    """

    def __init__(self, *, enforce: bool = False) -> None:
        self.enforce = enforce
        self.stretch_pages = 0
        self._streams: dict[str, TableStream] = {}

    def enable(
        self, key: TableStreamKey, view: ViewType, key_schema: Sequence[dict[str, str]], *, now: float
    ) -> TableStream:
        return self._streams.setdefault(key.arn, TableStream(key, view, key_schema, now))

    def disable(self, arn: str, *, now: float) -> None:
        stream = self._streams.get(arn)
        if stream is not None and stream.is_enabled:
            stream.disable(now)

    def record(self, arn: str, changes: Sequence[ItemChange], *, now: float) -> None:
        for change in changes:
            self._streams[arn].record(change, now)

    def all(self, now: float) -> list[TableStream]:
        """Return all streams, in order of their ARNs."""
        for arn in [arn for arn, stream in self._streams.items() if stream.is_gone(now)]:
            del self._streams[arn]
        return [self._streams[arn] for arn in sorted(self._streams)]

    def stream(self, arn: str, now: float, region: str | None = None) -> TableStream:
        """Return a stream by its ARN, or by `region` the refusal of an endpoint elsewhere. Raises ResourceNotFound."""
        found = self._streams.get(arn)
        if found is None or found.is_gone(now) or region not in (None, found.key.region):
            raise not_found(f"Stream: {arn} not found")
        return found

    def newest_of(self, table: str, now: float) -> TableStream:
        """Return the newest stream of a table of this name, in any account and region. Raises ResourceNotFound."""
        found = [s for s in self.all(now) if s.key.table == table]
        if not found:
            raise not_found(f"Stream: of table {table} not found")
        return max(found, key=lambda stream: stream.created_s)

    def admit(self, bucket: Bucket, what: str, now: float) -> None:
        """Spend one call. Raises LimitExceeded if limits are enforced and this one is reached."""
        if not self.enforce:
            return
        if not bucket.has(1, now):
            raise DynamoStreamsError("LimitExceededException", f"Rate exceeded for {what}")
        bucket.take(1)


def dispatch(
    streams: TableStreams, operation: str, body: bytes, now: float, *, account: str, region: str, empty: bool = False
) -> bytes:
    """Carry out one request to the endpoint of a region; with `empty`, GetRecords finds no records. Raises
    ServiceError."""
    request = parse(body)
    match operation:
        case "ListStreams":
            fields = _list_streams(streams, request, now, account, region)
        case "DescribeStream":
            fields = _describe_stream(streams, request, now, region)
        case "GetShardIterator":
            fields = _get_shard_iterator(streams, request, now, region)
        case "GetRecords":
            return _get_records(streams, request, now, region, empty=empty)
        case _:
            raise DynamoStreamsError(
                "UnknownOperationException", f"{operation} is not supported by the embedded DynamoDB Streams."
            )
    return json.dumps(fields).encode()


def error_body(error: ServiceError) -> bytes:
    return plain_error_body(CODE_PREFIX + error.code, error.message)


def _list_streams(
    streams: TableStreams, request: OperationRequest, now: float, account: str, region: str
) -> dict[str, Any]:
    limit = request.integer("Limit", 1, LIST_MAX) or LIST_MAX
    table, after = request.text("TableName"), request.text("ExclusiveStartStreamArn") or ""
    found = [
        stream
        for stream in streams.all(now)
        if (stream.key.account, stream.key.region) == (account, region)
        and table in (None, stream.key.table)
        and stream.arn > after
    ]
    fields: dict[str, Any] = {
        "Streams": [{"StreamArn": s.arn, "TableName": s.key.table, "StreamLabel": s.key.label} for s in found[:limit]]
    }
    return fields if len(found) <= limit else fields | {"LastEvaluatedStreamArn": found[limit - 1].arn}


def _describe_stream(streams: TableStreams, request: OperationRequest, now: float, region: str) -> dict[str, Any]:
    limit = request.integer("Limit", 1, LIST_MAX) or LIST_MAX
    children_of = None
    if (nested := request.nested("ShardFilter")) is not None:
        nested.choice("Type", _ShardFilterType, "shardFilter.type")
        children_of = nested.required("ShardId", _SHARD_ID)
    stream = streams.stream(request.required("StreamArn"), now, region)
    after = request.text("ExclusiveStartShardId", _SHARD_ID) or ""
    streams.admit(stream.describes, f"DescribeStream of {stream.arn}", now)
    found = [s for s in stream.shards(now) if s.shard_id > after and children_of in (None, s.parent_id)]
    description: dict[str, Any] = {
        "StreamArn": stream.arn,
        "StreamLabel": stream.key.label,
        "StreamStatus": "ENABLED" if stream.is_enabled else "DISABLED",
        "StreamViewType": stream.view.value,
        "CreationRequestDateTime": round(stream.created_s, 3),
        "TableName": stream.key.table,
        "KeySchema": stream.key_schema,
        "Shards": [_shard_json(shard) for shard in found[:limit]],
    }
    if len(found) > limit:
        description["LastEvaluatedShardId"] = found[limit - 1].shard_id
    return {"StreamDescription": description}


def _shard_json(shard: ChangeShard) -> dict[str, Any]:
    numbers = {"StartingSequenceNumber": str(shard.starting)}
    if shard.ending is not None:
        numbers["EndingSequenceNumber"] = str(shard.ending)
    fields: dict[str, Any] = {"ShardId": shard.shard_id, "SequenceNumberRange": numbers}
    return fields if shard.parent_id is None else fields | {"ParentShardId": shard.parent_id}


def _get_shard_iterator(streams: TableStreams, request: OperationRequest, now: float, region: str) -> dict[str, Any]:
    kind = request.choice("ShardIteratorType", _IteratorType)
    name = request.required("ShardId", _SHARD_ID)
    sequence = request.text("SequenceNumber", _SEQUENCE_NUMBER)
    stream = streams.stream(request.required("StreamArn"), now, region)
    shard = stream.shard(name, now)
    match kind:
        case _IteratorType.TRIM_HORIZON:
            position = shard.trimmed_through + 1
        case _IteratorType.LATEST:
            position = stream.tip()
        case _:
            position = _own_number(stream, shard, sequence) + (kind is _IteratorType.AFTER_SEQUENCE_NUMBER)
            _require_untrimmed(shard, position)
    return {"ShardIterator": str(_ChangeIterator(stream.arn, name, position, now))}


def _get_records(streams: TableStreams, request: OperationRequest, now: float, region: str, *, empty: bool) -> bytes:
    """Return a page, with the next iterator unless a closed shard ends here."""
    place = _ChangeIterator.decode(request.required("ShardIterator"))
    limit = request.integer("Limit", 1, PAGE_RECORDS_MAX) or PAGE_RECORDS_MAX
    stream = streams.stream(place.arn, now, region)
    if now - place.issued_s > ITERATOR_LIFE_S:
        raise DynamoStreamsError(
            "ExpiredIteratorException",
            "The provided iterator exceeds the maximum age allowed (15 minutes after it was given out).",
        )
    shard = stream.shard(place.shard_id, now)
    streams.admit(shard.reads, f"GetRecords of {shard.shard_id}", now)
    _require_untrimmed(shard, place.position)
    found = shard.log.span(place.position, limit=limit, bytes_max=PAGE_BYTES_MAX)
    ended = not shard.is_open and not found.more
    if empty or (place.walked < streams.stretch_pages and (found.fragments or ended)):
        return _page_json([], replace(place, issued_s=now, walked=place.walked + 1))
    if found.last is not None:
        place = replace(place, position=found.last + 1, walked=0)
    return _page_json(found.fragments, None if ended else replace(place, issued_s=now))


def _page_json(fragments: list[bytes], following: _ChangeIterator | None) -> bytes:
    end = b"" if following is None else b',"NextShardIterator":' + json.dumps(str(following)).encode()
    return b'{"Records":[' + b",".join(fragments) + b"]" + end + b"}"


def _require_untrimmed(shard: ChangeShard, position: int) -> None:
    if position <= shard.trimmed_through:
        raise DynamoStreamsError(
            "TrimmedDataAccessException", "The operation attempted to read past the oldest stream record in a shard."
        )


def _own_number(stream: TableStream, shard: ChangeShard, text: str | None) -> int:
    if text is None:
        raise _invalid("SequenceNumber is required for this ShardIteratorType")
    number = int(text)
    top = stream.tip() if shard.ending is None else shard.ending
    if index_of(number) != shard.index or not shard.starting <= number <= top:
        raise _invalid(f"Invalid SequenceNumber: {text} is not of {shard.shard_id}")
    return number


def _invalid(message: str) -> DynamoStreamsError:
    return DynamoStreamsError("ValidationException", message)
