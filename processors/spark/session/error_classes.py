"""Decides what an exception of Spark, of a table format or of a database means for the next attempt.

The decision uses the classes of the exception and its causes, and their fields: SQLSTATE, error condition, HTTP status.
It does not use the words of a message, because a message may quote a record, or contain a stack that names any class
(the only exception is NO_ROOM). Messages are for people (`sentences`).

`causes_of` reads the exceptions from Java; `kind_of` decides, and is pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, cast

from mld.processors.spark.session.error_kinds import Cause, ErrorKind

CAUSES_MAX = 20
"""How many causes of an exception are read at most, because a chain of causes may be a ring."""
ANALYSIS = "org.apache.spark.sql.AnalysisException"
SQL = "java.sql.SQLException"
PYTHON = "org.apache.spark.api.python.PythonException"
OF_AWS = "software.amazon.awssdk.core.exception.SdkException"
NO_FILE_NAME = "java.nio.file.InvalidPathException"
CLASSES = {
    "io.delta.exceptions.DeltaConcurrentModificationException": ErrorKind.CONFLICT,
    "org.apache.spark.sql.delta.DeltaConcurrentModificationException": ErrorKind.CONFLICT,
    "org.apache.iceberg.exceptions.CommitFailedException": ErrorKind.CONFLICT,
    "org.apache.iceberg.exceptions.ValidationException": ErrorKind.CONFLICT,
    "java.nio.file.AccessDeniedException": ErrorKind.FORBIDDEN,
    "java.security.AccessControlException": ErrorKind.FORBIDDEN,
    "java.sql.SQLInvalidAuthorizationSpecException": ErrorKind.FORBIDDEN,
    "org.apache.hadoop.security.AccessControlException": ErrorKind.FORBIDDEN,
    "org.apache.hadoop.fs.s3a.auth.NoAuthWithAWSException": ErrorKind.FORBIDDEN,
    "org.apache.iceberg.exceptions.NotAuthorizedException": ErrorKind.FORBIDDEN,
    "org.apache.iceberg.exceptions.ForbiddenException": ErrorKind.FORBIDDEN,
    "org.apache.hadoop.fs.QuotaExceededException": ErrorKind.DISK_FULL,
    "org.apache.hadoop.hdfs.protocol.QuotaExceededException": ErrorKind.DISK_FULL,
    "org.apache.hadoop.fs.ClusterStorageCapacityExceededException": ErrorKind.DISK_FULL,
    "java.net.SocketException": ErrorKind.AWAY,
    "java.net.SocketTimeoutException": ErrorKind.AWAY,
    "java.net.UnknownHostException": ErrorKind.AWAY,
    "java.sql.SQLTransientException": ErrorKind.AWAY,
    "java.sql.SQLRecoverableException": ErrorKind.AWAY,
    "java.sql.SQLNonTransientConnectionException": ErrorKind.AWAY,
    "org.apache.hadoop.fs.s3a.AWSClientIOException": ErrorKind.AWAY,
    "org.apache.hadoop.fs.s3a.AWSServiceIOException": ErrorKind.AWAY,
    "org.apache.hadoop.ipc.RemoteException": ErrorKind.AWAY,
    "org.apache.iceberg.exceptions.CommitStateUnknownException": ErrorKind.AWAY,
    "org.apache.iceberg.exceptions.RESTException": ErrorKind.AWAY,
    "org.apache.iceberg.jdbc.UncheckedSQLException": ErrorKind.AWAY,
    "org.apache.spark.ExecutorDeadException": ErrorKind.AWAY,
    ANALYSIS: ErrorKind.SHAPE,
    NO_FILE_NAME: ErrorKind.SHAPE,
    "java.lang.UnsupportedOperationException": ErrorKind.SHAPE,
    "java.lang.ClassNotFoundException": ErrorKind.SHAPE,
    "org.apache.iceberg.exceptions.NoSuchTableException": ErrorKind.SHAPE,
    "pyspark.errors.exceptions.base.PySparkTypeError": ErrorKind.SHAPE,
    "pyspark.errors.exceptions.base.PySparkValueError": ErrorKind.SHAPE,
}
"""The meaning of an exception by its class, or by the nearest superclass that is listed here."""
CONDITIONS = {
    "NOT_NULL_ASSERT_VIOLATION": ErrorKind.ROW,
    "FAILED_READ_FILE.FILE_NOT_EXIST": ErrorKind.GONE,
    "INCOMPATIBLE_TABLE_CHANGE_AFTER_ANALYSIS": ErrorKind.CONFLICT,
    "DELTA_SCHEMA_CHANGE_SINCE_ANALYSIS": ErrorKind.CONFLICT,
    "DELTA_MAX_COMMIT_RETRIES_EXCEEDED": ErrorKind.CONFLICT,
}
"""The meaning by Spark's error condition. It decides before all else."""
STATES = {
    "2D521": ErrorKind.CONFLICT,
    "42501": ErrorKind.FORBIDDEN,
    "28": ErrorKind.FORBIDDEN,
    "54001": ErrorKind.SHAPE,
}
"""The meaning by SQLSTATE, or by its first two characters, whoever raised the exception."""
OF_A_ROW = ("21", "22", "23", "44", "54", "P0001")
"""Beginnings of SQLSTATEs for which a row is to blame. In this order: several source rows for one target row, bad data,
a violated constraint, WITH CHECK OPTION, a text too long for its column, and `raise_error` or a trigger that raises.
"""
FOR_GOOD = ("0A", "3D", "3F", "42", "55000")
"""Beginnings of SQLSTATEs after which another attempt cannot help. In this order: not supported, no such database, no
such schema, syntax and names, a deferrable constraint as the target of a merge.
"""
OF_A_DATABASE = {"40": ErrorKind.CONFLICT, "53100": ErrorKind.DISK_FULL}
"""SQLSTATEs of JDBC drivers: serialization failures and deadlocks; disk full. After any state that is not listed here,
the engine waits.
"""
BAD_IDENTIFIER = "22023"
"""SQLSTATE of a database if a text is not the name of a table."""
NO_ROOM = ("No space left on device", "Disk quota exceeded", "File too large")
"""Java's messages for ENOSPC, EDQUOT and EFBIG. Such a text is the whole message, or its end, after
the name of a file.
"""
FORBIDDEN_STATUS = (401, 403)
OF_A_FILE = frozenset(("java.io.IOException", "java.io.FileNotFoundException", "java.nio.file.FileSystemException"))
"""Classes of exceptions whose message may be one of NO_ROOM."""


