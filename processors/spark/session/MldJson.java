import com.fasterxml.jackson.core.*;
import com.fasterxml.jackson.core.io.JsonStringEncoder;
import java.nio.*;
import java.nio.charset.*;
import org.apache.spark.sql.catalyst.*;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.catalyst.json.*;
import org.apache.spark.sql.catalyst.util.*;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.types.*;
import org.apache.spark.unsafe.types.UTF8String;
import scala.collection.immutable.*;

/**
 * The reader of JSON: decodes the data of each record by Spark's own JacksonParser. The data are one JSON value, which
 * is one event, or lines with one event each. A stray field is one that the schema does not name.
 *
 * A record is malformed as a whole. So reading stops at its first malformed event, since each costs an exception.
 * Jackson ignores some bytes that are not UTF-8, and may take a text for UTF-16 or UTF-32 because of its first bytes.
 * So each text is checked before. If the schema wants a text, Spark copies an object or a number from the bytes of the
 * parser, and assumes that they begin where the parser began. So each line gets bytes of its own.
 *
 * Spark's reader asks the parser for the length of a text only before it converts the text (to a decimal, a time). At
 * that call this class checks such a text.
 *
 * Spark sends the object to each task, without its transient fields. It is also the function by which Spark's reader
 * makes a parser (`apply`).
 */
public class MldJson extends scala.runtime.AbstractFunction2 implements java.io.Serializable {
  /** How many cells, of some 12 bytes each, a record may make. An object or a list counts as CELLS_OF_VALUE plus the
   * number of fields in the schema, whatever it holds, because `{}` may become a thousand fields. Other tokens count
   * as one. */
  static final int CELLS_MAX = 8000000, CELLS_OF_VALUE = 10;
  static final String TOO_MANY =
      "too many objects, lists and values for the number of fields of mld.spark.schema";
  /** Bounds of a decimal. Java would compute all digits that an exponent stands for, and its time grows with the square
   * of the number of digits that are written. */
  static final int DIGITS_MAX = 1000;
  static final int EXPONENT_DIGITS_MAX = 4;
  static final String HUGE = "[-+]?[0-9.]+[eE][-+]?[0-9]{5,}";
  /** Text between the name of a field and the rest of a reason, and how much of the field's value a reason quotes. */
  static final String IS = " is ";
  static final int VALUE_CHARS_MAX = 80;
  static final String LATER = "a time beyond the year 9999: a number is read as seconds";
  /** In how many records of a task stray fields are looked for, and how many names of a record are reported. */
  static final int SAMPLE = 1000, NAMES_MAX = 8, NAME_CHARS_MAX = 60;
  /** Bound of all stray fields that are kept of a record, with their paths; and of a path in a reason, roughly. */
  static final int REST_CHARS_MAX = 16000000, PATH_CHARS_MAX = 100;
  /** 0001-01-01 and 9999-12-31, in days since 1970. */
  static final long FIRST_DAY = -719162, LAST_DAY = 2932896;
  static final long DAY_MICROS = 86400000000L;
  /** The most seconds whose microseconds fit into a long; Spark does not check this. */
  static final long SECONDS_MAX = 9223372036854L;

  /** The fields of the payload that the schema names, and the time zone for times without one. */
  private StructType fields;
  private String zone;
  /** Whether the data are lines of JSON, and whether the payload has a last field for the stray fields. */
  private boolean isOfLines;
  private boolean rescues;
  /** Indexes of the fields that are times, or that have times within. */
  private int[] times;
  private int cellsOfObject;
  private transient JacksonParser reader;
  private transient JsonFactory factory;
  /** The bytes of the event that is being read, and how many records this task has read. */
  private transient byte[] line;
  private transient int records;
  /** Names of stray fields of the record; null if none are looked for in this record. */
  private transient java.util.LinkedHashSet names;
  /** The stray fields of the event as members of a JSON object, each with a comma before it. */
  private transient StringBuilder rest;
  /** The largest magnitude of a whole number in the event. It may stand for a time. */
  private transient long largest;
  /** Whether the record is not malformed so far; if it is, `why` has the reason, empty if that is not known. */
  private transient boolean isWhole;
  private transient String why;
  /** How many cells the record has made so far, see CELLS_MAX. */
  private transient long cells;

