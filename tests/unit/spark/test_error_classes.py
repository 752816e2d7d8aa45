"""What an exception of Spark means: by classes, states and conditions, whatever any text says."""

from __future__ import annotations

import pytest

from mld.processors.spark.sentences import NO_NAME
from mld.processors.spark.session.error_classes import (
    ANALYSIS,
    CAUSES_MAX,
    OF_AWS,
    PYTHON,
    SQL,
    causes_of,
    is_of,
    kind_of,
)
from mld.processors.spark.session.error_kinds import Cause, ErrorKind
from mld.processors.spark.session.sink_errors import failure, python_class
from mld.processors.spark.sink_port import DataRefused, InputGone, JobFailed, SinkError, SinkRefused, ValueFailed
from tests.unit.spark.java_errors import OBJECT, FromJava, of

SPARK = "org.apache.spark.SparkException"
JOB = Cause((SPARK, *OBJECT), text="Job aborted due to stage failure: java.util.concurrent: No space left on device")


def python(last: str) -> Cause:
    said = f'Traceback (most recent call last):\n  File "/p.py", line 8, in <lambda>\n    f(n)\n{last}\n'
    return of(PYTHON, text=f"An exception was thrown from the Python worker.\n{said}")


CAST = of("org.apache.spark.SparkNumberFormatException", state="22018", condition="CAST_INVALID_INPUT")
CHECK = of("org.apache.spark.sql.delta.schema.DeltaInvariantViolationException", state="23001")
LOST = of("io.delta.exceptions.ConcurrentAppendException", state="2D521")
ROOM = of("java.io.IOException", text="No space left on device")
ANALYSED = of(ANALYSIS, state="42703", condition="UNRESOLVED_COLUMN")
WRITE = of(SPARK, state="58030", condition="TASK_WRITE_FAILED")


@pytest.mark.parametrize(
    ("chain", "kind"),
    [
        ([JOB], ErrorKind.UNKNOWN),
        ([JOB, of("java.lang.OutOfMemoryError", text="Java heap space")], ErrorKind.UNKNOWN),
        ([JOB, of("java.io.EOFException")], ErrorKind.UNKNOWN),
        ([JOB, WRITE, CAST], ErrorKind.ROW),
        ([JOB, CHECK], ErrorKind.ROW),
        ([JOB, of(SPARK, state="54006", condition="EXCEED_LIMIT_LENGTH")], ErrorKind.ROW),
        ([JOB, of(SPARK, state="42000", condition="NOT_NULL_ASSERT_VIOLATION")], ErrorKind.ROW),
        ([JOB, python("MemoryError: no")], ErrorKind.ROW),
        ([JOB, ROOM], ErrorKind.DISK_FULL),
        ([JOB, of("java.io.FileNotFoundException", text="/p/x (Disk quota exceeded)")], ErrorKind.DISK_FULL),
        ([JOB, of("java.io.FileNotFoundException", text="(Disk quota exceeded) (Is a directory)")], ErrorKind.UNKNOWN),
        ([LOST], ErrorKind.CONFLICT),
        ([of("io.delta.exceptions.ProtocolChangedException")], ErrorKind.UNKNOWN),
        ([of(ANALYSIS, state="51024", condition="INCOMPATIBLE_TABLE_CHANGE_AFTER_ANALYSIS")], ErrorKind.CONFLICT),
        ([of("org.apache.iceberg.exceptions.CommitFailedException")], ErrorKind.CONFLICT),
        ([ANALYSED], ErrorKind.SHAPE),
        ([of(ANALYSIS, state="HV000", condition="FAILED_JDBC"), of("java.net.SocketException")], ErrorKind.AWAY),
        ([of("java.nio.file.AccessDeniedException"), Cause((OF_AWS, *OBJECT), status=403)], ErrorKind.FORBIDDEN),
        ([JOB, Cause((OF_AWS, *OBJECT), status=503)], ErrorKind.AWAY),
        ([of(SPARK, condition="FAILED_READ_FILE.FILE_NOT_EXIST", state="KD001")], ErrorKind.GONE),
        ([Cause((SQL, *OBJECT), "40001")], ErrorKind.CONFLICT),
        ([Cause((SQL, *OBJECT), "53100")], ErrorKind.DISK_FULL),
        ([Cause((SQL, *OBJECT), "57P03")], ErrorKind.AWAY),
        ([Cause((SQL, *OBJECT), "42P01")], ErrorKind.SHAPE),
        ([Cause((SQL, *OBJECT), "42501")], ErrorKind.FORBIDDEN),
        ([], ErrorKind.UNKNOWN),
    ],
)
def test_the_kind_of_a_chain(chain, kind):
    assert kind_of(chain) is kind
    assert kind_of(causes_of(FromJava(*chain))) is kind if chain else True