def causes_of(error: BaseException) -> list[Cause]:
    """Return an exception and its causes, the outermost first: Python's, then Java's."""
    found: list[Cause] = []
    java, at = None, cast("BaseException | None", error)
    while java is None and at is not None and len(found) < CAUSES_MAX:
        names = tuple(f"{base.__module__}.{base.__qualname__}" for base in type(at).__mro__)
        found.append(Cause(names, text=str(at)))
        # Py4J's own error has the Java exception as `java_exception`, PySpark's translation of it as `_origin`.
        java = getattr(at, "java_exception", None) or getattr(at, "_origin", None)
        at = at.__cause__
    with suppress(Exception):  # the JVM may be gone
        found += _java_causes(java)
    return found


def _java_causes(java: Any) -> Iterator[Cause]:
    """Yield a Java exception and its causes, at most CAUSES_MAX, each with the names of its classes and its fields."""
    for _ in range(CAUSES_MAX):
        if java is None:
            return
        names, above = [], java.getClass()
        while above is not None:
            names.append(str(above.getName()))
            above = above.getSuperclass()
        if SQL in names:
            java = java.getNextException() or java  # for a batch the first exception only announces the next one
        state = _result_of(java, "getSQLState" if SQL in names else "getSqlState")
        status = _result_of(java, "statusCode") if OF_AWS in names else ""
        condition = "" if SQL in names else _result_of(java, "getCondition")
        yield Cause(tuple(names), state, condition, int(status or 0), str(java.getMessage() or ""))
        java = java.getCause()


def _result_of(java: Any, method: str) -> str:
    """Call a method that not every exception has, and return its result as text; "" if there is no such method."""
    with suppress(Exception):
        return str(getattr(java, method)() or "")
    return ""


def is_of(error: BaseException, *known: str) -> bool:
    """Return whether an exception or one of its causes has one of these classes or error conditions."""
    return any(name in (*cause.names, cause.condition) for cause in causes_of(error) for name in known)


def kind_of(causes: Sequence[Cause]) -> ErrorKind:
    """Return the meaning of an exception, from the exception itself and all of its causes. If they have several
    meanings, the one that comes first in ErrorKind counts.
    """
    found = {_kind(cause) for cause in causes}
    return next(kind for kind in ErrorKind if kind in found or kind is ErrorKind.UNKNOWN)


def _kind(cause: Cause) -> ErrorKind:
    """Return the meaning of one exception of the chain, without regard to the others.

    The first of these that is known decides: the error condition, a SQLSTATE that is listed, the kind of client that
    raised it, the message of a full disk, the class, and at last the family of the SQLSTATE.
    """
    if cause.condition in CONDITIONS:
        return CONDITIONS[cause.condition]
    for known in (cause.state, cause.state[:2]):
        if known in STATES:
            return STATES[known]
    if SQL in cause.names:
        return _of_database(cause.state)
    if OF_AWS in cause.names:
        return ErrorKind.FORBIDDEN if cause.status in FORBIDDEN_STATUS else ErrorKind.AWAY
    if PYTHON in cause.names:
        return ErrorKind.ROW
    if OF_A_FILE.intersection(cause.names[:2]) and cause.text.removesuffix(")").endswith(NO_ROOM):
        return ErrorKind.DISK_FULL
    if by_class := [CLASSES[name] for name in cause.names if name in CLASSES]:
        return by_class[0]
    if cause.state.startswith(OF_A_ROW):
        return ErrorKind.ROW
    return ErrorKind.SHAPE if cause.state.startswith(FOR_GOOD) else ErrorKind.UNKNOWN


def _of_database(state: str) -> ErrorKind:
    """Return the meaning of an SQLSTATE of a JDBC driver."""
    if known := OF_A_DATABASE.get(state) or OF_A_DATABASE.get(state[:2]):
        return known
    if state == BAD_IDENTIFIER or state.startswith(FOR_GOOD):
        return ErrorKind.SHAPE
    return ErrorKind.ROW if state.startswith(OF_A_ROW) else ErrorKind.AWAY