  /** Returns a column that calls `decode` on the column `data`. `type` is the type of its values, in Spark's DDL. */
  public org.apache.spark.sql.Column column(
      String data, String type, String zone, boolean isOfLines, boolean rescues) {
    StructType found = (StructType) DataType.fromDDL(type).asNullable();
    StructType event = (StructType) ((ArrayType) found.apply(0).dataType()).elementType();
    StructField[] columns = ((StructType) event.apply(0).dataType()).fields();
    this.fields = new StructType((StructField[]) java.util.Arrays.copyOf(columns, columns.length - (rescues ? 1 : 0)));
    this.times = new int[0];
    for (int at = 0; at < fields.length(); at++) {
      if (!hasTimes(fields.apply(at).dataType())) continue;
      times = java.util.Arrays.copyOf(times, times.length + 1);
      times[times.length - 1] = at;
    }
    this.cellsOfObject = CELLS_OF_VALUE + fields.json().split("\"name\":", -1).length - 1;
    this.zone = zone;
    this.isOfLines = isOfLines;
    this.rescues = rescues;
    Seq none = (Seq) Nil$.MODULE$;
    Seq attribute = new $colon$colon(UnresolvedAttribute.quoted(data), Nil$.MODULE$);
    Literal decoder = new Literal(this, new ObjectType(MldJson.class));
    return ExpressionUtils.column(new Invoke(decoder, "decode", found, attribute, none, true, true, true));
  }

  /** Decodes a record. Returns its events, each with its number; the reason if it is malformed, else null; and the
   * names of its stray fields, null if there are none. */
  public InternalRow decode(byte[] data) throws Exception {
    java.util.ArrayList events = new java.util.ArrayList();
    isWhole = true;
    why = "";
    cells = 0;
    names = rescues || ++records <= SAMPLE ? new java.util.LinkedHashSet() : null;
    // Data that are no lines are read at once: the loop begins, and so ends, at their end.
    for (int at = isOfLines ? 0 : data.length, begin = 0; at <= data.length && isWhole; at++) {
      if (at < data.length && data[at] != '\n') continue;
      if (!isOfLines || !new String(data, begin, at - begin).isBlank()) {
        line = isOfLines ? java.util.Arrays.copyOfRange(data, begin, at) : data;
        rest = new StringBuilder();
        largest = 0;
        Object[] numbered = {event(), Integer.valueOf(events.size())};
        events.add(new GenericInternalRow(numbered));
      }
      begin = at + 1;
    }
    isWhole &= !events.isEmpty();
    if (!why.isEmpty()) events.clear();
    boolean isTold = isWhole && names != null && !names.isEmpty();
    Object strays = isTold ? UTF8String.fromString(String.join(", ", names)) : null;
    Object[] found = {new GenericArrayData(events.toArray()), isWhole ? null : UTF8String.fromString(why), strays};
    return new GenericInternalRow(found);
  }

  /** Decodes the bytes in `line`. Returns the payload; null, after noting the reason, if they are malformed. */
  private Object event() throws Exception {
    try {
      if (reader == null) {
        Map options = (Map) ((Map) Map$.MODULE$.empty()).updated("allowSingleQuotes", "false");
        reader = new JacksonParser(fields, new JSONOptions(options, zone, ""), false, (Seq) Nil$.MODULE$);
      }
      scala.collection.Iterator rows = reader.parse(line, this, null).iterator();
      if (rows.hasNext()) {
        InternalRow row = (InternalRow) rows.next();
        // Is one of the times perhaps wrong? `judge` finds out, and costs a second reading.
        boolean isOdd = times.length > 0 && largest > SECONDS_MAX;
        for (int at = 0; at < times.length && !isOdd; at++) {
          DataType type = fields.apply(times[at]).dataType();
          isOdd = hasLater(row.get(times[at], type), type);
        }
        if (isOdd) judge(row);
        return rescues ? withRest(row) : row;
      }
    } catch (Exception error) {
      if (!(error instanceof BadRecordException)) throw error;
      Object[] parts = (Object[]) ((BadRecordException) error).partialResults().apply();
      if (parts.length > 0) judge(parts[0]);
    }
    isWhole = false;
    return null;
  }

  /** Notes the first wrong field: one from which Spark has made null, or a time that no calendar has. */
  private void judge(Object row) {
    try {
      JsonParser json = factory.createParser(line);
      json.nextToken();
      String found = wrong(json, row, fields, "");
      isWhole &= found == null;
      if (found != null && why.isEmpty()) why = found;
    } catch (Exception error) {
      // The record is reported as malformed all the same.
    }
  }

