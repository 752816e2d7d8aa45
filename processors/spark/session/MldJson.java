import com.fasterxml.jackson.core.*;
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
 * The reader of JSON: decodes the data of each record by Spark's own JacksonParser.
 *
 * A record is malformed as a whole, so nothing is read after its first event that is: each costs an exception. Jackson
 * passes over some bytes that are not UTF-8, so that is asked before; and it would take a text for UTF-16 or
 * UTF-32 by its first bytes. Spark copies an object or a number, where a text is wanted, from the bytes of the parser,
 * which it takes to begin where the parser did: so each line has bytes of its own.
 *
 * Spark's reader asks for the length of a text only if it is to become something else (a decimal, a time), so that is
 * where such a text is looked at.
 */
public class MldJson extends scala.runtime.AbstractFunction2 implements java.io.Serializable {
  /** A record of JSON may make so many cells, each of some 12 bytes: an object or a list as many as it has fields and
   * some, whatever is in it; any other token one. An object of two letters may have a thousand fields. */
  static final int CELLS_MAX = 8000000;
  static final String TOO_MANY =
      "too many objects, lists and values for the number of fields of mld.spark.schema";
  /** Of a decimal: Java would work out all digits that an exponent stands for, and takes the square of their number for
   * those that are written. */
  static final int DIGITS_MAX = 1000;
  static final int EXPONENT_DIGITS_MAX = 4;
  static final String HUGE = "[-+]?[0-9.]+[eE][-+]?[0-9]{5,}";
  /** What stands between the name of a field and the rest of a reason. */
  static final String IS = " is ";

  private DataType fields;
  private String zone;
  private boolean isOfLines;
  private int cellsOfObject;
  private transient JacksonParser reader;
  private transient boolean isWhole;
  private transient String why;
  private transient long cells;

  public org.apache.spark.sql.Column column(String data, String type, int cells, String zone, boolean isOfLines) {
    StructType found = (StructType) DataType.fromDDL(type).asNullable();
    StructType event = (StructType) ((ArrayType) found.apply(0).dataType()).elementType();
    this.fields = event.apply(0).dataType();
    this.cellsOfObject = cells;
    this.zone = zone;
    this.isOfLines = isOfLines;
    Seq none = (Seq) Nil$.MODULE$;
    Seq attribute = new $colon$colon(UnresolvedAttribute.quoted(data), Nil$.MODULE$);
    Literal decoder = new Literal(this, new ObjectType(MldJson.class));
    return ExpressionUtils.column(new Invoke(decoder, "decode", found, attribute, none, true, true, true));
  }

  public InternalRow decode(byte[] data) throws Exception {
    java.util.ArrayList events = new java.util.ArrayList();
    isWhole = true;
    why = "";
    cells = 0;
    for (int at = isOfLines ? 0 : data.length, begin = 0; at <= data.length && isWhole; at++) {
      if (at < data.length && data[at] != '\n') continue;
      if (!isOfLines || !new String(data, begin, at - begin).isBlank()) {
        byte[] line = isOfLines ? java.util.Arrays.copyOfRange(data, begin, at) : data;
        events.add(row(event(line), Integer.valueOf(events.size())));
      }
      begin = at + 1;
    }
    isWhole &= !events.isEmpty();
    if (!why.isEmpty()) events.clear();
    return row(new GenericArrayData(events.toArray()), isWhole ? null : UTF8String.fromString(why));
  }

  private Object event(byte[] text) throws Exception {
    try {
      if (reader == null) {
        Map options = (Map) ((Map) Map$.MODULE$.empty()).updated("allowSingleQuotes", "false");
        reader = new JacksonParser(fields, new JSONOptions(options, zone, ""), false, (Seq) Nil$.MODULE$);
      }
      scala.collection.Iterator rows = reader.parse(text, this, null).iterator();
      if (rows.hasNext()) return rows.next();
    } catch (Exception error) {
      if (!(error instanceof BadRecordException)) throw error;
      Object[] parts = (Object[]) ((BadRecordException) error).partialResults().apply();
      isWhole = false;
      if (parts.length > 0) return parts[0];
    }
    isWhole = false;
    return null;
  }

  public Object apply(Object factory, Object text) throws java.io.IOException {
    byte[] data = (byte[]) text;
    StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(data));
    boolean isOther = data.length == 0 || data[0] <= 0 || (data.length > 1 && data[1] == 0);
    if (isOther) throw new MalformedInputException(data.length);
    return new ToTheEnd(((JsonFactory) factory).createParser(data));
  }

  private static InternalRow row(Object one, Object other) {
    return new GenericInternalRow(new Object[] {one, other});
  }

  public class ToTheEnd extends com.fasterxml.jackson.core.util.JsonParserDelegate {
    public ToTheEnd(JsonParser parser) { super(parser); }

    public void close() throws java.io.IOException {
      boolean wasWhole = isWhole;
      isWhole = false;
      isWhole = wasWhole && delegate.nextToken() == null;
      delegate.close();
    }

    public JsonToken nextToken() throws java.io.IOException {
      JsonToken token = delegate.nextToken();
      cells += token != null && token.isStructStart() ? cellsOfObject : 1;
      if (cells > CELLS_MAX) refuse(TOO_MANY);
      return token;
    }

    public java.math.BigDecimal getDecimalValue() throws java.io.IOException {
      checkNumber();
      return delegate.getDecimalValue();
    }

    public int getTextLength() throws java.io.IOException {
      checkNumber();
      return delegate.getTextLength();
    }

    private void checkNumber() throws java.io.IOException {
      int length = delegate.getTextLength();
      boolean isShort = length <= DIGITS_MAX;
      String text = isShort ? delegate.getText() : "";
      int tail = length - Math.max(text.lastIndexOf('e'), text.lastIndexOf('E')) - 1;
      if (isShort && (tail <= EXPONENT_DIGITS_MAX || !text.matches(HUGE))) return;
      String path = "";
      for (JsonStreamContext at = getParsingContext(); at != null; at = at.getParent()) {
        if (at.hasCurrentName()) path = at.getCurrentName() + (path.isEmpty() ? "" : ".") + path;
      }
      if (!isShort) refuse(path + IS + "a text of " + length + " characters, and no text is wanted there");
      refuse(path + IS + text.substring(0, Math.min(length, 80)) + ", a number whose exponent is too large");
    }

    private void refuse(String reason) {
      if (why.isEmpty()) why = reason;
      throw new IllegalStateException(why);
    }
  }
}
