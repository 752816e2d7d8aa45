import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.cloudwatch.CloudWatchAsyncClient;
import software.amazon.awssdk.services.dynamodb.DynamoDbAsyncClient;
import software.amazon.awssdk.services.kinesis.KinesisAsyncClient;
import software.amazon.kinesis.common.ConfigsBuilder;
import software.amazon.kinesis.common.InitialPositionInStream;
import software.amazon.kinesis.common.InitialPositionInStreamExtended;
import software.amazon.kinesis.common.KinesisClientUtil;
import software.amazon.kinesis.common.StreamConfig;
import software.amazon.kinesis.common.StreamIdentifier;
import software.amazon.kinesis.coordinator.CoordinatorConfig;
import software.amazon.kinesis.coordinator.CoordinatorConfig.ClientVersionConfig;
import software.amazon.kinesis.coordinator.Scheduler;
import software.amazon.kinesis.leases.LeaseManagementConfig;
import software.amazon.kinesis.metrics.MetricsConfig;
import software.amazon.kinesis.metrics.MetricsLevel;
import software.amazon.kinesis.processor.FormerStreamsLeasesDeletionStrategy;
import software.amazon.kinesis.processor.MultiStreamTracker;
import software.amazon.kinesis.processor.SingleStreamTracker;
import software.amazon.kinesis.processor.StreamTracker;
import software.amazon.kinesis.retrieval.RetrievalSpecificConfig;
import software.amazon.kinesis.retrieval.fanout.FanOutConfig;
import software.amazon.kinesis.retrieval.polling.PollingConfig;

/**
 * A worker of the Kinesis Client Library that hands its records to child processes, for the interop tests.
 *
 * <pre>java -cp 'jars/*:classes' Worker FILE.properties</pre>
 *
 * The file has the keys of the MultiLangDaemon that the tests set, with the same meaning, and `streams`, identifiers of
 * several streams with commas between them, which take the place of streamName; any other key is an error, so that no test believes it has set something. SIGTERM begins a graceful shutdown of at most shutdownGraceMillis.
 */
public final class Worker {
    private final Properties keys = new Properties();
    private final TreeSet<String> unused = new TreeSet<>();

    private Worker(Path file) throws Exception {
        try (var reader = Files.newBufferedReader(file)) {
            keys.load(reader);
        }
        unused.addAll(keys.stringPropertyNames());
    }

