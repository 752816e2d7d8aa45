"""Turns an exception of Spark into an error of a sink, with a sentence and a remedy.

`error_classes` decides what the exception means. This module returns an error of the class in `sink_port` that stands
for this meaning; the engine decides by that class what to do.
"""

from __future__ import annotations

from collections.abc import Sequence

from mld.processors.spark.sentences import NO_NAME, TRACEBACK, sentence
from mld.processors.spark.session.error_classes import CONDITIONS, NO_FILE_NAME, PYTHON, causes_of, kind_of
from mld.processors.spark.session.error_kinds import Cause, ErrorKind
from mld.processors.spark.sink_port import DataRefused, InputGone, JobFailed, SinkError, SinkRefused, ValueFailed

OF_A_RULE = ("22001", "23", "44", "54006")
"""Beginnings of SQLSTATEs that report a violated rule of a table, such as a constraint. A row can be computed without
violating it, and violates it when it is written.
"""
RAISED = "P0001"
"""SQLSTATE of Spark's `raise_error`, by which `sinks.partitions` refuses the name of a directory."""
REMEDIES = {
    ErrorKind.DISK_FULL: "; make room, nothing was acknowledged and it is tried again",
    ErrorKind.FORBIDDEN: "; give the user of this program that permission",
    ErrorKind.CONFLICT: "; it is tried again",
    ErrorKind.GONE: "; a file that the batch reads is gone, or an executor cannot see it; it is tried again",
    ErrorKind.AWAY: "; it is tried again",
    ErrorKind.SHAPE: "; correct the pipeline or the sink's keys",
}
OF_KIND: dict[ErrorKind, type[SinkError]] = {
    ErrorKind.ROW: ValueFailed,
    ErrorKind.FORBIDDEN: SinkRefused,
    ErrorKind.GONE: InputGone,
    ErrorKind.SHAPE: SinkRefused,
    ErrorKind.UNKNOWN: JobFailed,
}
"""The error for each kind. For all other kinds it is SinkError: wait, and try again."""
LOCALE = "; Java takes its file names from the locale: start the daemon with LC_ALL=C.UTF-8"
MODULE = (
    "; install it where the executors run (key mld.spark.conf.spark.pyspark.python), or name what they lack in "
    "mld.spark.conf.spark.submit.pyFiles or mld.spark.conf.spark.archives"
)
NO_MODULE = ("ModuleNotFoundError", "ImportError", "PySparkImportError")
"""Ends of the names of exceptions of a Python worker that lacks a module."""


def failure(error: BaseException, doing: str) -> SinkError:
    """Return the sink error for an exception of Spark, in a sentence that begins with `doing`."""
    causes = causes_of(error)
    kind = kind_of(causes)
    what = f"{doing}: {sentence(str(error)) or type(error).__name__}"
    if kind is ErrorKind.ROW and any(_is_refused(cause) for cause in causes):
        return DataRefused(what)
    if any(NO_FILE_NAME in cause.names for cause in causes):
        return SinkRefused(what + LOCALE)
    remedy = REMEDIES.get(kind, "")
    if any(PYTHON in cause.names for cause in causes) and python_class(causes).endswith(NO_MODULE):
        remedy = MODULE
    return OF_KIND.get(kind, SinkError)(what + remedy)


def _is_refused(cause: Cause) -> bool:
    """Return whether this cause shows that the row can be computed, but the sink does not take it."""
    rule = cause.state.startswith(OF_A_RULE) or cause.condition in CONDITIONS
    return rule or (cause.state == RAISED and NO_NAME in cause.text)


def python_class(causes: Sequence[Cause]) -> str:
    """Return the name of the class of the exception in a Python worker; "" if there is none.

    In the text it follows right after the frames of the traceback, so it comes before any text of a record."""
    text = next((cause.text for cause in causes if PYTHON in cause.names), "")
    lines = text.partition(TRACEBACK)[2].splitlines()[1:]
    return next((line.partition(":")[0] for line in lines if line and not line[0].isspace()), "")
