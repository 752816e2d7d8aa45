"""Shortens an exception of Spark to one sentence, for people.

The sentences are only for people. `session.error_classes` decides what the engine does next, by the classes of an
exception. A text may quote a record, so no decision depends on words in it.
"""

from __future__ import annotations

NO_NAME = "a value of partitionBy is no name of a directory"
"""Part of the message that a job raises over a row whose partition value cannot be the name of a directory. The value
itself is not quoted.
"""
CAUSE = "Caused by: "
TRACEBACK = "Traceback (most recent call last):"
SENTENCE_CHARS_MAX = 300
PY4J = "An error occurred while calling"


def sentence(text: str) -> str:
    """Return the first line of the text of a Spark exception, and its innermost cause if the text names one; both are
    cut to SENTENCE_CHARS_MAX.

    For an exception in a Python worker the cause is the user's own exception, at the end of the traceback in the text.
    """
    every = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line.removeprefix(": ") for line in every if not line.startswith(PY4J)]
    causes = [line.removeprefix(CAUSE) for line in lines if line.startswith(CAUSE)]
    cause = _python_cause(text) or (causes[-1] if causes else None)
    return "; cause: ".join(line[:SENTENCE_CHARS_MAX] for line in (*lines[:1], *([cause] if cause else [])))


def _python_cause(text: str) -> str | None:
    """Return the line with the exception of a Python worker, at the end of the last traceback; None without one."""
    _, found, rest = text.rpartition(TRACEBACK)
    lines = rest.splitlines()[1:] if found else []
    return next((line.strip() for line in lines if line.strip() and not line[0].isspace()), None)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text that is not empty, without Py4J's own line or a stack trace."""
    lines = (line.strip() for line in str(error).splitlines())
    text = (
        next((line.removeprefix(": ") for line in lines if line and not line.startswith(PY4J)), "")
        or type(error).__name__
    )
    return text[:500]
