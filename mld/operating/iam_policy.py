"""The least that an application has to be allowed, from its properties file, as an IAM policy. Pure.

One statement for each thing that is called, named after it, so that a reviewer can see why it is there. Accounts and
partitions that the file does not tell are `*`; an ARN in the file tells both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from mld.core.streams import StreamKind
from mld.operating.naming import settings_of_one
from mld.properties.settings import Settings
from mld.properties.values import DeadLetterKind, MetricsLevel, MetricsOutput, SchemaMode
from mld.retrieval.stream_adapters import kind_of

OWNER_INDEX = "LeaseOwnerToLeaseKeyIndex"
ANY = "*"


@dataclass(frozen=True, slots=True)
class Statement:
    """What may be called on what. `condition` as IAM writes it."""

    sid: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    condition: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        value = {"Sid": self.sid, "Effect": "Allow", "Action": list(self.actions), "Resource": list(self.resources)}
        return value if self.condition is None else value | {"Condition": self.condition}


def policy(settings: Settings, *, create: bool = True, operate: bool = False) -> dict[str, Any]:
    """Return the policy document.

    `create` False: tables and index are made by somebody else, such as Terraform. `operate`: also what the commands
    need that delete or export (`mld teardown`, `mld restore`).
    """
    statements = [one.to_json() for one in statements_of(settings, create=create, operate=operate)]
    return {"Version": "2012-10-17", "Statement": statements}


def statements_of(settings: Settings, *, create: bool, operate: bool) -> Iterator[Statement]:
    yield from _merged(one for stream in _each(settings) for one in _stream(stream))
    yield from _roles(settings)
    yield from _tables(settings, create=create, operate=operate)
    yield from _dead_letter(settings)
    if settings.schemas.mode is not SchemaMode.OFF:
        yield Statement("ReadSchemas", ("glue:GetSchemaVersion",), (ANY,))
    if MetricsOutput.CLOUDWATCH in settings.metrics.outputs and settings.metrics.level is not MetricsLevel.NONE:
        namespace = {"StringEquals": {"cloudwatch:namespace": settings.application_name}}
        yield Statement("Metrics", ("cloudwatch:PutMetricData",), (ANY,), namespace)


def _each(settings: Settings) -> Iterator[Settings]:
    """Yield the settings, or those of each of several streams that are read with the credentials of the application."""
    if not settings.is_multi_stream:
        yield settings
    for one in settings.streams:
        if one.credentials is None:
            yield settings_of_one(settings, one)


def _merged(statements: Iterable[Statement]) -> Iterator[Statement]:
    """Yield one statement for each name, about the resources of all that have it."""
    merged: dict[str, Statement] = {}
    for one in statements:
        first = merged.get(one.sid, replace(one, resources=()))
        merged[one.sid] = replace(first, resources=tuple(dict.fromkeys((*first.resources, *one.resources))))
    yield from merged.values()


def _roles(settings: Settings) -> Iterator[Statement]:
    """Yield what single streams are read as; those roles have policies of their own."""
    chains = [one.credentials for one in settings.streams if one.credentials is not None]
    roles = [provider.role.role_arn for chain in chains for provider in chain.providers if provider.role is not None]
    if roles:
        yield Statement("AssumeRoles", ("sts:AssumeRole",), tuple(dict.fromkeys(roles)))


def _stream(settings: Settings) -> Iterator[Statement]:
    stream = _stream_arn(settings)
    if kind_of(settings.stream_arn) is StreamKind.DYNAMODB:
        yield Statement("ReadTableStream", _dynamo("DescribeStream", "GetShardIterator", "GetRecords"), (stream,))
        return
    read = ["kinesis:DescribeStreamSummary", "kinesis:ListShards", "kinesis:GetShardIterator"]
    if not settings.reader.by_fan_out:
        yield Statement("ReadStream", (*read, "kinesis:GetRecords"), (stream,))
        return
    consumer = settings.fanout.consumer_arn
    given = consumer is not None
    yield Statement("ReadStream", tuple(read), (stream,))
    if not given:
        consumer = f"{stream}/consumer/{settings.fanout.consumer_name}:*"
        yield Statement("RegisterConsumer", ("kinesis:RegisterStreamConsumer",), (stream,))
        if settings.fanout.deregister:
            yield Statement("DeregisterConsumer", ("kinesis:DeregisterStreamConsumer",), (stream, consumer))
    assert consumer is not None
    # By name it is described on the stream, by ARN on the consumer.
    yield Statement("DescribeConsumer", ("kinesis:DescribeStreamConsumer",), (stream, consumer))
    yield Statement("Subscribe", ("kinesis:SubscribeToShard",), (consumer,))


def _tables(settings: Settings, *, create: bool, operate: bool) -> Iterator[Statement]:
    lease_table = _table_arn(settings, settings.lease_table.name)
    tables = [lease_table]
    # A fleet that comes from KCL 2.x or 3.0 to 3.4 has these two; they are looked for in any case.
    names = (settings.worker_metrics_table.name, settings.coordinator_state_table.name)
    tables += [_table_arn(settings, name) for name in names]
    rows = ("DescribeTable", "Scan", "GetItem", "PutItem", "UpdateItem", "DeleteItem")
    yield Statement("LeaseRows", _dynamo(*rows, "BatchGetItem"), (lease_table,))
    yield Statement("LeaseOwners", _dynamo("Query"), (f"{lease_table}/index/{OWNER_INDEX}",))
    yield Statement("FleetRows", _dynamo(*rows), tuple(tables[1:]))
    if create:
        makers = ["CreateTable", "UpdateTable"]
        if settings.lease_table.tags or settings.worker_metrics_table.tags or settings.coordinator_state_table.tags:
            makers.append("TagResource")
        if (
            settings.lease_table.point_in_time_recovery
            or settings.worker_metrics_table.point_in_time_recovery
            or settings.coordinator_state_table.point_in_time_recovery
        ):
            makers += ["DescribeContinuousBackups", "UpdateContinuousBackups"]
        yield Statement("CreateTables", _dynamo(*makers), tuple(tables))
    if operate:
        yield Statement("DeleteTables", _dynamo("DeleteTable"), tuple(tables))
        if settings.reader.by_fan_out and settings.fanout.consumer_arn is None and not settings.fanout.deregister:
            streams = [_stream_arn(one) for one in _each(settings) if one.fanout.consumer_arn is None]
            consumers = [f"{stream}/consumer/{settings.fanout.consumer_name}:*" for stream in streams]
            both = tuple(arn for pair in zip(streams, consumers, strict=True) for arn in pair)
            if both:
                yield Statement("DeregisterConsumer", ("kinesis:DeregisterStreamConsumer",), both)


def _dead_letter(settings: Settings) -> Iterator[Statement]:
    place = settings.child.dead_letter
    if place is None:
        return
    partition = _whereabouts(settings)[0]
    match place.kind:
        case DeadLetterKind.DIRECTORY:
            return
        case DeadLetterKind.S3:
            under = f"{place.prefix}/" if place.prefix else ""
            yield Statement("DeadLetters", ("s3:PutObject",), (f"arn:{partition}:s3:::{place.name}/{under}*",))
        case DeadLetterKind.KINESIS:
            yield Statement("DeadLetters", ("kinesis:PutRecord",), (place.name,))
        case DeadLetterKind.SQS:
            account, queue = place.name.rstrip("/").split("/")[-2:]
            arn = f"arn:{partition}:sqs:{place.region or ANY}:{account}:{queue}"
            yield Statement("DeadLetters", ("sqs:SendMessage",), (arn,))


def _dynamo(*operations: str) -> tuple[str, ...]:
    return tuple(f"dynamodb:{operation}" for operation in operations)


def _stream_arn(settings: Settings) -> str:
    if settings.stream_arn is not None:
        return settings.stream_arn
    partition, _, account = _whereabouts(settings)
    region = settings.kinesis.region or ANY
    return f"arn:{partition}:kinesis:{region}:{account}:stream/{settings.stream_name}"


def _table_arn(settings: Settings, table: str) -> str:
    partition, region, account = _whereabouts(settings)
    region = settings.dynamo_db.region or region
    # The stream may be another account's; the tables are the caller's own.
    return f"arn:{partition}:dynamodb:{region}:{ANY if settings.stream_arn is not None else account}:table/{table}"


def _whereabouts(settings: Settings) -> tuple[str, str, str]:
    """Return partition, region and account, as far as the file tells."""
    if settings.stream_arn is not None:
        _, partition, _, region, account, *_ = settings.stream_arn.split(":")
        return partition, region, account
    region = settings.region_name or ANY
    return _partition(region), region, ANY


def _partition(region: str) -> str:
    for prefix, partition in (("cn-", "aws-cn"), ("us-gov-", "aws-us-gov")):
        if region.startswith(prefix):
            return partition
    return "aws"


def quoted(text: str) -> str:
    """Return a string of Terraform's language, in which ${ and %{ begin templates."""
    return json.dumps(text).replace("${", "$${").replace("%{", "%%{")
