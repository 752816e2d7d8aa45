"""Makes the text of a session host fit for its readers: without the secrets of its settings, and one line for one line.

Spark's exceptions repeat URLs, options and settings, and Spark and the user's code print into the host as well. All of
that text passes here on its way to a child, to the status file, or into a dead letter.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping

from mld.properties.printable import printable, printable_lines
from mld.properties.scrubber import Scrubber, secrets_of_environment

Sanitizer = Callable[[str], str]


def sanitizer_of(secrets: Iterable[str], env: Mapping[str, str]) -> Sanitizer:
    """Return a function that makes one line, without secrets, of whatever text it gets."""
    scrub = Scrubber((*secrets, *secrets_of_environment(env)))
    return lambda text: printable(scrub(text))


class SanitizedLines(logging.Formatter):
    """Formats log lines until the host listens; from then on all that is printed passes line by line."""

    def __init__(self, fit: Sanitizer) -> None:
        super().__init__("%(levelname)s %(message)s")
        self._fit = fit

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(self._fit, super().format(record).split("\n")))


def log_by(fit: Sanitizer) -> None:
    """Log to standard error; PySpark's bridge only its warnings."""
    handler = logging.StreamHandler()
    handler.setFormatter(SanitizedLines(fit))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("py4j").setLevel(logging.WARNING)


def complain(text: str) -> None:
    """Write the last words of a program that has no settings, or none any more."""
    sys.stderr.write(f"mld-spark: {printable_lines(Scrubber()(text))}\n")
