"""`dispatch`: Kinesis in AWS JSON 1.1. For each operation, a function makes the answer from the fields of a request.
Pure.

The name of a function is that of its operation: ``put_record`` is PutRecord. SubscribeToShard has `open_subscription`
instead, because its answer is a stream of events. Operations that the embedded Kinesis does not have are refused as
unknown. The parameter StreamId is ignored; AWS documents it as not implemented.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mld.core.streams import IteratorType, StartingPoint
from mld.local.kinesis import LIST_SHARDS_DEFAULT, Kinesis
from mld.local.kinesis_errors import KinesisError
from mld.local.operation_request import HASH_KEY, INT_MAX, NAME, PAGE_MAX, SEQUENCE_NUMBER, OperationRequest, parse
from mld.local.records import PutEntry, PutResult, hash_range_json, page_json
from mld.local.shard_filter import FilterType, ListFilter
from mld.local.shard_subscription import ShardSubscription
from mld.local.stream_state import Consumer, ShardState, Stream
from mld.local.tokens import pack

Fields = dict[str, Any]
KinesisFinder = Callable[[str | None], Kinesis]
"""Returns the model of an account; None means the caller's account."""

READ_ONLY = frozenset(
    ("GetRecords", "GetShardIterator", "ListShards", "ListStreams", "DescribeStream", "DescribeStreamSummary")
    + ("PutRecord", "PutRecords", "DescribeStreamConsumer", "ListStreamConsumers")
)
"""After these operations, only subscriptions to shards that got records (`OperationResult.touched`) have to be woken.
After all others, every subscription has to be woken."""
_LIST_DEFAULT = 100
"""Default number of streams, consumers, or shards (of DescribeStream) in a page."""
_STREAMS_TOKEN, _CONSUMERS_TOKEN = "L", "C"
_STRATEGY = "RecordDistributionStrategy"
_ITERATORS = [kind.value for kind in IteratorType]
_FILTERS = [kind.value for kind in FilterType]
_HANDLERS: dict[str, Handler] = {}

PROVISIONED, ON_DEMAND = _MODES = "PROVISIONED", "ON_DEMAND"
AUTO, USER_PARTITION_KEY = _STRATEGIES = "AUTO", "USER_PARTITION_KEY"


@dataclass(frozen=True, slots=True)
class OperationResult:
    """The body of an answer. `touched` are the shards that got records, as (stream name, shard id); `account` is the
    account of the stream.
    """

    body: bytes
    touched: frozenset[tuple[str, str]] = frozenset()
    account: str = ""


Handler = Callable[[Kinesis, OperationRequest, float], Fields | OperationResult | None]
"""Does an operation, and returns the fields of the answer; None: the answer has no body."""


def operation(function: Handler) -> Handler:
    """Register a function as the handler of the operation whose name it has."""
    _HANDLERS["".join(word.capitalize() for word in function.__name__.split("_"))] = function
    return function


def dispatch(find: KinesisFinder, operation: str, body: bytes, now: float, *, empty: bool = False) -> OperationResult:
    """Do one operation. With `empty`, GetRecords returns no records, even if there are some. Raises KinesisError.

    `find` returns the model of the account that the request names.
    """
    handler = _empty_page if empty and operation == "GetRecords" else _HANDLERS.get(operation)
    if handler is None:
        raise KinesisError("UnknownOperationException", f"{operation} is not supported by the embedded Kinesis.")
    request = parse(body)
    answer = handler(find(request.account()), request, now)
    if isinstance(answer, OperationResult):
        return answer
    return OperationResult(b"" if answer is None else json.dumps(answer).encode())


# --- streams ---------------------------------------------------------------------------------------------------------


@operation
def create_stream(kinesis: Kinesis, request: OperationRequest, now: float) -> None:
    """Answer CreateStream."""
    mode = request.nested("StreamModeDetails")
    kinesis.create_stream(
        request.required("StreamName", NAME),
        now=now,
        shard_count=request.integer("ShardCount", 1, INT_MAX),
        on_demand=mode is not None and _is_on_demand(mode),
        record_kib_max=request.integer("MaxRecordSizeInKiB", 1024, 10_240),
        distributes=request.text(_STRATEGY) is not None and _distributes(request),
    )


@operation
def delete_stream(kinesis: Kinesis, request: OperationRequest, now: float) -> None:
    """Answer DeleteStream."""
    kinesis.delete_stream(request.stream(), now=now, with_consumers=request.flag("EnforceConsumerDeletion"))


