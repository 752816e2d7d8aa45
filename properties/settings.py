"""The settings: every value the daemon runs with, converted, checked and with all defaults filled in. Immutable.

One field per key of `keys` that has an effect, in the same order, and a few that are derived (named at the end). Units
are in the names, as in the keys. Defaults live in the table of `keys`, not here; `loader.load` makes this object.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

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
Tags = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a properties file means. `worker_id` is None when absent: the daemon then makes one up at each start.

    `region_name` is the general region, None if only a profile or instance metadata can tell; `kinesis_region`,
    `dynamo_db_region` and `cloud_watch_region` are what each client uses. `stream_name` is resolved from the ARN. If
    `is_multi_stream`, `stream_name` is empty and `stream_arn` None; with a `streams_file`, `streams` are those of the
    start.
    """

    executable_name: str
    timeout_in_seconds: int | None
    shutdown_grace_millis: int
    worker_id: str | None

    application_name: str
    stream_name: str
    stream_arn: str | None
    table_name: str

    streams: tuple[StreamSetting, ...]
    streams_file: str | None
    former_streams: FormerStreams
    former_streams_wait: timedelta
    record_stream_name: bool

    aws_credentials_provider: CredentialsChain
    aws_credentials_provider_dynamo_db: CredentialsChain
    aws_credentials_provider_cloud_watch: CredentialsChain
    region_name: str | None
    kinesis_endpoint: str | None
    dynamo_db_endpoint: str | None
    cloud_watch_endpoint: str | None
    kinesis_region: str | None
    kinesis_dualstack_enabled: bool
    kinesis_fips_enabled: bool
    kinesis_proxy_url: str | None = field(repr=False)
    dynamo_db_region: str | None
    dynamo_db_dualstack_enabled: bool
    dynamo_db_fips_enabled: bool
    dynamo_db_proxy_url: str | None = field(repr=False)
    cloud_watch_region: str | None
    cloud_watch_dualstack_enabled: bool
    cloud_watch_fips_enabled: bool
    cloud_watch_proxy_url: str | None = field(repr=False)

    failover_time_millis: int
    lease_assignment_interval_millis: int
    max_leases_for_worker: int
    max_leases_to_steal_at_one_time: int
    enable_priority_lease_assignment: bool
    max_lease_renewal_threads: int
    shard_sync_interval_millis: int
    cleanup_leases_upon_shard_completion: bool
    ignore_unexpected_child_shards: bool
    initial_lease_table_read_capacity: int
    initial_lease_table_write_capacity: int
    lease_table_deletion_protection_enabled: bool
    lease_table_pitr_enabled: bool
    lease_table_scan_total_segments: int
    list_shards_backoff_time_in_millis: int
    max_list_shards_retry_attempts: int
    initial_position: InitialPositionSetting

    is_graceful_lease_handoff_enabled: bool
    graceful_lease_handoff_timeout_millis: int

    in_memory_worker_metrics_capture_frequency_millis: int
    worker_metrics_reporter_freq_in_millis: int
    no_of_persisted_metrics_per_worker_metrics: int
    disable_worker_metrics: bool
    max_throughput_per_host_kbps: float
    dampening_percentage: int
    rebalance_threshold_percentage: int
    allow_throughput_overshoot: bool
    stale_worker_metrics_entry_cleanup_duration: timedelta
    variance_balancing_frequency: int
    worker_metrics_ema_alpha: float

    worker_metrics_table_name: str
    worker_metrics_billing_mode: BillingMode
    worker_metrics_read_capacity: int
    worker_metrics_write_capacity: int
    worker_metrics_point_in_time_recovery_enabled: bool
    worker_metrics_deletion_protection_enabled: bool
    worker_metrics_tags: Tags
    coordinator_state_table_name: str
    coordinator_state_billing_mode: BillingMode
    coordinator_state_read_capacity: int
    coordinator_state_write_capacity: int
    coordinator_state_point_in_time_recovery_enabled: bool
    coordinator_state_deletion_protection_enabled: bool
    coordinator_state_tags: Tags

    client_version_config: ClientVersionConfig
    migrate_all_entities_to_lease_table: bool
    table_migration_complete_bake_time_seconds: int
    parent_shard_poll_interval_millis: int
    skip_shard_sync_at_worker_initialization_if_leases_exist: bool
    scheduler_initialization_backoff_time_millis: int

    task_backoff_time_millis: int
    log_warning_for_task_after_millis: int
    call_process_records_even_for_empty_record_list: bool

    metrics: tuple[MetricsOutput, ...]
    metrics_level: MetricsLevel
    metrics_enabled_dimensions: tuple[str, ...]
    metrics_buffer_time_millis: int
    metrics_max_queue_size: int

    retrieval_mode: RetrievalMode
    max_records: int
    idle_time_between_reads_in_millis: int
    millis_behind_latest_threshold_for_reduced_tps: int

    fanout_consumer_name: str
    fanout_consumer_arn: str | None
    fanout_max_describe_stream_summary_retries: int
    fanout_max_describe_stream_consumer_retries: int
    fanout_register_stream_consumer_retries: int
    fanout_retry_backoff_millis: int

    strict: bool
    protocol_version: int
    child_failure_policy: ChildFailurePolicy
    child_restarts_max: int
    child_restart_backoff_millis: int
    poison_attempts: int | None
    dead_letter: DeadLetter | None
    dead_letter_endpoint: str | None
    child_stop_timeout_millis: int
    prefetch_bytes_max: int
    http: ListenAddress | None
    http_hosts: tuple[str, ...]
    control_socket: str | None
    processes: int
    child_log: ChildLog
    log_level: LogLevel
    deregister_consumer: bool
    lease_table_billing_mode: BillingMode
    lease_table_tags: Tags
    schema_registry: SchemaMode
    schema_registry_on_error: SchemaErrors
    schema_registry_region: str | None
    schema_registry_endpoint: str | None
    metadata_layout: MetadataLayout
    lease_assignment_strategy: AssignmentStrategy
    heartbeat: HeartbeatSetting

    # Derived: the mode in effect.
    reads_by_fan_out: bool

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
