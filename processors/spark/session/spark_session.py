"""Configures and starts the one SparkSession of a session host, after checking Java and PySpark.

In local mode, the session uses only the loopback interface, so it starts without a network. Other users of the machine
have no access to it: calls to the driver need a secret that Spark makes for each session, and there is no UI unless the
user asks for one, because Spark's UI has no login. The JVM's heap is bounded, and the JVM exits when its memory is used
up. The JVM ignores signals to its whole process group, and ends when the session host ends. The user's
`mld.spark.conf.*` overrule all of this.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mld import pip_install
from mld.processors.spark.sentences import first_line
from mld.processors.spark.session import class_archive, jvm_classes
from mld.processors.spark.session.gateway import ARGUMENTS, FILE, passed_in_file
from mld.processors.spark.session.java import Java, find_java
from mld.processors.spark.session.lakehouse import DELTA, formats_of, lake_settings
from mld.processors.spark.session.s3a import is_needed, s3a_settings
from mld.processors.spark.session_errors import SessionError, SessionUnreachable
from mld.processors.spark.settings import SparkSettings
from mld.properties.spark_values import Format

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("mld.spark")
_LOOPBACK = "127.0.0.1"
LOGGING_FILE = Path(__file__).with_name("log4j2.properties")
"""Configuration of Spark's log: only warnings and errors, one line each, without time stamps (the daemon's log adds
them). It leaves out warnings that come at every start, warnings of S3A about its committer, which our commits do not
use, and long messages about lost races for a version of a Delta log.
"""
JVM_OPTIONS = (
    "-XX:+UseSerialGC -XX:NewRatio=1 -XX:+ExitOnOutOfMemoryError -Duser.timezone=UTC "
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000"
)
"""Half of the heap is for new objects, because nothing of a batch is needed after it. Code has to run ten times as
often as by default before the compiler C2 compiles it: otherwise C2 takes a third of a start's CPU time, mostly for
code that does not run again.
"""
OF_SQL = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.variant.allowDuplicateKeys": "true",
    "spark.sql.variable.substitute": "false",
}
"""Settings of every session, local or not. By default Spark writes times to Parquet as INT96, which is deprecated and
has no statistics, so a reader that filters by time has to read every file. Stray fields are kept as variants, which
must also be possible for a record with a duplicate key. Text such as `${env:NAME}` is not replaced in SQL: whoever
writes a table, or names its columns, must not read our environment.
"""
SNAPSHOT_PARTITIONS = "spark.databricks.delta.snapshotPartitions"
"""Setting for the number of tasks that read a Delta table's log. On one machine, Delta's default of 50 tasks takes most
of the time of a small commit.
"""
DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
JAVA_OPTIONS = {DRIVER_OPTIONS, "spark.executor.extraJavaOptions"}
"""The user's values of these keys are appended to ours instead of replacing them."""
HUGE_PAGES = "-XX:+UseTransparentHugePages"
"""Together with `JVM_OPTIONS` this option saves a seventh of a batch's CPU time."""
HUGE_PAGES_FILE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
AVRO_LENGTH_MAX = 16 << 20
"""Greatest length of a text, of bytes and of a collection that Avro accepts. A record of Kinesis has at most 10 MiB.
Without a limit, bytes that Avro takes for a huge length would use up the memory of the JVM.
"""
AVRO_LIMITS = " ".join(
    f"-Dorg.apache.avro.limits.{what}.maxLength={AVRO_LENGTH_MAX}" for what in ("string", "bytes", "collectionItems")
)
REDACTED = "(?i)secret|passw|passphrase|pwd|token|credential|access[.]?key|account[.]key|private[.]?key|sas[.]"
"""Spark's UI and its own logs hide the values of settings whose names match this: Spark's default, and the keys of
Azure.
"""
EXTRA = pip_install("spark")
PYSPARK_MIN = (4, 1)
"""The first version that can cut a frame into given partitions, which the search for failing records needs."""
OTHERS = ("SPARK_HOME", "SPARK_REMOTE", "SPARK_API_MODE", "SPARK_CONNECT_MODE_ENABLED")
"""Environment variables that the user may have set for another Spark. They are removed: jars of another Spark mixed
with this PySpark's fail in strange ways, and our keys decide where Spark runs.
"""
WORKER_SOCKETS = "spark.python.unix.domain.socket"
WORKER_SOCKETS_DIR_MAX = 60
"""Longest path, in bytes, of the directory for the sockets of Python workers. With a longer path every Python function
fails.
"""
ARROW_MODULES = ("pandas", "pyarrow")
"""Packages that are needed to transfer values between the JVM and Python functions by Arrow."""
NOISY_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Loggers that print each exception with the JVM's stack. They are turned off, because we log one sentence instead."""


