"""Turns the lines that a child prints into events of our log: a JSON object becomes fields, any other line stays text.

A child may print anything. So its fields never replace ours, and if a field's name suggests a secret, the value is
hidden. The work for a line is bounded: JSON that is long or has many members is not parsed but logged as text, and if
an object has many fields, only the first of them are kept.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import CRITICAL, DEBUG, ERROR, INFO, WARNING
from typing import Any

from mld.core.log_fields import of_child
from mld.properties.redaction import HIDDEN, is_secret_key
from mld.protocol.json_fields import refuse_constant
from mld.protocol.line_splitter import LineSplitter

LINE_CHARACTERS_MAX = 16 * 1024  # a longer line is cut, and never parsed as JSON
GOES_ON = "(this line goes on; the rest of it is left out)"
UNFINISHED_BYTES_MAX = LINE_CHARACTERS_MAX - 2 - len(GOES_ON)  # 2 for the "… " between the beginning and GOES_ON
MEMBERS_MAX = 400  # JSON members of a line that is parsed; checking a name for secrets takes some 3 us
FIELDS_MAX = 64  # how many members are kept of each object, and of each list
NAME_CHARACTERS_MAX = 128  # kept of the name of a member
DEPTH_MAX = 8  # objects and lists nested deeper than this are left out
CHILD_PREFIX = "child_"  # put before the name of a child's field if our own lines have a field of that name
NO_MESSAGE = "(no message)"
RESERVED = frozenset({
    # Names that `logging` has for the parts of an event,
    "name", "msg", "args", "levelname", "levelno", "pathname", "filename", "module", "exc_info", "exc_text",
    "stack_info", "lineno", "funcName", "created", "msecs", "relativeCreated", "thread", "threadName", "processName",
    "process", "taskName", "message", "asctime",
    # and names of fields in our own lines.
    "level", "logger", "timestamp", "action", "shard", "pid",
})  # fmt: skip
_MESSAGES = ("message", "msg", "event")  # fields of a JSON object that may have the message
_LEVELS = ("level", "severity", "levelname", "log.level", "lvl", "levelno")  # fields that may have the level
_NAMED = {  # the level for each name, in lower case
    **dict.fromkeys(("trace", "debug", "verbose", "finest", "finer", "fine"), DEBUG),
    **dict.fromkeys(("info", "information", "notice", "config", "default"), INFO),
    **dict.fromkeys(("warn", "warning"), WARNING),
    **dict.fromkeys(("error", "err", "severe"), ERROR),
    **dict.fromkeys(("critical", "crit", "fatal", "alert", "emergency", "emerg", "panic"), CRITICAL),
}
_SYSLOG = (CRITICAL, CRITICAL, CRITICAL, ERROR, WARNING, INFO, INFO, DEBUG)  # the level for each number of syslog
_PINO_OFFSET = 10  # pino and bunyan count trace 10, debug 20, info 30, … fatal 60
_WORDED = re.compile(
    r"(?:(?:[\w.-]+:|\[[^\]]*\]|\d[\w:.,/+-]*)\s+){0,3}\[?"
    r"(TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|SEVERE|CRITICAL|FATAL)(?:\s|[]:]|\Z)"
)
"""Matches a line that names its level in capitals. Up to three words may precede the level: times, words that end in a
colon, words in brackets."""
_WORDED_CHARACTERS = 100  # only the beginning of a line is searched for a level
# Matches the name of a field whose value is hidden, although the daemon's own settings have no secret of such a name.
_TELLING = re.compile(r"authori[sz]ation|signature|\A(?:auth|sig)\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ChildEvent:
    """One event that a child printed: its level as in `logging`, its message, and its fields. No field has the name of
    one of the daemon's own fields.
    """

    level: int
    message: str
    fields: Mapping[str, Any] = field(default_factory=dict)


def event_of(line: str, *, as_fields: bool) -> ChildEvent:
    """Return a line of a child as an event. Never raises.

    With `as_fields` a JSON object becomes fields, and any other line gets the level that it names. If the line names no
    level, or without `as_fields`, the level is INFO.
    """
    if as_fields and line.startswith("{") and len(line) <= LINE_CHARACTERS_MAX and line.count(",") < MEMBERS_MAX:
        value = _parsed(line)
        if value is not None:
            return _event(value)
    worded = _WORDED.match(line[:_WORDED_CHARACTERS]) if as_fields else None
    level = INFO if worded is None else _NAMED[worded[1].lower()]
    if len(line) > LINE_CHARACTERS_MAX:
        return ChildEvent(level, f"{line[:LINE_CHARACTERS_MAX]}… {len(line) - LINE_CHARACTERS_MAX} characters more")
    return ChildEvent(level, line)


def _parsed(line: str) -> dict[str, Any] | None:
    """Return a line as a JSON object; None if it is not one."""
    try:
        value = json.loads(line, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _event(value: dict[str, Any]) -> ChildEvent:
    """Return the event in a JSON object that a child printed: its level, its message, and its other members as fields,
    of which too many are left out and secret ones hidden.
    """
    level, level_name = _level(value)
    message_name = next((name for name in _MESSAGES if isinstance(value.get(name), str)), None)
    message = NO_MESSAGE if message_name is None else value[message_name]
    rest = {name: member for name, member in value.items() if name not in (message_name, level_name)}
    fields = {_free(name): member for name, member in _bounded_object(rest, 1).items()}
    return ChildEvent(level, message, fields)


def _level(value: Mapping[str, Any]) -> tuple[int, str | None]:
    """Return the level that an event names, and the name of the field with the level; INFO and None if no field has a
    level.
    """
    for name in _LEVELS:
        match value.get(name):
            case str(word) if word.strip().lower() in _NAMED:
                return _NAMED[word.strip().lower()], name
            case bool():  # which Python also takes for an int
                continue
            case int(number) if number >= 0:
                return _numbered(number, is_python=name == "levelno"), name
    return INFO, None


def _numbered(number: int, *, is_python: bool) -> int:
    """Convert a numeric level to one of `logging`, rounded down to a multiple of 10.

    Numbers from 0 to 7 are the levels of syslog, of which 0 is the most severe. Larger numbers are levels of pino, each
    of which is 10 above the level of Python with the same meaning. With `is_python` (the field is `levelno`) the number
    is a level of Python.
    """
    if number < len(_SYSLOG) and not is_python:
        return _SYSLOG[number]
    tens = number // 10 * 10 - (0 if is_python else _PINO_OFFSET)
    return min(max(tens, DEBUG), CRITICAL)


def _free(name: str) -> str:
    """Return the name under which a field of the child is logged. It gets a prefix if we use the name ourselves, or if
    it is empty.
    """
    return f"{CHILD_PREFIX}{name}" if name in RESERVED or not name else name


def _bounded_object(value: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """Copy an object, leaving out members beyond FIELDS_MAX and hiding values that may be secret."""
    bounded: dict[str, Any] = {}
    for number, (name, member) in enumerate(value.items()):
        if number == FIELDS_MAX:
            bounded["child_fields_left_out"] = len(value) - FIELDS_MAX
            break
        # A flag or a null is no secret, whatever its name suggests.
        hides = not isinstance(member, bool | None) and (is_secret_key(name) or _TELLING.search(name) is not None)
        bounded[name[:NAME_CHARACTERS_MAX]] = HIDDEN if hides else _bounded(member, depth)
    return bounded


def _bounded(value: Any, depth: int) -> Any:
    """Copy a JSON value, with limits to its depth and to the length of its lists."""
    match value:
        case dict() | list() if depth >= DEPTH_MAX:
            return "…"
        case dict():
            return _bounded_object(value, depth + 1)
        case list():
            more = [f"… {len(value) - FIELDS_MAX} more"] if len(value) > FIELDS_MAX else []
            return [*(_bounded(item, depth + 1) for item in value[:FIELDS_MAX]), *more]
        case float() if not math.isfinite(value):  # 1e999 is read as infinity, which JSON cannot express
            return str(value)
    return value


class LoggedLines:
    """Splits the bytes of an output into lines to log. Each line is logged once; a line that never ends is logged, too.

    The beginning of a very long line is logged at once. When that line ends, a second line tells how many bytes were
    left out.
    """

    def __init__(self) -> None:
        self._splitter = LineSplitter()
        self._left_out: int | None = None
        """How many bytes were left out of the unfinished line, if its beginning was already logged; else None."""

    def feed(self, data: bytes) -> list[str]:
        """Take bytes of the output, and return the lines that can be logged now. Of a line that is too long only the
        beginning and the number of further bytes are logged.
        """
        if self._left_out is not None:  # count the bytes up to the end of the unfinished line
            ends = [end for mark in (b"\n", b"\r") if (end := data.find(mark)) >= 0]
            self._left_out += min(ends, default=len(data))
        return self._shown(self._splitter.feed(data))

    def eof(self) -> list[str]:
        """Return the lines that are left when the output has ended."""
        return self._shown(self._splitter.eof())

    def _shown(self, lines: list[str]) -> list[str]:
        """Return these lines, with the beginning of an unfinished line that has become too long."""
        if self._left_out is not None and lines:  # the first line is the end of the one whose beginning was logged
            lines[0], self._left_out = f"… {self._left_out} bytes more of this line", None
        buffered = self._splitter.buffered_bytes
        if self._left_out is None and buffered > UNFINISHED_BYTES_MAX:
            lines.append(f"{self._splitter.beginning(UNFINISHED_BYTES_MAX)}… {GOES_ON}")
            self._left_out = buffered - UNFINISHED_BYTES_MAX
        return lines


class ChildLogger:
    """Logs the lines of one output of one child under `action`. `as_fields`: JSON objects become fields.

    `stream` is given if the application reads several streams, `number` if the shard has several children.
    """

    def __init__(
        self,
        log: logging.Logger,
        action: str,
        shard_id: str,
        pid: int | None = None,
        *,
        as_fields: bool,
        stream: str | None = None,
        number: int | None = None,
    ) -> None:
        self._log = log
        self._as_fields = as_fields
        self._own = {"action": action, "shard": shard_id, **({} if pid is None else {"pid": pid})}
        if stream is not None:
            self._own["stream"] = stream
        self._own |= of_child(number)

    def log(self, line: str) -> None:
        """Log a line at the level that it names. A line below INFO is logged, too, if INFO is enabled, because the
        child has its own setting of which levels it prints. `Logger.log` would drop such a line, so its record is made
        here.
        """
        event = event_of(line, as_fields=self._as_fields)
        if self._log.isEnabledFor(max(event.level, INFO)):
            fields = {**event.fields, **self._own}
            # `stream` is not RESERVED, because our lines have it only if the application reads several streams.
            if "stream" in event.fields and "stream" in self._own:
                fields[f"{CHILD_PREFIX}stream"] = event.fields["stream"]
            record = self._log.makeRecord(
                self._log.name, event.level, __file__, 0, event.message, (), None, extra=fields
            )
            self._log.handle(record)
