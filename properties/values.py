"""The closed sets and small values that keys convert to (configuration#value-conversion)."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from enum import Enum

_STREAM_ARN = re.compile(
    r"(?P<stream>arn:aws[^:]*:kinesis:(?P<region>[-a-z0-9]+):[0-9]{12}:stream/(?P<name>[^/:]+))(?:[/:].*)?", re.ASCII
)
_TABLE_STREAM_ARN = re.compile(
    r"arn:aws[^:]*:dynamodb:(?P<region>[-a-z0-9]+):(?P<account>[0-9]{12}):table/(?P<table>[^/:]+)/stream/(?P<label>.+)",
    re.ASCII,
)
AUTO = "auto"
ONE_FOR_EACH_CPU = 0
"""Of mld.processes, as a number: as many as the CPUs that this process may use."""
PROCESSES_MAX = 256  # each has an interpreter of its own, 60 MB
SOCKET_OFF = "off"
"""The value of a SOCKET key that asks for none."""
_PARTITIONS = (("cn-", "aws-cn"), ("us-gov-", "aws-us-gov"), ("us-isob-", "aws-iso-b"), ("us-iso-", "aws-iso"))
"""Prefixes of regions, and the partitions that they are in; every other region is in ``aws``."""


class RetrievalMode(Enum):
    """How records are fetched; DEFAULT leaves the choice to the keys given (see `derive`)."""

    DEFAULT = "DEFAULT"
    POLLING = "POLLING"
    FANOUT = "FANOUT"


class MetricsLevel(Enum):
    NONE = "NONE"
    SUMMARY = "SUMMARY"
    DETAILED = "DETAILED"


class MetricsOutput(Enum):
    """A way in which metrics leave the daemon."""

    CLOUDWATCH = "cloudwatch"
    PROMETHEUS = "prometheus"


class ClientVersionConfig(Enum):
    """Which generation of workers the lease table is shared with."""

    COMPATIBLE_WITH_2X_PHASE1 = "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1"
    COMPATIBLE_WITH_2X = "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X"
    VERSION_3X = "CLIENT_VERSION_CONFIG_3X"


class BillingMode(Enum):
    PROVISIONED = "PROVISIONED"
    PAY_PER_REQUEST = "PAY_PER_REQUEST"


class MetadataLayout(Enum):
    """Where the rows are that are not leases."""

    AUTO = "auto"
    LEGACY = "legacy"


class AssignmentStrategy(Enum):
    """How the leader assigns leases."""

    UTILIZATION = "utilization"
    COUNT = "count"


class LogLevel(Enum):
    """The least important events that are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class ChildFailurePolicy(Enum):
    """What a child that keeps failing stops: its shard; in the end, the daemon; or at once, the daemon (as Java)."""

    PARK = "park"
    RESTART = "restart"
    EXIT = "exit"


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where a server of ours listens. Port 0 leaves the choice to the system."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether nobody outside this machine can call."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class DeadLetterKind(Enum):
    """Where records are set aside; the value is what an operator calls it."""

    DIRECTORY = "directory"
    S3 = "bucket"
    KINESIS = "stream"
    SQS = "queue"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The place of `mld.deadLetter`: `name` is a path, a bucket (with the `prefix` of its keys), an ARN or a URL.

    `region` is that in the ARN or URL; None: that of Kinesis.
    """

    kind: DeadLetterKind
    text: str
    name: str
    prefix: str = ""
    region: str | None = None

    def __str__(self) -> str:
        return self.text


class FormerStreams(Enum):
    """What becomes of a stream that is no longer in the list: read on; rows kept; or rows deleted after a wait."""

    KEEP = "keep"
    STOP = "stop"
    DELETE = "delete"


class SchemaMode(Enum):
    """What becomes of records with the frame of the Glue Schema Registry."""

    OFF = "off"
    """They are delivered as they came."""
    STRIP = "strip"
    """The frame is taken off, and the payload inflated."""
    JSON = "json"
    """As strip, and Avro data becomes JSON text."""


class SchemaErrors(Enum):
    """What becomes of a framed record whose schema cannot be had, or whose payload cannot be read."""

    DELIVER = "deliver"
    """It is delivered as it came, with a key that says why."""
    FAIL = "fail"
    """Its batch waits."""


class InitialPositionKind(Enum):
    LATEST = "LATEST"
    TRIM_HORIZON = "TRIM_HORIZON"
    AT_TIMESTAMP = "AT_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class InitialPositionSetting:
    """Where shards without a lease start; `timestamp_s` (epoch seconds) belongs to AT_TIMESTAMP only."""

    kind: InitialPositionKind
    timestamp_s: int | None = None

    def __post_init__(self) -> None:
        assert (self.timestamp_s is not None) == (self.kind is InitialPositionKind.AT_TIMESTAMP)

    def __str__(self) -> str:
        return self.kind.value if self.timestamp_s is None else f"{self.kind.value} {self.timestamp_s}"


def partition_of(region: str) -> str:
    """Return the second part of the ARNs of a region."""
    return next((partition for prefix, partition in _PARTITIONS if region.startswith(prefix)), "aws")


@dataclass(frozen=True, slots=True)
class StreamArn:
    """The ARN of a stream; `text` is the whole of it, `name` the stream's name.

    The stream of a DynamoDB table has the name that Amazon's adapter gives it: ``REGION$ACCOUNT$TABLE$LABEL``, with
    underscores for the colons of the label.
    """

    text: str
    region: str
    name: str

    @classmethod
    def parse(cls, text: str) -> StreamArn | None:
        """Return the stream of an ARN, or of a consumer's ARN; None if it is neither
        (configuration#stream-identity).
        """
        match = _STREAM_ARN.fullmatch(text)
        return None if match is None else cls(match["stream"], match["region"], match["name"])

    @classmethod
    def parse_source(cls, text: str) -> StreamArn | None:
        """Return what `parse` reads, or the stream of a DynamoDB table; None if it is neither."""
        match = _TABLE_STREAM_ARN.fullmatch(text)
        if match is None:
            return cls.parse(text)
        name = "$".join((match["region"], match["account"], match["table"], match["label"].replace(":", "_")))
        return cls(text, match["region"], name)

    @property
    def is_of_table(self) -> bool:
        """Whether it is the stream of a DynamoDB table."""
        return self.text.split(":")[2] == "dynamodb"

    @property
    def partition(self) -> str:
        """The part of AWS that shares no names and no users with others: `aws`, `aws-cn`, …"""
        return self.text.split(":")[1]

    @property
    def regions_partition(self) -> str | None:
        """The partition that its region belongs to where the ARN names another one, of those that are told apart by the
        names of their regions; None if they agree."""
        of_region = partition_of(self.region)
        names = {"aws", *(name for _, name in _PARTITIONS)}
        return of_region if self.partition != of_region and self.partition in names else None

    @property
    def account(self) -> str:
        """The account of the stream, 12 digits."""
        return self.text.split(":")[4]

    def __str__(self) -> str:
        return self.text
