"""Logging of the daemon: one line per event, as text for people or as JSON for machines, on stderr.

Fields are passed in `extra=`. The message is prose, and does not repeat the value of a field. `-l` accepts a logback
XML file, which Java users have, and uses its levels. Lines go through a `QueuedStream`, so that no task ever waits for
the reader of the log.

Messages, fields and traces contain text of others: a child, AWS, the properties file, an exception. Whatever that text
is, an event in text form is one line without secrets, with its trace indented below it, and no other line begins like
an event. Formatting never raises: if a message or field cannot be formatted, the rest of the event is logged.
"""

from __future__ import annotations

import atexit
import io
import json
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, TextIO, cast

from pythonjsonlogger.json import JsonFormatter

from mld.core.stream_ids import OF_THIS_STREAM
from mld.logging.logback import LogbackError, LogbackLevels, levels_of
from mld.properties.printable import printable
from mld.properties.remarks import ConfigurationError, Level, Remark
from mld.properties.scrubber import Scrubber, secrets_of_environment

log = logging.getLogger(__name__)

QUEUED_BYTES_MAX = 8 * 1024 * 1024
"""About a minute of a busy log at level DEBUG. While this many bytes wait, new lines are dropped and counted."""

INDENT = "    "
"""Indentation of a trace. The line of an event never begins with a blank."""
_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_LEAST_PRIORITY = 7
_PLAIN = (int, float, bool, type(None))

Fit = Callable[[str], str]
"""A function that makes text of others fit for the log: without secrets, and in text form on one printable line."""

QUIET_LIBRARIES = ("botocore", "boto3", "urllib3", "asyncio", "werkzeug")
"""Libraries whose messages at INFO and below are useful to their authors only."""
EXIT_FLUSH_S = 2.0
"""How long the process, when it ends, waits until its log is written."""


class QueuedStream(io.TextIOBase):
    """A stream whose `write` returns at once. A thread writes to `descriptor`; lines for which the queue has no room
    are dropped.

    A pipe holds 64 KiB, and if its reader stops, a write to it blocks for ever. Therefore a thread writes the log; it
    is the only thread outside of `mld.aws`. It handles only bytes, and counts the lines that were dropped.

    As soon as the reader has read the other lines, it gets a line with the number of dropped lines. A line with
    characters that the encoding lacks is written with escapes.
    """

    dropped_total = 0
    """How many lines all streams of this process have dropped."""

    def __init__(self, descriptor: int, encoding: str) -> None:
        self._descriptor = descriptor
        self._encoding = encoding
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._queued_bytes = 0
        self._dropped = 0
        self._thread: threading.Thread | None = None

    def fileno(self) -> int:
        return self._descriptor

    def write(self, text: str) -> int:
        """Queue a line, and start the thread that writes it; drop the line, and count it, if the queue is full. Return
        its length, as for any stream.
        """
        line = text.encode(self._encoding, "backslashreplace")
        with self._changed:
            # An empty queue takes any line, even one that is longer than the limit.
            if self._lines and self._queued_bytes + len(line) > QUEUED_BYTES_MAX:
                self._dropped += 1
                QueuedStream.dropped_total += 1
                return len(text)
            self._lines.append(line)
            self._queued_bytes += len(line)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_forever, name="mld-log", daemon=True)
                self._thread.start()
        return len(text)

    def drain(self, within_s: float) -> None:
        """Wait until everything is written, but at most `within_s`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines and not self._dropped, within_s)

    def _write_forever(self) -> None:
        """Write the queued lines, one after the other, for ever. After a gap, log how many lines were dropped."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                line = self._lines[0]
            self._send(line)
            with self._changed:
                self._lines.popleft()
                self._queued_bytes -= len(line)
                missed = 0 if self._lines else self._dropped
            if missed:
                about = {"action": "log_dropped", "count": missed}
                log.warning("%d lines of the log are missing here: nobody read it for too long", missed, extra=about)
            with self._changed:
                self._dropped -= missed  # only now, because `drain` must wait for the warning, too
                self._changed.notify_all()

    def _send(self, line: bytes) -> None:
        """Write the whole line. If the reader is gone, the line is lost, as it would be without a queue."""
        left = memoryview(line)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:  # another process that shares the pipe has made it non-blocking
                select.select([], [self._descriptor], [])
            except OSError:
                QueuedStream.dropped_total += 1
                return


class TextFormatter(logging.Formatter):
    """Formats an event as ``2026-01-31T18:44:23.390Z INFO  mld.daemon.worker message  shard=… counter=…``."""

    def __init__(self, scrub: Scrubber) -> None:
        super().__init__()
        self._scrub = scrub

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of the event, and below it the lines of its trace."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        fit = cleaned(record, self._scrub)
        fields = " ".join(f"{name}={_field_text(value)}" for name, value in fields_of(fit).items())
        line = f"{stamp} {printable(fit.levelname):<7} {fit.name} {fit.msg}" + (f"  {fields}" if fields else "")
        return "\n".join([line, *filter(None, (fit.exc_text, fit.stack_info))])


