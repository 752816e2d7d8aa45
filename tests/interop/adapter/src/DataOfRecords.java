import com.amazonaws.auth.AWSStaticCredentialsProvider;
import com.amazonaws.auth.BasicAWSCredentials;
import com.amazonaws.client.builder.AwsClientBuilder.EndpointConfiguration;
import com.amazonaws.services.dynamodbv2.AmazonDynamoDBStreams;
import com.amazonaws.services.dynamodbv2.AmazonDynamoDBStreamsClientBuilder;
import com.amazonaws.services.dynamodbv2.model.GetRecordsRequest;
import com.amazonaws.services.dynamodbv2.model.Record;
import com.amazonaws.services.dynamodbv2.streamsadapter.model.RecordAdapter;
import java.nio.ByteBuffer;
import java.util.Base64;

/** Asks an endpoint for records with Amazon's client, and prints what Amazon's adapter makes of each. */
public final class DataOfRecords {
    public static void main(String[] arguments) {
        AmazonDynamoDBStreams client = AmazonDynamoDBStreamsClientBuilder.standard()
                .withEndpointConfiguration(new EndpointConfiguration(arguments[0], "us-east-1"))
                .withCredentials(new AWSStaticCredentialsProvider(new BasicAWSCredentials("a", "b")))
                .build();
        for (Record record : client.getRecords(new GetRecordsRequest().withShardIterator("all")).getRecords()) {
            RecordAdapter adapted = new RecordAdapter(record);
            ByteBuffer data = adapted.getData();
            byte[] bytes = new byte[data.remaining()];
            data.get(bytes);
            System.out.println(adapted.getSequenceNumber() + " " + adapted.getApproximateArrivalTimestamp().getTime() + " "
                    + Base64.getEncoder().encodeToString(bytes));
        }
    }
}