  /** Returns the reason for the first wrong field within a value; null if there is none. The parser is at the value as
   * it was written, and `value` is what Spark has made of it. `path` names it in the record. */
  private String wrong(JsonParser json, Object value, DataType type, String path) throws java.io.IOException {
    JsonToken token = json.currentToken();
    boolean isNone = value == null && token != JsonToken.VALUE_NULL;
    boolean isLater = value != null && isTime(type)
        && (isLater(((Number) value).longValue(), type)
            || token == JsonToken.VALUE_NUMBER_INT && size(json.getLongValue()) > SECONDS_MAX);
    if (isNone || isLater) {
      String own = own(json).replaceAll("[\\r\\n\\t]", " ");
      own = own.substring(0, Math.min(own.length(), VALUE_CHARS_MAX));
      return path + IS + own + ", " + (isLater ? LATER : "which is no " + type.simpleString());
    }
    boolean isMap = type instanceof MapType;
    boolean isArray = type instanceof ArrayType && token == JsonToken.START_ARRAY;
    boolean isObject = (isMap || type instanceof StructType) && token == JsonToken.START_OBJECT;
    if (!isArray && !isObject) {
      json.skipChildren();
      return null;
    }
    Object values = isMap ? ((MapData) value).valueArray() : value;
    String found = null;
    for (int at = 0; found == null && json.nextToken() != null && !json.currentToken().isStructEnd(); at++) {
      String name = path;
      if (path.length() < PATH_CHARS_MAX) {
        String key = isArray ? "[" + at + "]" : (path.isEmpty() ? "" : ".") + json.currentName();
        name += key.substring(0, Math.min(key.length(), PATH_CHARS_MAX));
      }
      scala.Option field = isArray || isMap ? null : ((StructType) type).getFieldIndex(json.currentName());
      if (!isArray) json.nextToken();
      if (field != null && field.isEmpty()) {
        json.skipChildren();
        continue;
      }
      int place = field == null ? at : ((Integer) field.get()).intValue();
      DataType inner = isArray ? ((ArrayType) type).elementType() : isMap ? ((MapType) type).valueType()
          : ((StructType) type).apply(place).dataType();
      found = wrong(json, ((SpecializedGetters) values).get(place, inner), inner, name);
    }
    return found;
  }

  /** Returns the text of a value as it was written; afterwards the parser is at the end of the value. */
  private String own(JsonParser json) throws java.io.IOException {
    int begin = (int) json.currentTokenLocation().getByteOffset();
    json.skipChildren();
    json.finishToken();
    return new String(line, begin, (int) json.currentLocation().getByteOffset() - begin, StandardCharsets.UTF_8);
  }

  /** Returns a payload with one more field: the stray fields, as a JSON object. */
  private InternalRow withRest(InternalRow row) {
    Object[] values = java.util.Arrays.copyOf(((GenericInternalRow) row).values(), fields.length() + 1);
    values[fields.length()] = rest.length() == 0 ? null : UTF8String.fromString("{" + rest.substring(1) + "}");
    return new GenericInternalRow(values);
  }

  /** Returns whether a type is a time, or has times within. */
  private static boolean hasTimes(DataType type) {
    if (type instanceof ArrayType) return hasTimes(((ArrayType) type).elementType());
    if (type instanceof MapType) return hasTimes(((MapType) type).valueType());
    boolean found = isTime(type);
    int size = type instanceof StructType ? ((StructType) type).length() : 0;
    for (int at = 0; at < size; at++) found |= hasTimes(((StructType) type).apply(at).dataType());
    return found;
  }

  /** Returns whether a value is, or has within, a time that no calendar has. */
  private static boolean hasLater(Object value, DataType type) {
    if (value == null) return false;
    if (isTime(type)) return isLater(((Number) value).longValue(), type);
    if (type instanceof MapType) {
      DataType values = ((MapType) type).valueType();
      return hasLater(((MapData) value).valueArray(), new ArrayType(values, true));
    }
    DataType inner = type instanceof ArrayType ? ((ArrayType) type).elementType() : null;
    int size = inner != null ? ((ArrayData) value).numElements()
        : type instanceof StructType ? ((StructType) type).length() : 0;
    for (int at = 0; at < size; at++) {
      DataType one = inner != null ? inner : ((StructType) type).apply(at).dataType();
      if (hasLater(((SpecializedGetters) value).get(at, one), one)) return true;
    }
    return false;
  }

  /** Returns the magnitude of a number, of a negative one less 1, so that the result always fits. */
  private static long size(long value) {
    return value < 0 ? -(value + 1) : value;
  }

  private static boolean isTime(DataType type) {
    return type instanceof DateType || type instanceof TimestampType || type instanceof TimestampNTZType;
  }

