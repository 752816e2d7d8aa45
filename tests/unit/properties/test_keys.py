"""The table of keys is complete and consistent with the settings; every key can be set, in every spelling."""

from __future__ import annotations

import dataclasses
import types
import typing

import pytest

from mld.properties import keys, settings
from mld.properties.key_lines import OBSOLETE
from mld.properties.keytypes import Effect, ValueKind
from mld.properties.redaction import Shown
from mld.properties.settings import Settings
from mld.properties.stream_keys import STREAMS, STREAMS_FILE
from mld.properties.validation import display_value
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


@pytest.mark.parametrize("name", JAVA_KEYS)
def test_every_key_of_java_is_known(name: str) -> None:
    assert keys.find(name) is not None


def test_settings_has_exactly_one_field_per_key_with_an_effect() -> None:
    fields = {field.name for field in dataclasses.fields(Settings)}
    wanted = {key.field for key in keys.KEYS if key.effect is Effect.EFFECTIVE}
    assert wanted - {"initial_position_at"} == fields - {"reads_by_fan_out"}


def test_defaults_have_the_type_of_their_field() -> None:
    hints = typing.get_type_hints(Settings, vars(settings))
    for key in keys.KEYS:
        if key.field in hints and key.default is not None:
            hint = hints[key.field]
            accepted = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
            assert type(key.default) in [typing.get_origin(kind) or kind for kind in accepted], key.name


SAMPLE_TEXTS = {
    ValueKind.TEXT: "text", ValueKind.INT: "2", ValueKind.LONG: "5000", ValueKind.DOUBLE: "0.25",
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
    value = row.value if spelling == STREAMS else display_value(getattr(loaded.settings, key.field, row.value))
    assert row.value == {Shown.HIDDEN: "***", Shown.NAMES: "a=***"}.get(key.shown, value)


def test_obsolete_keys_are_unknown() -> None:
    assert all(keys.find(name) is None for name in OBSOLETE)
