"""Makes the output of a session host safe to read: it removes secrets and keeps each line one line.

Spark's exceptions repeat URLs, options and settings, and Spark and the user's code print in the host, too. All this
text passes through here on its way to a child, to the status file, or into a dead letter.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping

from mld.properties.printable import printable, printable_lines
from mld.properties.scrubber import Scrubber, secrets_of_environment

Sanitizer = Callable[[str], str]


def sanitizer_of(secrets: Iterable[str], env: Mapping[str, str]) -> Sanitizer:
    """Return a function that turns any text into one line without secrets."""
    scrub = Scrubber((*secrets, *secrets_of_environment(env)))
    return lambda text: printable(scrub(text))


class SanitizedLines(logging.Formatter):
    """Formats log lines until the host listens. After that, `printed_lines` passes on everything that is printed."""

    def __init__(self, fit: Sanitizer) -> None:
        super().__init__("%(levelname)s %(message)s")
        self._fit = fit

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(self._fit, super().format(record).split("\n")))


def log_by(fit: Sanitizer) -> None:
    """Log to standard error. Of PySpark's bridge Py4J only warnings are logged."""
    handler = logging.StreamHandler()
    handler.setFormatter(SanitizedLines(fit))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("py4j").setLevel(logging.WARNING)


def complain(text: str) -> None:
    """Write the last message of a program that has no settings, or none any more."""
    sys.stderr.write(f"mld-spark: {printable_lines(Scrubber()(text))}\n")
