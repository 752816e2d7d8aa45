"""Hadoop's access to files of this machine, without a process for each permission that it sets.

Without its native library, which PySpark has not got, Hadoop runs `chmod` for every file and directory that it makes:
three to seven times in a small batch, 10 ms of CPU each, and as long to wait. Here the JVM sets the same permissions by
a call. The class that does it is compiled in the JVM by Janino, a part of Spark; it takes the place of Hadoop's in the
cache of file systems, in which every `FileSystem.get` of this JVM looks first.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("mld.spark")

CLASS = "MldLocalFileSystem"
KEY = "fs.file.impl"
LOCAL = "file:///"
SOURCE = f"""
public class {CLASS} extends org.apache.hadoop.fs.LocalFileSystem {{
  public {CLASS}() {{ super(new Raw()); }}

  public static class Raw extends org.apache.hadoop.fs.RawLocalFileSystem {{
    public void setPermission(
        org.apache.hadoop.fs.Path path, org.apache.hadoop.fs.permission.FsPermission permission)
        throws java.io.IOException {{
      if (permission.getStickyBit()) {{
        super.setPermission(path, permission);
        return;
      }}
      java.nio.file.Files.setPosixFilePermissions(
          pathToFile(path).toPath(),
          java.nio.file.attribute.PosixFilePermissions.fromString(permission.toString()));
    }}
  }}
}}
"""


def install(session: SparkSession) -> bool:
    """Let the JVM of the session set permissions by itself.

    False, and a line in the log, if it cannot: then Hadoop goes its own way, slower."""
    java = session._jvm
    assert java is not None, "a session with a JVM of ours"
    try:
        compiler = java.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(java.java.lang.Thread.currentThread().getContextClassLoader())
        compiler.cook(SOURCE)
        configuration = java.org.apache.hadoop.conf.Configuration(session.sparkContext._jsc.hadoopConfiguration())
        configuration.setClassLoader(compiler.getClassLoader())
        configuration.set(KEY, CLASS)
        files, uri = java.org.apache.hadoop.fs.FileSystem, java.java.net.URI(LOCAL)
        # Spark has one already; closing takes it out of the cache, and hurts nobody who still holds it.
        files.get(uri, configuration).close()
        files.get(uri, configuration)
    except Exception as error:  # whatever a future Spark or Hadoop has changed
        log.info("permissions of files are set by chmod: %s", str(error).partition("\n")[0])
        return False
    return True
