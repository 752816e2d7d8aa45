"""The settings: every value the daemon runs with, converted, checked and with all defaults filled in. Immutable.

One field for each key of `keys` that has an effect, in the group that the key names, and a few that are derived. Parts
of the daemon are given their group. Times are in seconds, whatever the unit of the key. Defaults live in the table of
`keys`, not here; `loader.load` makes this object.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mld.properties.credentials import CredentialsChain
from mld.properties.values import (
    AssignmentStrategy,
    BillingMode,
    ChildFailurePolicy,
    ChildLog,
    ClientVersionConfig,
    DeadLetter,
    FormerStreams,
    HeartbeatSetting,
    InitialPositionSetting,
    ListenAddress,
    LogLevel,
    MetadataLayout,
    MetricsLevel,
    MetricsOutput,
    RetrievalMode,
    SchemaErrors,
    SchemaMode,
    StreamArn,
)


@dataclass(frozen=True, slots=True)
class StreamSetting:
    """One stream of the list; None is what the keys without a stream's name say.

    `name` is its name in the list: the stream's own, or a label if there is an `arn`. `epoch`, in seconds, is the part
    of its identifier in the lease table; None: what the table has, else the time of its creation. `initial_position` is
    that of the application if the stream has none of its own.
    """

    name: str
    arn: StreamArn | None
    epoch: int | None
    initial_position: InitialPositionSetting
    consumer_arn: str | None
    credentials: CredentialsChain | None
    executable_name: str | None

    @property
    def stream_name(self) -> str:
        """The name by which Kinesis knows the stream."""
        return self.name if self.arn is None else self.arn.name

    @property
    def account(self) -> str | None:
        """The account in the ARN; None: that of the credentials."""
        return None if self.arn is None else self.arn.account

    @property
    def region(self) -> str | None:
        """The region in the ARN; None: that of Kinesis."""
        return None if self.arn is None else self.arn.region


STREAMS_NAMED_MAX = 5
RESTART_PAUSE_MAX_S = 300.0  # a processor that was repaired is noticed within it
Tags = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How one service of AWS is reached. `region` None: only a profile or instance metadata can tell."""

    credentials: CredentialsChain
    region: str | None
    endpoint: str | None
    dualstack: bool
    fips: bool
    proxy_url: str | None = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """How long a lease lasts, and how this worker gets, keeps and gives leases."""

    duration_s: float
    held_max: int
    steals_max: int
    very_old_first: bool
    renewals_concurrent_max: int
    hands_off_gracefully: bool
    handoff_timeout_s: float
    heartbeat: HeartbeatSetting
    scan_segments: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """A table of DynamoDB: its name, and how it is made if it is missing."""

    name: str
    billing_mode: BillingMode
    read_capacity: int
    write_capacity: int
    point_in_time_recovery: bool
    deletion_protection: bool
    tags: Tags


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSettings:
    """How shards are listed and their rows made and deleted, and what becomes of streams that left the list."""

    sync_interval_s: float
    skips_sync_if_leases_exist: bool
    cleans_up: bool
    ignores_unexpected_children: bool
    list_backoff_s: float
    list_attempts_max: int
    former_streams: FormerStreams
    former_streams_wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """How workers report their load, how the leader assigns leases, and which generations of workers there are."""

    assignment_interval_s: float
    assignment_strategy: AssignmentStrategy
    throughput_max_kbps: float
    dampening_percent: int
    threshold_percent: int
    is_band_fixed: bool
    overshoot: bool
    balance_every: int
    ignores_load: bool
    capture_period_s: float
    report_period_s: float
    samples_per_report: int
    stale_report_s: float
    ema_alpha: float
    client_version: ClientVersionConfig | None
    """None: what the lease table shows."""
    migrates_to_lease_table: bool
    bake_s: float
    metadata_layout: MetadataLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSettings:
    """The record processor, and how the consumer of a shard treats it and waits. The times may change in a run."""

    command: str
    protocol_version: int
    reply_timeout_s: float | None
    stop_timeout_s: float
    log: ChildLog
    deliver_empty_batches: bool
    failure_policy: ChildFailurePolicy
    restarts_max: int
    restart_backoff_s: float
    poison_attempts: int | None
    dead_letter: DeadLetter | None
    parent_poll_s: float
    task_backoff_s: float
    warn_after_s: float
    restart_pause_max_s: float = RESTART_PAUSE_MAX_S

    @property
    def failures_max(self) -> int | None:
        """Failures without checkpoint progress after which the daemon ends; None: it never does."""
        match self.failure_policy:
            case ChildFailurePolicy.PARK:
                return None
            case ChildFailurePolicy.RESTART:
                return self.restarts_max
            case ChildFailurePolicy.EXIT:
                return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSettings:
    """How records are fetched. `by_fan_out` is the mode in effect."""

    mode: RetrievalMode
    records_max: int
    idle_interval_s: float
    reduced_tps_threshold_s: float
    prefetch_bytes_max: int
    adds_stream_name: bool
    by_fan_out: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOutSettings:
    """The consumer of enhanced fan-out, and how patiently it is found or registered."""

    consumer_name: str
    consumer_arn: str | None
    summary_attempts_max: int
    describe_attempts_max: int
    register_attempts_max: int
    backoff_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaSettings:
    """What is done with records that were written through the Glue Schema Registry."""

    mode: SchemaMode
    on_error: SchemaErrors
    region: str | None
    endpoint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """Where metrics go, which, and how often."""

    outputs: tuple[MetricsOutput, ...]
    level: MetricsLevel
    dimensions: tuple[str, ...]
    period_s: float
    queue_max: int

    @property
    def are_sent(self) -> bool:
        """Whether anything is to be sent to CloudWatch."""
        return MetricsOutput.CLOUDWATCH in self.outputs and self.level is not MetricsLevel.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSettings:
    """Where the running daemon can be asked."""

    http: ListenAddress | None
    http_hosts: tuple[str, ...]
    control_socket: str | None
    notify: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a properties file means. `worker_id` is None when absent: the daemon then makes one up at each start.

    `region_name` is the general region, None if only a profile or instance metadata can tell; each client has the one
    that it uses. `stream_name` is resolved from the ARN. If `is_multi_stream`, `stream_name` is empty and `stream_arn`
    None; with a `streams_file`, `streams` are those of the start.
    """

    application_name: str
    worker_id: str | None
    strict: bool
    processes: int
    log_level: LogLevel
    shutdown_grace_s: float
    initialization_backoff_s: float

    stream_name: str
    stream_arn: str | None
    streams: tuple[StreamSetting, ...]
    streams_file: str | None
    initial_position: InitialPositionSetting

    region_name: str | None
    kinesis: ClientSettings
    dynamo_db: ClientSettings
    cloud_watch: ClientSettings

    leases: LeaseSettings
    lease_table: TableSettings
    worker_metrics_table: TableSettings
    coordinator_state_table: TableSettings
    shards: ShardSettings
    fleet: FleetSettings
    child: ChildSettings
    reader: ReaderSettings
    fanout: FanOutSettings
    schemas: SchemaSettings
    metrics: MetricsSettings
    serving: ServingSettings

    @property
    def is_multi_stream(self) -> bool:
        """Whether the lease table has the form for several streams, be it for one only."""
        return bool(self.streams)

    @property
    def stream_title(self) -> str:
        """The stream, or the first of several, for people."""
        if not self.streams:
            return self.stream_name
        names = [one.name for one in self.streams]
        more = f" and {len(names) - STREAMS_NAMED_MAX} more" if len(names) > STREAMS_NAMED_MAX else ""
        return ", ".join(names[:STREAMS_NAMED_MAX]) + more
