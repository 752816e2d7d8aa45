"""Sanitizes the output of a session host: removes secrets, and escapes control characters so that a line stays one
line.

Spark's exceptions repeat URLs, options and settings; Spark and the user's code, too, print in the host. All this text
passes through here before it goes to a child, into the status file, or into a dead letter.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from copy import copy

from mld.properties.printable import printable, printable_lines
from mld.properties.scrubber import Scrubber, secrets_of_environment

Sanitizer = Callable[[str], str]
LINE_CHARS_MAX, TEXT_CHARS_MAX = 8 * 1024, 1 << 20
"""Longest line; and how many characters of a text are scrubbed for it, because names in a sink may have any length."""


def sanitizer_of(secrets: Iterable[str], env: Mapping[str, str]) -> Sanitizer:
    """Return a function that turns any text into one line without secrets, of a bounded length."""
    scrub = Scrubber((*secrets, *secrets_of_environment(env)))
    return lambda text: printable(scrub(text[:TEXT_CHARS_MAX]))[:LINE_CHARS_MAX]


class SanitizedLines(logging.Formatter):
    """Formats and sanitizes the lines of the log."""

    def __init__(self, fit: Sanitizer) -> None:
        super().__init__("%(levelname)s %(message)s")
        self._fit = fit

    def format(self, record: logging.LogRecord) -> str:
        """Return the message on one line, and below it the lines of a traceback if there is one; all sanitized."""
        record = copy(record)
        record.msg, record.args = self._fit(record.getMessage()), ()  # a message is one line, a traceback has several
        return "\n".join(map(self._fit, super().format(record).split("\n")))


def log_by(fit: Sanitizer) -> None:
    """Send all log lines of this process to standard error, sanitized by `fit`. PySpark's bridge Py4J logs only
    warnings and errors.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(SanitizedLines(fit))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("py4j").setLevel(logging.WARNING)


def complain(text: str) -> None:
    """Write the last message of a program to standard error. Only secrets that can be recognized by their form are
    removed, not those of the settings, because the settings may not be loaded."""
    sys.stderr.write(f"mld-spark: {printable_lines(Scrubber()(text))}\n")
