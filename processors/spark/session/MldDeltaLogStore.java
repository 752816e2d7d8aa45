import java.io.IOException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.Path;

/**
 * A log store for Delta tables on S3 that several drivers write: a version of the log is created by a conditional write,
 * which S3 carries out for only one of them, however late a request comes.
 *
 * Delta's own log store for S3 checks whether a version exists, and then writes it. S3A can send the condition
 * (If-None-Match: *), but only for files for which that is requested; this class requests it. Delta finds the class by
 * its name, and refuses to write without it.
 *
 * If nobody answers, the client repeats a conditional write, and may then find its own first attempt. Delta takes that
 * for another writer's commit. The sink asks the table whose entry has the number, and finds its own.
 *
 * A stream that is not closed, because an action could not be read, writes nothing: S3A creates the object when it is
 * closed.
 */
public class MldDeltaLogStore extends io.delta.storage.HadoopFileSystemLogStore {
  private static final String CONDITION = "fs.option.create.conditional.overwrite";
  /** How S3A reports that a condition did not hold. */
  private static final String NOT_MATCHED = "RemoteFileChangedException";

  public MldDeltaLogStore(Configuration configuration) { super(configuration); }

  /** Writes a version of the log. Raises FileAlreadyExistsException if another driver has written it, unless
   * `overwrite` is true. */
  public void write(Path path, Iterator actions, Boolean overwrite, Configuration configuration) throws IOException {
    FileSystem files = path.getFileSystem(configuration);
    try {
      FSDataOutputStream out;
      if (overwrite.booleanValue()) {
        out = files.create(path, true);
      } else {
        FSDataOutputStreamBuilder builder = files.createFile(path);
        builder.overwrite(true);  // the condition decides, not a check by S3A itself
        builder.must(CONDITION, true);
        out = (FSDataOutputStream) builder.build();
      }
      while (actions.hasNext()) {
        out.write((((String) actions.next()) + "\n").getBytes("UTF-8"));
      }
      out.close();
    } catch (org.apache.hadoop.fs.FileAlreadyExistsException error) {
      throw new java.nio.file.FileAlreadyExistsException(path.toString());
    } catch (IOException error) {
      if (!overwrite.booleanValue() && error.getClass().getName().endsWith(NOT_MATCHED)) {
        throw new java.nio.file.FileAlreadyExistsException(path.toString());
      }
      throw error;
    }
  }

  public Boolean isPartialWriteVisible(Path path, Configuration configuration) { return Boolean.FALSE; }
}
