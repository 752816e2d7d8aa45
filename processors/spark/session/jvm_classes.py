"""Classes that the JVM of a session is given, compiled there by Janino, a part of Spark.

The log store is for Delta tables on S3 that several drivers use: a version of the log is created by a conditional
write, which S3 carries out for one of them only, however late a request comes.

Delta's own log store for S3 looks whether a version exists, and then writes it. S3A of Hadoop 3.4.2 and later can send
the condition (`If-None-Match: *`), but only if it is asked for at each file; so this class asks. It is found by Delta
by its name; if it were not found, Delta would refuse to write.

A conditional write that the client repeats, because nobody has answered, may find its own first attempt. Delta takes
that for another writer's commit, and the sink, which asks the table whose entry has its number, finds its own.

The file system is for a session of one machine. Without its native library, which PySpark has not got, Hadoop runs
`chmod` for every file and directory that it makes, which is most of what a small file costs, and so of what a batch of
many partitions costs. Here the JVM sets the same permissions by a call. The class takes the place of Hadoop's in the
cache of file systems, in which every `FileSystem.get` of this JVM looks first.

The third one says which rows of a frame fail, in one job: Spark itself would end the job at the first of them. Where
Python computes, and no row can be told, it says which partitions. Executors get it as they get any jar of the session.
"""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mld.processors.spark.sink_port import SessionError, first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


log = logging.getLogger("mld.spark")

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
        loader, compiler = _compiled(java, SOURCE)
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


def _compiled(java: Any, source: str) -> tuple[Any, Any]:
    """Return the JVM's loader of classes, and a compiler that has compiled the source."""
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    compiler = java.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(source)
    return loader, compiler


def install_files(session: SparkSession) -> bool:
    """Let the JVM of the session set permissions by itself. Returns false, after a line in the log, if it cannot: then
    Hadoop goes its own way, slower.
    """
    java: Any = session._jvm
    try:
        _, compiler = _compiled(java, FILES_SOURCE)
        configuration = java.org.apache.hadoop.conf.Configuration(session.sparkContext._jsc.hadoopConfiguration())
        configuration.setClassLoader(compiler.getClassLoader())
        configuration.set(FILES_KEY, FILES_CLASS)
        files, uri = java.org.apache.hadoop.fs.FileSystem, java.java.net.URI(LOCAL)
        # Spark has one already; closing takes it out of the cache, and hurts nobody who still holds it.
        files.get(uri, configuration).close()
        files.get(uri, configuration)
    except Exception as error:  # whatever a future Spark or Hadoop has changed
        log.info("permissions of files are set by chmod: %s", first_line(error))
        return False
    return True


ROWS_CLASS = "MldFailingRows"
ROWS_MAX = 64
"""A partition tells so many rows at most, and then that it has more: the driver's heap has to hold what all tell."""
TEXT_CHARS_MAX = 8_000
"""Kept of the beginning and of the end of an exception's text, which may quote the record."""
ROWS_SOURCE = f"""
public class {ROWS_CLASS} implements org.apache.spark.api.java.function.Function2 {{
  private static final ThreadLocal AT = new ThreadLocal();
  private boolean tellsRows = true;

  public void tellPartitionsOnly() {{ tellsRows = false; }}

  public static boolean at(long row) {{
    AT.set(Long.valueOf(row));
    return true;
  }}

  public Object call(Object partition, Object rows) throws Exception {{
    java.util.List failed = new java.util.ArrayList();
    java.util.Iterator every = (java.util.Iterator) rows;
    AT.remove();
    for (Object before = null; ; before = AT.get()) {{
      try {{
        while (every.hasNext()) every.next();
        return failed.iterator();
      }} catch (Exception error) {{
        if (error instanceof org.apache.spark.TaskKilledException) throw error;
        if (error instanceof org.apache.spark.shuffle.FetchFailedException) throw error;
        boolean known = tellsRows && failed.size() < {ROWS_MAX} && AT.get() != null && !AT.get().equals(before);
        java.io.StringWriter written = new java.io.StringWriter();
        error.printStackTrace(new java.io.PrintWriter(written, true));
        String text = written.toString();
        int end = text.length() - {TEXT_CHARS_MAX};
        if (end > {TEXT_CHARS_MAX}) text = text.substring(0, {TEXT_CHARS_MAX}) + "\\n" + text.substring(end);
        failed.add(partition + " " + (known ? AT.get() : "?") + " " + text);
        if (!known) return failed.iterator();
      }}
    }}
  }}
}}
"""
"""`at` is called with each row before anything is computed from it, so the row of an exception is known, and the next
one is computed. Python computes many rows at once, and its worker ends with an exception: nothing is read after it."""
OF_PYTHON = ("Python", "InPandas", "InArrow")
"""Names of the nodes of a plan for which functions in Python are run."""


class PartitionFailure(NamedTuple):
    """What failed in a partition: the row, by the number that `rows_told` was given, or None if nobody knows; and the
    exception."""

    partition: int
    row: int | None
    text: str


def rows_told(frame: DataFrame, number: str) -> DataFrame:
    """Return the frame, of which `failing_rows` learns the rows by a column of their numbers."""
    _failing_rows(frame.sparkSession)
    return frame.filter(f"reflect('{ROWS_CLASS}', 'at', {number}) IS NOT NULL")


def failing_rows(frame: DataFrame, count: int) -> Sequence[PartitionFailure] | None:
    """Return what cannot be computed of a frame, by one job. None if it has not so many partitions. Raises what Spark
    raises while it plans, and if the job fails otherwise than by a row.
    """
    execution = frame._jdf.queryExecution()
    rdd = execution.toRdd().toJavaRDD()
    if rdd.getNumPartitions() != count:
        return None
    function = _failing_rows(frame.sparkSession)
    if any(name in execution.executedPlan().toString() for name in OF_PYTHON):
        function.tellPartitionsOnly()
    outcomes = rdd.mapPartitionsWithIndex(function, False).collect()
    told = (str(one).split(" ", 2) for one in outcomes)
    return [PartitionFailure(int(partition), None if row == "?" else int(row), text) for partition, row, text in told]


def _failing_rows(session: SparkSession) -> Any:
    """Return an object of the class, which this JVM and its executors know from now on."""
    java: Any = session._jvm
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        return java.java.lang.Class.forName(ROWS_CLASS, True, loader).newInstance()
    except Exception:
        log.debug("%s is compiled", ROWS_CLASS)
    _, compiler = _compiled(java, ROWS_SOURCE)
    directory = Path(java.org.apache.spark.SparkFiles.getRootDirectory()) / "mld"
    directory.mkdir(exist_ok=True)
    jar = directory / f"{ROWS_CLASS}.jar"
    with zipfile.ZipFile(jar, "w") as opened:
        for name, code in compiler.getBytecodes().items():
            opened.writestr(f"{name}.class", bytes(code))
    session.sparkContext._jsc.addJar(str(jar))
    loader.addURL(java.java.net.URI(jar.as_uri()).toURL())
    return java.java.lang.Class.forName(ROWS_CLASS, True, loader).newInstance()
