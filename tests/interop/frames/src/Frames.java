import com.amazonaws.services.schemaregistry.common.configs.GlueSchemaRegistryConfiguration;
import com.amazonaws.services.schemaregistry.deserializers.GlueSchemaRegistryDeserializerDataParser;
import com.amazonaws.services.schemaregistry.serializers.GlueSchemaRegistrySerializationFacade;
import com.amazonaws.services.schemaregistry.serializers.json.JsonDataWithSchema;
import com.amazonaws.services.schemaregistry.utils.AWSSchemaRegistryConstants;
import com.google.protobuf.DescriptorProtos.DescriptorProto;
import com.google.protobuf.DescriptorProtos.FieldDescriptorProto;
import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.services.glue.model.DataFormat;

/** Frames as Amazon's serializers write them, and what its parser says of data that may be framed; a line of each. */
public final class Frames {
    static final GlueSchemaRegistryDeserializerDataParser PARSER =
            GlueSchemaRegistryDeserializerDataParser.getInstance();
    static final UUID ID = UUID.fromString("00112233-4455-6677-8899-aabbccddeeff");
    static final String AVRO = "{\"type\":\"record\",\"name\":\"Order\",\"namespace\":\"shop\",\"fields\":["
            + "{\"name\":\"id\",\"type\":\"long\"},{\"name\":\"note\",\"type\":[\"null\",\"string\"],\"default\":null},"
            + "{\"name\":\"raw\",\"type\":\"bytes\"},"
            + "{\"name\":\"price\",\"type\":{\"type\":\"bytes\",\"logicalType\":\"decimal\",\"precision\":9,\"scale\":2}},"
            + "{\"name\":\"at\",\"type\":{\"type\":\"long\",\"logicalType\":\"timestamp-millis\"}},"
            + "{\"name\":\"kind\",\"type\":{\"type\":\"enum\",\"name\":\"Kind\",\"symbols\":[\"NEW\",\"OLD\"]}},"
            + "{\"name\":\"tags\",\"type\":{\"type\":\"array\",\"items\":\"string\"}},"
            + "{\"name\":\"sizes\",\"type\":{\"type\":\"map\",\"values\":\"int\"}},"
            + "{\"name\":\"place\",\"type\":{\"type\":\"record\",\"name\":\"Place\",\"fields\":[{\"name\":\"x\",\"type\":\"double\"}]}}"
            + "]}";
    static final String JSON = "{\"$schema\":\"http://json-schema.org/draft-07/schema#\",\"type\":\"object\","
            + "\"properties\":{\"id\":{\"type\":\"integer\"}},\"required\":[\"id\"]}";

