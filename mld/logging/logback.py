"""Reads the levels in a logback file of Java, as logback does. Everything else in the file has an effect on Java only.

``${NAME:-default}`` stands for a variable that the file defines (`property`, `variable`), or for one of the
environment. The levels `INHERITED` and `NULL` mean the level of the parent logger. A part of the file that cannot be
used is left out, and a warning names it; nothing in a well-formed file causes an error.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mld.properties.named_file import NamedFileError, bytes_of

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

FILE_BYTES_MAX = 1024 * 1024
"""A file with a thousand loggers has a tenth of this."""
SUBSTITUTIONS_MAX = 20
"""How many variables are replaced in one value. There is a limit because a variable may refer to itself."""
NAMED_MAX = 5
"""How many of the loggers that log nothing here are named in the warning."""
WORD_CHARACTERS_MAX = 40
LEVELS: Mapping[str, int] = {
    "ALL": logging.DEBUG,
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "CRITICAL": logging.CRITICAL,
    "OFF": logging.CRITICAL + 1,
    "INHERITED": logging.NOTSET,
    "NULL": logging.NOTSET,
}
"""The levels of logback, and two names that Python has for levels."""
LOG4J_LOGGERS = "loggers"
"""The element that has the levels in a file for Log4j 2, in lower case; logback has none of this name."""
ROOT = ""
OURS = ("mld", "botocore", "boto3", "urllib3", "asyncio", "werkzeug", "py")
"""First parts of the names of loggers in this process. A logger named after a class of Java logs nothing here."""
_VARIABLE = re.compile(r"\$\{([^${}]*)\}")


class LogbackError(Exception):
    """The file cannot be used at all. The text gives the reason."""


@dataclass(frozen=True, slots=True)
class LogbackLevels:
    """The level of each logger; `ROOT` is the root logger. `ignored` has a text for each part of the file without an
    effect.
    """

    levels: Mapping[str, int]
    ignored: tuple[str, ...] = ()


def levels_of(file: str, env: Mapping[str, str], *, again: bool = False) -> LogbackLevels:
    """Return the levels in the file. `again`: a running daemon reads the file once more. It must not be a pipe then,
    because a pipe cannot be read twice.

    Raises LogbackError, and nothing else.
    """
    from xml.etree import ElementTree  # here, as most starts have no such file

    try:
        data = bytes_of(file, FILE_BYTES_MAX, takes_pipe=not again)
        document = ElementTree.fromstring(data)  # noqa: S314 - the operator's own file, as trusted as the properties file
    except NamedFileError as error:
        raise LogbackError(f"it {error}") from error
    except (SyntaxError, ValueError, LookupError, RecursionError) as error:
        raise LogbackError(str(error)) from error
    if any(_tag(element) == LOG4J_LOGGERS for element in document):
        raise LogbackError("it is a file for Log4j 2, whose levels have no effect here")
    reading = _Reading(env)
    for element in document:
        reading.take(element)
    return reading.result()


class _Reading:
    """Reads a document once, from top to bottom, so that a variable has its value only after its definition."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._variables = dict(env)
        self._levels: dict[str, int] = {}
        self._foreign: list[str] = []
        self._ignored: list[str] = []

    def result(self) -> LogbackLevels:
        """Return the levels, and texts about what was ignored."""
        ignored = list(dict.fromkeys(self._ignored))
        if self._foreign:
            names = ", ".join(self._foreign[:NAMED_MAX]) + (", …" if len(self._foreign) > NAMED_MAX else "")
            ignored.append(f"loggers of Java ({names}), which log nothing here: name mld, or mld.consumer and such")
        return LogbackLevels(self._levels, tuple(ignored))

    def take(self, element: Element) -> None:
        """Read one element of the file: it sets a variable, or the level of a logger. An element that names another
        file or a condition is noted as ignored. Any other, such as an appender, is left out without a note.
        """
        match _tag(element):
            case "property" | "variable" if (name := element.get("name")) is not None:
                self._variables[name] = self._filled(element.get("value", element.text or ""))
            case "property" | "variable" | "include" | "if" as tag:
                self._ignored.append(f"<{tag}>, which names another file or a condition")
            case "root":
                self._take_levels(ROOT, element)
            case "logger":
                name = self._filled(element.get("name", "")).strip()
                self._take_levels(ROOT if name.upper() == "ROOT" else name, element)

    def _take_levels(self, name: str, element: Element) -> None:
        """Read the level of a logger. As in logback, it is an attribute of the logger's element, or an element in
        it.
        """
        texts = [element.get("level"), *(inner.get("value") for inner in element if _tag(inner) == "level")]
        for text in filter(None, texts):
            word = self._filled(text).strip().upper()
            level = LEVELS.get(word)
            if level is None or (level == logging.NOTSET and name == ROOT):
                self._ignored.append(f"level {word[:WORD_CHARACTERS_MAX]!r} of {name or 'root'}")
            elif name == ROOT or name.partition(".")[0] in OURS:
                self._levels[name] = level
            else:
                self._foreign.append(name)

    def _filled(self, text: str) -> str:
        """Return the text with variables replaced by their values, the innermost first. The replacement stops at a
        variable without a value.
        """
        for _ in range(SUBSTITUTIONS_MAX):
            found = _VARIABLE.search(text)
            if found is None:
                break
            name, mark, default = found[1].partition(":-")
            value = self._variables.get(name.strip(), default if mark else None)
            if value is None:
                break
            text = text[: found.start()] + value + text[found.end() :]
        return text


def _tag(element: Element) -> str:
    return element.tag.lower() if isinstance(element.tag, str) else ""  # in logback case does not matter
