"""What can be wrong with the session, and exceptions of Spark: what they mean for the next attempt, in a sentence."""

from __future__ import annotations

import re

from mld.processors.spark.sink_port import Blameless, InputGone, JobFailed, SinkError, SinkFull, SinkRefused

NO_ROOM = (
    *("No space left on device", "Disk quota exceeded", "File too large", "QuotaExceededException"),
    *("could only be written to 0 of", "could only be replicated to 0 nodes"),
)
"""What the JVM says of ENOSPC, EDQUOT and EFBIG, and HDFS of its own; Spark keeps the words in its exceptions."""
NO_PERMISSION = "AccessControlException"
"""HDFS; what the file system of this host does not allow is said before there is a job."""
UNMAPPABLE = "input contains unmappable characters"
GONE = "FILE_NOT_EXIST"
"""While it is read by a task; if it is not there when the job is planned, Spark says so in other words."""
DATABASE_FAILED = "FAILED_JDBC"
"""A database that Spark could not ask something, such as one that is down; nobody says whether it stays so."""
NO_PANDAS = ("No module named 'pandas'", "No module named 'pyarrow'", "PACKAGE_NOT_INSTALLED")
"""What a Python worker says on a node that has not got them: that is never the record's fault."""
NO_MODULE = ("ModuleNotFoundError:", "ImportError:")
"""How the traceback of a Python worker ends that lacks something: that is never the record's fault either."""
NO_RECORD_S_FAULT = (
    *("ExecutorLostFailure", "ExecutorDeadException", "Executor heartbeat timed out", "MetadataFetchFailed"),
    *("OutOfMemoryError", "SparkOutOfMemoryError", "Cannot allocate memory", "exit code: 137", "exit status: 137"),
    *("Python worker exited unexpectedly", "Python worker failed to connect", "Could not execute broadcast in"),
    *("SparkContext was shut down", "SparkContext has been shutdown", "Too many open files"),
)
OF_S3 = ("org.apache.hadoop.fs.s3a.", "software.amazon.awssdk.")
"""How an exception begins that says what S3 did not do, where Spark speaks to it."""
CAUSE = "Caused by: "
TRACEBACK = "Traceback (most recent call last):"
SENTENCE_CHARS_MAX = 300
PY4J = "An error occurred while calling"
_RPC_DETAILS = re.compile(r'^<_\w*Rpc\w*Error of RPC .*?details = "(.+?)"\s', re.DOTALL)


class SessionError(Exception):
    """There can be no session, or none that can be used; one sentence with the remedy. Trying again does not help."""


class SessionUnreachable(SessionError):
    """Nobody answers where the session should be; trying again later may help."""


class SessionGone(Exception):
    """The JVM or the cluster is not there any more; a new host has to be started."""


def _is_of_s3(text: str) -> bool:
    return any(line.startswith(OF_S3) for line in text.replace(CAUSE, "\n").splitlines())


def failure(error: Exception, doing: str) -> SinkError:
    """Return what an exception of Spark means for the next attempt."""
    from pyspark.errors import AnalysisException, PySparkTypeError, PySparkValueError

    text = str(error)
    said = f"{doing}: {sentence(text) or type(error).__name__}"
    if any(words in text for words in NO_ROOM):
        return SinkFull(f"{said}; make room, nothing was acknowledged and it is tried again")
    if NO_PERMISSION in text:
        return SinkRefused(f"{said}; give the account that Spark runs as the permission for it")
    if UNMAPPABLE in text:
        return SinkRefused(f"{said}; Java takes its file names from the locale: start the daemon with LC_ALL=C.UTF-8")
    if any(words in text for words in NO_PANDAS):
        return SinkRefused(
            f"{said}; the Python of the executors (key mld.spark.conf.spark.pyspark.python) needs pandas and pyarrow"
        )
    if (_python_cause(text) or "").startswith(NO_MODULE):
        return SinkRefused(
            f"{said}; install it where the executors run, or name what they lack in mld.spark.pyFiles or "
            "mld.spark.archives"
        )
    if any(words in text for words in NO_RECORD_S_FAULT) or _is_of_s3(text):
        return Blameless(said)
    if GONE in text:
        return InputGone(
            f"{said}; a file that the batch reads is gone, or an executor cannot see it; it is tried again"
        )
    if DATABASE_FAILED in text.partition("\n")[0]:
        return SinkError(f"{said}; it is tried again")
    if isinstance(error, (AnalysisException, PySparkTypeError, PySparkValueError)):
        return SinkRefused(f"{said}; correct the pipeline or the sink's keys")
    return JobFailed(said)


def sentence(text: str) -> str:
    """Return the first line of an exception of Spark, and the innermost cause if it names one; bounded.

    The cause of an exception in a Python worker is the user's, as the traceback in the text ends."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line.removeprefix(CAUSE) for line in lines if line.startswith(CAUSE)]
    cause = _python_cause(text) or (causes[-1] if causes else None)
    return "; cause: ".join(line[:SENTENCE_CHARS_MAX] for line in (*lines[:1], *([cause] if cause else [])))


def _python_cause(text: str) -> str | None:
    _, found, rest = text.rpartition(TRACEBACK)
    lines = rest.splitlines()[1:] if found else []
    return next((line.strip() for line in lines if line.strip() and not line[0].isspace()), None)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text that says something; a Java stack trace stays out of a sentence."""
    if said := _RPC_DETAILS.search(str(error)):
        return said[1][:500]
    lines = (line.strip() for line in str(error).splitlines())
    text = (
        next((line.removeprefix(": ") for line in lines if line and not line.startswith(PY4J)), "")
        or type(error).__name__
    )
    return text[:500]
