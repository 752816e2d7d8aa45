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
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mld.processors.spark.sink_port import SessionError, first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


def log_settings(theirs: Mapping[str, str]) -> dict[str, str]:
    """Return settings of Spark by which Delta uses it, for schemes for which the user names none."""
    return {key: CLASS for key in map(KEY.format, SCHEMES) if key not in theirs}


def install(session: SparkSession, scratch: Path) -> None:
    """Let the JVM of the session find the class; `scratch` is a directory of this user alone. Raises SessionError."""
    java: Any = session._jvm
    try:
        loader, compiler = compiled(java, SOURCE)
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


def compiled(java: Any, source: str) -> tuple[Any, Any]:
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
        _, compiler = compiled(java, FILES_SOURCE)
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
