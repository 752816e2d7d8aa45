"""The one SparkSession of a host: how it is configured and started, and what is checked before.

In local mode everything stays on the loopback interface, so that it starts without a network, and closed to the other
users of the machine: calls to the driver are authenticated with a secret that Spark makes for each session, and there
is no UI unless it is asked for, because Spark's UI asks nobody who he is. The JVM's heap is bounded, it exits when its
memory is out, and it ignores the signals that a supervisor sends to all processes at once: it ends with its host.
Everything the user sets by `mld.spark.conf.*` wins.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mld import pip_install
from mld.processors.spark.sentences import first_line
from mld.processors.spark.session import class_archive, jvm_classes
from mld.processors.spark.session.gateway import ARGUMENTS, FILE, told
from mld.processors.spark.session.lakehouse import DELTA, formats_of, lake_settings
from mld.processors.spark.session.s3a import is_needed, s3a_settings
from mld.processors.spark.session_errors import SessionError, SessionUnreachable
from mld.processors.spark.settings import SparkSettings
from mld.properties.spark_values import Format

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("mld.spark")
JAVA_MIN = 17
JAVA_CHECK_S = 20.0
"""A loaded machine takes seconds to start a JVM."""
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_LOOPBACK = "127.0.0.1"
LOGGING_FILE = Path(__file__).with_name("log4j2.properties")
"""What Spark says: warnings, each on one line, without those that every start brings, and without what S3A says of each
job that stages files (its committer is no part of our commit) and, at length, of each version of a Delta log that
another writer was faster with; the daemon's log has the time already."""
JVM_OPTIONS = (
    "-XX:+UseSerialGC -XX:NewRatio=1 -XX:+ExitOnOutOfMemoryError -Duser.timezone=UTC "
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000"
)
"""Half of the heap is for what is new: a batch leaves nothing behind. C2 compiles what runs ten times as often as by
default: else it is a third of a start's CPU, and most of that code does not run again."""
OF_SQL = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.variant.allowDuplicateKeys": "true",
}
"""Settings of every session, wherever it is. Spark's own type for times in Parquet is INT96, which is deprecated and
bears no statistics: a reader that looks for a time has to read every file. Stray fields are variants, and those of a
record with a key that is there twice are not to be lost."""
SNAPSHOT_PARTITIONS = "spark.databricks.delta.snapshotPartitions"
"""How many tasks read a Delta table's log; its own 50 are most of a small commit's time on one machine."""
DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
JAVA_OPTIONS = {DRIVER_OPTIONS, "spark.executor.extraJavaOptions"}
"""What the user gives for these keys is added to our options, and does not replace them."""
HUGE_PAGES = "-XX:+UseTransparentHugePages"
"""Together with `JVM_OPTIONS` they save a seventh of a batch's CPU."""
HUGE_PAGES_FILE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
AVRO_LENGTH_MAX = 16 << 20
"""Longest text, bytes and collection that Avro may claim. Kinesis has no record of more than 10 MiB; without a limit a
length that is garbage is taken for true, and the JVM ends because it has no memory for it."""
AVRO_LIMITS = " ".join(
    f"-Dorg.apache.avro.limits.{what}.maxLength={AVRO_LENGTH_MAX}" for what in ("string", "bytes", "collectionItems")
)
REDACTED = "(?i)secret|passw|passphrase|pwd|token|credential|access[.]?key|account[.]key|private[.]?key|sas[.]"
"""Settings whose values the UI and Spark's own logs do not show: Spark's own list, and the keys of Azure."""
EXTRA = pip_install("spark")
PYSPARK_MIN = (4, 1)
"""The first one that can cut a frame into given partitions, by which records that fail are found."""
OTHERS = ("SPARK_HOME", "SPARK_REMOTE", "SPARK_API_MODE", "SPARK_CONNECT_MODE_ENABLED")
"""Variables of another Spark: its jars mixed with this PySpark's fail in strange ways; our keys say where we run."""
WORKER_SOCKETS = "spark.python.unix.domain.socket"
WORKER_SOCKETS_DIR_MAX = 60
"""Longest path that Spark takes for the directory of these, in bytes; with a longer one every Python function fails."""
ARROW_MODULES = ("pandas", "pyarrow")
"""What Arrow between the JVM and Python functions needs."""
NOISY_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""They print each exception with the stack of the JVM; we say what it is in a sentence."""


def check_extra() -> None:
    """Raise SessionError if there is no PySpark with a JVM, which `pyspark-client` has not, or one that is too old or
    broken."""
    if not (_there("pyspark") and _there("py4j")):
        raise SessionError(f"PySpark is missing in the environment of {sys.executable}; {EXTRA}")
    try:
        from pyspark import __version__ as version  # not of its package: it may stand on PYTHONPATH only
    except ImportError as error:
        raise SessionError(f"PySpark cannot be imported ({error}); {EXTRA}") from error
    if tuple(map(int, version.split(".")[:2])) < PYSPARK_MIN:
        raise SessionError(f"PySpark {version} is too old; {EXTRA}")


def _there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def start(settings: SparkSettings, scratch: Path) -> SparkSession:
    """Start the session. Raises SessionError; SessionUnreachable if trying again may help."""
    from pyspark import SparkContext
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession as Session

    environment(settings)
    archive = class_archive.options(settings.conf.get(DRIVER_OPTIONS, ""))
    conf = {**configuration(settings, scratch, archive), "spark.app.name": settings.application}
    conf["spark.master"] = settings.master
    builder = Session.builder
    for name, value in conf.items():
        builder = builder.config(name, value)
    try:
        with told(conf, scratch / FILE):
            SparkContext._ensure_initialized()
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
    """Return every setting of Spark that is not its default; what the user sets comes last. `archive`: the JVM's
    options for its archive of classes.
    """
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
        # What the UI remembers of past jobs lives in the heap; a host runs for months.
        "spark.ui.retainedJobs": "100",
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "2000",
        "spark.sql.ui.retainedExecutions": "50",
    }
    if settings.format is Format.AVRO:
        ours[DRIVER_OPTIONS] += f" {AVRO_LIMITS}"
        ours["spark.executor.extraJavaOptions"] = AVRO_LIMITS
    if settings.is_local:
        umask = os.umask(0o077)  # it can only be read by setting it
        os.umask(umask)
        ours |= {
            "spark.driver.host": _LOOPBACK,
            "spark.driver.bindAddress": _LOOPBACK,
            # Hadoop has an umask of its own, and would give to all what ours withholds.
            "spark.hadoop.fs.permissions.umask-mode": f"{umask:03o}",
            "spark.authenticate": "true",  # Spark makes the secret itself, and it stands in no setting
            "spark.ui.enabled": "false",
            "spark.local.dir": str(scratch),
            "spark.sql.shuffle.partitions": str(max(2, local_cores(settings.master))),
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            **worker_sockets(scratch),
            # Functions in Python import what stands beside the pipeline; their workers have another directory.
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
    """Return what tables of a lake house need, with what the user gives for the same keys. Raises SessionError."""
    formats = [spec.format for spec in settings.sinks]
    if not formats_of(formats, settings.catalogs):
        return {}
    import pyspark  # slow, and most need it only when the session starts

    return lake_settings(formats, settings.catalogs, settings.conf, pyspark.__version__, settings.region)


def s3_client(settings: SparkSettings, theirs: Mapping[str, str]) -> dict[str, str]:
    """Return what Spark needs to speak to S3 itself, if it has to; `theirs` is set already. Raises SessionError."""
    if not is_needed(settings.sinks, settings.dead_letter, settings.spool, elsewhere=not settings.is_local):
        return {}
    return s3a_settings(settings.s3, hadoop_version(), theirs)


def hadoop_version() -> str | None:
    """Return the version of the Hadoop that PySpark has; None if its name does not say."""
    found = importlib.util.find_spec("pyspark")
    places = (found.submodule_search_locations or ()) if found is not None else ()
    jars = (jar for place in places for jar in (Path(place) / "jars").glob("hadoop-client-api-*.jar"))
    return next((jar.stem.removeprefix("hadoop-client-api-") for jar in jars), None)


def python_functions() -> dict[str, str]:
    """Forbid Arrow where it cannot be: Spark would do without it too, but with a warning for each function of the
    user.
    """
    if all(map(_there, ARROW_MODULES)):
        return {}
    return {"spark.sql.execution.pythonUDF.arrow.enabled": "false"}


def worker_sockets(scratch: Path) -> dict[str, str]:
    """Have Spark reach workers of Python by sockets in the private directory: by ports any user of the machine could
    have workers made, as nobody is asked for a secret before."""
    if len(os.fsencode(scratch)) > WORKER_SOCKETS_DIR_MAX:
        log.warning("%s is too long a path for sockets: others may have Python workers made; shorten TMPDIR", scratch)
        return {}
    return {f"{WORKER_SOCKETS}.enabled": "true", f"{WORKER_SOCKETS}.dir": str(scratch)}


def _huge_pages() -> str:
    """Return the option of the JVM for huge pages, with a space before it, where the system has them to give."""
    try:
        offered = "[never]" not in HUGE_PAGES_FILE.read_text()
    except OSError:
        offered = False
    return f" {HUGE_PAGES}" if offered else ""


def local_cores(master: str) -> int:
    """Return how many tasks run at once under `local…`."""
    inside = master.partition("[")[2].partition("]")[0].split(",")[0].strip()
    if inside == "*":
        return os.cpu_count() or 1
    return int(inside) if inside.isdigit() else 1


def environment(settings: SparkSettings) -> None:
    """Set what PySpark and the JVM read from the environment. Raises SessionError if there is no fit Java."""
    os.environ["JAVA_HOME"] = str(java_home(os.environ))
    if python := settings.conf.get("spark.pyspark.python"):  # PySpark itself reads the variable only
        os.environ["PYSPARK_PYTHON"] = python
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if settings.is_local:
        os.environ["SPARK_LOCAL_IP"] = _LOOPBACK
    for name in OTHERS:
        os.environ.pop(name, None)
    if os.environ.get(ARGUMENTS):
        log.warning("%s is not used here: write what it sets as mld.spark.conf.*", ARGUMENTS)


def java_home(env: Mapping[str, str]) -> Path:
    """Return the home of a Java that Spark can run on. Raises SessionError."""
    named = env.get("JAVA_HOME")
    remedy = f"install a JRE {JAVA_MIN} or later (Debian: openjdk-{JAVA_MIN}-jre-headless), or set JAVA_HOME"
    if named:
        java = Path(named) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise SessionError(f"JAVA_HOME is {named}, and there is no {java}; {remedy}")
    else:
        found = shutil.which("java", path=env.get("PATH"))
        if found is None:
            raise SessionError(f"Spark needs Java, and there is none on PATH; {remedy}")
        java = Path(found).resolve()
    try:
        asked = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=JAVA_CHECK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SessionError(f"{java} does not run: {error}; {remedy}") from error
    version = _VERSION.search(asked.stderr + asked.stdout)
    if version is None:
        raise SessionError(f"{java} does not say its version: {(asked.stderr + asked.stdout)[:200]!r}; {remedy}")
    if int(version[1]) < JAVA_MIN:
        raise SessionError(f"{java} is Java {version[1]}; Spark 4 needs {JAVA_MIN} or later; {remedy}")
    return java.parent.parent


def check_format(session: SparkSession, name: str, key: str) -> None:
    """Find out before the first record whether Spark knows a format. Raises SessionError."""
    try:
        source = session._jvm.org.apache.spark.sql.execution.datasources.DataSource  # type: ignore[union-attr]
        source.lookupDataSource(name, session._jsparkSession.sessionState().conf())
    except Exception as error:
        raise SessionError(
            f"{key} is {name}, which Spark does not know: {first_line(getattr(error, 'java_exception', error))}; "
            "correct it, or add the package that has it to mld.spark.packages"
        ) from error
