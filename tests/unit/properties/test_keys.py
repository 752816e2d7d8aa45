"""The table of keys is complete and consistent with the settings; every key can be set, in every spelling."""

from __future__ import annotations

import types
import typing

import pytest

from mld.properties import keys, settings
from mld.properties.checked_lines import display_value
from mld.properties.conversion import convert
from mld.properties.key_lines import OBSOLETE
from mld.properties.keytypes import Effect
from mld.properties.live_changes import value_of
from mld.properties.redaction import Shown
from mld.properties.settings import STREAMS, STREAMS_FILE, Settings
from mld.properties.value_kinds import ValueKind
from tests.unit.properties.conftest import Configure

# configuration#one-key-table: the complete list of keys that the Java daemon accepts.
JAVA_KEY_NAMES = """
executableName processingLanguage maxActiveThreads timeoutInSeconds shutdownGraceMillis workerId workerIdentifier
applicationName streamName streamArn tableName AwsCredentialsProvider AwsCredentialsProviderDynamoDB
AwsCredentialsProviderCloudWatch regionName kinesisEndpoint dynamoDBEndpoint failoverTimeMillis
leaseAssignmentIntervalMillis maxLeasesForWorker maxLeasesToStealAtOneTime enablePriorityLeaseAssignment
maxLeaseRenewalThreads shardSyncIntervalMillis cleanupLeasesUponShardCompletion ignoreUnexpectedChildShards
initialLeaseTableReadCapacity initialLeaseTableWriteCapacity leaseTableDeletionProtectionEnabled leaseTablePitrEnabled
leaseTableScanTotalSegments listShardsBackoffTimeInMillis maxListShardsRetryAttempts initialPositionInStream
initialPositionInStreamExtended isGracefulLeaseHandoffEnabled gracefulLeaseHandoffTimeoutMillis
inMemoryWorkerMetricsCaptureFrequencyMillis workerMetricsReporterFreqInMillis noOfPersistedMetricsPerWorkerMetrics
disableWorkerMetrics maxThroughputPerHostKBps dampeningPercentage reBalanceThresholdPercentage
allowThroughputOvershoot staleWorkerMetricsEntryCleanupDuration varianceBalancingFrequency workerMetricsEMAAlpha
workerMetricsTableName workerMetricsBillingMode workerMetricsReadCapacity workerMetricsWriteCapacity
workerMetricsPointInTimeRecoveryEnabled workerMetricsDeletionProtectionEnabled workerMetricsTags
coordinatorStateTableName coordinatorStateBillingMode coordinatorStateReadCapacity coordinatorStateWriteCapacity
coordinatorStatePointInTimeRecoveryEnabled coordinatorStateDeletionProtectionEnabled coordinatorStateTags
clientVersionConfig migrateAllEntitiesToLeaseTable tableMigrationCompleteBakeTimeSeconds parentShardPollIntervalMillis
skipShardSyncAtWorkerInitializationIfLeasesExist schedulerInitializationBackoffTimeMillis shardPrioritization
taskBackoffTimeMillis logWarningForTaskAfterMillis callProcessRecordsEvenForEmptyRecordList
validateSequenceNumberBeforeCheckpointing metricsLevel metricsEnabledDimensions metricsBufferTimeMillis
metricsMaxQueueSize retrievalMode maxRecords idleTimeBetweenReadsInMillis millisBehindLatestThresholdForReducedTps
retryGetRecordsInSeconds maxGetRecordsThreadPool fanoutConfig.consumerName fanoutConfig.consumerArn
fanoutConfig.maxDescribeStreamSummaryRetries fanoutConfig.maxDescribeStreamConsumerRetries
fanoutConfig.registerStreamConsumerRetries fanoutConfig.retryBackoffMillis pollingConfig.maxRecords
pollingConfig.idleTimeBetweenReadsInMillis pollingConfig.millisBehindLatestThresholdForReducedTps
pollingConfig.retryGetRecordsInSeconds pollingConfig.maxGetRecordsThreadPool
gracefulLeaseHandoffConfigBean.isGracefulLeaseHandoffEnabled
workerUtilizationAwareAssignmentConfigBean.dampeningPercentage
workerUtilizationAwareAssignmentConfigBean.staleWorkerMetricsEntryCleanupDuration
workerMetricStatsTableConfigBean.workerMetricsTableName coordinatorStateTableConfigBean.coordinatorStateTags
kinesisClient.region kinesisClient.endpointOverride kinesisClient.dualstackEnabled kinesisClient.fipsEnabled
kinesisClient.overrideConfiguration.apiCallTimeout dynamoDbClient.region dynamoDbClient.endpointOverride
cloudWatchClient.region cloudWatchClient.endpointOverride cloudWatchClient.overrideConfiguration.apiCallAttemptTimeout
"""
JAVA_KEYS = JAVA_KEY_NAMES.split()
NOT_OF_KEYS = {"reader.by_fan_out", "child.restart_pause_max_s", "child.logs_fields", "shards.former_streams_wait_s"}
"""Fields that no key sets: what others are made of, and constants that replays and simulations replace."""