class WithPriority(logging.Formatter):
    """Puts the priority before each line that `inner` formats, in the form of sd-daemon(3). The journal removes it
    again.
    """

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of the event, each with the event's priority before it."""
        mark = f"<{_priority(record.levelno)}>"
        return "\n".join(mark + line for line in self._inner.format(record).split("\n"))


def _priority(level: int) -> int:
    """Return the priority of syslog(3) for a level. A level between two known ones has the priority of the lower
    one.
    """
    return next((priority for least, priority in _PRIORITIES if level >= least), _LEAST_PRIORITY)


class JsonLines(JsonFormatter):
    """Formats an event as a JSON object on one line, in ASCII."""

    def __init__(self, scrub: Scrubber) -> None:
        super().__init__(
            "%(levelname)s %(name)s %(message)s",
            rename_fields={"levelname": "level", "name": "logger"},
            timestamp=True,
        )
        self._scrub = scrub

    def format(self, record: logging.LogRecord) -> str:
        """Return the event as JSON. Its message, fields and trace are scrubbed of secrets first."""
        fit = _copy(record, _message(record), self._scrub)
        fit.stack_info = record.stack_info and self._scrub(record.stack_info)
        fit.exc_text, fit.exc_info = _trace(record, self._scrub), None
        return super().format(fit)


def cleaned(record: logging.LogRecord, scrub: Scrubber) -> logging.LogRecord:
    """Return a copy of the event without secrets. Every text in it is one printable line, and the trace has indented
    lines.
    """

    def fit(text: str) -> str:
        return printable(scrub(text))

    copied = _copy(record, _message(record), fit)
    copied.exc_text = _indented(_trace(record, scrub))
    copied.stack_info = _indented(record.stack_info and scrub(record.stack_info))
    return copied


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields that were given as `extra=`."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES}


def _copy(record: logging.LogRecord, message: str, fit: Fit) -> logging.LogRecord:
    """Return a copy of the event with this message, in which every text has gone through `fit`. If several streams are
    read, the copy also names the stream for which the present task works.
    """
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
    """Return the message with its values filled in. It never raises."""
    try:
        return record.getMessage()
    except Exception:  # too many or too few values, or a value whose `__str__` raises
        values = record.args if isinstance(record.args, tuple) else (record.args,)
        return " ".join(map(_shown, (record.msg, *values)))


def _shown(value: object) -> str:
    """Return a value as text. Never raises."""
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__} that raises {type(error).__name__}>"


def _value(value: object, fit: Fit) -> Any:
    """Return the value of a field with every text in it passed through `fit`."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Mapping):
        return {fit(_shown(name)): _value(item, fit) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_value(item, fit) for item in value]
    return fit(_shown(value))


def _trace(record: logging.LogRecord, scrub: Scrubber) -> str | None:
    """Return the scrubbed traceback of the event; None if it has none. It is formatted anew, because another handler
    may have left a text of its own in the event. Never raises.
    """
    if not record.exc_info:
        return None
    try:
        return scrub(logging.Formatter().formatException(record.exc_info))
    except Exception as error:
        kind = record.exc_info[0]
        return f"{kind and kind.__name__}: its trace cannot be shown ({type(error).__name__})"


def _indented(text: str | None) -> str | None:
    """Return the lines of a trace, each printable and indented; None without a trace."""
    return "\n".join(INDENT + printable(line) for line in text.split("\n")) if text else None


def _field_text(value: object) -> str:
    """Return the value of a field as text, in quotes if it has a blank or quotes, or is empty."""
    text = _shown(value)
    return json.dumps(text, ensure_ascii=False) if " " in text or '"' in text or not text else text


def configure(log_format: str, level: str, configuration_file: str | None, env: Mapping[str, str]) -> Scrubber:
    """Set up the root logger: `log_format` is text or json, `level` the name of a level. Uncaught exceptions are
    logged.

    `configuration_file` is the value of `-l`. Secrets in `env` are never logged. Secrets that are found later can be
    added to the Scrubber that is returned. Raises ConfigurationError if the file cannot be read.
    """
    scrub = Scrubber(secrets_of_environment(env))
    handler = logging.StreamHandler(_queued(sys.stderr))
    handler.setFormatter(_formatter(log_format, scrub, env))
    logging.getLogger().handlers[:] = [handler]
    _set_level(level)
    if configuration_file is not None:
        _apply_logback(configuration_file, env)
    _log_what_nobody_catches()
    return scrub


def name_worker(worker: str) -> None:
    """Mark each event with the name of this worker, because several workers share the log."""

    def named(record: logging.LogRecord) -> bool:
        """Add the name to an event. Return True, so that the event is logged."""
        record.of_worker = worker
        return True

    for handler in logging.getLogger().handlers:
        handler.addFilter(named)


def levels_again(configuration_file: str | None, env: Mapping[str, str]) -> LogbackLevels | LogbackError | None:
    """Read the file given by `-l` again; blocks. Return its levels, or why it cannot be used; None without a file."""
    try:
        return None if configuration_file is None else levels_of(configuration_file, env, again=True)
    except LogbackError as error:
        return error


def change_level(
    level: str, configuration_file: str | None = None, found: LogbackLevels | LogbackError | None = None
) -> None:
    """Log from `level` on. The levels `found` in the file given by `-l` overrule it. If the file cannot be used,
    nothing changes.
    """
    if isinstance(found, LogbackError):
        log.warning(
            "the levels of the log stay as they are: %s cannot be used: %s",
            configuration_file,
            found,
            extra={"action": "log_configuration", "file": configuration_file},
        )
        return
    _set_level(level)
    if found is not None and configuration_file is not None:
        _set_levels(found, configuration_file)


def _set_level(level: str) -> None:
    """Log from `level` on, but from `QUIET_LIBRARIES` nothing below WARNING."""
    root = logging.getLogger()
    root.setLevel(level.upper())
    for name in QUIET_LIBRARIES:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def _formatter(log_format: str, scrub: Scrubber, env: Mapping[str, str]) -> logging.Formatter:
    """Return the formatter for the log format; under systemd's journal, lines of text begin with their priority."""
    if log_format == "json":
        return JsonLines(scrub)
    text = TextFormatter(scrub)
    return WithPriority(text) if is_journal(env, sys.stderr) else text