@operation
def describe_stream(kinesis: Kinesis, request: OperationRequest, now: float) -> Fields:
    """Answer DescribeStream."""
    limit = request.integer("Limit", 1, PAGE_MAX) or _LIST_DEFAULT
    after = request.text("ExclusiveStartShardId", NAME) or ""
    stream = kinesis.stream(request.stream(), now)
    ready = stream.status(now) != "CREATING"
    shards = [s for s in stream.shards.values() if s.shard_id > after] if ready else []
    shown = {"Shards": [_shard_json(s) for s in shards[:limit]], "HasMoreShards": len(shards) > limit}
    return {"StreamDescription": _stream_json(stream, now) | shown}


@operation
def describe_stream_summary(kinesis: Kinesis, request: OperationRequest, now: float) -> Fields:
    """Answer DescribeStreamSummary."""
    stream = kinesis.stream(request.stream(), now)
    fields = _stream_json(stream, now) | {
        "OpenShardCount": len(stream.open_shards),
        "ConsumerCount": len(kinesis.consumers(stream.arn, now=now)),
        "MaxRecordSizeInKiB": stream.record_kib_max,
    }
    if stream.on_demand:
        fields[_STRATEGY] = AUTO if stream.distributes else USER_PARTITION_KEY
    return {"StreamDescriptionSummary": fields}


def _stream_json(stream: Stream, now: float) -> Fields:
    """Return the fields that the answers to DescribeStream and DescribeStreamSummary have in common."""
    return _summary_json(stream, now) | {
        "RetentionPeriodHours": stream.retention_h,
        "EnhancedMonitoring": [{"ShardLevelMetrics": []}],
        "EncryptionType": "NONE",
    }


def _summary_json(stream: Stream, now: float) -> Fields:
    """Return the summary of a stream, as ListStreams has it."""
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "StreamStatus": stream.status(now),
        "StreamModeDetails": {"StreamMode": ON_DEMAND if stream.on_demand else PROVISIONED},
        "StreamCreationTimestamp": stream.created_ms / 1000,
    }


@operation
def list_streams(kinesis: Kinesis, request: OperationRequest, now: float) -> Fields:
    """Answer ListStreams."""
    limit = request.integer("Limit", 1, PAGE_MAX) or _LIST_DEFAULT
    after = request.place(_STREAMS_TOKEN, request.text("ExclusiveStartStreamName", NAME) or "")
    found = [s for s in kinesis.streams(now) if s.name > after]
    page = found[:limit]
    fields: Fields = {
        "StreamNames": [s.name for s in page],
        "HasMoreStreams": len(found) > limit,
        "StreamSummaries": [_summary_json(s, now) for s in page],
    }
    return fields if len(found) <= limit else fields | {"NextToken": pack(_STREAMS_TOKEN, page[-1].name)}


@operation
def update_stream_mode(kinesis: Kinesis, request: OperationRequest, now: float) -> None:
    """Answer UpdateStreamMode."""
    mode = request.required_nested("StreamModeDetails")
    kinesis.set_mode(request.required("StreamARN"), on_demand=_is_on_demand(mode), now=now)


def _is_on_demand(mode: OperationRequest) -> bool:
    """Return whether the StreamModeDetails of a request ask for the on-demand mode."""
    return mode.choice("StreamMode", _MODES, "streamModeDetails.streamMode") == ON_DEMAND


@operation
def update_stream_record_distribution_strategy(kinesis: Kinesis, request: OperationRequest, now: float) -> None:
    """Answer the operation that sets how a stream chooses the shards of records."""
    kinesis.set_distribution(request.required("StreamARN"), distributes=_distributes(request), now=now)


def _distributes(request: OperationRequest) -> bool:
    """Return whether a request wants the stream to choose the shards of records itself, without regard to keys."""
    return request.choice(_STRATEGY, _STRATEGIES) == AUTO


@operation
def increase_stream_retention_period(kinesis: Kinesis, request: OperationRequest, now: float) -> None:
    """Answer IncreaseStreamRetentionPeriod."""
    hours = request.required_integer("RetentionPeriodHours", -INT_MAX, INT_MAX)
    kinesis.set_retention(request.stream(), hours, increase=True, now=now)


@operation
def decrease_stream_retention_period(kinesis: Kinesis, request: OperationRequest, now: float) -> None:
    """Answer DecreaseStreamRetentionPeriod."""
    hours = request.required_integer("RetentionPeriodHours", -INT_MAX, INT_MAX)
    kinesis.set_retention(request.stream(), hours, increase=False, now=now)


