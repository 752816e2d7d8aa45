"""`Settings`: every value with which the daemon runs, converted, checked and with all defaults filled in. Immutable.

A field declares the key that sets it, and `keys` makes the table of keys from these declarations. So a new key needs
only a field here, and code that uses it. Rules: configuration#one-key-table. Each part of the daemon is given only its
group of the settings. Times are in seconds, whatever the unit of the key. Fields without a key are derived. The text of
a key is for operators: one sentence, without names of classes.

Keys that begin with ``mld.`` and `cloudWatchEndpoint` are not KCL's (no KCL can read several streams by a properties
file). Java ignores them, so that one file can serve both daemons. The `proxyUrl` of a client is not KCL's either, but
Java refuses to start with it.
"""

# This module must not postpone its annotations: `declaring.declared_in` finds the groups by the types of the fields.

from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from mld.properties.credentials import CredentialsChain
from mld.properties.declaring import key, key_of_bean, keys_of_group
from mld.properties.keytypes import INT_MAX, VARIABLE, Effect, Key, Section
from mld.properties.redaction import Shown
from mld.properties.value_kinds import ValueKind
from mld.properties.values import (
    AssignmentStrategy,
    BillingMode,
    ChildFailurePolicy,
    ClientVersionConfig,
    DeadLetter,
    FormerStreams,
    InitialPositionKind,
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

CREDENTIALS_PREFIX = "AwsCredentialsProvider"  # Java accepts this prefix, and only this, in any case
STREAMS, STREAMS_FILE = "mld.streams", "mld.streamsFile"
FORMER = "mld.formerStreams"
STREAM_PREFIX = "mld.stream."
STREAMS_NAMED_MAX = 5
_LEGACY_ONLY = "Used when mld.metadataLayout=legacy creates the table; Java KCL 3.5 never creates it."

FAILOVER_MILLIS_MIN = 100  # leases are renewed every third of it less 25 ms; no table could keep up with less
READ_INTERVAL_MILLIS_MIN = 200  # Kinesis allows five reads a second and shard
MAX_RECORDS_MAX = 10_000  # the limit of GetRecords
PREFETCH_BYTES_MAX = 256 * 1024 * 1024  # at 64 shards, half of Java's limit for each; far below the RAM of a small host
FILES_PER_CHILD = 6  # three pipes, a handle of the child's process, and at times a connection to Kinesis
CHILDREN_PER_SHARD_MAX = 64  # a shard has 1,000 records a second; with this many children each may take 64 ms
POISON_ATTEMPTS_MIN = 2  # a single failure may have any cause: a signal, full memory, a deployment
METRICS_PERIOD_MILLIS_MIN = 1_000
CLOUDWATCH_PERIOD_MILLIS = 60_000  # the resolution of CloudWatch; with Java's 10 s there are six times as many requests
RESTART_PAUSE_MAX_S = 300.0  # after a repair, the processor is started again within this time
RESTARTS_MAX = 5  # the pauses add up to 31 s, longer than most outages of what a processor needs
FORMER_WAIT_S = 3600.0  # time to notice a mistake in the list; keeping rows costs little

BOOL, CHOICE, DOUBLE, DURATION = ValueKind.BOOL, ValueKind.CHOICE, ValueKind.DOUBLE, ValueKind.DURATION
INT, LONG, TEXT, URL = ValueKind.INT, ValueKind.LONG, ValueKind.TEXT, ValueKind.URL
MILLIS, SECONDS, BYTES = ValueKind.MILLIS, ValueKind.SECONDS, ValueKind.BYTES
Tags = tuple[tuple[str, str], ...]


_handoff = partial(key_of_bean, Section.HANDOFF, "gracefulLeaseHandoffConfigBean")
_assignment = partial(key_of_bean, Section.ASSIGNMENT, "workerUtilizationAwareAssignmentConfigBean")


def _of_stream(name: str, kind: ValueKind, meaning: str, **more: Any) -> Any:
    """Declare the key ``mld.stream.<name>.<property>``, whose property is `name`, as a field of `StreamSetting`."""
    return key(f"{STREAM_PREFIX}{VARIABLE}.{name}", kind, Section.STREAMS, meaning, **more)


# fmt: off
@dataclass(frozen=True, slots=True)
class StreamSetting:
    """One stream of the list. A field is None if the stream has no key for it; then the key without a stream's name
    applies.

    `name` is the name in the list: the stream's own name, or a label if there is an `arn`. `epoch` is the last part of
    the stream's identifier in the lease table, usually epoch seconds. If it is None, the epoch in the table is used,
    else the time of the stream's creation. `initial_position` is that of the application if the stream has none of its
    own.
    """

    name: str
    arn: StreamArn | None = _of_stream("arn", ValueKind.STREAM_ARN,
        "ARN of the stream: its name, region and account.",
        default_text="the stream of this name in the region of Kinesis and the account of the credentials",
        note="With an ARN, the name in the list is a label of your own.")
    epoch: int | None = _of_stream("epoch", LONG,
        "Epoch of the stream in the lease table, as a Java application has set it.", minimum=1,
        default_text="what the table has for the stream, else the time of its creation in epoch seconds")
    initial_position: InitialPositionSetting = _of_stream("initialPosition", ValueKind.POSITION,
        "Where shards of the stream without a lease start.", default_text="initialPositionInStream")
    consumer_arn: str | None = _of_stream("consumerArn", TEXT,
        "ARN of the registered consumer that reads the stream; none is registered then.", shown_as=Shown.FULL,
        default_text="none, fanoutConfig.consumerName is found or registered",
        note="Names the stream if it has no ARN.")
    credentials: CredentialsChain | None = _of_stream("credentials", ValueKind.CREDENTIALS,
        "Credentials for this stream.", default_text="AwsCredentialsProvider")
    executable_name: str | None = _of_stream("executableName", TEXT,
        "Command of the record processor for this stream.", default_text="executableName", shown_as=Shown.COMMAND)

    @property
    def stream_name(self) -> str:
        """The name by which Kinesis knows the stream."""
        return self.name if self.arn is None else self.arn.name

    @property
    def account(self) -> str | None:
        """The account in the ARN; None without an ARN: then it is the account of the credentials."""
        return None if self.arn is None else self.arn.account

    @property
    def region(self) -> str | None:
        """The region in the ARN; None without an ARN: then it is the region of Kinesis."""
        return None if self.arn is None else self.arn.region


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """How long a lease lasts, and how this worker gets, keeps and gives leases."""

    duration_s: float = key("failoverTimeMillis", MILLIS, Section.LEASES,
        "Duration of a lease: a worker silent for longer loses its shards.", default=10_000,
        minimum=FAILOVER_MILLIS_MIN)
    held_max: int = key("maxLeasesForWorker", INT, Section.LEASES,
        "Most leases of open shards this worker takes.", default=INT_MAX, minimum=1)
    steals_max: int = key("maxLeasesToStealAtOneTime", INT, Section.LEASES,
        "Most leases taken from a busier worker in one round (2.x-compatible taking).", default=1, minimum=1)
    very_old_first: bool = key("enablePriorityLeaseAssignment", BOOL, Section.LEASES,
        "Take leases expired for very long first (2.x-compatible taking).", default=True)
    renewals_concurrent_max: int = key("maxLeaseRenewalThreads", INT, Section.LEASES,
        "Renewals under way at once; more if that helps.", default=20, minimum=1)
    scan_segments: int = key("leaseTableScanTotalSegments", INT, Section.LEASES,
        "Parallel segments of a scan of the lease table.", default=0, minimum=0,
        note="0 chooses by the size of the table.", after="leaseTablePitrEnabled")
    hands_off_gracefully: bool = _handoff("isGracefulLeaseHandoffEnabled", BOOL,
        "Let the old owner finish before a lease moves.", True)
    handoff_timeout_s: float = _handoff("gracefulLeaseHandoffTimeoutMillis", MILLIS,
        "Shortest wait before a requested handoff is forced.", 30_000, boxed=True, minimum=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """How workers report their load, how the leader assigns leases, and which generations of workers share the
    application.
    """

    assignment_interval_s: float = key("leaseAssignmentIntervalMillis", MILLIS, Section.LEASES,
        "Interval of the leader's lease assignment.", default_text="twice failoverTimeMillis", minimum=1,
        after="failoverTimeMillis")
    capture_period_s: float = _assignment("inMemoryWorkerMetricsCaptureFrequencyMillis", MILLIS,
        "Sampling period of this worker's load.", 1_000, minimum=1)
    report_period_s: float = _assignment("workerMetricsReporterFreqInMillis", MILLIS,
        "Period of writing this worker's load to its row.", 30_000, minimum=1)
    samples_per_report: int = _assignment("noOfPersistedMetricsPerWorkerMetrics", INT,
        "Samples kept per metric in the row.", 10, minimum=1)
    ignores_load: bool = _assignment("disableWorkerMetrics", BOOL, "Balance by throughput only.", False)
    throughput_max_kbps: float = _assignment("maxThroughputPerHostKBps", DOUBLE,
        "Most KB/s assigned to one worker.", 1.7976931348623157e308, minimum=0)
    dampening_percent: int = _assignment("dampeningPercentage", INT,
        "Share of the excess moved in one run.", 60, minimum=1, maximum=100)
    threshold_percent: int = _assignment("reBalanceThresholdPercentage", INT,
        "Band around the fleet's average that is left alone.", 10, minimum=1, maximum=100)
    overshoot: bool = _assignment("allowThroughputOvershoot", BOOL,
        "Move one lease even if it exceeds the target.", True)
    stale_report_s: float = _assignment("staleWorkerMetricsEntryCleanupDuration", DURATION,
        "Age at which rows of vanished workers are deleted.", timedelta(hours=24), default_text="PT24H")
    balance_every: int = _assignment("varianceBalancingFrequency", INT, "Re-balance at every n-th run.", 3, minimum=1)
    ema_alpha: float = _assignment("workerMetricsEMAAlpha", DOUBLE,
        "Weight of the newest sample, 0 to 1.", 0.5, minimum=0, maximum=1)
    client_version: ClientVersionConfig | None = key("clientVersionConfig", CHOICE, Section.COORDINATOR,
        "Which generations of workers share the application.", choices=ClientVersionConfig,
        default_text="what the lease table shows: 3X, but not in a table that only KCL 2.x has written")
    """None if the lease table decides."""
    migrates_to_lease_table: bool = key("migrateAllEntitiesToLeaseTable", BOOL, Section.COORDINATOR,
        "Second phase of the migration to a single table.", default=False,
        note="Only a Java leader moves the rows.")
    is_band_fixed: bool = key("mld.reBalanceFixedWidth", BOOL, Section.OWN,
        "reBalanceThresholdPercentage is the width of the band in percentage points, half of it on each side of the "
        "average: at a low average the jitter of a quiet fleet moves no leases.", default=False,
        note="As KCL has an option for from 3.5.3 on.")
    metadata_layout: MetadataLayout = key("mld.metadataLayout", CHOICE, Section.OWN,
        "Lock, reports: beside the leases, or in tables of KCL 3.0 to 3.4 if there (auto); always in those (legacy).",
        default=MetadataLayout.AUTO, choices=MetadataLayout, after="mld.schemaRegistry.onError")
    assignment_strategy: AssignmentStrategy = key("mld.leaseAssignmentStrategy", CHOICE, Section.OWN,
        "How the leader assigns leases: by utilization and throughput, or by count.",
        default=AssignmentStrategy.UTILIZATION, choices=AssignmentStrategy, after="mld.metadataLayout")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSettings:
    """The record processor, and how the consumer of a shard treats it. The time limits and pauses may change while the
    daemon runs.
    """

    command: str = key("executableName", TEXT, Section.DAEMON,
        "Command of the record processor, split at spaces (no quotes, no shell).", default_text="required",
        shown_as=Shown.COMMAND)
    reply_timeout_s: float | None = key("timeoutInSeconds", SECONDS, Section.DAEMON,
        "Longest wait for an answer of a child before that child counts as failed.", default_text="no limit",
        boxed=True, minimum=1, maximum=INT_MAX, live=True)
    parent_poll_s: float = key("parentShardPollIntervalMillis", MILLIS, Section.COORDINATOR,
        "Interval at which a child shard looks whether its parents are done.", default=10_000, minimum=1, live=True)
    task_backoff_s: float = key("taskBackoffTimeMillis", MILLIS, Section.LIFECYCLE,
        "Pause after a failed step of a shard consumer.", default=500, minimum=1, live=True)
    warn_after_s: float = key("logWarningForTaskAfterMillis", MILLIS, Section.LIFECYCLE,
        "Warn when a child takes longer over one request; again each time this has doubled.", default=60_000,
        boxed=True, minimum=0, note="Java's default is off.", live=True)
    deliver_empty_batches: bool = key("callProcessRecordsEvenForEmptyRecordList", BOOL, Section.LIFECYCLE,
        "Deliver empty batches too.", default=False)
    children_per_shard: int = key("mld.childrenPerShard", INT, Section.OWN,
        "Children that share the records of a shard by partition key, so that records of one key stay in order.",
        default=1, minimum=1, maximum=CHILDREN_PER_SHARD_MAX)
    protocol_version: int = key("mld.protocolVersion", INT, Section.OWN,
        "Dialect spoken with the child: 2, or 1 for record processors written for KCL 1.x.", default=2,
        minimum=1, maximum=2)
    failure_policy: ChildFailurePolicy = key("mld.childFailurePolicy", CHOICE, Section.OWN,
        "A failed child starts again for ever (park), 5 times without progress (restart), or ends the daemon (exit).",
        default=ChildFailurePolicy.PARK, choices=ChildFailurePolicy)
    restart_backoff_s: float = key("mld.childRestartBackoffMillis", MILLIS, Section.OWN,
        "Pause before the first restart; it doubles each time, up to 5 minutes.", default=1_000, minimum=0, live=True)
    restart_pause_max_s: float = RESTART_PAUSE_MAX_S
    poison_attempts: int | None = key("mld.poisonAttempts", INT, Section.OWN,
        "Failures of a batch before it is halved, and of a record alone before it goes to mld.deadLetter.",
        default_text="off: no record is ever skipped", minimum=POISON_ATTEMPTS_MIN,
        note="Only with mld.childFailurePolicy park.")
    dead_letter: DeadLetter | None = key("mld.deadLetter", ValueKind.DEAD_LETTER, Section.OWN,
        "Where records are set aside: a directory, s3://bucket/prefix, the ARN of a stream, or the URL of a queue.",
        default_text="none")
    stop_timeout_s: float = key("mld.childStopTimeoutMillis", MILLIS, Section.OWN,
        "Wait after closing a child's input before TERM is sent, and again before KILL.", default=5_000, minimum=0)
    logs_fields: bool = True
    """Whether a JSON object that a child logs becomes fields of the daemon's log line; False for `mld replay`."""

    @property
    def failures_max(self) -> int | None:
        """After how many failures without checkpoint progress the daemon ends; None if it never ends because of
        failures.
        """
        match self.failure_policy:
            case ChildFailurePolicy.PARK:
                return None
            case ChildFailurePolicy.RESTART:
                return RESTARTS_MAX
            case ChildFailurePolicy.EXIT:
                return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSettings:
    """How shards are listed, how their rows are created and deleted, and what happens to streams that are no longer in
    the list.
    """

    sync_interval_s: float = key("shardSyncIntervalMillis", MILLIS, Section.LEASES,
        "Pause after a shard sync; not the period of the leader's audit.", default=60_000, minimum=1)
    cleans_up: bool = key("cleanupLeasesUponShardCompletion", BOOL, Section.LEASES,
        "Delete the leases of shards that were read to their end once their children are under way.", default=True,
        note="Java ignores false.")
    ignores_unexpected_children: bool = key("ignoreUnexpectedChildShards", BOOL, Section.LEASES,
        "Tolerate child shards of parents that look open (DynamoDB Streams).", default=False)
    list_backoff_s: float = key("listShardsBackoffTimeInMillis", MILLIS, Section.LEASES,
        "Pause between throttled ListShards attempts.", default=1_500, minimum=1, after="leaseTableScanTotalSegments")
    list_attempts_max: int = key("maxListShardsRetryAttempts", INT, Section.LEASES,
        "Most ListShards attempts.", default=50, minimum=1, after="listShardsBackoffTimeInMillis")
    skips_sync_if_leases_exist: bool = key("skipShardSyncAtWorkerInitializationIfLeasesExist", BOOL,
        Section.COORDINATOR, "Skip the shard sync at start when the lease table has rows.", default=False)
    former_streams: FormerStreams = key(FORMER, CHOICE, Section.STREAMS,
        "A stream that has left the list: read on (keep), or no longer, its rows kept (stop) or deleted after an hour "
        "(delete).",
        default=FormerStreams.STOP, choices=FormerStreams)
    former_streams_wait_s: float = FORMER_WAIT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSettings:
    """How records are fetched. `by_fan_out` says whether enhanced fan-out is used."""

    mode: RetrievalMode = key("retrievalMode", CHOICE, Section.POLLING,
        "DEFAULT polls if a polling key is present and else uses fan-out.", default=RetrievalMode.DEFAULT,
        choices=RetrievalMode)
    by_fan_out: bool
    records_max: int = key("maxRecords", INT, Section.POLLING, "Most records of one read.", default=10_000, minimum=1,
        maximum=MAX_RECORDS_MAX, aliases=("pollingConfig.maxRecords",))
    idle_interval_s: float = key("idleTimeBetweenReadsInMillis", MILLIS, Section.POLLING,
        "Pause between reads of a shard without news.", default=1_500,
        aliases=("pollingConfig.idleTimeBetweenReadsInMillis",),
        note=f"Below {READ_INTERVAL_MILLIS_MIN} it is raised to that.")
    reduced_tps_threshold_s: float = key("millisBehindLatestThresholdForReducedTps", MILLIS, Section.POLLING,
        "Read less often when the shard is less behind than this.", default=0, default_text="0, off", minimum=0,
        aliases=("pollingConfig.millisBehindLatestThresholdForReducedTps",))
    prefetch_bytes_max: int = key("mld.prefetchBytesMax", BYTES, Section.OWN,
        "Most memory of records that wait for their children, in bytes, over all shards; each has an equal share.",
        default=PREFETCH_BYTES_MAX, minimum=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOutSettings:
    """The consumer of enhanced fan-out, and how often the daemon tries to find or register it."""

    consumer_name: str = key("fanoutConfig.consumerName", TEXT, Section.FANOUT, "Consumer to find or register.",
        default_text="applicationName", shown_as=Shown.FULL)
    consumer_arn: str | None = key("fanoutConfig.consumerArn", TEXT, Section.FANOUT,
        "ARN of a registered consumer to use; none is registered then.", shown_as=Shown.FULL)
    summary_attempts_max: int = key("fanoutConfig.maxDescribeStreamSummaryRetries", INT, Section.FANOUT,
        "Most DescribeStreamSummary attempts.", default=10, minimum=1)
    describe_attempts_max: int = key("fanoutConfig.maxDescribeStreamConsumerRetries", INT, Section.FANOUT,
        "Most DescribeStreamConsumer attempts.", default=10, minimum=1)
    register_attempts_max: int = key("fanoutConfig.registerStreamConsumerRetries", INT, Section.FANOUT,
        "Most RegisterStreamConsumer attempts.", default=10, minimum=1)
    backoff_s: float = key("fanoutConfig.retryBackoffMillis", MILLIS, Section.FANOUT,
        "Pause between these attempts.", default=1_000, minimum=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """Which metrics are sent, where, and how often."""

    outputs: tuple[MetricsOutput, ...] = key("mld.metrics", ValueKind.CHOICES, Section.METRICS,
        "Where metrics go: CloudWatch, scrapers of /metrics of mld.http; none is nowhere.",
        default_text="cloudwatch,prometheus; the second alone if kinesisEndpoint is not AWS's",
        choices=MetricsOutput, note="prometheus needs the extra metrics.")
    level: MetricsLevel = key("metricsLevel", CHOICE, Section.METRICS, "Which metrics are published.",
        default=MetricsLevel.DETAILED, choices=MetricsLevel, note="For CloudWatch; /metrics always has all.")
    dimensions: tuple[str, ...] = key("metricsEnabledDimensions", ValueKind.DIMENSIONS, Section.METRICS,
        "Dimensions published: ALL, or some of Operation, ShardId, StreamId, WorkerIdentifier.", default=("ALL",),
        default_text="ALL", note="Operation always is; WorkerIdentifier only if workerId is set.")
    period_s: float = key("metricsBufferTimeMillis", MILLIS, Section.METRICS, "How often metrics are sent.",
        default=CLOUDWATCH_PERIOD_MILLIS, note="Java's default is 10000, but CloudWatch resolves a minute. "
        f"Below {METRICS_PERIOD_MILLIS_MIN} it is raised to that.")
    queue_max: int = key("metricsMaxQueueSize", INT, Section.METRICS,
        "Most values that wait while CloudWatch cannot be reached.", default=10_000, minimum=1)

    @property
    def are_sent(self) -> bool:
        """Whether metrics are sent to CloudWatch."""
        return MetricsOutput.CLOUDWATCH in self.outputs and self.level is not MetricsLevel.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSettings:
    """Where the running daemon serves HTTP and commands, and where it posts alerts."""

    http: ListenAddress | None = key("mld.http", ValueKind.LISTEN, Section.OWN,
        "Where the status page, the probes and the metrics are served: host:port. They only read, and ask for no "
        "password.", default_text="none, off")
    http_hosts: tuple[str, ...] = key("mld.httpHosts", ValueKind.HOSTS, Section.OWN,
        "Host names by which mld.http may be called, besides localhost and its address.", default=(),
        default_text="none")
    notify: str | None = key("mld.notify", URL, Section.OWN,
        "Webhook to which the fleet posts, in JSON, what is wrong and that it is over.", default_text="none",
        note="For those without Prometheus.", shown_as=Shown.HIDDEN)
    notify_details: bool = key("mld.notifyDetails", BOOL, Section.OWN,
        "Whether posts to mld.notify contain reasons. They may quote records and what children print.", default=False)
    control_socket: str | None = key("mld.controlSocket", ValueKind.SOCKET, Section.OWN,
        "Socket by which `mld status`, `mld tap` and the like reach the daemon; off makes none.",
        default_text="a file of its own in $RUNTIME_DIRECTORY, $XDG_RUNTIME_DIR/mld or /tmp/mld-UID")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaSettings:
    """How records that were written through the Glue Schema Registry are delivered."""

    mode: SchemaMode = key("mld.schemaRegistry", CHOICE, Section.OWN,
        "Records of the Glue Schema Registry: as they are (off), frames taken off (strip), Avro as JSON too (json).",
        default=SchemaMode.OFF, choices=SchemaMode)
    on_error: SchemaErrors = key("mld.schemaRegistry.onError", CHOICE, Section.OWN,
        "A record that cannot be read is delivered with the key schemaError (deliver), or its batch waits (fail).",
        default=SchemaErrors.DELIVER, choices=SchemaErrors)


# --- groups whose class serves several fields of `Settings`: each key names the field of the group that it sets ------


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How one service of AWS is reached. `region` is None if only a profile or the instance metadata has it."""

    credentials: CredentialsChain
    region: str | None
    endpoint: str | None
    dualstack: bool
    fips: bool
    proxy_url: str | None = field(repr=False)


def _client(service: str, prefix: str, credentials: Key, endpoint: Key) -> Any:
    """Declare a client of AWS with its dotted keys, which begin with `prefix` (configuration#dotted-keys). The keys for
    its credentials and its endpoint have names of other forms, and are passed in.
    """
    return keys_of_group(credentials, endpoint,
        Key(f"{prefix}.region", ValueKind.REGION, Section.AWS, f"Region of {service}; wins over regionName.",
            default_text="regionName", sets="region"),
        Key(f"{prefix}.dualstackEnabled", BOOL, Section.AWS, f"Use the dual-stack (IPv6) endpoint of {service}.",
            default=False, sets="dualstack"),
        Key(f"{prefix}.fipsEnabled", BOOL, Section.AWS, f"Use the FIPS endpoint of {service}.",
            default=False, sets="fips"),
        Key(f"{prefix}.proxyUrl", URL, Section.AWS,
            f"Proxy on the way to {service}, as http://[user:password@]host:port; NO_PROXY does not apply to it.",
            default_text="HTTPS_PROXY or HTTP_PROXY, by the endpoint's scheme, and NO_PROXY", sets="proxy_url",
            note="Java refuses to start with this key; a file for both daemons leaves it to the environment."),
        *(
            Key(f"{prefix}.overrideConfiguration.{name}", DURATION, Section.AWS, f"{title} of calls to {service}.",
                effect=Effect.UNSUPPORTED, note="Time-outs of AWS calls are fixed in this daemon.")
            for name, title in (("apiCallTimeout", "Time-out"), ("apiCallAttemptTimeout", "Time-out of each attempt"))
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """A table of DynamoDB: its name, and how it is created if it is missing."""

    name: str
    billing_mode: BillingMode
    read_capacity: int
    write_capacity: int
    point_in_time_recovery: bool
    deletion_protection: bool
    tags: Tags


def _legacy_table(stem: str, bean: str, table: str, default_name: str) -> Any:
    """Declare a legacy table (configuration#derived-names): the key for its name, and the keys for creating it. Their
    names begin with `stem`, or in Java's dotted form with the name of the `bean`. `table` is for the texts.
    """

    def of(field: str, suffix: str, kind: ValueKind, meaning: str, default: object, **more: Any) -> Key:
        """Return the key that sets `field`. Its name is `stem` with this suffix."""
        name = stem + suffix
        own = {"aliases": (f"{bean}.{name}",), "note": _LEGACY_ONLY, "sets": field} | more
        return Key(name, kind, Section.LEGACY_TABLES, meaning, default, **own)

    return keys_of_group(
        of("name", "TableName", TEXT, f"Name of the legacy {table} table.", None, default_text=default_name,
            note="It is used if it exists.", shown_as=Shown.FULL),
        of("billing_mode", "BillingMode", CHOICE, f"Billing of the {table} table.", BillingMode.PAY_PER_REQUEST,
            choices=BillingMode),
        of("read_capacity", "ReadCapacity", LONG, f"Read capacity of the {table} table.", 0, minimum=0),
        of("write_capacity", "WriteCapacity", LONG, f"Write capacity of the {table} table.", 0, minimum=0),
        of("point_in_time_recovery", "PointInTimeRecoveryEnabled", BOOL,
            f"Point-in-time recovery of the {table} table.", False),
        of("deletion_protection", "DeletionProtectionEnabled", BOOL,
            f"Deletion protection of the {table} table.", False),
        of("tags", "Tags", ValueKind.TAGS, f"Tags of the {table} table.", ()),
    )


# --- all of them ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a properties file. `worker_id` is None if the file has none: then the daemon makes an id at each
    start.

    `region_name` is the general region; it is None if only a profile or the instance metadata has it. Each client has
    the region that it uses. `stream_name` is the name in the ARN if there is one. If `is_multi_stream`, `stream_name`
    is empty and `stream_arn` is None. With a `streams_file`, `streams` are the streams in it at the start.
    """

    strict: bool = key("mld.strict", BOOL, Section.OWN, "Treat every warning about this file as an error.",
        default=False)
    application_name: str = key("applicationName", TEXT, Section.APPLICATION,
        "Name of the application: lease table, metrics namespace and fan-out consumer are named after it.",
        default_text="required", shown_as=Shown.FULL)
    stream_name: str = key("streamName", TEXT, Section.APPLICATION, "Stream to read.",
        default_text="required, or streamArn", shown_as=Shown.FULL)
    stream_arn: str | None = key("streamArn", ValueKind.STREAM_ARN, Section.APPLICATION,
        "ARN of the stream to read; its name wins over streamName.",
        note="Its region counts without regionName; Java never uses it.")
    streams: tuple[StreamSetting, ...] = key(STREAMS, ValueKind.STREAM_NAMES, Section.STREAMS,
        "Streams to read, by name, instead of streamName. Selects the form of the lease table for several streams.",
        default=(), default_text="none, one stream is read")
    streams_file: str | None = key(STREAMS_FILE, TEXT, Section.STREAMS,
        "File with the list of streams, instead of mld.streams; it is read again every 20 s.", default_text="none",
        note="[Format](multi-stream.md#the-list-in-a-file).", shown_as=Shown.PLACE)

    region_name: str | None = key("regionName", ValueKind.REGION, Section.AWS,
        "Region of Kinesis, DynamoDB and CloudWatch.", after=f"{CREDENTIALS_PREFIX}CloudWatch",
        default_text="region of streamArn, AWS_REGION, AWS_DEFAULT_REGION, profile, instance metadata")
    kinesis: ClientSettings = _client("Kinesis", "kinesisClient",
        Key(CREDENTIALS_PREFIX, ValueKind.CREDENTIALS, Section.AWS,
            "Credentials for Kinesis, and for the others by default.", default_text="required", sets="credentials"),
        Key("kinesisEndpoint", URL, Section.AWS, "Endpoint of Kinesis.", default_text="that of the region",
            aliases=("kinesisClient.endpointOverride",), sets="endpoint", after="regionName"))
    dynamo_db: ClientSettings = _client("DynamoDB", "dynamoDbClient",
        Key(f"{CREDENTIALS_PREFIX}DynamoDB", ValueKind.CREDENTIALS, Section.AWS, "Credentials for DynamoDB.",
            default_text=CREDENTIALS_PREFIX, sets="credentials", after=CREDENTIALS_PREFIX),
        Key("dynamoDBEndpoint", URL, Section.AWS, "Endpoint of DynamoDB.", default_text="that of the region",
            aliases=("dynamoDbClient.endpointOverride",), sets="endpoint", after="kinesisEndpoint"))
    cloud_watch: ClientSettings = _client("CloudWatch", "cloudWatchClient",
        Key(f"{CREDENTIALS_PREFIX}CloudWatch", ValueKind.CREDENTIALS, Section.AWS, "Credentials for CloudWatch.",
            default_text=CREDENTIALS_PREFIX, sets="credentials", after=f"{CREDENTIALS_PREFIX}DynamoDB"),
        Key("cloudWatchEndpoint", URL, Section.AWS, "Endpoint of CloudWatch.", default_text="that of the region",
            aliases=("cloudWatchClient.endpointOverride",), note="Java knows only the dotted form.", sets="endpoint",
            after="dynamoDBEndpoint"))

    leases: LeaseSettings
    fleet: FleetSettings
    child: ChildSettings
    shutdown_grace_s: float = key("shutdownGraceMillis", MILLIS, Section.DAEMON,
        "Longest duration of a graceful stop; after it children are ended by force.", default=25_000, boxed=True,
        minimum=0, note="Java's default is 0.")
    worker_id: str | None = key("workerId", TEXT, Section.DAEMON,
        "Name of this worker in the lease table; must be unique.",
        default_text="host and a random end, new at each start", aliases=("workerIdentifier",), shown_as=Shown.FULL)
    shards: ShardSettings
    initialization_backoff_s: float = key("schedulerInitializationBackoffTimeMillis", MILLIS, Section.COORDINATOR,
        "Pause between attempts to initialize.", default=1_000, minimum=1)
    reader: ReaderSettings
    fanout: FanOutSettings
    metrics: MetricsSettings
    serving: ServingSettings
    processes: int = key("mld.processes", ValueKind.PROCESSES, Section.OWN,
        "Workers that `mld run` starts as processes of one group; auto: one for each CPU that it may use.", default=1,
        note="--processes wins.")
    log_level: LogLevel = key("mld.logLevel", CHOICE, Section.OWN,
        "The least important events that are logged; --log-level and a file of -l win.", default=LogLevel.INFO,
        choices=LogLevel, live=True)

    lease_table: TableSettings = keys_of_group(
        Key("tableName", TEXT, Section.APPLICATION, "Name of the lease table.", default_text="applicationName",
            shown_as=Shown.FULL, sets="name"),
        Key("initialLeaseTableReadCapacity", INT, Section.LEASES, "Read capacity of a new lease table.", default=10,
            minimum=1, note="Only with mld.leaseTableBillingMode PROVISIONED; Java ignores it.", sets="read_capacity"),
        Key("initialLeaseTableWriteCapacity", INT, Section.LEASES, "Write capacity of a new lease table.", default=10,
            minimum=1, note="Only with mld.leaseTableBillingMode PROVISIONED; Java ignores it.", sets="write_capacity"),
        Key("leaseTableDeletionProtectionEnabled", BOOL, Section.LEASES,
            "Create the lease table with deletion protection.", default=False, sets="deletion_protection"),
        Key("leaseTablePitrEnabled", BOOL, Section.LEASES,
            "Switch on point-in-time recovery of the lease table at start, also of an existing one.", default=False,
            sets="point_in_time_recovery"),
        Key("mld.leaseTableBillingMode", CHOICE, Section.OWN, "Billing of a new lease table.",
            default=BillingMode.PAY_PER_REQUEST, choices=BillingMode,
            note="PROVISIONED uses initialLeaseTableReadCapacity and initialLeaseTableWriteCapacity.",
            sets="billing_mode"),
        Key("mld.leaseTableTags", ValueKind.TAGS, Section.OWN, "Tags of a new lease table.", default=(), sets="tags"))
    worker_metrics_table: TableSettings = _legacy_table(
        "workerMetrics", "workerMetricStatsTableConfigBean", "worker-metrics",
        "applicationName, then -WorkerMetricStats")
    coordinator_state_table: TableSettings = _legacy_table(
        "coordinatorState", "coordinatorStateTableConfigBean", "coordinator-state",
        "applicationName, then -CoordinatorState")
    initial_position: InitialPositionSetting = key("initialPositionInStream", ValueKind.INITIAL_POSITION,
        Section.LEASES, "Where an application without checkpoints starts.",
        default=InitialPositionSetting(InitialPositionKind.LATEST), default_text="LATEST")
    schemas: SchemaSettings

    @property
    def is_multi_stream(self) -> bool:
        """Whether the lease table has the form for several streams, even if the list has only one."""
        return bool(self.streams)

    @property
    def stream_title(self) -> str:
        """The name of the stream, or the names of the first of several streams, for people."""
        if not self.streams:
            return self.stream_name
        names = [one.name for one in self.streams]
        more = f" and {len(names) - STREAMS_NAMED_MAX} more" if len(names) > STREAMS_NAMED_MAX else ""
        return ", ".join(names[:STREAMS_NAMED_MAX]) + more
