"""DynamoDB Streams as AWS JSON 1.0: the four operations, from a request's fields to an answer's bytes. Still pure."""

from __future__ import annotations

import json
import re
from enum import Enum
from typing import Any

from mld.core.streams import IteratorType
from mld.local.dynamo_streams import errors
from mld.local.dynamo_streams.errors import CODE_PREFIX
from mld.local.dynamo_streams.model import ITERATOR_TYPES, LIST_MAX, PAGE_RECORDS_MAX, TableStreams
from mld.local.dynamo_streams.shard import ChangeShard
from mld.local.kinesis.json_api import error_body as plain_error_body
from mld.local.kinesis.json_api import parse
from mld.local.kinesis.operations import OperationRequest
from mld.local.service_error import ServiceError

CONTENT_TYPE = "application/x-amz-json-1.0"
_SEQUENCE_NUMBER = re.compile(r"[0-9]{21,40}")
_SHARD_ID = re.compile(r"[a-zA-Z0-9_.-]{28,65}")
_SHARD_FILTER = "ShardFilter"


class _ShardFilterType(Enum):
    CHILD_SHARDS = "CHILD_SHARDS"


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
            raise errors.DynamoStreamsError(
                "UnknownOperationException", f"{operation} is not supported by the embedded DynamoDB Streams."
            )
    return json.dumps(fields).encode()


def error_body(error: ServiceError) -> bytes:
    return plain_error_body(CODE_PREFIX + error.code, error.message)


def _list_streams(
    streams: TableStreams, request: OperationRequest, now: float, account: str, region: str
) -> dict[str, Any]:
    limit = request.integer("Limit", 1, LIST_MAX) or LIST_MAX
    found = streams.list_streams(
        account, region, now=now, table=request.text("TableName"), after=request.text("ExclusiveStartStreamArn")
    )
    fields: dict[str, Any] = {
        "Streams": [{"StreamArn": s.arn, "TableName": s.key.table, "StreamLabel": s.key.label} for s in found[:limit]]
    }
    if len(found) > limit:
        fields["LastEvaluatedStreamArn"] = found[limit - 1].arn
    return fields


def _describe_stream(streams: TableStreams, request: OperationRequest, now: float, region: str) -> dict[str, Any]:
    limit = request.integer("Limit", 1, LIST_MAX) or LIST_MAX
    children_of = None
    if (nested := request.nested(_SHARD_FILTER)) is not None:
        nested.choice("Type", _ShardFilterType, "shardFilter.type")
        children_of = nested.required("ShardId", _SHARD_ID)
    stream = streams.stream(request.required("StreamArn"), now, region)
    after = request.text("ExclusiveStartShardId", _SHARD_ID)
    page = streams.describe_shards(stream, now=now, after=after, children_of=children_of, limit=limit)
    description: dict[str, Any] = {
        "StreamArn": stream.arn,
        "StreamLabel": stream.key.label,
        "StreamStatus": "ENABLED" if stream.is_enabled else "DISABLED",
        "StreamViewType": stream.view.value,
        "CreationRequestDateTime": round(stream.created_s, 3),
        "TableName": stream.key.table,
        "KeySchema": stream.key_schema,
        "Shards": [_shard_json(shard) for shard in page.shards],
    }
    if page.last_id is not None:
        description["LastEvaluatedShardId"] = page.last_id
    return {"StreamDescription": description}


def _shard_json(shard: ChangeShard) -> dict[str, Any]:
    numbers = {"StartingSequenceNumber": str(shard.starting)}
    if shard.ending is not None:
        numbers["EndingSequenceNumber"] = str(shard.ending)
    fields: dict[str, Any] = {"ShardId": shard.shard_id, "SequenceNumberRange": numbers}
    return fields if shard.parent_id is None else fields | {"ParentShardId": shard.parent_id}


def _get_shard_iterator(streams: TableStreams, request: OperationRequest, now: float, region: str) -> dict[str, Any]:
    kind = request.choice("ShardIteratorType", IteratorType)
    if kind not in ITERATOR_TYPES:
        raise errors.invalid(
            f"1 validation error detected: Value '{kind.value}' at 'shardIteratorType' failed to satisfy constraint: "
            f"Member must satisfy enum value set: {[known.value for known in ITERATOR_TYPES]}"
        )
    name = request.required("ShardId", _SHARD_ID)
    sequence = request.text("SequenceNumber", _SEQUENCE_NUMBER)
    stream = streams.stream(request.required("StreamArn"), now, region)
    return {"ShardIterator": streams.get_shard_iterator(stream, name, kind, sequence, now=now)}


def _get_records(streams: TableStreams, request: OperationRequest, now: float, region: str, *, empty: bool) -> bytes:
    page, following = streams.get_records(
        request.required("ShardIterator"),
        region=region,
        now=now,
        limit=request.integer("Limit", 1, PAGE_RECORDS_MAX),
        empty=empty,
    )
    end = b"" if following is None else b',"NextShardIterator":' + json.dumps(following).encode()
    return b'{"Records":[' + b",".join(page.fragments) + b"]" + end + b"}"
