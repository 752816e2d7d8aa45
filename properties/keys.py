"""The table of every key the daemon knows. Parsing, docs/use/configuration.md and `mld check` are driven by it.

Rules: configuration#one-key-table, configuration#dotted-keys; keys of KCL 1.x are in `key_lines`. A new key is a new
row here and the field in `settings` that it `sets`; nothing else. Keys under ``mld.`` and `cloudWatchEndpoint` are ours
(no KCL can read several streams from a properties file): Java does not read them, so that one file serves both daemons.
The `proxyUrl` of a client is ours too, but stops Java. Meanings are for operators: one sentence, no class names.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial

from mld.properties.keytypes import INT_MAX, LONG_MAX, VARIABLE, Effect, Key, Section, ValueKind
from mld.properties.redaction import Shown
from mld.properties.values import (
    AssignmentStrategy,
    BillingMode,
    ChildFailurePolicy,
    ChildLog,
    ClientVersionConfig,
    FormerStreams,
    HeartbeatSetting,
    InitialPositionKind,
    InitialPositionSetting,
    LogLevel,
    MetadataLayout,
    MetricsLevel,
    MetricsOutput,
    RetrievalMode,
    SchemaErrors,
    SchemaMode,
)

STREAMS, STREAMS_FILE = "mld.streams", "mld.streamsFile"
FORMER, FORMER_WAIT = "mld.formerStreams", "mld.formerStreamsWait"
PREFIX = "mld.stream."
TEXT = ValueKind.TEXT

STREAM_KEYS = (
    Key(STREAMS, ValueKind.STREAM_NAMES, Section.STREAMS,
        "Streams to read, by name, instead of streamName. Selects the form of the lease table for several streams.",
        default=(), default_text="none, one stream is read", sets="streams"),
    Key(STREAMS_FILE, TEXT, Section.STREAMS,
        "File with the list of streams, instead of mld.streams; it is read again every 20 s.", default_text="none",
        note="[Format](multi-stream.md#the-list-in-a-file).", shown_as=Shown.PLACE,
        sets="streams_file"),
    Key(FORMER, ValueKind.CHOICE, Section.STREAMS,
        "A stream that has left the list: read on (keep), or no longer, its rows kept (stop) or deleted (delete).",
        default=FormerStreams.STOP, choices=FormerStreams, sets="shards.former_streams"),
    Key(FORMER_WAIT, ValueKind.DURATION, Section.STREAMS,
        "How long a stream must be gone from the list before its rows are deleted.", default=timedelta(hours=1),
        default_text="PT1H", note="Only with mld.formerStreams=delete.", sets="shards.former_streams_wait_s"),
    Key("mld.recordStreamName", ValueKind.BOOL, Section.STREAMS,
        "Give every record that a child gets the field streamName.", default=False, boxed=True,
        sets="reader.adds_stream_name"),
)  # fmt: skip


def _of_stream(name: str, kind: ValueKind, meaning: str, **more: object) -> Key:
    return Key(f"{PREFIX}{VARIABLE}.{name}", kind, Section.STREAMS, meaning, boxed=True, **more)  # type: ignore[arg-type]


PATTERN_KEYS = (
    _of_stream("arn", ValueKind.STREAM_ARN, "ARN of the stream: its name, region and account.",
               default_text="the stream of this name in the region of Kinesis and the account of the credentials",
               note="With an ARN, the name in the list is a label of your own."),
    _of_stream("epoch", ValueKind.LONG, "Epoch of the stream in the lease table, as a Java application has set it.",
               minimum=1,
               default_text="what the table has for the stream, else the time of its creation in epoch seconds"),
    _of_stream("initialPosition", ValueKind.POSITION, "Where shards of the stream without a lease start.",
               default_text="initialPositionInStream"),
    _of_stream("consumerArn", TEXT, "ARN of the registered consumer that reads the stream; none is registered then.",
               default_text="none, fanoutConfig.consumerName is found or registered", shown_as=Shown.FULL,
               note="Names the stream if it has no ARN."),
    _of_stream("credentials", ValueKind.CREDENTIALS, "Credentials for this stream.",
               default_text="AwsCredentialsProvider"),
    _of_stream("executableName", TEXT, "Command of the record processor for this stream.",
               default_text="executableName", shown_as=Shown.COMMAND),
)  # fmt: skip
PROPERTIES = tuple(key.name.rpartition(".")[2] for key in PATTERN_KEYS)


def key_of_stream(name: str, property_name: str) -> str:
    """Return the key of one property of one stream."""
    return f"{PREFIX}{name}.{property_name}"


BOOL, CHOICE, DOUBLE = ValueKind.BOOL, ValueKind.CHOICE, ValueKind.DOUBLE
INT, LONG, TEXT = ValueKind.INT, ValueKind.LONG, ValueKind.TEXT
MILLIS, SECONDS, BYTES = ValueKind.MILLIS, ValueKind.SECONDS, ValueKind.BYTES

FAILOVER_MILLIS_MIN = 100  # leases are renewed every third of it less 25 ms; below this nothing can keep up
READ_INTERVAL_MILLIS_MIN = 200  # Kinesis allows five reads a second and shard
MAX_RECORDS_MAX = 10_000  # the limit of GetRecords
PREFETCH_BYTES_MAX = 256 * 1024 * 1024  # at 64 shards half of what Java allows each of them, and far below a small host
POISON_ATTEMPTS_MIN = 2  # one failure may be anything: a signal, a full memory, a deploy
BAKE_SECONDS_MIN, BAKE_SECONDS_MAX = 3_600, 604_800  # Java clamps to an hour .. a week
CREDENTIALS_PREFIX = "AwsCredentialsProvider"  # Java accepts this prefix, and only this, in any case

METRICS_PERIOD_MILLIS_MIN = 1_000
CLOUDWATCH_PERIOD_MILLIS = 60_000  # what CloudWatch resolves; Java's 10 s make six times the requests of it
_LEGACY_ONLY = "Used when mld.metadataLayout=legacy creates the table; Java KCL 3.5 never creates it."
_OWN_PROXY = "Java refuses to start with this key; a file for both daemons leaves it to the environment."
_SDK_TIMEOUT = "Time-outs of AWS calls are fixed in this daemon."
_SELECTS_POLLING = "With it retrievalMode DEFAULT polls."

_DAEMON = (
    Key("executableName", TEXT, Section.DAEMON,
        "Command of the record processor, split at spaces (no quotes, no shell).", default_text="required",
        shown_as=Shown.COMMAND, sets="child.command"),
    Key("processingLanguage", TEXT, Section.DAEMON, "Language of the record processor.",
        effect=Effect.NONE, note="Only ever logged."),
    Key("maxActiveThreads", INT, Section.DAEMON, "Size of Java's thread pool.", default=0,
        effect=Effect.NONE, note="This daemon has no such pool."),
    Key("timeoutInSeconds", SECONDS, Section.DAEMON,
        "Longest wait for an answer of a child before that child counts as failed.", default_text="no limit",
        boxed=True, minimum=1, maximum=INT_MAX, live=True, sets="child.reply_timeout_s"),
    Key("shutdownGraceMillis", MILLIS, Section.DAEMON,
        "Longest duration of a graceful stop; after it children are ended by force.", default=25_000,
        boxed=True, minimum=0, note="Java's default is 0.", sets="shutdown_grace_s"),
    Key("workerId", TEXT, Section.DAEMON, "Name of this worker in the lease table; must be unique.",
        default_text="host and a random end, new at each start", aliases=("workerIdentifier",), shown_as=Shown.FULL,
        sets="worker_id"),
)  # fmt: skip

_APPLICATION = (
    Key("applicationName", TEXT, Section.APPLICATION,
        "Name of the application: lease table, metrics namespace and fan-out consumer are named after it.",
        default_text="required", shown_as=Shown.FULL, sets="application_name"),
    Key("streamName", TEXT, Section.APPLICATION, "Stream to read.", default_text="required, or streamArn",
        shown_as=Shown.FULL, sets="stream_name"),
    Key("streamArn", ValueKind.STREAM_ARN, Section.APPLICATION,
        "ARN of the stream to read; its name wins over streamName.",
        note="Its region counts without regionName; Java never uses it.", sets="stream_arn"),
    Key("tableName", TEXT, Section.APPLICATION, "Name of the lease table.", default_text="applicationName",
        shown_as=Shown.FULL, sets="lease_table.name"),
)  # fmt: skip

_AWS = (
    Key(CREDENTIALS_PREFIX, ValueKind.CREDENTIALS, Section.AWS,
        "Credentials for Kinesis, and for the others by default.", default_text="required",
        sets="kinesis.credentials"),
    Key(f"{CREDENTIALS_PREFIX}DynamoDB", ValueKind.CREDENTIALS, Section.AWS, "Credentials for DynamoDB.",
        default_text=CREDENTIALS_PREFIX, sets="dynamo_db.credentials"),
    Key(f"{CREDENTIALS_PREFIX}CloudWatch", ValueKind.CREDENTIALS, Section.AWS, "Credentials for CloudWatch.",
        default_text=CREDENTIALS_PREFIX, sets="cloud_watch.credentials"),
    Key("regionName", ValueKind.REGION, Section.AWS, "Region of Kinesis, DynamoDB and CloudWatch.",
        default_text="region of streamArn, AWS_REGION, AWS_DEFAULT_REGION, profile, instance metadata",
        sets="region_name"),
    Key("kinesisEndpoint", ValueKind.URL, Section.AWS, "Endpoint of Kinesis.", default_text="that of the region",
        aliases=("kinesisClient.endpointOverride",), sets="kinesis.endpoint"),
    Key("dynamoDBEndpoint", ValueKind.URL, Section.AWS, "Endpoint of DynamoDB.", default_text="that of the region",
        aliases=("dynamoDbClient.endpointOverride",), sets="dynamo_db.endpoint"),
    Key("cloudWatchEndpoint", ValueKind.URL, Section.AWS, "Endpoint of CloudWatch.", default_text="that of the region",
        aliases=("cloudWatchClient.endpointOverride",), note="Java knows only the dotted form.",
        sets="cloud_watch.endpoint"),
)  # fmt: skip


def _client_keys(prefix: str, group: str, service: str, effect: Effect, note: str) -> tuple[Key, ...]:
    """Return the dotted keys of one AWS client (configuration#dotted-keys)."""
    return (
        Key(f"{prefix}.region", ValueKind.REGION, Section.AWS, f"Region of {service}; wins over regionName.",
            default_text="regionName", effect=effect, note=note, sets=f"{group}.region"),
        Key(f"{prefix}.dualstackEnabled", BOOL, Section.AWS, f"Use the dual-stack (IPv6) endpoint of {service}.",
            default=False, effect=effect, note=note, sets=f"{group}.dualstack"),
        Key(f"{prefix}.fipsEnabled", BOOL, Section.AWS, f"Use the FIPS endpoint of {service}.",
            default=False, effect=effect, note=note, sets=f"{group}.fips"),
        Key(f"{prefix}.proxyUrl", ValueKind.URL, Section.AWS,
            f"Proxy on the way to {service}, as http://[user:password@]host:port; NO_PROXY does not apply to it.",
            default_text="HTTPS_PROXY or HTTP_PROXY, by the endpoint's scheme, and NO_PROXY",
            effect=effect, note=note or _OWN_PROXY, sets=f"{group}.proxy_url"),
    ) + tuple(
        Key(f"{prefix}.overrideConfiguration.{name}", ValueKind.DURATION, Section.AWS,
            f"{title} of calls to {service}.", effect=Effect.UNSUPPORTED, note=_SDK_TIMEOUT)
        for name, title in (("apiCallTimeout", "Time-out"), ("apiCallAttemptTimeout", "Time-out of each attempt"))
    )  # fmt: skip


_CLIENTS = (
    *_client_keys("kinesisClient", "kinesis", "Kinesis", Effect.EFFECTIVE, ""),
    *_client_keys("dynamoDbClient", "dynamo_db", "DynamoDB", Effect.EFFECTIVE, ""),
    *_client_keys("cloudWatchClient", "cloud_watch", "CloudWatch", Effect.EFFECTIVE, ""),
)

_LEASES = (
    Key("failoverTimeMillis", MILLIS, Section.LEASES,
        "Duration of a lease: a worker silent for longer loses its shards.", default=10_000,
        minimum=FAILOVER_MILLIS_MIN, sets="leases.duration_s"),
    Key("leaseAssignmentIntervalMillis", MILLIS, Section.LEASES, "Interval of the leader's lease assignment.",
        default_text="twice failoverTimeMillis", minimum=1, sets="fleet.assignment_interval_s"),
    Key("maxLeasesForWorker", INT, Section.LEASES, "Most leases of open shards this worker takes.", default=INT_MAX,
        minimum=1, sets="leases.held_max"),
    Key("maxLeasesToStealAtOneTime", INT, Section.LEASES,
        "Most leases taken from a busier worker in one round (2.x-compatible taking).", default=1, minimum=1,
        sets="leases.steals_max"),
    Key("enablePriorityLeaseAssignment", BOOL, Section.LEASES,
        "Take leases expired for very long first (2.x-compatible taking).", default=True, boxed=True,
        sets="leases.very_old_first"),
    Key("maxLeaseRenewalThreads", INT, Section.LEASES, "Renewals under way at once; more if that helps.", default=20,
        minimum=1, sets="leases.renewals_concurrent_max"),
    Key("shardSyncIntervalMillis", MILLIS, Section.LEASES,
        "Pause after a shard sync; not the period of the leader's audit.", default=60_000, minimum=1,
        sets="shards.sync_interval_s"),
    Key("cleanupLeasesUponShardCompletion", BOOL, Section.LEASES,
        "Delete the leases of shards that were read to their end once their children are under way.", default=True,
        note="Java ignores false.", sets="shards.cleans_up"),
    Key("ignoreUnexpectedChildShards", BOOL, Section.LEASES,
        "Tolerate child shards of parents that look open (DynamoDB Streams).", default=False,
        sets="shards.ignores_unexpected_children"),
    Key("initialLeaseTableReadCapacity", INT, Section.LEASES, "Read capacity of a new lease table.", default=10,
        minimum=1, note="Only with mld.leaseTableBillingMode PROVISIONED; Java ignores it.",
        sets="lease_table.read_capacity"),
    Key("initialLeaseTableWriteCapacity", INT, Section.LEASES, "Write capacity of a new lease table.", default=10,
        minimum=1, note="Only with mld.leaseTableBillingMode PROVISIONED; Java ignores it.",
        sets="lease_table.write_capacity"),
    Key("leaseTableDeletionProtectionEnabled", BOOL, Section.LEASES,
        "Create the lease table with deletion protection.", default=False, boxed=True,
        sets="lease_table.deletion_protection"),
    Key("leaseTablePitrEnabled", BOOL, Section.LEASES,
        "Switch on point-in-time recovery of the lease table at start, also of an existing one.", default=False,
        boxed=True, sets="lease_table.point_in_time_recovery"),
    Key("leaseTableScanTotalSegments", INT, Section.LEASES, "Parallel segments of a scan of the lease table.",
        default=0, minimum=0, note="0 chooses by the size of the table.", sets="leases.scan_segments"),
    Key("listShardsBackoffTimeInMillis", MILLIS, Section.LEASES, "Pause between throttled ListShards attempts.",
        default=1_500, minimum=1, sets="shards.list_backoff_s"),
    Key("maxListShardsRetryAttempts", INT, Section.LEASES, "Most ListShards attempts.", default=50, minimum=1,
        sets="shards.list_attempts_max"),
    Key("initialPositionInStream", ValueKind.INITIAL_POSITION, Section.LEASES,
        "Where an application without checkpoints starts.", default=InitialPositionSetting(InitialPositionKind.LATEST),
        default_text="LATEST", sets="initial_position"),
    Key("initialPositionInStreamExtended", ValueKind.EPOCH_SECONDS, Section.LEASES,
        "Time at which an application without checkpoints starts; wins over initialPositionInStream.",
        note="Seconds, not milliseconds."),
)  # fmt: skip


def _dotted(
    section: Section, bean: str, name: str, kind: ValueKind, meaning: str, default: object, **more: object
) -> Key:
    """Return a key that may also be written with the name of a Java bean before it."""
    return Key(name, kind, section, meaning, default, aliases=(f"{bean}.{name}",), **more)  # type: ignore[arg-type]


_handoff = partial(_dotted, Section.HANDOFF, "gracefulLeaseHandoffConfigBean")
_assignment = partial(_dotted, Section.ASSIGNMENT, "workerUtilizationAwareAssignmentConfigBean")

_HANDOFF_KEYS = (
    _handoff("isGracefulLeaseHandoffEnabled", BOOL, "Let the old owner finish before a lease moves.", True,
             boxed=True, sets="leases.hands_off_gracefully"),
    _handoff("gracefulLeaseHandoffTimeoutMillis", MILLIS, "Shortest wait before a requested handoff is forced.",
             30_000, boxed=True, minimum=0, sets="leases.handoff_timeout_s"),
)  # fmt: skip

_ASSIGNMENT_KEYS = (
    _assignment("inMemoryWorkerMetricsCaptureFrequencyMillis", MILLIS, "Sampling period of this worker's load.", 1_000,
                minimum=1, sets="fleet.capture_period_s"),
    _assignment("workerMetricsReporterFreqInMillis", MILLIS, "Period of writing this worker's load to its row.", 30_000,
                minimum=1, sets="fleet.report_period_s"),
    _assignment("noOfPersistedMetricsPerWorkerMetrics", INT, "Samples kept per metric in the row.", 10, minimum=1,
                sets="fleet.samples_per_report"),
    _assignment("disableWorkerMetrics", BOOL, "Balance by throughput only.", False, boxed=True,
                sets="fleet.ignores_load"),
    _assignment("maxThroughputPerHostKBps", DOUBLE, "Most KB/s assigned to one worker.", 1.7976931348623157e308,
                minimum=0, sets="fleet.throughput_max_kbps"),
    _assignment("dampeningPercentage", INT, "Share of the excess moved in one run.", 60, minimum=1, maximum=100,
                sets="fleet.dampening_percent"),
    _assignment("reBalanceThresholdPercentage", INT, "Band around the fleet's average that is left alone.", 10,
                minimum=1, maximum=100, sets="fleet.threshold_percent"),
    _assignment("allowThroughputOvershoot", BOOL, "Move one lease even if it exceeds the target.", True, boxed=True,
                sets="fleet.overshoot"),
    _assignment("staleWorkerMetricsEntryCleanupDuration", ValueKind.DURATION,
                "Age at which rows of vanished workers are deleted.", timedelta(hours=24), default_text="PT24H",
                boxed=True, sets="fleet.stale_report_s"),
    _assignment("varianceBalancingFrequency", INT, "Re-balance at every n-th run.", 3, minimum=1,
                sets="fleet.balance_every"),
    _assignment("workerMetricsEMAAlpha", DOUBLE, "Weight of the newest sample, 0 to 1.", 0.5, minimum=0, maximum=1,
                sets="fleet.ema_alpha"),
)  # fmt: skip


def _legacy_table_keys(stem: str, bean: str, group: str, table: str, default_name: str) -> tuple[Key, ...]:
    """Return the keys of one legacy table (configuration#derived-names): its name, and the rest for creating it."""

    def key(suffix: str, kind: ValueKind, meaning: str, default: object, field: str, **more: object) -> Key:
        name = stem + suffix
        sets = f"{group}.{field}"
        row: dict[str, object] = {"aliases": (f"{bean}.{name}",), "note": _LEGACY_ONLY, "sets": sets}
        return Key(name, kind, Section.LEGACY_TABLES, meaning, default, **(row | more))  # type: ignore[arg-type]

    return (
        key("TableName", TEXT, f"Name of the legacy {table} table.", None, "name", default_text=default_name,
            note="It is used if it exists.", shown_as=Shown.FULL),
        key("BillingMode", CHOICE, f"Billing of the {table} table.", BillingMode.PAY_PER_REQUEST, "billing_mode",
            choices=BillingMode),
        key("ReadCapacity", LONG, f"Read capacity of the {table} table.", 0, "read_capacity", minimum=0),
        key("WriteCapacity", LONG, f"Write capacity of the {table} table.", 0, "write_capacity", minimum=0),
        key("PointInTimeRecoveryEnabled", BOOL, f"Point-in-time recovery of the {table} table.", False,
            "point_in_time_recovery", boxed=True),
        key("DeletionProtectionEnabled", BOOL, f"Deletion protection of the {table} table.", False,
            "deletion_protection", boxed=True),
        key("Tags", ValueKind.TAGS, f"Tags of the {table} table.", (), "tags"),
    )  # fmt: skip


_LEGACY_TABLE_KEYS = (
    *_legacy_table_keys("workerMetrics", "workerMetricStatsTableConfigBean", "worker_metrics_table", "worker-metrics",
                        "applicationName, then -WorkerMetricStats"),
    *_legacy_table_keys("coordinatorState", "coordinatorStateTableConfigBean", "coordinator_state_table",
                        "coordinator-state", "applicationName, then -CoordinatorState"),
)  # fmt: skip

_COORDINATOR = (
    Key("clientVersionConfig", CHOICE, Section.COORDINATOR,
        "Which generations of workers share the application.",
        default_text="what the lease table shows: 3X, but not in a table that only KCL 2.x has written",
        choices=ClientVersionConfig, sets="fleet.client_version"),
    Key("migrateAllEntitiesToLeaseTable", BOOL, Section.COORDINATOR,
        "Second phase of the migration to a single table.", default=False, sets="fleet.migrates_to_lease_table"),
    Key("tableMigrationCompleteBakeTimeSeconds", SECONDS, Section.COORDINATOR,
        "Time before the migration to a single table counts as complete.", default=86_400, minimum=0,
        note=f"Used within {BAKE_SECONDS_MIN} to {BAKE_SECONDS_MAX}.", sets="fleet.bake_s"),
    Key("parentShardPollIntervalMillis", MILLIS, Section.COORDINATOR,
        "Interval at which a child shard looks whether its parents are done.", default=10_000, minimum=1,
        live=True, sets="child.parent_poll_s"),
    Key("skipShardSyncAtWorkerInitializationIfLeasesExist", BOOL, Section.COORDINATOR,
        "Skip the shard sync at start when the lease table has rows.", default=False,
        sets="shards.skips_sync_if_leases_exist"),
    Key("schedulerInitializationBackoffTimeMillis", MILLIS, Section.COORDINATOR,
        "Pause between attempts to initialize.", default=1_000, minimum=1, sets="initialization_backoff_s"),
    Key("shardPrioritization", TEXT, Section.COORDINATOR, "Order in which shards are served.",
        effect=Effect.NONE, note="Java refuses to start with any value of it."),
)  # fmt: skip

_LIFECYCLE = (
    Key("taskBackoffTimeMillis", MILLIS, Section.LIFECYCLE, "Pause after a failed step of a shard consumer.",
        default=500, minimum=1, live=True, sets="child.task_backoff_s"),
    Key("logWarningForTaskAfterMillis", MILLIS, Section.LIFECYCLE,
        "Warn when a child takes longer over one request; again each time this has doubled.",
        default=60_000, boxed=True, minimum=0, note="Java's default is off.",
        live=True, sets="child.warn_after_s"),
    Key("callProcessRecordsEvenForEmptyRecordList", BOOL, Section.LIFECYCLE, "Deliver empty batches too.",
        default=False, sets="child.deliver_empty_batches"),
    Key("validateSequenceNumberBeforeCheckpointing", BOOL, Section.LIFECYCLE,
        "Check sequence numbers before a checkpoint.", default=False, effect=Effect.NONE,
        note="A feature of KCL 1.x."),
)  # fmt: skip

_METRICS = (
    Key("mld.metrics", ValueKind.CHOICES, Section.METRICS,
        "Where metrics go: CloudWatch, scrapers of /metrics of mld.http; none is nowhere.",
        default_text="cloudwatch,prometheus; the second alone if kinesisEndpoint is not AWS's",
        choices=MetricsOutput, note="prometheus needs the extra metrics.",
        sets="metrics.outputs"),
    Key("metricsLevel", CHOICE, Section.METRICS, "Which metrics are published.", default=MetricsLevel.DETAILED,
        choices=MetricsLevel, note="For CloudWatch; /metrics always has all.",
        sets="metrics.level"),
    Key("metricsEnabledDimensions", ValueKind.DIMENSIONS, Section.METRICS,
        "Dimensions published: ALL, or some of Operation, ShardId, StreamId, WorkerIdentifier.", default=("ALL",),
        default_text="ALL", note="Operation always is; WorkerIdentifier only if workerId is set.",
        sets="metrics.dimensions"),
    Key("metricsBufferTimeMillis", MILLIS, Section.METRICS, "How often metrics are sent.",
        default=CLOUDWATCH_PERIOD_MILLIS,
        note="Java's default is 10000, but CloudWatch resolves a minute. "
        f"Below {METRICS_PERIOD_MILLIS_MIN} it is raised to that.", sets="metrics.period_s"),
    Key("metricsMaxQueueSize", INT, Section.METRICS, "Most values that wait while CloudWatch cannot be reached.",
        default=10_000, minimum=1, sets="metrics.queue_max"),
)  # fmt: skip

_POLLING = (
    Key("retrievalMode", CHOICE, Section.POLLING,
        "DEFAULT polls if a polling key is present and else uses fan-out.", default=RetrievalMode.DEFAULT,
        choices=RetrievalMode, sets="reader.mode"),
    Key("maxRecords", INT, Section.POLLING, "Most records of one read.", default=10_000, minimum=1,
        maximum=MAX_RECORDS_MAX, aliases=("pollingConfig.maxRecords",), sets="reader.records_max"),
    Key("idleTimeBetweenReadsInMillis", MILLIS, Section.POLLING, "Pause between reads of a shard without news.",
        default=1_500, aliases=("pollingConfig.idleTimeBetweenReadsInMillis",),
        note=f"Below {READ_INTERVAL_MILLIS_MIN} it is raised to that.", sets="reader.idle_interval_s"),
    Key("millisBehindLatestThresholdForReducedTps", MILLIS, Section.POLLING,
        "Read less often when the shard is less behind than this.", default=0, default_text="0, off", minimum=0,
        aliases=("pollingConfig.millisBehindLatestThresholdForReducedTps",), sets="reader.reduced_tps_threshold_s"),
    Key("retryGetRecordsInSeconds", INT, Section.POLLING, "A setting of KCL 1.x.", boxed=True,
        aliases=("pollingConfig.retryGetRecordsInSeconds",), effect=Effect.NONE, note=_SELECTS_POLLING),
    Key("maxGetRecordsThreadPool", INT, Section.POLLING, "A setting of KCL 1.x.", boxed=True,
        aliases=("pollingConfig.maxGetRecordsThreadPool",), effect=Effect.NONE, note=_SELECTS_POLLING),
)  # fmt: skip


_FANOUT = (
    Key("fanoutConfig.consumerName", TEXT, Section.FANOUT, "Consumer to find or register.",
        default_text="applicationName", shown_as=Shown.FULL, sets="fanout.consumer_name"),
    Key("fanoutConfig.consumerArn", TEXT, Section.FANOUT,
        "ARN of a registered consumer to use; none is registered then.", shown_as=Shown.FULL,
        sets="fanout.consumer_arn"),
    Key("fanoutConfig.maxDescribeStreamSummaryRetries", INT, Section.FANOUT, "Most DescribeStreamSummary attempts.",
        default=10, minimum=1, sets="fanout.summary_attempts_max"),
    Key("fanoutConfig.maxDescribeStreamConsumerRetries", INT, Section.FANOUT, "Most DescribeStreamConsumer attempts.",
        default=10, minimum=1, sets="fanout.describe_attempts_max"),
    Key("fanoutConfig.registerStreamConsumerRetries", INT, Section.FANOUT, "Most RegisterStreamConsumer attempts.",
        default=10, minimum=1, sets="fanout.register_attempts_max"),
    Key("fanoutConfig.retryBackoffMillis", MILLIS, Section.FANOUT, "Pause between these attempts.", default=1_000,
        minimum=1, sets="fanout.backoff_s"),
)  # fmt: skip

_OWN = (
    Key("mld.strict", BOOL, Section.OWN, "Treat every warning about this file as an error.", default=False,
        boxed=True, sets="strict"),
    Key("mld.reBalanceFixedWidth", BOOL, Section.OWN,
        "reBalanceThresholdPercentage is the width of the band in percentage points, half of it on each side of the "
        "average: at a low average the jitter of a quiet fleet moves no leases.", default=False, boxed=True,
        note="As KCL has an option for from 3.5.3 on.", sets="fleet.is_band_fixed"),
    Key("mld.protocolVersion", INT, Section.OWN,
        "Dialect spoken with the child: 2, or 1 for record processors written for KCL 1.x.", default=2, boxed=True,
        minimum=1, maximum=2, sets="child.protocol_version"),
    Key("mld.childFailurePolicy", CHOICE, Section.OWN,
        "A failed child starts again for ever (park), mld.childRestartsMax times (restart), or ends the daemon (exit).",
        default=ChildFailurePolicy.PARK, choices=ChildFailurePolicy, sets="child.failure_policy"),
    Key("mld.childRestartsMax", INT, Section.OWN,
        "Restarts of a shard without progress before the daemon gives up.", default=5, boxed=True,
        minimum=0, note="Only with mld.childFailurePolicy restart.", live=True, sets="child.restarts_max"),
    Key("mld.childRestartBackoffMillis", MILLIS, Section.OWN,
        "Pause before the first restart; it doubles each time, up to 5 minutes.", default=1_000,
        boxed=True, minimum=0, live=True, sets="child.restart_backoff_s"),
    Key("mld.poisonAttempts", INT, Section.OWN,
        "Failures of a batch before it is halved, and of a record alone before it goes to mld.deadLetter.",
        default_text="off: no record is ever skipped", boxed=True, minimum=POISON_ATTEMPTS_MIN,
        note="Only with mld.childFailurePolicy park.",
        sets="child.poison_attempts"),
    Key("mld.deadLetter", ValueKind.DEAD_LETTER, Section.OWN,
        "Where records are set aside: a directory, s3://bucket/prefix, the ARN of a stream, or the URL of a queue.",
        default_text="none", sets="child.dead_letter"),
    Key("mld.childStopTimeoutMillis", MILLIS, Section.OWN,
        "Wait after closing a child's input before TERM is sent, and again before KILL.", default=5_000, boxed=True,
        minimum=0, sets="child.stop_timeout_s"),
    Key("mld.prefetchBytesMax", BYTES, Section.OWN,
        "Most memory of records that wait for their children, in bytes, over all shards; each has an equal share.",
        default=PREFETCH_BYTES_MAX, boxed=True, minimum=1, sets="reader.prefetch_bytes_max"),
    Key("mld.http", ValueKind.LISTEN, Section.OWN,
        "Where the status page, the probes and the metrics are served: host:port. They only read, and ask for no "
        "password.", default_text="none, off", sets="serving.http"),
    Key("mld.httpHosts", ValueKind.HOSTS, Section.OWN,
        "Host names by which mld.http may be called, besides localhost and its address.", default=(),
        default_text="none", sets="serving.http_hosts"),
    Key("mld.notify", ValueKind.URL, Section.OWN,
        "Webhook to which the fleet posts, in JSON, what is wrong and that it is over.", default_text="none",
        note="For those without Prometheus.", shown_as=Shown.HIDDEN, sets="serving.notify"),
    Key("mld.controlSocket", ValueKind.SOCKET, Section.OWN,
        "Socket by which `mld status`, `mld tap` and the like reach the daemon; off makes none.",
        default_text="a file of its own in $RUNTIME_DIRECTORY, $XDG_RUNTIME_DIR/mld or /tmp/mld-UID",
        sets="serving.control_socket"),
    Key("mld.processes", ValueKind.PROCESSES, Section.OWN,
        "Workers that `mld run` starts as processes of one group; auto: one for each CPU that it may use.", default=1,
        note="--processes wins.", sets="processes"),
    Key("mld.logLevel", CHOICE, Section.OWN,
        "The least important events that are logged; --log-level and a file of -l win.",
        default=LogLevel.INFO, choices=LogLevel, live=True, sets="log_level"),
    Key("mld.childLog", CHOICE, Section.OWN,
        "JSON objects that children log: as fields of the daemon's own lines (fields), or as they are (raw).",
        default=ChildLog.FIELDS, choices=ChildLog, sets="child.log"),
    Key("mld.leaseTableBillingMode", CHOICE, Section.OWN, "Billing of a new lease table.",
        default=BillingMode.PAY_PER_REQUEST, choices=BillingMode,
        note="PROVISIONED uses initialLeaseTableReadCapacity and initialLeaseTableWriteCapacity.",
        sets="lease_table.billing_mode"),
    Key("mld.leaseTableTags", ValueKind.TAGS, Section.OWN, "Tags of a new lease table.", default=(),
        sets="lease_table.tags"),
    Key("mld.schemaRegistry", CHOICE, Section.OWN,
        "Records of the Glue Schema Registry: as they are (off), frames taken off (strip), Avro as JSON too (json).",
        default=SchemaMode.OFF, choices=SchemaMode, sets="schemas.mode"),
    Key("mld.schemaRegistry.onError", CHOICE, Section.OWN,
        "A record that cannot be read is delivered with the key schemaError (deliver), or its batch waits (fail).",
        default=SchemaErrors.DELIVER, choices=SchemaErrors,
        sets="schemas.on_error"),
    Key("mld.schemaRegistry.region", TEXT, Section.OWN, "Region of the registry.", default_text="that of Kinesis",
        shown_as=Shown.FULL, sets="schemas.region"),
    Key("mld.schemaRegistry.endpoint", ValueKind.URL, Section.OWN, "Endpoint of the registry.",
        default_text="that of the region", sets="schemas.endpoint"),
    Key("mld.metadataLayout", CHOICE, Section.OWN,
        "Lock, reports: beside the leases, or in tables of KCL 3.0 to 3.4 if there (auto); always in those (legacy).",
        default=MetadataLayout.AUTO, choices=MetadataLayout, sets="fleet.metadata_layout"),
    Key("mld.leaseAssignmentStrategy", CHOICE, Section.OWN,
        "How the leader assigns leases: by utilization and throughput, or by count.",
        default=AssignmentStrategy.UTILIZATION, choices=AssignmentStrategy, sets="fleet.assignment_strategy"),
    Key("mld.heartbeat", CHOICE, Section.OWN,
        "What a worker renews: each lease (lease), or one row of its own (worker; without Java workers).",
        default=HeartbeatSetting.LEASE, choices=HeartbeatSetting,
        note="worker needs CLIENT_VERSION_CONFIG_3X.",
        sets="leases.heartbeat"),
)  # fmt: skip

KEYS: tuple[Key, ...] = (
    *_DAEMON, *_APPLICATION, *STREAM_KEYS, *_AWS, *_CLIENTS, *_LEASES, *_HANDOFF_KEYS, *_ASSIGNMENT_KEYS,
    *_LEGACY_TABLE_KEYS, *_COORDINATOR, *_LIFECYCLE, *_METRICS, *_POLLING, *_FANOUT, *_OWN,
)  # fmt: skip
"""Every key of one name. `PATTERN_KEYS` are the patterns."""

BY_NAME: dict[str, Key] = {name: key for key in KEYS for name in key.names}


def canonical_spelling(name: str) -> str:
    """Return the name as `KEYS` has it: Java accepts the prefix of the credentials keys in any case."""
    size = len(CREDENTIALS_PREFIX)
    return CREDENTIALS_PREFIX + name[size:] if name[:size].lower() == CREDENTIALS_PREFIX.lower() else name


def find(name: str) -> Key | None:
    """Return the key of a spelling; None if there is none. The key of a pattern has the name that is spelled."""
    key = BY_NAME.get(canonical_spelling(name))
    if key is not None:
        return key
    pattern = next((pattern for pattern in PATTERN_KEYS if pattern.name_in(name) is not None), None)
    return None if pattern is None else replace(pattern, name=name)


assert len(BY_NAME) == sum(len(key.names) for key in KEYS), "two keys share a spelling"
assert all(key.maximum is None or key.maximum <= LONG_MAX for key in KEYS)
