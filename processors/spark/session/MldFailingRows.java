import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.apache.spark.TaskKilledException;
import org.apache.spark.api.java.function.Function2;
import org.apache.spark.shuffle.FetchFailedException;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.api.java.UDF0;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataTypes;

/**
 * Computes all rows of a partition, and lists what fails instead of ending the job at the first failure.
 *
 * `at` is called with the number of each row before anything is computed from the row. So the row of an exception is
 * known, and the next row is computed. Where Python computes, rows are read ahead: nobody knows which row an exception
 * above Python belongs to, and Python's worker ends with an exception of its own, so nothing is read after it.
 */
public class MldFailingRows implements Function2, UDF0 {
  /** In the stack of an exception that came from Python or through Python, and not from a step above. */
  private static final String OF_RUNNER = "org.apache.spark.api.python.";
  /** The number of the row that this thread computes; null before the first row. */
  private static final ThreadLocal AT = new ThreadLocal();
  private boolean tellsRows;
  private int rowsMax;
  private int charsMax;

  /** Sets whether rows are known, how many a partition lists, and how much of both ends of a text is kept. */
  public void tell(boolean rows, int most, int chars) {
    tellsRows = rows;
    rowsMax = most;
    charsMax = chars;
  }

  /** Notes the number of the row that is computed next. Always true: a filter of the frame calls it. */
  public static boolean at(long row) {
    AT.set(Long.valueOf(row));
    return true;
  }

  /** Returns the number of the row that is computed. */
  public Object call() { return AT.get(); }

  /** Returns the same as a column. */
  public Column row() { return functions.udf((UDF0) this, DataTypes.LongType).apply(new Column[0]); }

  /** Returns a text for each failure: the number of the partition, that of the row or "?", and the exception. */
  public Object call(Object partition, Object rows) throws Exception {
    List failed = new ArrayList();
    Iterator every = (Iterator) rows;
    AT.remove();
    for (Object before = null; ; before = AT.get()) {
      try {
        while (every.hasNext()) every.next();
        return failed.iterator();
      } catch (Exception error) {
        if (error instanceof TaskKilledException) throw error;
        if (error instanceof FetchFailedException) throw error;
        // If the number has not changed since the failure before, the exception is not that of a new row.
        boolean known = tellsRows && failed.size() < rowsMax && AT.get() != null && !AT.get().equals(before);
        StringWriter written = new StringWriter();
        error.printStackTrace(new PrintWriter(written, true));
        String text = written.toString();
        // Without numbers of rows, only an exception that did not pass Python lets the next row be computed.
        boolean goesOn = known || (!tellsRows && failed.size() < rowsMax && !text.contains(OF_RUNNER));
        int end = text.length() - charsMax;
        if (end > charsMax) text = text.substring(0, charsMax) + "\n" + text.substring(end);
        failed.add(partition + " " + (known ? AT.get() : "?") + " " + text);
        if (!goesOn) return failed.iterator();
      }
    }
  }
}