# --- shards ----------------------------------------------------------------------------------------------------------


@operation
def list_shards(kinesis: Kinesis, request: OperationRequest, now: float) -> Fields:
    """Answer ListShards."""
    nested = request.nested("ShardFilter")
    page = kinesis.list_shards(
        request.stream_or_none(),
        now=now,
        token=request.text("NextToken"),
        after_id=request.text("ExclusiveStartShardId", NAME),
        shard_filter=None if nested is None else _filter(nested),
        limit=request.integer("MaxResults", 1, PAGE_MAX) or LIST_SHARDS_DEFAULT,
    )
    fields: Fields = {"Shards": [_shard_json(shard) for shard in page.shards]}
    return fields if page.next_token is None else fields | {"NextToken": page.next_token}


def _filter(request: OperationRequest) -> ListFilter:
    """Return the ShardFilter of a request."""
    kind = FilterType(request.choice("Type", _FILTERS, "shardFilter.type"))
    return ListFilter(kind, request.text("ShardId", NAME), request.timestamp("Timestamp"))


def _shard_json(shard: ShardState) -> Fields:
    """Return a shard as ListShards and DescribeStream show it."""
    view = shard.view()
    numbers = {"StartingSequenceNumber": view.starting_sequence, "EndingSequenceNumber": view.ending_sequence}
    fields = {
        "ShardId": view.shard_id,
        "HashKeyRange": hash_range_json(view.hash_range),
        "SequenceNumberRange": _present(numbers),
        "ParentShardId": view.parent_id,
        "AdjacentParentShardId": view.adjacent_parent_id,
    }
    return _present(fields)


def _present(fields: Fields) -> Fields:
    """Return the fields whose value is not None."""
    return {name: value for name, value in fields.items() if value is not None}


@operation
def split_shard(kinesis: Kinesis, request: OperationRequest, now: float) -> None:
    """Answer SplitShard."""
    border = int(request.required("NewStartingHashKey", HASH_KEY))
    kinesis.split_shard(request.stream(), request.required("ShardToSplit", NAME), border, now=now)


@operation
def merge_shards(kinesis: Kinesis, request: OperationRequest, now: float) -> None:
    """Answer MergeShards."""
    first, second = request.required("ShardToMerge", NAME), request.required("AdjacentShardToMerge", NAME)
    kinesis.merge_shards(request.stream(), first, second, now=now)


@operation
def update_shard_count(kinesis: Kinesis, request: OperationRequest, now: float) -> Fields:
    """Answer UpdateShardCount."""
    request.choice("ScalingType", ("UNIFORM_SCALING",))
    target = request.required_integer("TargetShardCount", 1, INT_MAX)
    before = kinesis.update_shard_count(request.stream(), target, now=now)
    stream = kinesis.stream(request.stream(), now)
    counts = {"CurrentShardCount": before, "TargetShardCount": target}
    return {"StreamName": stream.name, "StreamARN": stream.arn} | counts


# --- records ---------------------------------------------------------------------------------------------------------


