"""The refusals of DynamoDB Streams, with the codes that AWS uses. Do not match on the messages."""

from __future__ import annotations

from mld.local.service_error import ServiceError

CODE_PREFIX = "com.amazonaws.dynamodb.v20120810#"
"""On the wire, in front of every code."""


class DynamoStreamsError(ServiceError):
    """An operation was refused."""


def stream_not_found(arn: str) -> DynamoStreamsError:
    return DynamoStreamsError("ResourceNotFoundException", f"Requested resource not found: Stream: {arn} not found")


def shard_not_found(shard_id: str) -> DynamoStreamsError:
    return DynamoStreamsError(
        "ResourceNotFoundException", f"Requested resource not found: Shard: {shard_id} does not exist"
    )


def invalid(message: str) -> DynamoStreamsError:
    return DynamoStreamsError("ValidationException", message)


def trimmed() -> DynamoStreamsError:
    return DynamoStreamsError(
        "TrimmedDataAccessException",
        "The operation attempted to read past the oldest stream record in a shard.",
    )


def expired() -> DynamoStreamsError:
    return DynamoStreamsError(
        "ExpiredIteratorException",
        "The provided iterator exceeds the maximum age allowed (15 minutes after it was given out).",
    )


def limit_exceeded(what: str) -> DynamoStreamsError:
    return DynamoStreamsError("LimitExceededException", f"Rate exceeded for {what}")