@pytest.mark.parametrize(
    "words",
    ["java.util.ConcurrentModificationException", "No space left on device", "AccessDenied", "SQLSTATE: 2D521"],
)
def test_words_that_a_record_or_a_stack_has_decide_nothing(words):
    for one, kind in (
        (CAST, ErrorKind.ROW),
        (of("org.Any"), ErrorKind.UNKNOWN),
        (python("ValueError: x"), ErrorKind.ROW),
    ):
        quoting = one._replace(text=f"{one.text}\nThe value '{words}'\n\tat {words}\nCaused by: {words}")
        assert kind_of([JOB._replace(text=words), quoting]) is kind


def test_the_class_of_an_exception_in_python_is_what_stands_before_any_text_of_a_record():
    spoof = "ValueError: x\nTraceback (most recent call last):\n  x\nModuleNotFoundError: No module named 'y'"
    assert python_class([JOB, python(spoof)]) == "ValueError"
    assert python_class([JOB]) == ""


def test_causes_that_refer_to_each_other_end():
    error = FromJava(JOB)
    error.java_exception._below = error.java_exception
    assert len(causes_of(error)) == 1 + CAUSES_MAX


def test_an_exception_of_python_is_a_cause_as_well():
    inner, outer = FromJava(LOST), RuntimeError("outer")
    outer.__cause__ = inner
    assert is_of(outer, "io.delta.exceptions.ConcurrentAppendException")
    assert not is_of(outer, "ConcurrentAppendException")


@pytest.mark.parametrize(
    ("chain", "raised", "remedy"),
    [
        ([JOB, CAST], ValueFailed, ""),
        ([JOB, CHECK], DataRefused, ""),
        ([JOB, of(SPARK, state="P0001", text=f"{NO_NAME}: that of x")], DataRefused, ""),
        ([JOB, of(SPARK, state="P0001", text="no")], ValueFailed, ""),
        ([JOB, python("ModuleNotFoundError: No module named 'm'")], ValueFailed, "install it where the executors run"),
        ([JOB, ROOM], SinkError, "make room"),
        ([of("java.nio.file.AccessDeniedException")], SinkRefused, "that permission"),
        ([of("java.nio.file.InvalidPathException")], SinkRefused, "start the daemon with LC_ALL=C.UTF-8"),
        ([of(SPARK, condition="FAILED_READ_FILE.FILE_NOT_EXIST")], InputGone, "it is tried again"),
        ([ANALYSED], SinkRefused, "correct the pipeline"),
        ([LOST], SinkError, "it is tried again"),
        ([JOB], JobFailed, ""),
    ],
)
def test_what_follows_for_the_next_attempt(chain, raised, remedy):
    found = failure(FromJava(*chain), "sink out: writing")
    assert type(found) is raised
    assert str(found).startswith("sink out: writing: ") and remedy in str(found)


def test_a_plain_exception_is_said_and_searched():
    assert type(failure(RuntimeError("CONCURRENT"), "sink out")) is JobFailed
