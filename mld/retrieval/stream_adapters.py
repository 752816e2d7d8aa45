"""Which adapter reads a stream: that of Kinesis, or that of DynamoDB Streams."""

from __future__ import annotations

from dataclasses import replace

from mld.aws.client_factory import ServiceName
from mld.aws.dynamo_streams import DynamoDBStreams
from mld.aws.kinesis import KinesisStreams
from mld.aws.service import RawService
from mld.core.clock import Clock
from mld.core.streams import StreamKind, Streams
from mld.retrieval.rawpage import page_of

LABELS = {StreamKind.KINESIS: "Kinesis", StreamKind.DYNAMODB: "DynamoDB Streams"}
"""How people name the service."""


def kind_of(arn: str | None) -> StreamKind:
    """Return the kind of the stream with this ARN; without one it is of Kinesis."""
    return StreamKind.DYNAMODB if arn is not None and arn.split(":")[2] == "dynamodb" else StreamKind.KINESIS


def service_name(kind: StreamKind) -> ServiceName:
    """Return the API that streams of this kind have."""
    return "kinesis" if kind is StreamKind.KINESIS else "dynamodbstreams"


def streams_port(service: RawService, clock: Clock, name: str, arn: str | None, extra: bytes = b"") -> Streams:
    """Return the `Streams` port of one stream over the service of its kind; `extra` is what each record has besides."""
    page = replace(page_of, extra=extra)
    if arn is not None and kind_of(arn) is StreamKind.DYNAMODB:
        return DynamoDBStreams(service, clock, stream_arn=arn, page_of=page)
    return KinesisStreams(service, stream_name=name, stream_arn=arn, page_of=page)
