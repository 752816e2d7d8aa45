"""The wire form of enhanced fan-out: consumers and the opening of a subscription."""

from __future__ import annotations

from typing import Any

from mld.core.streams import IteratorType, StartingPoint
from mld.local.kinesis.model import Kinesis
from mld.local.kinesis.operations import (
    NAME,
    PAGE_MAX,
    SEQUENCE_NUMBER,
    OperationRequest,
    OperationResult,
    answer,
    operation,
)
from mld.local.kinesis.stream_state import Consumer
from mld.local.kinesis.subscription import ShardSubscription
from mld.local.kinesis.tokens import encode_name

_CONSUMERS_DEFAULT = 100
_CONSUMERS_TOKEN = "C"  # noqa: S105 - a kind of page token


def open_subscription(
    kinesis: Kinesis, request: OperationRequest, now: float
) -> tuple[ShardSubscription, tuple[str, str]]:
    """Return a new subscription, with the stream name and shard id to watch."""
    arn, shard_id = request.required("ConsumerARN"), request.required("ShardId", NAME)
    start = request.required_nested("StartingPosition")
    point = StartingPoint(
        start.choice("Type", IteratorType, "startingPosition.type"),
        start.text("SequenceNumber", SEQUENCE_NUMBER),
        start.timestamp("Timestamp"),
    )
    subscription = kinesis.subscribe(arn, shard_id, point, now=now)
    return subscription, (kinesis.consumer(now=now, arn=arn).stream_arn.rpartition("/")[2], shard_id)


@operation
def register_stream_consumer(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    arn, name = request.required("StreamARN"), request.required("ConsumerName", NAME)
    consumer = kinesis.register_consumer(arn, name, now=now)
    return answer({"Consumer": _consumer_json(consumer, now) | {"ConsumerStatus": "CREATING"}})


@operation
def describe_stream_consumer(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    consumer = _consumer(kinesis, request, now)
    return answer({"ConsumerDescription": _consumer_json(consumer, now) | {"StreamARN": consumer.stream_arn}})


@operation
def list_stream_consumers(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    limit = request.integer("MaxResults", 1, PAGE_MAX) or _CONSUMERS_DEFAULT
    after = request.place(_CONSUMERS_TOKEN, "")
    found = [c for c in kinesis.consumers(request.required("StreamARN"), now=now) if c.name > after]
    fields: dict[str, Any] = {"Consumers": [_consumer_json(c, now) for c in found[:limit]]}
    if len(found) > limit:
        fields["NextToken"] = encode_name(_CONSUMERS_TOKEN, found[limit - 1].name)
    return answer(fields)


@operation
def deregister_stream_consumer(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    kinesis.deregister_consumer(_consumer(kinesis, request, now), now=now)
    return answer()


def _consumer(kinesis: Kinesis, request: OperationRequest, now: float) -> Consumer:
    return kinesis.consumer(
        now=now,
        arn=request.text("ConsumerARN"),
        stream_arn=request.text("StreamARN"),
        name=request.text("ConsumerName", NAME),
    )


def _consumer_json(consumer: Consumer, now: float) -> dict[str, Any]:
    return {
        "ConsumerName": consumer.name,
        "ConsumerARN": consumer.arn,
        "ConsumerStatus": consumer.status(now),
        "ConsumerCreationTimestamp": round(consumer.created_s, 3),
    }