  /** Returns whether a time is outside the years 1 to 9999. A date is in days, any other time in microseconds. */
  private static boolean isLater(long value, DataType type) {
    long day = type instanceof DateType ? value : Math.floorDiv(value, DAY_MICROS);
    return day < FIRST_DAY || day > LAST_DAY;
  }

  /** Makes the parser by which Spark's reader reads an event, after checking that the bytes are UTF-8. */
  public Object apply(Object factory, Object text) throws java.io.IOException {
    byte[] data = (byte[]) text;
    this.factory = (JsonFactory) factory;
    StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(data));  // raises if the bytes are not UTF-8
    // Jackson takes these first bytes for a byte order mark, or for UTF-16 or UTF-32.
    boolean isOther = data.length == 0 || data[0] <= 0 || (data.length > 1 && data[1] == 0);
    if (isOther) throw new MalformedInputException(data.length);
    return new ToTheEnd(((JsonFactory) factory).createParser(data));
  }

  /** A parser that notes stray fields, counts cells, checks numbers, and at the end checks that no text is left. */
  public class ToTheEnd extends com.fasterxml.jackson.core.util.JsonParserDelegate {
    /** Whether Spark has just skipped the name of a stray field, so that it skips its value next. */
    private boolean isStray;

    public ToTheEnd(JsonParser parser) { super(parser); }

    /** Closes the parser. Spark has read one value, so further text means that the record is malformed. */
    public void close() throws java.io.IOException {
      boolean wasWhole = isWhole;
      isWhole = false;  // this stays if the next line raises
      isWhole = wasWhole && delegate.nextToken() == null;
      delegate.close();
    }

    public JsonToken nextToken() throws java.io.IOException {
      JsonToken token = delegate.nextToken();
      cells += token != null && token.isStructStart() ? cellsOfObject : 1;
      if (cells > CELLS_MAX) refuse(TOO_MANY);
      return token;
    }

    public long getLongValue() throws java.io.IOException {
      long value = delegate.getLongValue();
      largest = Math.max(largest, size(value));
      return value;
    }

    public java.math.BigDecimal getDecimalValue() throws java.io.IOException {
      checkNumber();
      return delegate.getDecimalValue();
    }

    public int getTextLength() throws java.io.IOException {
      checkNumber();
      return delegate.getTextLength();
    }

    /** Spark calls this twice for a field that the schema does not name: at its name, and at its value. */
    public JsonParser skipChildren() throws java.io.IOException {
      boolean isName = currentToken() == JsonToken.FIELD_NAME;
      boolean isTold = isStray && !isName && names != null && (rescues || names.size() < NAMES_MAX);
      isStray = isName;
      if (!isTold) {
        delegate.skipChildren();
        return this;
      }
      String path = path();
      String name = path.replaceAll("\\[\\d+\\]", "");
      if (names.size() < NAMES_MAX) names.add(name.substring(0, Math.min(name.length(), NAME_CHARS_MAX)));
      if (rescues) {
        rest.append(",\"").append(JsonStringEncoder.getInstance().quoteAsString(path)).append("\":");
        rest.append(own(delegate));
        if (rest.length() > REST_CHARS_MAX) refuse(TOO_MANY);
      } else {
        delegate.skipChildren();
      }
      return this;
    }

    /** Returns where the parser is in the event, such as `items[2].price`. */
    private String path() {
      JsonStreamContext at = getParsingContext();
      if (currentToken().isStructStart()) at = at.getParent();
      String path = "";
      for (; at != null; at = at.getParent()) {
        if (at.inArray()) path = "[" + at.getCurrentIndex() + "]" + path;
        else if (at.hasCurrentName()) path = "." + at.getCurrentName() + path;
      }
      return path.startsWith(".") ? path.substring(1) : path;
    }

    /** Refuses a text that Spark wants to convert to a number or a time, if it would take too long. */
    private void checkNumber() throws java.io.IOException {
      int length = delegate.getTextLength();
      boolean isShort = length <= DIGITS_MAX;
      String text = isShort ? delegate.getText() : "";
      int tail = length - Math.max(text.lastIndexOf('e'), text.lastIndexOf('E')) - 1;
      if (isShort && (tail <= EXPONENT_DIGITS_MAX || !text.matches(HUGE))) return;
      if (!isShort) refuse(path() + IS + "a text of " + length + " characters, and no text is wanted there");
      refuse(path() + IS + text.substring(0, Math.min(length, 80)) + ", a number whose exponent is too large");
    }

    /** Notes the reason, unless there is one already, and stops Spark's reader by an exception. */
    private void refuse(String reason) {
      if (why.isEmpty()) why = reason;
      throw new IllegalStateException(why);
    }
  }
}
