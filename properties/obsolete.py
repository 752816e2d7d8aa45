"""Keys without a reader: those of KCL 1.x, and some that look as if they existed, each with what to do instead.

Rules: configuration#obsolete-keys. Java 3.x ignores them silently.
"""

from __future__ import annotations

OBSOLETE: dict[str, str] = {
    "userAgent": "remove it",
    "kinesisClientConfig": "remove it, or use kinesisClient.…",
    "commonClientConfig": "remove it",
    "dynamoDBClientConfig": "remove it, or use dynamoDbClient.…",
    "cloudWatchClientConfig": "remove it, or use cloudWatchClient.…",
    "timestampAtInitialPositionInStream": "use initialPositionInStreamExtended with epoch seconds",
    "skipShardSyncAtStartupIfLeasesExist": "use skipShardSyncAtWorkerInitializationIfLeasesExist",
    "shardPrioritizationStrategy": "remove it; shards have no priorities",
    "shardSyncStrategyType": "remove it; the leader syncs shards",
    "maxPendingProcessRecordsInput": "remove it; read-ahead is fixed",
    "maxCacheByteSize": "remove it; read-ahead is fixed",
    "dataFetchingStrategy": "remove it; records are always read ahead",
    "maxRecordsCount": "use maxRecords",
    "idleMillisBetweenCalls": "use idleTimeBetweenReadsInMillis",
    "billingMode": "use mld.leaseTableBillingMode",
    "maxInitializationAttempts": "remove it; it is fixed to 20",
    "leaseCleanupIntervalMillis": "remove it; leases are cleaned up every minute",
    "completedLeaseCleanupThresholdMillis": "remove it; it is fixed to 5 minutes",
    "garbageLeaseCleanupThresholdMillis": "remove it; it is fixed to 30 minutes",
    "leasesRecoveryAuditorExecutionFrequencyMillis": "remove it; leases are audited every 2 minutes",
    "leasesRecoveryAuditorInconsistencyConfidenceThreshold": "remove it; it is fixed to 3",
    "namespace": "remove it; metrics are published under applicationName",
    "consistentReads": "remove it",
    "streamTracker": "remove it; one file reads one stream",
    "leaseAssignmentStrategy": "remove it",
    "streamInfoMode": "remove it",
    "readTimeoutsToIgnoreBeforeWarning": "remove it",
    "gracefulLeaseHandoffEnabled": "use isGracefulLeaseHandoffEnabled",
    "kinesisCredentialsProvider.class": "use AwsCredentialsProvider",
    "dynamoDBCredentialsProvider.class": "use AwsCredentialsProviderDynamoDB",
    "cloudWatchCredentialsProvider.class": "use AwsCredentialsProviderCloudWatch",
}