    public static void main(String[] arguments) throws Exception {
        for (String compression : new String[] {"NONE", "ZLIB"}) {
            GlueSchemaRegistrySerializationFacade facade = facade(compression);
            Schema schema = new Schema.Parser().parse(AVRO);
            say("AVRO", compression, AVRO, facade.serialize(DataFormat.AVRO, order(schema, 7, "ü"), ID));
            say("AVRO", compression, AVRO, facade.serialize(DataFormat.AVRO, order(schema, -1, null), ID));
            say("JSON", compression, JSON, facade.serialize(DataFormat.JSON,
                    JsonDataWithSchema.builder(JSON, "{\"id\":7,\"x\":\"ü\"}").build(), ID));
            FileDescriptor file = file();
            for (String name : new String[] {"Order", "Zone"}) {
                DynamicMessage message = message(file.findMessageTypeByName(name));
                say("PROTOBUF", compression, facade.getSchemaDefinition(DataFormat.PROTOBUF, message),
                        facade.serialize(DataFormat.PROTOBUF, message, ID));
            }
        }
        for (byte[] data : hostile()) {
            String verdict;
            String payload = "-";
            try {
                StringBuilder why = new StringBuilder();
                verdict = PARSER.isDataCompatible(ByteBuffer.wrap(data), why) ? "frame" : "none";
            } catch (RuntimeException error) {
                verdict = "none";
            }
            if (verdict.equals("frame")) {
                payload = payloadOf(data);
            }
            System.out.println("PARSED " + verdict + " " + payload + " " + Base64.getEncoder().encodeToString(data));
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    /** What the parser makes of a payload: "read", "refused" or "endless", if it is not done after five seconds. */
    static String payloadOf(byte[] data) throws InterruptedException {
        String[] found = {"endless"};
        Thread thread = new Thread(() -> {
            try {
                PARSER.getPlainData(ByteBuffer.wrap(data));
                found[0] = "read";
            } catch (Throwable error) {
                found[0] = "refused"; // also by exceptions that the parser does not declare
            }
        });
        thread.setDaemon(true);
        thread.start();
        thread.join(5000);
        return found[0];
    }

    static DynamicMessage message(Descriptor type) {
        DynamicMessage.Builder message = DynamicMessage.newBuilder(type)
                .setField(type.findFieldByName("id"), 7L).setField(type.findFieldByName("who"), "ü");
        if (type.findFieldByName("place") != null) {
            Descriptor place = type.findNestedTypeByName("Place");
            message.setField(type.findFieldByName("place"),
                    DynamicMessage.newBuilder(place).setField(place.findFieldByName("x"), 1.5).build());
        }
        return message.build();
    }

    static GlueSchemaRegistrySerializationFacade facade(String compression) {
        Map<String, Object> options = new HashMap<>();
        options.put(AWSSchemaRegistryConstants.AWS_REGION, "eu-west-1");
        options.put(AWSSchemaRegistryConstants.COMPRESSION_TYPE, compression);
        return GlueSchemaRegistrySerializationFacade.builder()
                .credentialProvider(StaticCredentialsProvider.create(AwsBasicCredentials.create("a", "b")))
                .glueSchemaRegistryConfiguration(new GlueSchemaRegistryConfiguration(options)).build();
    }

    static GenericRecord order(Schema schema, long id, String note) {
        GenericRecord order = new GenericData.Record(schema);
        order.put("id", id);
        order.put("note", note);
        order.put("raw", ByteBuffer.wrap(new byte[] {0, (byte) 0xff}));
        order.put("price", ByteBuffer.wrap(new byte[] {0x04, (byte) 0xe2}));
        order.put("at", 1795420599667L);
        order.put("kind", new GenericData.EnumSymbol(schema.getField("kind").schema(), "OLD"));
        order.put("tags", Arrays.asList("a", "b"));
        order.put("sizes", Map.of("s", 1));
        GenericRecord place = new GenericData.Record(schema.getField("place").schema());
        place.put("x", 1.5);
        order.put("place", place);
        return order;
    }

    static FileDescriptor file() throws Exception {
        FileDescriptorProto.Builder file =
                FileDescriptorProto.newBuilder().setName("shop.proto").setPackage("shop").setSyntax("proto3");
        for (String name : new String[] {"Zone", "Order"}) {
            DescriptorProto.Builder type = DescriptorProto.newBuilder().setName(name)
                    .addField(FieldDescriptorProto.newBuilder().setName("id").setNumber(1)
                            .setType(FieldDescriptorProto.Type.TYPE_INT64))
                    .addField(FieldDescriptorProto.newBuilder().setName("who").setNumber(2)
                            .setType(FieldDescriptorProto.Type.TYPE_STRING));
            if (name.equals("Order")) {
                type.addNestedType(DescriptorProto.newBuilder().setName("Place")
                        .addField(FieldDescriptorProto.newBuilder().setName("x").setNumber(1)
                                .setType(FieldDescriptorProto.Type.TYPE_DOUBLE)));
                type.addField(FieldDescriptorProto.newBuilder().setName("place").setNumber(3)
                        .setType(FieldDescriptorProto.Type.TYPE_MESSAGE).setTypeName(".shop.Order.Place"));
            }
            file.addMessageType(type);
        }
        return FileDescriptor.buildFrom(file.build(), new FileDescriptor[0]);
    }

    static List<byte[]> hostile() throws Exception {
        List<byte[]> found = new ArrayList<>();
        byte[] frame = new byte[25];
        frame[0] = 3;
        for (int length : new int[] {0, 1, 2, 17, 18, 19, 25}) {
            found.add(Arrays.copyOf(frame, length));
        }
        for (int second : new int[] {1, 4, 5, 6, 255}) {
            byte[] other = frame.clone();
            other[1] = (byte) second;
            found.add(other);
        }
        for (int first : new int[] {0, 2, 4, 131}) {
            byte[] other = frame.clone();
            other[0] = (byte) first;
            found.add(other);
        }
        byte[] whole = facade("ZLIB").serialize(DataFormat.JSON,
                JsonDataWithSchema.builder(JSON, "{\"id\":7}").build(), ID);
        byte[] damaged = whole.clone();
        damaged[18] = 0;
        found.add(whole);
        found.add(damaged);
        for (int length : new int[] {18, 19, 20, whole.length - 5, whole.length - 1}) {
            found.add(Arrays.copyOf(whole, length));
        }
        return found;
    }

    static void say(String format, String compression, String definition, byte[] data) {
        System.out.println(format + " " + compression + " "
                + Base64.getEncoder().encodeToString(definition.getBytes(StandardCharsets.UTF_8)) + " "
                + Base64.getEncoder().encodeToString(data));
    }
}
