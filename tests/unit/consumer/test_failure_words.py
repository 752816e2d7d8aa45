"""How a failure is put: with the exception of which a child died, and never with a line that says nothing of it."""

from __future__ import annotations

import pytest

from mld.consumer.failure_words import in_words
from mld.protocol.conversation import ProcessorError, ProcessorGoneError

GONE, ENDED = ProcessorGoneError("closed its output before it answered"), "pid 7 exited with status 1"


@pytest.mark.parametrize(
    "lines",
    [
        ["Traceback (most recent call last):", '  File "a.py", line 3', "*KeyError: 'id'", ""],
        ["*my.app.errors.BadOrderError: 7"],
        ['*Exception in thread "main" java.lang.IllegalStateException: x', "\tat a.b.C(C.java:3)"],
        ["java.lang.RuntimeError: y", "\tat a.b", "*Caused by: java.io.IOException: disk", "\tat c.d"],
        ["*panic: runtime error: index out of range", "", "goroutine 1 [running]:"],
        ["*thread 'main' panicked at src/main.rs:2:5:", "boom"],
        ["*TypeError: x is not a function", "    at Object.<anonymous> (a.js:1:1)", "Node.js v18.19.1"],
    ],
)
def test_an_exception_comes_first(lines: list[str]) -> None:
    (cause,) = [line[1:] for line in lines if line.startswith("*")]
    assert in_words(GONE, ENDED, [line.removeprefix("*") for line in lines]) == f"{cause} ({ENDED})"


def test_another_line_comes_last() -> None:
    lines = ["2026-01-31 12:00:00 INFO saw SomeError before, and went on", ""]
    assert in_words(GONE, ENDED, lines) == f"{ENDED}; last on stderr: {lines[0]}"


def test_what_the_child_did_wrong_comes_before_what_it_printed() -> None:
    error = ProcessorError("answered status for initialize, not for processRecords")
    words = in_words(error, "pid 7 ended by mld's SIGTERM", ["KeyError: 'of an hour ago'"])
    assert words == f"{error} (pid 7 ended by mld's SIGTERM); last on stderr: KeyError: 'of an hour ago'"


def test_a_child_that_printed_nothing() -> None:
    assert in_words(GONE, ENDED, ["  "]) == f"{GONE} ({ENDED})"
