"""`in_words`: says in one sentence why a child failed, from the error, its end, and its last lines on stderr. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mld.protocol.conversation import ProcessorGoneError

_EXCEPTION = re.compile(
    r"(?:Caused by: |Exception in thread \"[^\"]*\" |Uncaught |panic: |fatal error: |thread '[^']*'[^:]* panicked)*"
    r"(?:(?:[A-Za-z_]\w*[.:$]+)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b|(?<=panic: )|(?<=panicked)|(?<=error: ))"
)
"""Matches the beginning of the line in which a Python, Java, Node, Ruby, Go or Rust program prints its fatal
exception."""


def in_words(error: Exception, ended: str, last_words: Sequence[str]) -> str:
    """Return a sentence that says why the child failed; `ended` says how it ended.

    If stderr shows the exception of which the child died, the sentence begins with it. Otherwise the sentence ends with
    the last line of stderr, which may have nothing to do with the failure.
    """
    died = isinstance(error, ProcessorGoneError)
    lines = [line.strip() for line in last_words if line.strip()]
    cause = next((line for line in reversed(lines) if _EXCEPTION.match(line)), None) if died else None
    if cause is not None:
        return f"{cause} ({ended})"
    # The error of a child that died says only that it closed a pipe, so the last line of stderr takes its place.
    what = ended if died and lines else f"{error} ({ended})"
    return f"{what}; last on stderr: {lines[-1]}" if lines else what