def is_journal(env: Mapping[str, str], stream: TextIO) -> bool:
    """Return whether `stream` goes to the journal of systemd. If so, JOURNAL_STREAM has the stream's device and
    inode.
    """
    descriptor = _descriptor_of(stream)
    if descriptor is None:
        return False
    status = os.fstat(descriptor)
    return env.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def _descriptor_of(stream: TextIO) -> int | None:
    """Return the file descriptor of a stream; None if it is closed or no file."""
    try:
        descriptor = stream.fileno()
        os.fstat(descriptor)
    except (OSError, ValueError, AttributeError):  # closed, or no file
        return None
    return descriptor


def _queued(stream: TextIO) -> TextIO:
    """Return a stream that writes to `stream` without ever waiting for its reader."""
    descriptor = _descriptor_of(stream)
    if descriptor is None:
        return stream
    queued = QueuedStream(descriptor, stream.encoding)
    atexit.register(queued.drain, EXIT_FLUSH_S)
    return cast("TextIO", queued)


def _log_what_nobody_catches() -> None:
    """Log uncaught exceptions, which Python would print with their secrets. Errors of logging itself are not
    reported.
    """
    logging.raiseExceptions = False
    logging.captureWarnings(True)
    fault = logging.getLogger("mld.fault")

    def log_uncaught(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
        """Log an exception that nobody caught, except for those that end a process on purpose."""
        if issubclass(kind, KeyboardInterrupt | SystemExit):
            return
        given = error if error is not None else kind()
        fault.critical("nobody caught this", exc_info=(kind, given, trace), extra={"action": "fault"})

    sys.excepthook = log_uncaught
    threading.excepthook = lambda found: log_uncaught(found.exc_type, found.exc_value, found.exc_traceback)
    sys.unraisablehook = lambda found: log_uncaught(found.exc_type, found.exc_value, found.exc_traceback)


def log_remarks(remarks: Iterable[Remark]) -> None:
    """Log the remarks on the properties file, one line each."""
    logger = logging.getLogger("mld.configuration")
    for remark in remarks:
        level = logging.WARNING if remark.level is Level.WARNING else logging.INFO
        logger.log(level, "%s", remark, extra={"action": "configuration", "key": remark.key})


def _apply_logback(file: str, env: Mapping[str, str]) -> None:
    """Use the levels of a logback file. Raises ConfigurationError."""
    try:
        found = levels_of(file, env)
    except LogbackError as error:
        words = f"cannot be used as a logging configuration: {error}"
        problem = Remark(Level.ERROR, "--log-configuration", file, words, "give a logback XML file")
        raise ConfigurationError([problem]) from error
    _set_levels(found, file)


def _set_levels(found: LogbackLevels, file: str) -> None:
    """Set the levels, and warn about the parts of the file that have no effect."""
    for name, level in found.levels.items():
        logging.getLogger(name).setLevel(level)
    more = f"; without effect: {'; '.join(found.ignored)}" if found.ignored else ""
    log.warning(
        "only the levels of a logback file are used; choose the layout with --log-format%s",
        more,
        extra={"action": "log_configuration", "file": file},
    )
