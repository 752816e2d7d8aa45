"""The wire form of operations on shards and records."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

from mld.core.streams import IteratorType, StartingPoint
from mld.local.kinesis.filters import FilterType, ListFilter
from mld.local.kinesis.model import LIST_SHARDS_DEFAULT, Kinesis
from mld.local.kinesis.operations import (
    HASH_KEY,
    INT_MAX,
    NAME,
    PAGE_MAX,
    SEQUENCE_NUMBER,
    OperationRequest,
    OperationResult,
    answer,
    operation,
)
from mld.local.kinesis.records import PutEntry, PutResult
from mld.local.kinesis.shard import ShardState
from mld.local.kinesis.stream_state import Stream
from mld.local.kinesis.subscription import hash_range_json, page_json


class _Scaling(Enum):
    UNIFORM_SCALING = "UNIFORM_SCALING"


# --- shards ----------------------------------------------------------------------------------------------------------


@operation
def list_shards(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    nested = request.nested("ShardFilter")
    page = kinesis.list_shards(
        request.stream_or_none(),
        now=now,
        token=request.text("NextToken"),
        after_id=request.text("ExclusiveStartShardId", NAME),
        shard_filter=None if nested is None else _filter(nested),
        limit=request.integer("MaxResults", 1, PAGE_MAX) or LIST_SHARDS_DEFAULT,
    )
    fields: dict[str, Any] = {"Shards": [shard_json(shard) for shard in page.shards]}
    if page.next_token is not None:
        fields["NextToken"] = page.next_token
    return answer(fields)


def _filter(request: OperationRequest) -> ListFilter:
    kind = request.choice("Type", FilterType, "shardFilter.type")
    return ListFilter(kind, request.text("ShardId", NAME), request.timestamp("Timestamp"))


def shard_json(shard: ShardState) -> dict[str, Any]:
    """Return a shard as ListShards and DescribeStream show it."""
    view = shard.view()
    numbers = {"StartingSequenceNumber": view.starting_sequence}
    if view.ending_sequence is not None:
        numbers["EndingSequenceNumber"] = view.ending_sequence
    fields: dict[str, Any] = {
        "ShardId": view.shard_id,
        "HashKeyRange": hash_range_json(view.hash_range),
        "SequenceNumberRange": numbers,
    }
    if view.parent_id is not None:
        fields["ParentShardId"] = view.parent_id
    if view.adjacent_parent_id is not None:
        fields["AdjacentParentShardId"] = view.adjacent_parent_id
    return fields


@operation
def split_shard(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    border = int(request.required("NewStartingHashKey", HASH_KEY))
    kinesis.split_shard(request.stream(), request.required("ShardToSplit", NAME), border, now=now)
    return answer()


@operation
def merge_shards(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    first, second = request.required("ShardToMerge", NAME), request.required("AdjacentShardToMerge", NAME)
    kinesis.merge_shards(request.stream(), first, second, now=now)
    return answer()


@operation
def update_shard_count(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    request.choice("ScalingType", _Scaling)
    target = request.required_integer("TargetShardCount", 1, INT_MAX)
    before = kinesis.update_shard_count(request.stream(), target, now=now)
    stream = kinesis.stream(request.stream(), now)
    return answer(
        {
            "StreamName": stream.name,
            "StreamARN": stream.arn,
            "CurrentShardCount": before,
            "TargetShardCount": target,
        }
    )


# --- records ---------------------------------------------------------------------------------------------------------


@operation
def put_record(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    placed = kinesis.put_record(request.stream(), _entry(request), now=now)
    fields = {"ShardId": placed.shard_id, "SequenceNumber": placed.sequence}
    return _touching(kinesis, kinesis.stream(request.stream(), now), fields, [placed])


@operation
def put_records(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    entries = [_entry(item) for item in request.entries("Records")]
    placed = kinesis.put_records(request.stream(), entries, now=now)
    fields = {
        "FailedRecordCount": sum(p.error is not None for p in placed),
        "Records": [
            {"ShardId": p.shard_id, "SequenceNumber": p.sequence}
            if p.error is None
            else {"ErrorCode": p.error[0], "ErrorMessage": p.error[1]}
            for p in placed
        ],
    }
    return _touching(kinesis, kinesis.stream(request.stream(), now), fields, placed)


def _entry(request: OperationRequest) -> PutEntry:
    explicit = request.text("ExplicitHashKey", HASH_KEY)
    return PutEntry(request.required("Data"), request.text("PartitionKey"), None if explicit is None else int(explicit))


def _touching(kinesis: Kinesis, stream: Stream, fields: dict[str, Any], placed: list[PutResult]) -> OperationResult:
    if stream.key_id is not None:
        fields["EncryptionType"] = "KMS"
    touched = frozenset((stream.name, p.shard_id) for p in placed if p.error is None)
    return OperationResult(json.dumps(fields).encode(), touched, kinesis.account)


@operation
def get_shard_iterator(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    start = StartingPoint(
        request.choice("ShardIteratorType", IteratorType),
        request.text("StartingSequenceNumber", SEQUENCE_NUMBER),
        request.timestamp("Timestamp"),
    )
    iterator = kinesis.get_shard_iterator(request.stream(), request.required("ShardId", NAME), start, now=now)
    return answer({"ShardIterator": iterator})


@operation
def get_records(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    page, following = kinesis.get_records(
        request.required("ShardIterator"),
        now=now,
        limit=request.integer("Limit", 1, PAGE_MAX),
        ref=request.text("StreamARN"),
    )
    return OperationResult(page_json(page, "NextShardIterator", following))


def empty_page(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    """Return a GetRecords answer without records, at the same place."""
    behind, following = kinesis.get_no_records(request.required("ShardIterator"), now=now)
    return answer({"Records": [], "NextShardIterator": following, "MillisBehindLatest": behind})
