"""An exception of Spark in a sentence."""

from __future__ import annotations

from mld.processors.spark.sentences import first_line, sentence

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
