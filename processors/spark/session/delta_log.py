"""A log store for Delta tables on S3 that several drivers may use: a version of the log is created by a conditional
write, which S3 carries out for one of them only, however late a request comes.

Delta's own log store for S3 looks whether a version exists, and then writes it. S3A of Hadoop 3.4.2 and later can send
the condition (`If-None-Match: *`), but only if it is asked for at each file; so this class asks. It is compiled in the
JVM by Janino, a part of Spark, and found by Delta by its name; if it were not found, Delta would refuse to write.

A conditional write that the client repeats, because nobody has answered, may find its own first attempt. Delta takes
that for another writer's commit, and the sink, which asks the table whose entry has its number, finds its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mld.processors.spark.spark_errors import SessionError, first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLASS = "MldDeltaLogStore"
HADOOP_MIN = (3, 4, 2)
"""The first one that knows the option."""
SCHEMES = ("s3", "s3a", "s3n")
KEY = "spark.delta.logStore.{}.impl"
CONDITION = "fs.option.create.conditional.overwrite"
NOT_MATCHED = "RemoteFileChangedException"
"""How S3A says that a condition did not hold."""
SOURCE = f"""
import java.io.IOException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.Path;

public class {CLASS} extends io.delta.storage.HadoopFileSystemLogStore {{
  public {CLASS}(Configuration configuration) {{ super(configuration); }}

  public void write(Path path, Iterator actions, Boolean overwrite, Configuration configuration) throws IOException {{
    FileSystem files = path.getFileSystem(configuration);
    try {{
      FSDataOutputStream out;
      if (overwrite.booleanValue()) {{
        out = files.create(path, true);
      }} else {{
        FSDataOutputStreamBuilder builder = files.createFile(path);
        builder.overwrite(true);
        builder.must("{CONDITION}", true);
        out = (FSDataOutputStream) builder.build();
      }}
      while (actions.hasNext()) {{
        out.write((((String) actions.next()) + "\\n").getBytes("UTF-8"));
      }}
      out.close();
    }} catch (org.apache.hadoop.fs.FileAlreadyExistsException error) {{
      throw new java.nio.file.FileAlreadyExistsException(path.toString());
    }} catch (IOException error) {{
      if (!overwrite.booleanValue() && error.getClass().getName().endsWith("{NOT_MATCHED}")) {{
        throw new java.nio.file.FileAlreadyExistsException(path.toString());
      }}
      throw error;
    }}
  }}

  public Boolean isPartialWriteVisible(Path path, Configuration configuration) {{ return Boolean.FALSE; }}
}}
"""
"""A stream that is not closed, because an action could not be read, writes nothing: S3A creates the object when it is
closed."""


def log_settings(hadoop: str | None, theirs: Mapping[str, str]) -> dict[str, str]:
    """Return settings of Spark by which Delta uses it, for schemes for which the user names none; none if Hadoop is
    older.
    """
    parts = [int(part) for part in (hadoop or "").split(".") if part.isdigit()]
    if tuple(parts) < HADOOP_MIN:
        return {}
    return {key: CLASS for key in map(KEY.format, SCHEMES) if key not in theirs}


def install(session: SparkSession, scratch: Path) -> None:
    """Let the JVM of the session find the class; `scratch` is a directory of this user alone. Raises SessionError."""
    java: Any = session._jvm
    try:
        loader = java.java.lang.Thread.currentThread().getContextClassLoader()
        compiler = java.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(loader)
        compiler.cook(SOURCE)
        directory = scratch / "classes"
        directory.mkdir(exist_ok=True)
        for name, code in compiler.getBytecodes().items():
            (directory / f"{name}.class").write_bytes(bytes(code))
        loader.addURL(java.java.net.URI(f"{directory.as_uri()}/").toURL())
        java.java.lang.Class.forName(CLASS, True, loader)
    except Exception as error:  # whatever a future Spark or Delta has changed
        raise SessionError(
            f"the log store for Delta tables on S3 cannot be made ({first_line(error)}); name another one that creates "
            f"a file only if it is not there, as mld.spark.conf.{KEY.format('s3a')}, or use format = iceberg"
        ) from error
