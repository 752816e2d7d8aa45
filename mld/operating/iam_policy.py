"""Makes the IAM policy that a daemon needs, from its settings: every action and resource that it uses, and no other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mld.core.streams import StreamKind
from mld.operating.naming import settings_of_one
from mld.properties.settings import Settings
from mld.properties.values import DeadLetterKind, MetricsLevel, MetricsOutput, SchemaMode
from mld.retrieval.reader_factory import kind_of

OWNER_INDEX = "LeaseOwnerToLeaseKeyIndex"
ANY = "*"


class Policy:
    """A policy in the making: statements by name. A statement covers all resources that were allowed under its name."""

    def __init__(self) -> None:
        self._statements: dict[str, dict[str, Any]] = {}

    def allow(self, sid: str, actions: Sequence[str], *resources: str, **more: Any) -> None:
        """Allow the calls `actions` on `resources`. `more` are further fields of the statement, as IAM names them."""
        statement = {"Sid": sid, "Effect": "Allow", "Action": list(actions), "Resource": [], **more}
        known = self._statements.setdefault(sid, statement)["Resource"]
        known += [one for one in dict.fromkeys(resources) if one not in known]

    def document(self) -> dict[str, Any]:
        return {"Version": "2012-10-17", "Statement": list(self._statements.values())}


def policy(settings: Settings, *, create: bool = True) -> dict[str, Any]:
    """Return the policy document. With `create` False it does not allow the creation of tables and index: that is for
    operators who create them by another tool, such as Terraform.
    """
    draft = Policy()
    if not settings.is_multi_stream:
        _allow_stream(draft, settings)
    for one in settings.streams:
        if one.credentials is None:
            _allow_stream(draft, settings_of_one(settings, one))
    # Roles with which single streams are read. Each role needs a policy of its own.
    chains = [one.credentials for one in settings.streams if one.credentials is not None]
    roles = [provider.role.role_arn for chain in chains for provider in chain.providers if provider.role is not None]
    if roles:
        draft.allow("AssumeRoles", ["sts:AssumeRole"], *roles)
    _allow_tables(draft, settings, create=create)
    _allow_dead_letters(draft, settings)
    if settings.schemas.mode is not SchemaMode.OFF:
        draft.allow("ReadSchemas", ["glue:GetSchemaVersion"], ANY)
    if MetricsOutput.CLOUDWATCH in settings.metrics.outputs and settings.metrics.level is not MetricsLevel.NONE:
        namespace = {"StringEquals": {"cloudwatch:namespace": settings.application_name}}
        draft.allow("Metrics", ["cloudwatch:PutMetricData"], ANY, Condition=namespace)
    return draft.document()


def _allow_stream(draft: Policy, settings: Settings) -> None:
    """Allow the calls on the stream: reading it by polling or fan-out, or as the stream of a DynamoDB table."""
    stream = _stream_arn(settings)
    if kind_of(settings.stream_arn) is StreamKind.DYNAMODB:
        draft.allow("ReadTableStream", _dynamo("DescribeStream", "GetShardIterator", "GetRecords"), stream)
        return
    read = ["kinesis:DescribeStreamSummary", "kinesis:ListShards", "kinesis:GetShardIterator"]
    if not settings.reader.by_fan_out:
        draft.allow("ReadStream", [*read, "kinesis:GetRecords"], stream)
        return
    draft.allow("ReadStream", read, stream)
    # Called only if a record is missing: it shows whether the record was trimmed before it was read
    # (retrieval#lost-to-retention).
    draft.allow("ProveLosses", ["kinesis:GetRecords"], stream)
    consumer = settings.fanout.consumer_arn
    if consumer is None:
        consumer = f"{stream}/consumer/{settings.fanout.consumer_name}:*"
        draft.allow("RegisterConsumer", ["kinesis:RegisterStreamConsumer"], stream)
    # IAM checks this call against the stream's ARN if the consumer is named, and against the consumer's ARN if not.
    draft.allow("DescribeConsumer", ["kinesis:DescribeStreamConsumer"], stream, consumer)
    draft.allow("Subscribe", ["kinesis:SubscribeToShard"], consumer)


def _allow_tables(draft: Policy, settings: Settings, *, create: bool) -> None:
    """Allow reading and writing the tables of the fleet, and with `create` also creating them."""
    # Only fleets that come from KCL 2.x or 3.0 to 3.4 have the last two tables, but every daemon looks for them.
    tables = (settings.lease_table, settings.worker_metrics_table, settings.coordinator_state_table)
    lease_table, *others = (_table_arn(settings, table.name) for table in tables)
    rows = ("DescribeTable", "Scan", "GetItem", "PutItem", "UpdateItem", "DeleteItem")
    draft.allow("LeaseRows", _dynamo(*rows, "BatchGetItem"), lease_table)
    draft.allow("LeaseOwners", _dynamo("Query"), f"{lease_table}/index/{OWNER_INDEX}")
    draft.allow("FleetRows", _dynamo(*rows), *others)
    if create:
        makers = ["CreateTable", "UpdateTable"]
        if any(table.tags for table in tables):
            makers.append("TagResource")
        if any(table.point_in_time_recovery for table in tables):
            makers += ["DescribeContinuousBackups", "UpdateContinuousBackups"]
        draft.allow("CreateTables", _dynamo(*makers), lease_table, *others)


def _allow_dead_letters(draft: Policy, settings: Settings) -> None:
    """Allow writing dead letters to the place that the settings name, if they name one."""
    place = settings.child.dead_letter
    if place is None:
        return
    partition = _whereabouts(settings)[0]
    match place.kind:
        case DeadLetterKind.S3:
            under = f"{place.prefix}/" if place.prefix else ""
            draft.allow("DeadLetters", ["s3:PutObject"], f"arn:{partition}:s3:::{place.name}/{under}*")
        case DeadLetterKind.KINESIS:
            draft.allow("DeadLetters", ["kinesis:PutRecord"], place.name)
        case DeadLetterKind.SQS:
            account, queue = place.name.rstrip("/").split("/")[-2:]
            arn = f"arn:{partition}:sqs:{place.region or ANY}:{account}:{queue}"
            draft.allow("DeadLetters", ["sqs:SendMessage"], arn)


def _dynamo(*operations: str) -> tuple[str, ...]:
    return tuple(f"dynamodb:{operation}" for operation in operations)


def _stream_arn(settings: Settings) -> str:
    """Return the ARN of the only stream. What the settings leave open is a wildcard."""
    if settings.stream_arn is not None:
        return settings.stream_arn
    partition, _, account = _whereabouts(settings)
    region = settings.kinesis.region or ANY
    return f"arn:{partition}:kinesis:{region}:{account}:stream/{settings.stream_name}"


def _table_arn(settings: Settings, table: str) -> str:
    """Return the ARN of a table. What the settings leave open is a wildcard."""
    partition, region, account = _whereabouts(settings)
    region = settings.dynamo_db.region or region
    # The stream may be in another account; the tables are in the caller's.
    return f"arn:{partition}:dynamodb:{region}:{ANY if settings.stream_arn is not None else account}:table/{table}"


def _whereabouts(settings: Settings) -> tuple[str, str, str]:
    """Return partition, region and account, each a wildcard if the file does not name it."""
    if settings.stream_arn is not None:
        _, partition, _, region, account, *_ = settings.stream_arn.split(":")
        return partition, region, account
    region = settings.region_name or ANY
    return _partition(region), region, ANY


def _partition(region: str) -> str:
    """Return the AWS partition of a region."""
    for prefix, partition in (("cn-", "aws-cn"), ("us-gov-", "aws-us-gov")):
        if region.startswith(prefix):
            return partition
    return "aws"
