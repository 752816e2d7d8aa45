"""Compiles our Java classes in the JVM of a session. Each is a `.java` file in this directory, with its own
explanation.

The compiler is Janino, a part of Spark, so the classes fit whatever Spark is installed. Executors of a cluster get a
class as they get any JAR of the session.
"""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mld.processors.spark.sentences import first_line
from mld.processors.spark.session_errors import SessionError

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession


log = logging.getLogger("mld.spark")

CLASS = "MldDeltaLogStore"
"""Our log store, by which several drivers can write one Delta table on S3."""
SCHEMES = ("s3", "s3a", "s3n")
KEY = "spark.delta.logStore.{}.impl"
"""Setting that names Delta's log store for a scheme."""
FILES_CLASS, FILES_KEY, LOCAL = "MldLocalFileSystem", "fs.file.impl", "file:///"
"""Our file system without `chmod`, Hadoop's setting for its class, and the URI of all local files."""
JSON_CLASS = "MldJson"
IS = " is "
"""Separates the name of the wrong field from the rest of a reason."""
SOURCES = Path(__file__).parent


def log_settings(theirs: Mapping[str, str]) -> dict[str, str]:
    """Return settings that make Delta use our log store, for each scheme for which the user's settings (`theirs`) name
    no log store.
    """
    return {key: CLASS for key in map(KEY.format, SCHEMES) if key not in theirs}


def install(session: SparkSession) -> None:
    """Make our log store known to the JVM of the session. Raises SessionError."""
    remedy = f"; name another log store that creates a file only once, as mld.spark.conf.{KEY.format('s3a')}"
    everywhere(session, CLASS, f"{remedy}, or use format = iceberg")


def everywhere(session: SparkSession, name: str, remedy: str = "") -> Any:
    """Return the Java class `name`. The first call in a JVM compiles it, and makes it known to this JVM and its
    executors. Raises SessionError, whose text ends with `remedy`."""
    java: Any = session._jvm
    try:
        loader = java.java.lang.Thread.currentThread().getContextClassLoader()
        with suppress(Exception):  # the class has not been made yet
            return java.java.lang.Class.forName(name, True, loader)
        compiler = java.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(loader)
        compiler.cook((SOURCES / f"{name}.java").read_text())
        jar = Path(java.org.apache.spark.SparkFiles.getRootDirectory()) / "mld" / f"{name}.jar"
        jar.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(jar, "w") as opened:
            for part, code in compiler.getBytecodes().items():
                opened.writestr(f"{part}.class", bytes(code))
        if not session.sparkContext._jsc.sc().isLocal():  # local tasks share the driver's class loader
            session.sparkContext._jsc.addJar(str(jar))
        loader.addURL(java.java.net.URI(jar.as_uri()).toURL())
        return java.java.lang.Class.forName(name, True, loader)
    except Exception as error:  # a future Spark may have changed anything
        raise SessionError(f"the class {name} cannot be made in this Spark ({first_line(error)}){remedy}") from error


def json_column(session: SparkSession, data: str, type: str, *, of_lines: bool, rescues: bool) -> Column:
    """Return an expression that decodes the column `data` of JSON, or of lines of JSON. `type` is the type of the
    result in Spark's DDL: a struct of the events (each a payload and a number), the reason if the record is malformed
    (null if it is not, empty if the reason is unknown), and the names of stray fields. `rescues`: the last field of the
    payload is a text for stray fields. Raises any exception if this Spark lacks a method that the class calls."""
    from pyspark.sql.classic.column import Column

    decoder = everywhere(session, JSON_CLASS).newInstance()
    zone = session.conf.get("spark.sql.session.timeZone")
    column = Column(decoder.column(data, type, zone, of_lines, rescues))
    decoder.decode(b"{}")  # calls the methods once, because only a call shows that one is missing
    return column


def install_files(session: SparkSession) -> bool:
    """Make the JVM of the session set permissions of files by itself. Return False, after a line in the log, if that is
    not possible; then Hadoop runs chmod, which is slower."""
    java: Any = session._jvm
    try:
        everywhere(session, FILES_CLASS)
        configuration = java.org.apache.hadoop.conf.Configuration(session.sparkContext._jsc.hadoopConfiguration())
        configuration.set(FILES_KEY, FILES_CLASS)
        files, uri = java.org.apache.hadoop.fs.FileSystem, java.java.net.URI(LOCAL)
        # Spark has made a file system already. `close` removes it from the cache; code that holds it can still use it.
        files.get(uri, configuration).close()
        files.get(uri, configuration)
    except Exception as error:  # a future Spark or Hadoop may have changed anything
        log.info("permissions of files are set by chmod: %s", first_line(error))
        return False
    return True