@operation
def put_record(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    """Answer PutRecord."""
    placed = kinesis.put_record(request.stream(), _entry(request), now=now)
    return _placed(kinesis, request, now, _placed_json(placed), [placed])


@operation
def put_records(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    """Answer PutRecords."""
    entries = [_entry(item) for item in request.entries("Records")]
    placed = kinesis.put_records(request.stream(), entries, now=now)
    failed = sum(p.error is not None for p in placed)
    return _placed(
        kinesis, request, now, {"FailedRecordCount": failed, "Records": [_placed_json(p) for p in placed]}, placed
    )


def _entry(request: OperationRequest) -> PutEntry:
    """Return the record that a request wants to put."""
    explicit = request.text("ExplicitHashKey", HASH_KEY)
    return PutEntry(request.required("Data"), request.text("PartitionKey"), None if explicit is None else int(explicit))


def _placed_json(placed: PutResult) -> Fields:
    """Return the result for one record as answers show it: its place, or why it was refused."""
    if placed.error is not None:
        return {"ErrorCode": placed.error[0], "ErrorMessage": placed.error[1]}
    return {"ShardId": placed.shard_id, "SequenceNumber": placed.sequence}


def _placed(
    kinesis: Kinesis, request: OperationRequest, now: float, fields: Fields, placed: Sequence[PutResult]
) -> OperationResult:
    """Return the result of a put with these fields, and with the shards that got records."""
    stream = kinesis.stream(request.stream(), now)
    touched = frozenset((stream.name, p.shard_id) for p in placed if p.error is None)
    return OperationResult(json.dumps(fields).encode(), touched, kinesis.account)


@operation
def get_shard_iterator(kinesis: Kinesis, request: OperationRequest, now: float) -> Fields:
    """Answer GetShardIterator."""
    start = StartingPoint(
        IteratorType(request.choice("ShardIteratorType", _ITERATORS)),
        request.text("StartingSequenceNumber", SEQUENCE_NUMBER),
        request.timestamp("Timestamp"),
    )
    iterator = kinesis.get_shard_iterator(request.stream(), request.required("ShardId", NAME), start, now=now)
    return {"ShardIterator": iterator}


@operation
def get_records(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    """Answer GetRecords."""
    page, following = kinesis.get_records(
        request.required("ShardIterator"),
        now=now,
        limit=request.integer("Limit", 1, PAGE_MAX),
        ref=request.text("StreamARN"),
    )
    return OperationResult(page_json(page, "NextShardIterator", following))


def _empty_page(kinesis: Kinesis, request: OperationRequest, now: float) -> Fields:
    """Answer GetRecords without records, and with an iterator at the same place."""
    behind, following = kinesis.get_no_records(request.required("ShardIterator"), now=now)
    return {"Records": [], "NextShardIterator": following, "MillisBehindLatest": behind}


# --- enhanced fan-out ------------------------------------------------------------------------------------------------


def open_subscription(
    kinesis: Kinesis, request: OperationRequest, now: float
) -> tuple[ShardSubscription, tuple[str, str]]:
    """Open a subscription. Return it, and the stream name and shard id of the shard whose changes must wake it."""
    arn, shard_id = request.required("ConsumerARN"), request.required("ShardId", NAME)
    start = request.required_nested("StartingPosition")
    point = StartingPoint(
        IteratorType(start.choice("Type", _ITERATORS, "startingPosition.type")),
        start.text("SequenceNumber", SEQUENCE_NUMBER),
        start.timestamp("Timestamp"),
    )
    subscription = kinesis.subscribe(arn, shard_id, point, now=now)
    return subscription, (kinesis.consumer(now=now, arn=arn).stream_arn.rpartition("/")[2], shard_id)


@operation
def register_stream_consumer(kinesis: Kinesis, request: OperationRequest, now: float) -> Fields:
    """Answer RegisterStreamConsumer. As in AWS, the answer shows a new consumer as CREATING."""
    arn, name = request.required("StreamARN"), request.required("ConsumerName", NAME)
    consumer = kinesis.register_consumer(arn, name, now=now)
    return {"Consumer": _consumer_json(consumer, now) | {"ConsumerStatus": "CREATING"}}


@operation
def describe_stream_consumer(kinesis: Kinesis, request: OperationRequest, now: float) -> Fields:
    """Answer DescribeStreamConsumer."""
    consumer = _consumer(kinesis, request, now)
    return {"ConsumerDescription": _consumer_json(consumer, now) | {"StreamARN": consumer.stream_arn}}


@operation
def list_stream_consumers(kinesis: Kinesis, request: OperationRequest, now: float) -> Fields:
    """Answer ListStreamConsumers."""
    limit = request.integer("MaxResults", 1, PAGE_MAX) or _LIST_DEFAULT
    after = request.place(_CONSUMERS_TOKEN, "")
    found = [c for c in kinesis.consumers(request.required("StreamARN"), now=now) if c.name > after]
    fields: Fields = {"Consumers": [_consumer_json(c, now) for c in found[:limit]]}
    if len(found) > limit:
        fields["NextToken"] = pack(_CONSUMERS_TOKEN, found[limit - 1].name)
    return fields


@operation
def deregister_stream_consumer(kinesis: Kinesis, request: OperationRequest, now: float) -> None:
    """Answer DeregisterStreamConsumer."""
    kinesis.deregister_consumer(_consumer(kinesis, request, now), now=now)


def _consumer(kinesis: Kinesis, request: OperationRequest, now: float) -> Consumer:
    """Return the consumer that a request names."""
    return kinesis.consumer(
        now=now,
        arn=request.text("ConsumerARN"),
        stream_arn=request.text("StreamARN"),
        name=request.text("ConsumerName", NAME),
    )


def _consumer_json(consumer: Consumer, now: float) -> Fields:
    """Return a consumer as answers describe it."""
    return {
        "ConsumerName": consumer.name,
        "ConsumerARN": consumer.arn,
        "ConsumerStatus": consumer.status(now),
        "ConsumerCreationTimestamp": round(consumer.created_s, 3),
    }