def check_extra() -> None:
    """Raise SessionError if PySpark is missing, too old, broken, or lacks a JVM (as `pyspark-client` does)."""
    if not (_is_installed("pyspark") and _is_installed("py4j")):
        raise SessionError(f"PySpark is missing in the environment of {sys.executable}; {EXTRA}")
    try:
        from pyspark import __version__ as version  # not from package metadata: it may be on PYTHONPATH only
    except ImportError as error:
        raise SessionError(f"PySpark cannot be imported ({error}); {EXTRA}") from error
    if tuple(map(int, version.split(".")[:2])) < PYSPARK_MIN:
        raise SessionError(f"PySpark {version} is too old; {EXTRA}")


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def start(settings: SparkSettings, scratch: Path) -> SparkSession:
    """Start the session. Raises SessionError; SessionUnreachable if another attempt may help."""
    from pyspark import SparkContext
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession as Session

    java = find_java(os.environ)
    environment(settings, java)
    archive = class_archive.options(java, os.environ, settings.conf.get(DRIVER_OPTIONS, ""))
    conf = {**configuration(settings, scratch, archive), "spark.app.name": settings.application}
    conf["spark.master"] = settings.master
    builder = Session.builder
    for name, value in conf.items():
        builder = builder.config(name, value)
    try:
        with passed_in_file(conf, scratch / FILE):
            SparkContext._ensure_initialized()  # starts the JVM
        session = builder.getOrCreate()
    except SessionError:
        raise
    except Exception as error:
        kind = SessionError if settings.is_local else SessionUnreachable
        raise kind(
            f"no Spark session at {settings.where}: {first_line(error)}; see the lines of Spark above, and "
            "mld.spark.master and mld.spark.packages"
        ) from error
    for name in NOISY_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    if jvm_classes.CLASS in conf.values():
        jvm_classes.install(session)
    if settings.is_local and f"spark.hadoop.{jvm_classes.FILES_KEY}" not in settings.conf:
        jvm_classes.install_files(session)
    return session


def configuration(settings: SparkSettings, scratch: Path, archive: str = "") -> dict[str, str]:
    """Return all settings of Spark that differ from its defaults. The user's settings overrule ours. `archive` has the
    JVM's options for its archive of classes."""
    own_options = f'{JVM_OPTIONS}{_huge_pages()}{archive} "-Dlog4j2.configurationFile={LOGGING_FILE.as_uri()}"'
    own_options += f' "-Djava.io.tmpdir={scratch}"'
    ours = {
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
        **OF_SQL,
        **python_functions(),
        DRIVER_OPTIONS: own_options,
        "spark.ui.killEnabled": "false",
        "spark.redaction.regex": REDACTED,
        # The UI keeps past jobs in the heap, and a host runs for months.
        "spark.ui.retainedJobs": "100",
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "2000",
        "spark.sql.ui.retainedExecutions": "50",
    }
    if settings.format is Format.AVRO:
        ours[DRIVER_OPTIONS] += f" {AVRO_LIMITS}"
        ours["spark.executor.extraJavaOptions"] = AVRO_LIMITS
    if settings.is_local:
        umask = os.umask(0o077)  # reading it means setting it
        os.umask(umask)
        ours |= {
            "spark.driver.host": _LOOPBACK,
            "spark.driver.bindAddress": _LOOPBACK,
            # Hadoop has an umask of its own, which may be weaker than ours.
            "spark.hadoop.fs.permissions.umask-mode": f"{umask:03o}",
            "spark.authenticate": "true",  # Spark makes the secret itself; no setting has it
            "spark.ui.enabled": "false",
            "spark.local.dir": str(scratch),
            "spark.sql.shuffle.partitions": str(max(2, local_cores(settings.master))),
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            **worker_sockets(scratch),
            # Python functions import modules beside the pipeline, but their workers run in another directory.
            "spark.executorEnv.PYTHONPATH": str(Path(settings.pipeline).absolute().parent),
        }
    is_delta = DELTA in formats_of([spec.format for spec in settings.sinks], {})
    if is_delta and settings.is_local:
        ours[SNAPSHOT_PARTITIONS] = ours["spark.sql.shuffle.partitions"]
    theirs = {**settings.conf, **lake(settings)}
    theirs |= s3_client(settings, theirs)
    if is_delta:
        theirs |= jvm_classes.log_settings(theirs)
    for key in JAVA_OPTIONS & ours.keys() & theirs.keys():
        theirs[key] = f"{ours[key]} {theirs[key]}"
    return {**ours, **theirs}


