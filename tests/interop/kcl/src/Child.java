import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import software.amazon.kinesis.lifecycle.events.InitializationInput;
import software.amazon.kinesis.lifecycle.events.LeaseLostInput;
import software.amazon.kinesis.lifecycle.events.ProcessRecordsInput;
import software.amazon.kinesis.lifecycle.events.ShardEndedInput;
import software.amazon.kinesis.lifecycle.events.ShutdownRequestedInput;
import software.amazon.kinesis.processor.RecordProcessorCheckpointer;
import software.amazon.kinesis.processor.ShardRecordProcessor;
import software.amazon.kinesis.retrieval.KinesisClientRecord;

/**
 * Hands everything to a child process in the multi-language protocol: one JSON object a line, each answered by a status.
 *
 * A child that fails ends the worker with status 1, as the MultiLangDaemon does.
 */
final class Child implements ShardRecordProcessor {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final String command;
    private Process process;
    private OutputStream toChild;
    private BufferedReader fromChild;

    Child(String command) {
        this.command = command;
    }

    @Override
    public void initialize(InitializationInput input) {
        guarded(() -> {
            process = new ProcessBuilder(command.split(" +"))
                    .redirectError(ProcessBuilder.Redirect.INHERIT)
                    .start();
            toChild = process.getOutputStream();
            fromChild = process.inputReader(StandardCharsets.UTF_8);
            ObjectNode message = message("initialize").put("shardId", input.shardId());
            message.put("sequenceNumber", input.extendedSequenceNumber().sequenceNumber());
            message.put("subSequenceNumber", input.extendedSequenceNumber().subSequenceNumber());
            converse(message, null);
        });
    }

    @Override
    public void processRecords(ProcessRecordsInput input) {
        guarded(() -> {
            ObjectNode message = message("processRecords");
            ArrayNode records = message.putArray("records");
            input.records().forEach(record -> records.add(record(record)));
            message.put("millisBehindLatest", input.millisBehindLatest());
            converse(message, input.checkpointer());
        });
    }

    @Override
    public void leaseLost(LeaseLostInput input) {
        guarded(() -> {
            converse(message("leaseLost"), null);
            end();
        });
    }

    @Override
    public void shardEnded(ShardEndedInput input) {
        guarded(() -> {
            converse(message("shardEnded"), input.checkpointer());
            end();
        });
    }

    @Override
    public void shutdownRequested(ShutdownRequestedInput input) {
        guarded(() -> converse(message("shutdownRequested"), input.checkpointer()));
    }

    private static ObjectNode message(String action) {
        return JSON.createObjectNode().put("action", action);
    }

    private static ObjectNode record(KinesisClientRecord record) {
        ByteBuffer data = record.data().duplicate();
        byte[] bytes = new byte[data.remaining()];
        data.get(bytes);
        return message("record")
                .put("data", bytes)
                .put("partitionKey", record.partitionKey())
                .put("sequenceNumber", record.sequenceNumber())
                .put("subSequenceNumber", record.subSequenceNumber())
                .put("approximateArrivalTimestamp", record.approximateArrivalTimestamp().toEpochMilli());
    }

    /** Say it, carry out the checkpoints the child asks for meanwhile, and await its status. */
    private void converse(ObjectNode message, RecordProcessorCheckpointer checkpointer) throws IOException {
        String action = message.get("action").textValue();
        say(message);
        while (true) {
            String line = fromChild.readLine();
            if (line == null) {
                throw new IOException("the child ended while " + action + " was not answered");
            }
            if (line.isBlank()) {
                continue;
            }
            JsonNode answer = JSON.readTree(line);
            switch (answer.path("action").asText()) {
                case "checkpoint" -> say(checkpointed(answer, checkpointer));
                case "status" -> {
                    if (!action.equals(answer.path("responseFor").textValue())) {
                        throw new IOException("the child answered " + answer + " to " + action);
                    }
                    return;
                }
                default -> throw new IOException("the child said " + line);
            }
        }
    }

    /** The reply to a request for a checkpoint: the request itself, with the name of the error if there was one. */
    private static ObjectNode checkpointed(JsonNode request, RecordProcessorCheckpointer checkpointer) {
        ObjectNode reply = request.deepCopy();
        reply.putNull("error");
        String sequence = request.path("sequenceNumber").textValue();
        JsonNode sub = request.path("subSequenceNumber");
        try {
            if (checkpointer == null) {
                reply.put("error", "InvalidStateException");
            } else if (sequence == null) {
                checkpointer.checkpoint();
            } else if (sub.isNumber()) {
                checkpointer.checkpoint(sequence, sub.longValue());
            } else {
                checkpointer.checkpoint(sequence);
            }
        } catch (Exception error) {
            reply.put("error", error.getClass().getSimpleName());
        }
        return reply;
    }

    private void say(ObjectNode message) throws IOException {
        toChild.write(JSON.writeValueAsBytes(message));
        toChild.write('\n');
        toChild.flush();
    }

    private void end() throws IOException, InterruptedException {
        toChild.close();
        process.waitFor();
    }

    private interface Step {
        void run() throws IOException, InterruptedException;
    }

    private static void guarded(Step step) {
        try {
            step.run();
        } catch (IOException | UncheckedIOException | InterruptedException error) {
            System.err.println("The child failed: " + error);
            // Not from this thread: exit waits for the graceful shutdown, and that for this thread.
            new Thread(() -> System.exit(1)).start();
            throw new IllegalStateException(error);
        }
    }
}
