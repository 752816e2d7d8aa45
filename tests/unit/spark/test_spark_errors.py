"""What an exception of Spark comes down to."""

from __future__ import annotations

import pytest

from mld.processors.spark.sink_port import (
    GONE,
    NO_NAME,
    NO_PANDAS,
    NO_RECORD_S_FAULT,
    NO_ROOM,
    OF_S3,
    UNMAPPABLE,
    Blameless,
    DataRefused,
    JobFailed,
    SinkError,
    SinkRefused,
    ValueFailed,
    failure,
    first_line,
    sentence,
)

PYTHON = """\
An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/p/pipeline.py", line 8, in <lambda>
    inverse = F.udf(lambda n: helper(n), "int")
                              ^^^^^^^^^
ZeroDivisionError: integer division or modulo by zero
 SQLSTATE: 38000

JVM stacktrace:
Caused by: java.lang.Whatever
"""


def test_the_users_exception_in_a_python_worker_is_the_cause():
    assert sentence(PYTHON).endswith("; cause: ZeroDivisionError: integer division or modulo by zero")


def test_the_innermost_cause_of_java():
    text = "Job aborted.\nCaused by: org.Outer: o\n  at x\nCaused by: java.io.IOException: No space left on device\n"
    assert sentence(text) == "Job aborted.; cause: java.io.IOException: No space left on device"


def test_a_plain_text():
    assert (sentence("one line"), sentence("")) == ("one line", "")


def test_what_py4j_says_of_itself_is_left_out():
    text = "An error occurred while calling o56.sql.\n: java.lang.IllegalArgumentException: no such type\n\tat x\n"
    assert sentence(text) == "java.lang.IllegalArgumentException: no such type"


def test_the_first_line_of_java():
    java = "An error occurred while calling None.org.apache.X.\n: java.lang.IllegalStateException: stopped\n\tat x"
    assert first_line(RuntimeError(java)) == "java.lang.IllegalStateException: stopped"
    assert first_line(RuntimeError("")) == "RuntimeError"


@pytest.mark.parametrize("module", ["pandas", "pyarrow"])
def test_a_node_without_pandas_is_never_the_records(module):
    error = RuntimeError(f"Traceback (most recent call last):\n  x\nModuleNotFoundError: No module named '{module}'")
    refused = failure(error, "sink out")
    assert isinstance(refused, SinkRefused)
    assert str(refused).endswith("(key mld.spark.conf.spark.pyspark.python) needs pandas and pyarrow")
    assert isinstance(failure(RuntimeError("No module named 'theirs'"), "sink out"), JobFailed)


def test_a_module_that_an_executor_lacks_is_never_the_records():
    text = PYTHON.replace(
        "ZeroDivisionError: integer division or modulo by zero", "ModuleNotFoundError: No module named 'helper'"
    )
    refused = failure(RuntimeError(text), "sink out")
    assert isinstance(refused, SinkRefused)
    assert "cause: ModuleNotFoundError: No module named 'helper'; install it where the executors run" in str(refused)
    assert type(failure(RuntimeError(PYTHON), "sink out")) is ValueFailed


@pytest.mark.parametrize(
    "said",
    [
        "ExecutorLostFailure (executor 3 exited caused by one of the running tasks) Reason: Command exited with 137",
        "java.lang.OutOfMemoryError: Java heap space",
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
        "Job 7 cancelled because SparkContext was shut down",
        "org.apache.hadoop.fs.s3a.AWSStatus500Exception: PUT 0-byte object on lake/out: 503",
        "software.amazon.awssdk.services.s3.model.S3Exception: slow down (Status Code: 503)",
    ],
)
def test_what_no_record_can_cause(said):
    assert isinstance(
        failure(RuntimeError(f"Job aborted due to stage failure.\nCaused by: {said}"), "sink out"), Blameless
    )


WORDS = [*NO_ROOM, UNMAPPABLE, *NO_PANDAS, *NO_RECORD_S_FAULT, GONE, *OF_S3, "ImportError: no"]


@pytest.mark.parametrize("words", WORDS)
def test_the_words_of_a_record_that_an_exception_quotes_decide_nothing(words):
    cast = f"[CAST_INVALID_INPUT] The value '{words}' of the type \"STRING\" cannot be cast. SQLSTATE: 22018\n\tat x"
    raised = f"[USER_RAISED_EXCEPTION] {words} SQLSTATE: P0001"
    python = PYTHON.replace("ZeroDivisionError: integer division or modulo by zero", f"ValueError: {words!r}")
    for text in (cast, raised, python):
        assert type(failure(RuntimeError(text), "sink out")) is ValueFailed


@pytest.mark.parametrize(
    ("raised", "kind"),
    [("OSError: No space left on device", SinkError), ("MemoryError: Cannot allocate memory", Blameless)],
)
def test_a_function_without_room_or_memory_is_no_records_fault(raised, kind):
    text = PYTHON.replace("ZeroDivisionError: integer division or modulo by zero", raised)
    assert type(failure(RuntimeError(text), "sink out")) is kind


def test_a_value_that_names_no_directory_is_refused_by_the_sink():
    said = f"[USER_RAISED_EXCEPTION] {NO_NAME}: that of kind is too long, or has a zero SQLSTATE: P0001"
    assert type(failure(RuntimeError(said), "sink out")) is DataRefused


@pytest.mark.parametrize("condition", ["CONNECTION] Couldn't connect to it", "TABLE_EXISTS] Check that it exists"])
def test_a_database_that_does_not_answer_is_waited_for(condition):
    from pyspark.errors import AnalysisException

    error = AnalysisException(f"[FAILED_JDBC.{condition}\nJVM stacktrace:\nCaused by: java.net.ConnectException")
    assert type(failure(error, "sink out")) is SinkError
    other = AnalysisException("[UNRESOLVED_COLUMN] no such column FAILED\nJVM stacktrace: FAILED_JDBC")
    assert isinstance(failure(other, "sink out"), SinkRefused)
