"""An exception of Spark in one sentence, for people.

Only for people: what an exception means for the next attempt is decided by its classes (`session.error_classes`), never
by a word in its text, because a text may quote a record.
"""

from __future__ import annotations

NO_NAME = "a value of partitionBy is no name of a directory"
"""Said where a sink raises an exception over a row: its record is to blame. The value is not quoted."""
CAUSE = "Caused by: "
TRACEBACK = "Traceback (most recent call last):"
SENTENCE_CHARS_MAX = 300
PY4J = "An error occurred while calling"


def sentence(text: str) -> str:
    """Return the first line of an exception of Spark, and the innermost cause if it names one; bounded.

    The cause of an exception in a Python worker is the user's, as the traceback in the text ends."""
    every = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line.removeprefix(": ") for line in every if not line.startswith(PY4J)]
    causes = [line.removeprefix(CAUSE) for line in lines if line.startswith(CAUSE)]
    cause = _python_cause(text) or (causes[-1] if causes else None)
    return "; cause: ".join(line[:SENTENCE_CHARS_MAX] for line in (*lines[:1], *([cause] if cause else [])))


def _python_cause(text: str) -> str | None:
    _, found, rest = text.rpartition(TRACEBACK)
    lines = rest.splitlines()[1:] if found else []
    return next((line.strip() for line in lines if line.strip() and not line[0].isspace()), None)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text that says something; a Java stack trace stays out of a sentence."""
    lines = (line.strip() for line in str(error).splitlines())
    text = (
        next((line.removeprefix(": ") for line in lines if line and not line.startswith(PY4J)), "")
        or type(error).__name__
    )
    return text[:500]
