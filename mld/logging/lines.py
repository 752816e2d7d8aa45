"""Formats events of the log, as text and as JSON, without secrets and without lines that look like other events.

Messages, fields and traces repeat what others wrote: a child, AWS, the properties file, an exception. Whatever it is,
an event in text is one line with its trace indented below it, and nothing else begins like an event. Formatting never
raises: if a message or field cannot be formatted, the rest of the event is logged.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from pythonjsonlogger.json import JsonFormatter

from mld.core.stream_ids import OF_THIS_STREAM
from mld.properties.redaction import Scrubber, printable

INDENT = "    "
"""Indentation of a trace. No event begins with a blank."""
_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_LEAST_PRIORITY = 7
_PLAIN = (int, float, bool, type(None))

Fit = Callable[[str], str]


class TextFormatter(logging.Formatter):
    """``2026-01-31T18:44:23.390Z INFO  mld.daemon.worker message  shard=… counter=…``."""

    def __init__(self, scrub: Scrubber) -> None:
        super().__init__()
        self._scrub = scrub

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        fit = cleaned(record, self._scrub)
        fields = " ".join(f"{name}={_field_text(value)}" for name, value in fields_of(fit).items())
        line = f"{stamp} {printable(fit.levelname):<7} {fit.name} {fit.msg}" + (f"  {fields}" if fields else "")
        return "\n".join([line, *filter(None, (fit.exc_text, fit.stack_info))])


class WithPriority(logging.Formatter):
    """The lines of `inner`, each with its priority before it as sd-daemon(3) says, which the journal takes away."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        mark = f"<{_priority(record.levelno)}>"
        return "\n".join(mark + line for line in self._inner.format(record).split("\n"))


def _priority(level: int) -> int:
    """Of syslog(3); what is between two levels counts as the lower one."""
    return next((priority for least, priority in _PRIORITIES if level >= least), _LEAST_PRIORITY)


class JsonLines(JsonFormatter):
    """One JSON object a line, all ASCII."""

    def __init__(self, scrub: Scrubber) -> None:
        super().__init__(
            "%(levelname)s %(name)s %(message)s",
            rename_fields={"levelname": "level", "name": "logger"},
            timestamp=True,
        )
        self._scrub = scrub

    def format(self, record: logging.LogRecord) -> str:
        fit = _copy(record, _message(record), self._scrub)
        fit.stack_info = record.stack_info and self._scrub(record.stack_info)
        fit.exc_text, fit.exc_info = _trace(record, self._scrub), None
        return super().format(fit)


class Guarded(logging.Formatter):
    """Any other formatter, given cleaned events."""

    def __init__(self, inner: logging.Formatter, scrub: Scrubber) -> None:
        super().__init__()
        self._inner = inner
        self._scrub = scrub

    def format(self, record: logging.LogRecord) -> str:
        return self._inner.format(cleaned(record, self._scrub))


def cleaned(record: logging.LogRecord, scrub: Scrubber) -> logging.LogRecord:
    """A copy without secrets, in which every text is one printable line, and the trace is indented lines."""

    def fit(text: str) -> str:
        return printable(scrub(text))

    copied = _copy(record, _message(record), fit)
    copied.exc_text = _indented(_trace(record, scrub))
    copied.stack_info = _indented(record.stack_info and scrub(record.stack_info))
    return copied


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """The fields given as `extra=`."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES}


def _copy(record: logging.LogRecord, message: str, fit: Fit) -> logging.LogRecord:
    copied = logging.LogRecord.__new__(logging.LogRecord)  # copy.copy takes ten times as long
    vars(copied).update(vars(record))
    stream = OF_THIS_STREAM.get()
    if stream is not None:
        vars(copied).setdefault("stream", stream)
    copied.msg, copied.args, copied.name = fit(message), (), fit(record.name)
    for name, value in fields_of(copied).items():
        del vars(copied)[name]
        vars(copied)[fit(name)] = _value(value, fit)
    return copied


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # more or fewer values than places, or a value that does not show itself
        values = record.args if isinstance(record.args, tuple) else (record.args,)
        return " ".join(map(_shown, (record.msg, *values)))


def _shown(value: object) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__} that raises {type(error).__name__}>"


def _value(value: object, fit: Fit) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Mapping):
        return {fit(_shown(name)): _value(one, fit) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_value(one, fit) for one in value]
    return fit(_shown(value))


def _trace(record: logging.LogRecord, scrub: Scrubber) -> str | None:
    """Made from the exception each time: another handler may have kept its own text in the record."""
    if not record.exc_info:
        return None
    try:
        return scrub(logging.Formatter().formatException(record.exc_info))
    except Exception as error:
        kind = record.exc_info[0]
        return f"{kind and kind.__name__}: its trace cannot be shown ({type(error).__name__})"


def _indented(text: str | None) -> str | None:
    return "\n".join(INDENT + printable(line) for line in text.split("\n")) if text else None


def _field_text(value: object) -> str:
    text = _shown(value)
    return json.dumps(text, ensure_ascii=False) if " " in text or '"' in text or not text else text