def lake(settings: SparkSettings) -> dict[str, str]:
    """Return the settings that lakehouse tables need, merged with the user's values for the same keys. Raises
    SessionError."""
    formats = [spec.format for spec in settings.sinks]
    if not formats_of(formats, settings.catalogs):
        return {}
    import pyspark  # imported late, because it is slow

    return lake_settings(formats, settings.catalogs, settings.conf, pyspark.__version__, settings.region)


def s3_client(settings: SparkSettings, theirs: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for Spark's own S3 client, if Spark needs it; else none. `theirs` are settings that exist
    already, and are kept. Raises SessionError."""
    if not is_needed(settings.sinks, settings.dead_letter, settings.spool, elsewhere=not settings.is_local):
        return {}
    return s3a_settings(settings.s3, hadoop_version(), theirs, settings.spool)


def hadoop_version() -> str | None:
    """Return the version of PySpark's Hadoop, from the name of a jar; None if no jar has such a name."""
    found = importlib.util.find_spec("pyspark")
    places = (found.submodule_search_locations or ()) if found is not None else ()
    jars = (jar for place in places for jar in (Path(place) / "jars").glob("hadoop-client-api-*.jar"))
    return next((jar.stem.removeprefix("hadoop-client-api-") for jar in jars), None)


def python_functions() -> dict[str, str]:
    """Return settings that turn Arrow off for Python functions if its packages are missing. Spark would turn it off by
    itself, but with a warning for each function."""
    if all(map(_is_installed, ARROW_MODULES)):
        return {}
    return {"spark.sql.execution.pythonUDF.arrow.enabled": "false"}


def worker_sockets(scratch: Path) -> dict[str, str]:
    """Return settings that make Spark connect to Python workers by sockets in the private directory. If it used ports,
    any user of the machine could make Spark start workers, because it asks for a secret only afterwards."""
    if len(os.fsencode(scratch)) > WORKER_SOCKETS_DIR_MAX:
        log.warning("%s is too long a path for sockets: others may have Python workers made; shorten TMPDIR", scratch)
        return {}
    return {f"{WORKER_SOCKETS}.enabled": "true", f"{WORKER_SOCKETS}.dir": str(scratch)}


def _huge_pages() -> str:
    """Return the JVM's option for huge pages with a space before it; empty if the system does not offer them."""
    try:
        offered = "[never]" not in HUGE_PAGES_FILE.read_text()
    except OSError:
        offered = False
    return f" {HUGE_PAGES}" if offered else ""


def local_cores(master: str) -> int:
    """Return how many tasks run at the same time with this master, which begins with `local`."""
    inside = master.partition("[")[2].partition("]")[0].split(",")[0].strip()
    if inside == "*":
        return os.cpu_count() or 1
    return int(inside) if inside.isdigit() else 1


def environment(settings: SparkSettings, java: Java) -> None:
    """Set the environment variables that PySpark and the JVM read, and remove those that are meant for another
    Spark."""
    os.environ["JAVA_HOME"] = str(java.home)
    if python := settings.conf.get("spark.pyspark.python"):  # PySpark reads only the environment variable
        os.environ["PYSPARK_PYTHON"] = python
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if settings.is_local:
        os.environ["SPARK_LOCAL_IP"] = _LOOPBACK
    for name in OTHERS:
        os.environ.pop(name, None)
    if os.environ.get(ARGUMENTS):
        log.warning("%s is not used here: write what it sets as mld.spark.conf.*", ARGUMENTS)


def check_format(session: SparkSession, name: str, key: str) -> None:
    """Check that Spark knows a format, so that an error shows before the first record. Raises SessionError."""
    try:
        source = session._jvm.org.apache.spark.sql.execution.datasources.DataSource  # type: ignore[union-attr]
        source.lookupDataSource(name, session._jsparkSession.sessionState().conf())
    except Exception as error:
        raise SessionError(
            f"{key} is {name}, which Spark does not know: {first_line(getattr(error, 'java_exception', error))}; "
            "correct it, or add the package that has it to mld.spark.packages"
        ) from error