@pytest.mark.parametrize("name", JAVA_KEYS)
def test_every_key_of_java_is_known(name: str) -> None:
    assert keys.find(name) is not None


TIMES = {ValueKind.MILLIS, ValueKind.SECONDS, ValueKind.DURATION}


def fields_of(kind: typing.Any, prefix: str = "") -> typing.Iterator[tuple[str, typing.Any]]:
    """Yield the name and the type of every field of the settings, as keys name them."""
    for name, hint in typing.get_type_hints(kind, vars(settings)).items():
        if isinstance(hint, type) and hint.__module__ == settings.__name__:
            yield from fields_of(hint, f"{name}.")
        else:
            yield prefix + name, hint


def test_settings_has_exactly_one_field_per_key_with_an_effect() -> None:
    wanted = {key.sets for key in keys.KEYS if key.effect is Effect.EFFECTIVE} - {""}
    assert wanted == {name for name, _ in fields_of(Settings)} - NOT_OF_KEYS
    assert [key.name for key in keys.KEYS if key.effect is Effect.EFFECTIVE and not key.sets] == [
        "initialPositionInStreamExtended"
    ]


def test_times_are_in_seconds_and_their_fields_say_so() -> None:
    for key in keys.KEYS:
        assert key.sets.endswith("_s") == bool(key.sets and key.kind in TIMES), key.name


def test_defaults_have_the_type_of_their_field() -> None:
    hints = dict(fields_of(Settings))
    for key in keys.KEYS:
        if key.sets and key.default is not None:
            hint = hints[key.sets]
            accepted = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
            kinds = [typing.get_origin(kind) or kind for kind in accepted]
            assert type(key.in_core_units(key.default)) in kinds, key.name


SAMPLE_TEXTS = {
    ValueKind.TEXT: "text", ValueKind.INT: "2", ValueKind.LONG: "5000", ValueKind.DOUBLE: "0.25",
    ValueKind.MILLIS: "5000", ValueKind.SECONDS: "5000", ValueKind.BYTES: "5000",
    ValueKind.BOOL: "true", ValueKind.INITIAL_POSITION: "trim_horizon", ValueKind.EPOCH_SECONDS: "1767225600",
    ValueKind.DURATION: "PT1H", ValueKind.TAGS: "a=b", ValueKind.DIMENSIONS: "ShardId",
    ValueKind.URL: "http://localhost:4567", ValueKind.REGION: "us-east-2",
    ValueKind.STREAM_ARN: "arn:aws:kinesis:eu-west-1:123456789012:stream/other",
    ValueKind.CREDENTIALS: "EnvironmentVariableCredentialsProvider", ValueKind.DEAD_LETTER: "s3://bucket/letters",
    ValueKind.LISTEN: "127.0.0.1:9404", ValueKind.HOSTS: "worker.internal,other",
    ValueKind.SOCKET: "/run/mld/app.sock", ValueKind.STREAM_NAMES: "orders,clicks",
    ValueKind.POSITION: "1767225600", ValueKind.PROCESSES: "4",
}  # fmt: skip
COMPANIONS = {"mld.poisonAttempts": "mld.deadLetter=letters"}
"""Lines without which a key is an error."""


@pytest.mark.parametrize("spelling", sorted(keys.BY_NAME.keys() - {STREAMS_FILE}))
def test_every_spelling_of_every_key_can_be_set(configure: Configure, spelling: str) -> None:
    key = keys.BY_NAME[spelling]
    text = next(iter(key.choices)).value if key.choices else SAMPLE_TEXTS[key.kind]
    without = ["streamName"] if spelling == STREAMS else []
    loaded = configure(f"{spelling}={text}\n{COMPANIONS.get(spelling, '')}", without=without)
    row = next(value for value in loaded.effective if value.key == key.name)
    assert row.source.rpartition(":")[2].isdigit(), row
    if key.sets and spelling != STREAMS:
        value = value_of(loaded.settings, key)
        if key.kind in TIMES:
            assert value == key.in_core_units(convert(key, text))
        else:
            assert row.value == {Shown.HIDDEN: "***", Shown.NAMES: "a=***"}.get(key.shown, display_value(value))


def test_obsolete_keys_are_unknown() -> None:
    assert all(keys.find(name) is None for name in OBSOLETE)
