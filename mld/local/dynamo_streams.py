"""`dispatch`: answers requests to the four operations of DynamoDB Streams, in AWS JSON 1.0. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from mld.local.change_stream import ChangeShard, DynamoStreamsError, TableStream, index_of
from mld.local.operation_request import OperationRequest, parse
from mld.local.table_streams import TableStreams
from mld.local.tokens import pack, unpack

CONTENT_TYPE = "application/x-amz-json-1.0"
ITERATOR_LIFE_S = 15 * 60.0
PAGE_RECORDS_MAX = 1000
PAGE_BYTES_MAX = 1024 * 1024
LIST_MAX = 100
_ITERATOR_KIND = "D"
_SEQUENCE_NUMBER = re.compile(r"[0-9]{21,40}")
_SHARD_ID = re.compile(r"[a-zA-Z0-9_.-]{28,65}")

TRIM_HORIZON, LATEST, AT, AFTER = _ITERATORS = "TRIM_HORIZON", "LATEST", "AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"
"""The types of iterators: those of Kinesis, except AT_TIMESTAMP."""


@dataclass(frozen=True, slots=True)
class _ChangeIterator:
    """A shard iterator. `position` is the lowest sequence number to deliver, `walked` the number of empty pages that
    were returned at this position.
    """

    arn: str
    shard_id: str
    position: int
    issued_s: float
    walked: int = 0

    @classmethod
    def decode(cls, text: str) -> _ChangeIterator:
        """Return the iterator in a text. Raises DynamoStreamsError."""
        arn, _, packed = text.partition("|1|")
        fields = unpack(_ITERATOR_KIND, packed)
        if fields is None:
            raise _invalid("Invalid ShardIterator")
        return cls(arn, *fields)

    def __str__(self) -> str:
        packed = pack(_ITERATOR_KIND, self.shard_id, self.position, self.issued_s, self.walked)
        return f"{self.arn}|1|{packed}"


def dispatch(
    streams: TableStreams, operation: str, body: bytes, now: float, *, account: str, region: str, empty: bool = False
) -> bytes:
    """Do one operation at the endpoint of a region, and return the body of the answer. Raises ServiceError.

    With `empty`, GetRecords returns no records, even if there are some.
    """
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


def _list_streams(
    streams: TableStreams, request: OperationRequest, now: float, account: str, region: str
) -> dict[str, Any]:
    """Answer ListStreams: a page of the streams of one account and region, or of one table of it."""
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
    """Answer DescribeStream: the stream and a page of its shards, or of the children of one shard (ShardFilter)."""
    limit = request.integer("Limit", 1, LIST_MAX) or LIST_MAX
    children_of = None
    if (nested := request.nested("ShardFilter")) is not None:
        nested.choice("Type", ("CHILD_SHARDS",), "shardFilter.type")
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
    """Return a shard as answers describe it."""
    numbers = {"StartingSequenceNumber": str(shard.starting)}
    if shard.ending is not None:
        numbers["EndingSequenceNumber"] = str(shard.ending)
    fields: dict[str, Any] = {"ShardId": shard.shard_id, "SequenceNumberRange": numbers}
    return fields if shard.parent_id is None else fields | {"ParentShardId": shard.parent_id}


def _get_shard_iterator(streams: TableStreams, request: OperationRequest, now: float, region: str) -> dict[str, Any]:
    """Answer GetShardIterator: an iterator at the position that the request describes."""
    kind = request.choice("ShardIteratorType", _ITERATORS)
    name = request.required("ShardId", _SHARD_ID)
    sequence = request.text("SequenceNumber", _SEQUENCE_NUMBER)
    stream = streams.stream(request.required("StreamArn"), now, region)
    shard = stream.shard(name, now)
    if kind == TRIM_HORIZON:
        position = shard.trimmed_through + 1
    elif kind == LATEST:
        position = stream.tip()
    else:
        number = _own_number(stream, shard, sequence)
        position = number + 1 if kind == AFTER else number
        _require_untrimmed(shard, position)
    return {"ShardIterator": str(_ChangeIterator(stream.arn, name, position, now))}


def _get_records(streams: TableStreams, request: OperationRequest, now: float, region: str, *, empty: bool) -> bytes:
    """Return a page. It has no next iterator if it is the last page of a closed shard."""
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
    # Some pages without records come before a page with records, and before the last page (`stretch_pages`).
    is_stretched = place.walked < streams.stretch_pages and (found.fragments or ended)
    if empty or is_stretched:
        return _page_json([], replace(place, issued_s=now, walked=place.walked + 1))
    if found.last is not None:
        place = replace(place, position=found.last + 1, walked=0)
    return _page_json(found.fragments, None if ended else replace(place, issued_s=now))


def _page_json(fragments: list[bytes], following: _ChangeIterator | None) -> bytes:
    """Return a page as JSON. `fragments` are the texts of its records, and `following` is the iterator of the next
    page; None if the shard has ended.
    """
    end = b"" if following is None else b',"NextShardIterator":' + json.dumps(str(following)).encode()
    return b'{"Records":[' + b",".join(fragments) + b"]" + end + b"}"


def _require_untrimmed(shard: ChangeShard, position: int) -> None:
    """Raise DynamoStreamsError if the record at this position was trimmed."""
    if position <= shard.trimmed_through:
        raise DynamoStreamsError(
            "TrimmedDataAccessException", "The operation attempted to read past the oldest stream record in a shard."
        )


def _own_number(stream: TableStream, shard: ChangeShard, text: str | None) -> int:
    """Return the sequence number in a request, which has to belong to this shard. Raises ValidationException."""
    if text is None:
        raise _invalid("SequenceNumber is required for this ShardIteratorType")
    number = int(text)
    top = stream.tip() if shard.ending is None else shard.ending
    if index_of(number) != shard.index or not shard.starting <= number <= top:
        raise _invalid(f"Invalid SequenceNumber: {text} is not of {shard.shard_id}")
    return number


def _invalid(message: str) -> DynamoStreamsError:
    return DynamoStreamsError("ValidationException", message)
