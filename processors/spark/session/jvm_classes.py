"""Classes that the JVM of a session is given, compiled there by Janino, a part of Spark.

The log store is for Delta tables on S3 that several drivers use: a version of the log is created by a conditional
write, which S3 carries out for one of them only, however late a request comes.

Delta's own log store for S3 looks whether a version exists, and then writes it. S3A can send the condition
(`If-None-Match: *`), but only if it is asked for at each file; so this class asks. Delta finds it by its name; if it
did not, it would refuse to write.

A conditional write that the client repeats, because nobody has answered, may find its own first attempt. Delta takes
that for another writer's commit, and the sink, which asks the table whose entry has its number, finds its own.

The file system is for a session of one machine. Without its native library, which PySpark has not got, Hadoop runs
`chmod` for every file and directory that it makes, which is most of what a small file costs, and so of what a batch of
many partitions costs. Here the JVM sets the same permissions by a call. The class takes the place of Hadoop's in the
cache of file systems, in which every `FileSystem.get` of this JVM looks first.

The reader of JSON is an expression in Spark's plan, which has the class decode each record's data: `JacksonParser` is
what Spark's own reader of files uses. `from_json` does not look at what follows the value, and costs twice as much.
"""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mld.processors.spark.sink_port import SessionError, first_line

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession


log = logging.getLogger("mld.spark")

CLASS = "MldDeltaLogStore"
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
FILES_CLASS, FILES_KEY, LOCAL = "MldLocalFileSystem", "fs.file.impl", "file:///"
FILES_SOURCE = f"""
public class {FILES_CLASS} extends org.apache.hadoop.fs.LocalFileSystem {{
  public {FILES_CLASS}() {{ super(new Raw()); }}

  public static class Raw extends org.apache.hadoop.fs.RawLocalFileSystem {{
    public void setPermission(
        org.apache.hadoop.fs.Path path, org.apache.hadoop.fs.permission.FsPermission permission)
        throws java.io.IOException {{
      java.nio.file.Path file = pathToFile(path).toPath();
      int mode = permission.toShort();
      if (java.nio.file.Files.isDirectory(file, new java.nio.file.LinkOption[0])) {{
        Object before = java.nio.file.Files.getAttribute(file, "unix:mode", new java.nio.file.LinkOption[0]);
        mode |= ((Integer) before).intValue() & 06000;
      }}
      java.nio.file.Files.setAttribute(file, "unix:mode", Integer.valueOf(mode), new java.nio.file.LinkOption[0]);
    }}
  }}
}}
"""
"""As `chmod` does, it leaves a directory the bits by which files in it get its group (setgid)."""
JSON_CLASS = "MldJson"
IS = " is "
"""What stands between the name of a field and the rest of a reason."""
JSON_SOURCE = Path(__file__).with_name(f"{JSON_CLASS}.java")


def log_settings(theirs: Mapping[str, str]) -> dict[str, str]:
    """Return settings of Spark by which Delta uses it, for schemes for which the user names none."""
    return {key: CLASS for key in map(KEY.format, SCHEMES) if key not in theirs}


def install(session: SparkSession) -> None:
    """Let the JVM of the session find the log store. Raises SessionError."""
    remedy = f"; name another log store that creates a file only once, as mld.spark.conf.{KEY.format('s3a')}"
    everywhere(session, CLASS, SOURCE, f"{remedy}, or use format = iceberg")


def everywhere(session: SparkSession, name: str, source: str, remedy: str = "") -> Any:
    """Return a class that this JVM and its executors know from now on. Raises SessionError."""
    java: Any = session._jvm
    try:
        loader = java.java.lang.Thread.currentThread().getContextClassLoader()
        with suppress(Exception):
            return java.java.lang.Class.forName(name, True, loader)
        compiler = java.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(loader)
        compiler.cook(source)
        jar = Path(java.org.apache.spark.SparkFiles.getRootDirectory()) / "mld" / f"{name}.jar"
        jar.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(jar, "w") as opened:
            for part, code in compiler.getBytecodes().items():
                opened.writestr(f"{part}.class", bytes(code))
        if not session.sparkContext._jsc.sc().isLocal():  # there tasks share the driver's loader
            session.sparkContext._jsc.addJar(str(jar))
        loader.addURL(java.java.net.URI(jar.as_uri()).toURL())
        return java.java.lang.Class.forName(name, True, loader)
    except Exception as error:  # whatever a future Spark has changed
        raise SessionError(f"the class {name} cannot be made in this Spark ({first_line(error)}){remedy}") from error


def json_column(session: SparkSession, data: str, type: str, *, of_lines: bool, rescues: bool) -> Column:
    """Return an expression over a column of JSON, or of lines of it. `type`, in Spark's DDL: a struct of an array of
    events, of why they are malformed (null if none is, empty if nobody knows), and of the names of stray fields; an
    event is a struct of the payload and of its number. `rescues`: the payload's last field is a text for stray fields.
    Raises whatever there is where this Spark has not got what the class calls.
    """
    from pyspark.sql.classic.column import Column

    decoder = everywhere(session, JSON_CLASS, JSON_SOURCE.read_text()).newInstance()
    zone = session.conf.get("spark.sql.session.timeZone")
    column = Column(decoder.column(data, type, zone, of_lines, rescues))
    decoder.decode(b"{}")  # a method that is missing is missed when it is called
    return column


def install_files(session: SparkSession) -> bool:
    """Let the JVM of the session set permissions by itself. Returns false, after a line in the log, if it cannot: then
    Hadoop goes its own way, slower.
    """
    java: Any = session._jvm
    try:
        everywhere(session, FILES_CLASS, FILES_SOURCE)
        configuration = java.org.apache.hadoop.conf.Configuration(session.sparkContext._jsc.hadoopConfiguration())
        configuration.set(FILES_KEY, FILES_CLASS)
        files, uri = java.org.apache.hadoop.fs.FileSystem, java.java.net.URI(LOCAL)
        # Spark has one already; closing takes it out of the cache, and hurts nobody who still holds it.
        files.get(uri, configuration).close()
        files.get(uri, configuration)
    except Exception as error:  # whatever a future Spark or Hadoop has changed
        log.info("permissions of files are set by chmod: %s", first_line(error))
        return False
    return True
