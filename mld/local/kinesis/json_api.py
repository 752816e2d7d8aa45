"""Kinesis as AWS JSON 1.1: one function per operation from a request's fields to an answer's bytes. Still pure.

`open_subscription` opens SubscribeToShard, because its answer is a stream of events. Operations that only AWS has are
refused as unknown. StreamId is ignored, as the service documents it as not implemented.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from mld.local.kinesis import wire_fanout, wire_records, wire_streams
from mld.local.kinesis.errors import KinesisError
from mld.local.kinesis.model import Kinesis
from mld.local.kinesis.operations import HANDLERS, OperationRequest, OperationResult
from mld.local.kinesis.wire_fanout import open_subscription
from mld.local.kinesis.wire_records import empty_page

__all__ = ["READ_ONLY", "KinesisFinder", "OperationResult", "dispatch", "error_body", "open_subscription", "parse"]

# Importing these registers their operations.
_MODULES = (wire_fanout, wire_records, wire_streams)

READ_ONLY = frozenset(
    ("GetRecords", "GetShardIterator", "ListShards", "ListStreams", "DescribeStream", "DescribeStreamSummary")
    + ("PutRecord", "PutRecords", "DescribeStreamConsumer", "ListStreamConsumers", "ListTagsForStream")
)
"""Operations after which no subscription can find anything changed, apart from the shards its answer touched."""


KinesisFinder = Callable[[str | None], Kinesis]
"""The model of an account; of the caller's for None."""


def dispatch(find: KinesisFinder, operation: str, body: bytes, now: float, *, empty: bool = False) -> OperationResult:
    """Carry out one JSON request; with `empty`, GetRecords finds no records. Raises KinesisError."""
    handler = empty_page if empty and operation == "GetRecords" else HANDLERS.get(operation)
    if handler is None:
        raise KinesisError("UnknownOperationException", f"{operation} is not supported by the embedded Kinesis.")
    request = parse(body)
    return handler(find(request.account()), request, now)


def parse(body: bytes) -> OperationRequest:
    try:
        fields = json.loads(body) if body else {}
    except ValueError as error:
        raise KinesisError("SerializationException", f"The request is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise KinesisError("SerializationException", "The request is not a JSON object.")
    return OperationRequest(fields)


def error_body(code: str, message: str) -> bytes:
    return json.dumps({"__type": code, "message": message}).encode()
