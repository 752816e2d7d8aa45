"""The enums and small value types into which texts of the settings are converted (configuration#value-conversion)."""

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
"""The value of mld.processes for `auto`: as many workers as CPUs that this process may use."""
PROCESSES_MAX = 256  # each process has an interpreter of its own, about 60 MB
SOCKET_OFF = "off"
"""The value of a SOCKET key with which no socket is created."""
_PARTITIONS = (("cn-", "aws-cn"), ("us-gov-", "aws-us-gov"), ("us-isob-", "aws-iso-b"), ("us-iso-", "aws-iso"))
"""Prefixes of the names of regions, and the partitions of these regions; every other region is in ``aws``."""


class RetrievalMode(Enum):
    """How records are fetched. With DEFAULT, the presence of polling keys decides (see `derive`)."""

    DEFAULT = "DEFAULT"
    POLLING = "POLLING"
    FANOUT = "FANOUT"


class MetricsLevel(Enum):
    NONE = "NONE"
    SUMMARY = "SUMMARY"
    DETAILED = "DETAILED"


class MetricsOutput(Enum):
    """Where metrics go."""

    CLOUDWATCH = "cloudwatch"
    PROMETHEUS = "prometheus"


class ClientVersionConfig(Enum):
    """Which generations of workers share the lease table."""

    COMPATIBLE_WITH_2X_PHASE1 = "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1"
    COMPATIBLE_WITH_2X = "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X"
    VERSION_3X = "CLIENT_VERSION_CONFIG_3X"


class BillingMode(Enum):
    PROVISIONED = "PROVISIONED"
    PAY_PER_REQUEST = "PAY_PER_REQUEST"


class MetadataLayout(Enum):
    """Where rows other than leases are stored: the leader's lock, workers' reports."""

    AUTO = "auto"
    """In the lease table, unless the tables of KCL 3.0 to 3.4 exist."""
    LEGACY = "legacy"
    """Always in the tables of KCL 3.0 to 3.4."""


class AssignmentStrategy(Enum):
    """What the leader evens out between workers when it assigns leases."""

    UTILIZATION = "utilization"
    """CPU and throughput."""
    COUNT = "count"
    """The number of leases."""


class LogLevel(Enum):
    """The least important events that are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class ChildFailurePolicy(Enum):
    """What happens if a child keeps failing: only its shard stops (PARK), the daemon ends after some restarts
    (RESTART), or it ends at the first failure, as in Java (EXIT).
    """

    PARK = "park"
    RESTART = "restart"
    EXIT = "exit"


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """The address at which a server of the daemon listens. With port 0 the system chooses a port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect to the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class DeadLetterKind(Enum):
    """The kind of place where records are set aside; the value is the word for operators."""

    DIRECTORY = "directory"
    S3 = "bucket"
    KINESIS = "stream"
    SQS = "queue"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The place of `mld.deadLetter`: `name` is a path, a bucket (with the `prefix` of its keys), an ARN or a URL.

    `region` is the region in the ARN or URL. It is None if they name no region; then the region of Kinesis is used.
    """

    kind: DeadLetterKind
    text: str
    name: str
    prefix: str = ""
    region: str | None = None

    def __str__(self) -> str:
        return self.text


class FormerStreams(Enum):
    """What happens to a stream that is no longer in the list: it is read on (KEEP), its rows are kept (STOP), or they
    are deleted after a wait (DELETE).
    """

    KEEP = "keep"
    STOP = "stop"
    DELETE = "delete"


class SchemaMode(Enum):
    """How records with the frame of the Glue Schema Registry are delivered."""

    OFF = "off"
    """Records are delivered as they came."""
    STRIP = "strip"
    """The frame is removed, and a compressed payload is decompressed."""
    JSON = "json"
    """Like STRIP, and Avro data is converted to JSON text."""


class SchemaErrors(Enum):
    """What happens to a framed record whose schema is not available, or whose payload cannot be read."""

    DELIVER = "deliver"
    """The record is delivered as it came, with a key that says why."""
    FAIL = "fail"
    """The batch of the record waits."""


class InitialPositionKind(Enum):
    LATEST = "LATEST"
    TRIM_HORIZON = "TRIM_HORIZON"
    AT_TIMESTAMP = "AT_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class InitialPositionSetting:
    """Where shards without a lease start. `timestamp_s` (epoch seconds) is set only for AT_TIMESTAMP."""

    kind: InitialPositionKind
    timestamp_s: int | None = None

    def __post_init__(self) -> None:
        assert (self.timestamp_s is not None) == (self.kind is InitialPositionKind.AT_TIMESTAMP)

    def __str__(self) -> str:
        return self.kind.value if self.timestamp_s is None else f"{self.kind.value} {self.timestamp_s}"


def partition_of(region: str) -> str:
    """Return the partition of a region, the second part of its ARNs."""
    return next((partition for prefix, partition in _PARTITIONS if region.startswith(prefix)), "aws")


@dataclass(frozen=True, slots=True)
class StreamArn:
    """The ARN of a stream. `text` is the whole ARN, `name` the name of the stream.

    The stream of a DynamoDB table has the name that Amazon's adapter gives it: ``REGION$ACCOUNT$TABLE$LABEL``, with
    underscores for the colons of the label.
    """

    text: str
    region: str
    name: str

    @classmethod
    def parse(cls, text: str) -> StreamArn | None:
        """Parse the ARN of a stream, or that of a fan-out consumer, which contains the stream's. Return None if `text`
        is neither (configuration#stream-identity).
        """
        match = _STREAM_ARN.fullmatch(text)
        return None if match is None else cls(match["stream"], match["region"], match["name"])

    @classmethod
    def parse_source(cls, text: str) -> StreamArn | None:
        """Parse an ARN as `parse` does, or the ARN of a DynamoDB table's stream. Return None if `text` is neither."""
        match = _TABLE_STREAM_ARN.fullmatch(text)
        if match is None:
            return cls.parse(text)
        name = "$".join((match["region"], match["account"], match["table"], match["label"].replace(":", "_")))
        return cls(text, match["region"], name)

    @property
    def is_of_table(self) -> bool:
        """Whether this is the stream of a DynamoDB table."""
        return self.text.split(":")[2] == "dynamodb"

    @property
    def partition(self) -> str:
        """The partition in the ARN: `aws`, `aws-cn`, … Partitions of AWS share neither names nor users."""
        return self.text.split(":")[1]

    @property
    def regions_partition(self) -> str | None:
        """The partition to which the region belongs, if the ARN names another one. None if they agree, or if the ARN's
        partition is not one that can be recognized by the names of its regions."""
        of_region = partition_of(self.region)
        names = {"aws", *(name for _, name in _PARTITIONS)}
        return of_region if self.partition != of_region and self.partition in names else None

    @property
    def account(self) -> str:
        """The account of the stream, with 12 digits."""
        return self.text.split(":")[4]

    def __str__(self) -> str:
        return self.text