    public static void main(String[] arguments) throws Exception {
        Worker worker = new Worker(Path.of(arguments[0]));
        long graceMillis = worker.number("shutdownGraceMillis", 0);
        Scheduler scheduler = worker.scheduler();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                scheduler.startGracefulShutdown().get(graceMillis, TimeUnit.MILLISECONDS);
            } catch (Exception error) {
                System.err.println("The graceful shutdown did not end well: " + error);
            }
        }));
        scheduler.run();
        System.exit(0);
    }

    private Scheduler scheduler() {
        String stream = text("streamName", null);
        String application = text("applicationName", null);
        String workerId = text("workerId", null);
        Region region = Region.of(text("regionName", null));
        URI kinesisEndpoint = URI.create(text("kinesisEndpoint", null));
        URI dynamoEndpoint = URI.create(text("dynamoDBEndpoint", null));
        KinesisAsyncClient kinesis = KinesisClientUtil.createKinesisAsyncClient(
                KinesisAsyncClient.builder().region(region).endpointOverride(kinesisEndpoint));
        DynamoDbAsyncClient dynamo =
                DynamoDbAsyncClient.builder().region(region).endpointOverride(dynamoEndpoint).build();
        CloudWatchAsyncClient cloudWatch = CloudWatchAsyncClient.builder().region(region).build();
        String command = text("executableName", null);
        if (!text("AwsCredentialsProvider", null).equals("DefaultCredentialsProvider")) {
            throw new IllegalArgumentException("this worker of the tests has the DefaultCredentialsProvider only");
        }
        InitialPositionInStreamExtended position = InitialPositionInStreamExtended.newInitialPosition(
                InitialPositionInStream.valueOf(text("initialPositionInStream", "LATEST")));
        List<String> streams = List.of(text("streams", "").split(","));
        boolean isOne = streams.get(0).isEmpty();
        StreamTracker tracker = isOne
                ? new SingleStreamTracker(StreamIdentifier.singleStreamInstance(stream), position)
                : new Several(streams, position);
        ConfigsBuilder configs = new ConfigsBuilder(
                tracker, application, kinesis, dynamo, cloudWatch, workerId, () -> new Child(command));

        LeaseManagementConfig leases = leases(configs.leaseManagementConfig()).initialPositionInStream(position);
        CoordinatorConfig coordinator = coordinator(configs.coordinatorConfig());
        MetricsConfig metrics =
                configs.metricsConfig().metricsLevel(MetricsLevel.valueOf(text("metricsLevel", "DETAILED")));
        metrics.metricsBufferTimeMillis(number("metricsBufferTimeMillis", metrics.metricsBufferTimeMillis()));
        RetrievalSpecificConfig retrieval = isOne
                ? retrieval(stream, application, kinesis)
                : new PollingConfig(kinesis).idleTimeBetweenReadsInMillis(number("idleTimeBetweenReadsInMillis", 1000));
        text("retrievalMode", "POLLING");
        if (!unused.isEmpty()) {
            throw new IllegalArgumentException("this worker of the tests does not know the keys " + unused);
        }
        return new Scheduler(
                configs.checkpointConfig(),
                coordinator,
                leases,
                configs.lifecycleConfig(),
                metrics,
                configs.processorConfig(),
                configs.retrievalConfig().retrievalSpecificConfig(retrieval));
    }

    /** Streams by their serialised identifiers, {@code account:name:epoch}; the leases of others stay. */
    private record Several(List<String> streams, InitialPositionInStreamExtended position)
            implements MultiStreamTracker {
        @Override
        public List<StreamConfig> streamConfigList() {
            return streams.stream()
                    .map(text -> new StreamConfig(StreamIdentifier.multiStreamInstance(text), position))
                    .toList();
        }

        @Override
        public FormerStreamsLeasesDeletionStrategy formerStreamsLeasesDeletionStrategy() {
            return new FormerStreamsLeasesDeletionStrategy.NoLeaseDeletionStrategy();
        }
    }

    private LeaseManagementConfig leases(LeaseManagementConfig leases) {
        leases.failoverTimeMillis(number("failoverTimeMillis", leases.failoverTimeMillis()));
        leases.leaseAssignmentIntervalMillis(number("leaseAssignmentIntervalMillis", 2 * leases.failoverTimeMillis()));
        leases.gracefulLeaseHandoffConfig().gracefulLeaseHandoffTimeoutMillis(number(
                "gracefulLeaseHandoffTimeoutMillis",
                leases.gracefulLeaseHandoffConfig().gracefulLeaseHandoffTimeoutMillis()));
        var balance = leases.workerUtilizationAwareAssignmentConfig();
        balance.workerMetricsReporterFreqInMillis(
                number("workerMetricsReporterFreqInMillis", balance.workerMetricsReporterFreqInMillis()));
        balance.disableWorkerMetrics(Boolean.parseBoolean(text("disableWorkerMetrics", "false")));
        return leases;
    }

    private CoordinatorConfig coordinator(CoordinatorConfig coordinator) {
        return coordinator
                .parentShardPollIntervalMillis(
                        number("parentShardPollIntervalMillis", coordinator.parentShardPollIntervalMillis()))
                .clientVersionConfig(ClientVersionConfig.valueOf(
                        text("clientVersionConfig", coordinator.clientVersionConfig().name())))
                .migrateAllEntitiesToLeaseTable(
                        Boolean.parseBoolean(text("migrateAllEntitiesToLeaseTable", "false")))
                .tableMigrationCompleteBakeTimeSeconds(number(
                        "tableMigrationCompleteBakeTimeSeconds",
                        coordinator.tableMigrationCompleteBakeTimeSeconds()));
    }

    private RetrievalSpecificConfig retrieval(String stream, String application, KinesisAsyncClient kinesis) {
        long idleMillis = number("idleTimeBetweenReadsInMillis", 1000);
        return switch (text("retrievalMode", "FANOUT")) {
            case "FANOUT" -> new FanOutConfig(kinesis).streamName(stream).applicationName(application);
            case "POLLING" -> new PollingConfig(stream, kinesis).idleTimeBetweenReadsInMillis(idleMillis);
            default -> throw new IllegalArgumentException("retrievalMode is FANOUT or POLLING");
        };
    }

    private long number(String key, long otherwise) {
        return Long.parseLong(text(key, Long.toString(otherwise)));
    }

    /** The value of a key, or what stands for an absent one; null if the key must be there. */
    private String text(String key, String otherwise) {
        unused.remove(key);
        String value = keys.getProperty(key, otherwise);
        if (value == null) {
            throw new IllegalArgumentException("the key " + key + " is missing");
        }
        return value;
    }
}
