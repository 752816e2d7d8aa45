import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import software.amazon.awssdk.core.SdkBytes;
import software.amazon.awssdk.services.kinesis.KinesisAsyncClient;
import software.amazon.awssdk.services.kinesis.KinesisClient;
import software.amazon.awssdk.services.kinesis.model.ConsumerStatus;
import software.amazon.awssdk.services.kinesis.model.PutRecordsRequestEntry;
import software.amazon.awssdk.services.kinesis.model.Record;
import software.amazon.awssdk.services.kinesis.model.ResourceNotFoundException;
import software.amazon.awssdk.services.kinesis.model.ShardIteratorType;
import software.amazon.awssdk.services.kinesis.model.SubscribeToShardEvent;
import software.amazon.awssdk.services.kinesis.model.SubscribeToShardResponseHandler;

/**
 * What a newcomer writes with the SDK for Java: puts records, reads them back, prints them. No settings but the
 * environment's. With "async" the asynchronous client, whose reader subscribes to the shards.
 */
public class Producer {
  static final int RECORDS = 20;
  static final long PATIENCE_S = 100;

  public static void main(String[] arguments) throws Exception {
    if (arguments.length > 0 && arguments[0].equals("async")) {
      asynchronously("of-java-async");
    } else {
      synchronously("of-java");
    }
  }

  static void synchronously(String stream) {
    try (KinesisClient kinesis = KinesisClient.create()) {
      try {
        kinesis.describeStreamSummary(request -> request.streamName(stream));
        throw new IllegalStateException("the stream is there already");
      } catch (ResourceNotFoundException expected) {
        kinesis.createStream(request -> request.streamName(stream).shardCount(2));
      }
      kinesis.waiter().waitUntilStreamExists(request -> request.streamName(stream));
      var put = kinesis.putRecords(request -> request.streamName(stream).records(entries()));
      if (put.failedRecordCount() != 0) throw new IllegalStateException(put.toString());
      for (var shard : kinesis.listShards(request -> request.streamName(stream)).shards()) {
        var iterator = kinesis.getShardIterator(request -> request.streamName(stream).shardId(shard.shardId())
            .shardIteratorType(ShardIteratorType.AT_TIMESTAMP).timestamp(Instant.now().minusSeconds(600)));
        kinesis.getRecords(request -> request.shardIterator(iterator.shardIterator())).records().forEach(Producer::print);
      }
    }
  }

  static void asynchronously(String stream) throws Exception {
    try (KinesisAsyncClient kinesis = KinesisAsyncClient.create()) {
      kinesis.createStream(request -> request.streamName(stream).shardCount(1)).get(PATIENCE_S, TimeUnit.SECONDS);
      kinesis.waiter().waitUntilStreamExists(request -> request.streamName(stream)).get(PATIENCE_S, TimeUnit.SECONDS);
      var about = kinesis.describeStreamSummary(request -> request.streamName(stream)).get(PATIENCE_S, TimeUnit.SECONDS);
      var arn = about.streamDescriptionSummary().streamARN();
      var consumer = kinesis.registerStreamConsumer(request -> request.streamARN(arn).consumerName("reader"))
          .get(PATIENCE_S, TimeUnit.SECONDS).consumer().consumerARN();
      while (kinesis.describeStreamConsumer(request -> request.consumerARN(consumer)).get(PATIENCE_S, TimeUnit.SECONDS)
          .consumerDescription().consumerStatus() != ConsumerStatus.ACTIVE) {
        Thread.sleep(100);
      }
      kinesis.putRecords(request -> request.streamName(stream).records(entries())).get(PATIENCE_S, TimeUnit.SECONDS);
      var all = new CountDownLatch(RECORDS);
      var handler = SubscribeToShardResponseHandler.builder().subscriber(event ->
          ((SubscribeToShardEvent) event).records().forEach(record -> {
            print(record);
            all.countDown();
          })).build();
      var subscription = kinesis.subscribeToShard(request -> request.consumerARN(consumer)
          .shardId("shardId-000000000000").startingPosition(at -> at.type(ShardIteratorType.TRIM_HORIZON)), handler);
      if (!all.await(PATIENCE_S, TimeUnit.SECONDS)) throw new IllegalStateException("too few records");
      subscription.cancel(true);
    }
  }

  static List<PutRecordsRequestEntry> entries() {
    return IntStream.range(0, RECORDS).mapToObj(n -> PutRecordsRequestEntry.builder()
        .partitionKey("k" + n).data(SdkBytes.fromUtf8String("é " + n)).build()).toList();
  }

  static void print(Record record) {
    var isNew = Duration.between(record.approximateArrivalTimestamp(), Instant.now()).abs().toDays() == 0;
    System.out.println(record.partitionKey() + " " + record.data().asUtf8String() + (isNew ? " new" : " old"));
  }
}
