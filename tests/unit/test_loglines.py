"""What others wrote makes no line of the log that is not ours, moves no cursor, shows no secret, and loses no line."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.aws.boundary import Surprises
from mld.core.stream_ids import working_for
from mld.logging import logs
from mld.logging.logs import INDENT, JsonLines, TextFormatter, WithPriority
from mld.properties.scrubber import Scrubber
from tests.support.patience import PATIENCE_S

STAMP = re.compile(r"\d{4}-\d\d-\d\dT")
FORGED = "2026-01-31T18:44:23.390Z ERROR mld.daemon.worker lease table deleted  action=forged"
BREAKS = ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
CONTROLS = [
    "\x1b[2J\x1b[31m",
    "\x9b2J",
    "\a",
    "\b" * 40,
    "\x7f",
    "\u202e",
    "\u2066",
    "\u2069",
    "\u200f",
    "\ud800",
    "\t",
]
SECRET = "s3cr3t-Pl4nted"
anything = st.text(st.characters(codec=None, categories=None), max_size=40)


class HostileError(Exception):
    pass


class Unshowable:
    def __str__(self) -> str:
        raise HostileError(FORGED)

    __repr__ = __str__


def raised(text: str) -> BaseException:
    try:
        raise HostileError(text)
    except HostileError as error:
        return error


def event(message: object, *args: object, **more: object) -> logging.LogRecord:
    error = more.pop("error", None)
    name = str(more.pop("logger", "mld.test"))
    record = logging.LogRecord(name, logging.ERROR, "f.py", 1, message, args, None)
    if isinstance(error, BaseException):
        record.exc_info = (type(error), error, error.__traceback__)
    vars(record).update(more)
    return record


PLACES: dict[str, Callable[[str], logging.LogRecord]] = {
    "message": lambda text: event(text),
    "argument": lambda text: event("said: %s", text),
    "logger": lambda text: event("said", logger=f"mld{text}"),
    "field": lambda text: event("said", field=text),
    "name of a field": lambda text: event("said", **{f"f{text}": 1}),
    "field inside": lambda text: event("said", field={text: [text, (text,)]}),
    "exception": lambda text: event("failed", error=raised(text)),
    "stack": lambda text: event("failed", stack_info=f"Stack:\n  {text}"),
    "too few arguments": lambda text: event(f"%s %s {text}", text),
    "too many arguments": lambda text: event(text, text),
    "mistyped format": lambda text: event(f"%d {text}", text),
}


def assert_one_event(text: str) -> None:
    lines = text.splitlines()
    assert STAMP.match(lines[0])
    assert all(line.startswith(INDENT) for line in lines[1:])
    assert text.split("\n") == lines, "a break that is no line feed"
    controls = {unicodedata.category(character) for character in text} - {"Cn", "Co", "Zs"}
    assert not controls & {"Cf", "Cs", "Zl", "Zp"}
    assert not any(unicodedata.category(character) == "Cc" for character in text.replace("\n", ""))
    text.encode("utf-8")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("foul", [*BREAKS, *CONTROLS], ids=ascii)
def test_one_event_is_one_line_and_its_trace_is_indented(foul: str, place: str) -> None:
    text = TextFormatter(Scrubber()).format(PLACES[place](f"a{foul}{FORGED}"))
    assert_one_event(text)
    assert "lease table deleted" in text, "what was said is not lost"


@given(anything, st.sampled_from(sorted(PLACES)))
def test_whatever_the_text_is(text: str, place: str) -> None:
    record = PLACES[place](text)
    formatted = TextFormatter(Scrubber()).format(record)
    assert_one_event(formatted)
    if not record.exc_info and not record.stack_info:
        assert "\n" not in formatted
    line = JsonLines(Scrubber()).format(record)
    assert line.isascii() and line.isprintable() and isinstance(json.loads(line), dict)


@pytest.mark.parametrize("formatter", [TextFormatter(Scrubber()), JsonLines(Scrubber())])
def test_what_cannot_be_formatted_is_logged_all_the_same(formatter: logging.Formatter) -> None:
    for record in (event("%s", Unshowable()), event(Unshowable()), event("said", field=Unshowable())):
        text = formatter.format(record)
        assert "Unshowable" in text and "\n" not in text and "deleted" not in text


def test_the_same_error_reads_the_same_after_another_handler_has_formatted_it() -> None:
    record = event("failed", error=raised(FORGED))
    logging.Formatter().format(record)  # leaves its own text of the trace in the record
    assert_one_event(TextFormatter(Scrubber()).format(record))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("formatter", [TextFormatter, JsonLines])
def test_what_is_secret_shows_nowhere(formatter: type[TextFormatter] | type[JsonLines], place: str) -> None:
    foul = f"x {SECRET} http://user:0ther-Pass@proxy:3128/ password=Thi-rd"
    text = formatter(Scrubber([SECRET])).format(PLACES[place](foul))
    assert "***" in text
    for secret in (SECRET, "0ther-Pass", "Thi-rd"):
        assert secret not in text


def test_a_line_that_the_locale_cannot_show_is_not_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "log"
    monkeypatch.setattr(sys, "stderr", path.open("w", encoding="ascii", errors="strict"))
    program = logging.getLogger()
    kept = program.handlers[:], program.level, sys.excepthook, sys.unraisablehook
    raise_exceptions = logging.raiseExceptions
    try:
        logs.configure("text", "info", None, {})
        logging.getLogger("mld.test").error("Grüße 世界 \ud800")
        program.handlers[0].stream.drain(PATIENCE_S)
    finally:
        program.handlers[:], level, sys.excepthook, sys.unraisablehook = kept
        program.setLevel(level)
        logging.raiseExceptions = raise_exceptions
        logging.captureWarnings(False)
    assert b"Gr\\xfc\\xdfe \\u4e16\\u754c \\ud800\n" in path.read_bytes()


def test_a_reader_that_stops_holds_up_nobody_and_hears_what_it_missed() -> None:
    reading, writing = os.pipe()
    stream = logs.QueuedStream(writing, "utf-8")
    handler = logging.StreamHandler(stream)
    logs.log.addHandler(handler)
    try:
        line = "x" * 1023 + "\n"
        count = 2 * logs.QUEUED_BYTES_MAX // len(line)
        for _ in range(count):
            stream.write(line)
        with os.fdopen(reading, encoding="utf-8") as log:
            lines = iter(log.readline, "")
            read = next(number for number, one in enumerate(lines) if one != line)
            stream.write(line)
            assert next(lines) == line, "it goes on"
        assert 0 < logs.QueuedStream.dropped_total == count - read
    finally:
        logs.log.removeHandler(handler)
        logs.QueuedStream.dropped_total = 0
        os.close(writing)


TALKS = """
import logging, sys
from mld.logging import logs
logs.configure("text", "info", None, {})
for number in range(5_000):
    logging.getLogger("mld.test").info("%s of many", number)
"""


def test_the_end_of_the_process_waits_for_a_reader_but_not_for_ever() -> None:
    command = [sys.executable, "-c", TALKS]
    read = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (read.stdout + read.stderr).count(" of many") == 5_000
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as unread:
        assert unread.wait(PATIENCE_S) == 0


CRASH = """
import asyncio, gc, logging, os, sys, threading, warnings
from mld.logging import logs
from mld.aws.boundary import Surprises
logs.configure({format!r}, "debug", None, {{"MY_PASSWORD": {secret!r}}})
foul = {forged!r} + " " + {secret!r}
thread = threading.Thread(target=lambda: 1 / 0 if not foul else exec("raise ValueError(foul)", {{"foul": foul}}))
thread.start(); thread.join()
class Dying:
    def __del__(self): raise ValueError(foul)
Dying(); gc.collect()
warnings.warn(foul, stacklevel=1)
async def lost(): raise ValueError(foul)
async def main():
    asyncio.ensure_future(lost()); await asyncio.sleep(0); gc.collect()
asyncio.run(main())
logging.getLogger("mld.x").error("%d", foul)
raise ValueError(foul)
"""


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_nothing_that_python_prints_by_itself_forges_a_line_or_shows_a_secret(log_format: str) -> None:
    program = CRASH.format(format=log_format, secret=SECRET, forged=f"x\n{FORGED}")
    died = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    lines = died.stderr.splitlines()
    assert died.returncode == 1 and SECRET not in died.stderr
    if log_format == "json":
        assert len([json.loads(line) for line in lines]) == 6
    else:
        events = [line for line in lines if not line.startswith(INDENT)]
        assert len(events) == 6 and all(STAMP.match(one) for one in events)
        assert not any(line.startswith("2026-01-31T18:44:23.390Z") for line in lines)


def test_the_trace_of_a_surprise_shows_no_password_of_a_proxy(caplog: pytest.LogCaptureFixture) -> None:
    Surprises().report("Port.call", raised(f"cannot reach http://user:{SECRET}@proxy:3128"))
    (record,) = caplog.records
    assert SECRET not in record.getMessage()
    for formatter in (TextFormatter(Scrubber()), JsonLines(Scrubber())):
        text = formatter.format(record)
        assert "Traceback" in text and SECRET not in text


@pytest.mark.parametrize(
    ("level", "priority"),
    [(logging.DEBUG, 7), (logging.INFO, 6), (logging.WARNING, 4), (45, 3), (logging.ERROR, 3), (logging.CRITICAL, 2)],
)
def test_each_line_for_the_journal_begins_with_its_priority(level: int, priority: int) -> None:
    text = TextFormatter(Scrubber())
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord("mld.x", level, __file__, 1, "failed", (), sys.exc_info())
    expected = [f"<{priority}>{line}" for line in text.format(record).split("\n")]
    assert len(expected) > 3
    assert WithPriority(text).format(record).split("\n") == expected


def test_priorities_are_written_only_if_standard_error_is_the_journal() -> None:
    script = (
        "import logging, os, sys; from mld.logging import logs; status = os.fstat(2); "
        "stream = f'{status.st_dev}:{status.st_ino + int(sys.argv[1])}'; "
        "logs.configure(sys.argv[2], 'info', None, {'JOURNAL_STREAM': stream}); logging.getLogger('mld').error('told')"
    )

    def written(other: int, log_format: str) -> str:
        command = [sys.executable, "-c", script, str(other), log_format]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr

    assert written(0, "text").startswith("<3>")
    assert STAMP.match(written(1, "text"))
    assert written(0, "json").startswith("{")


def test_what_is_logged_for_one_of_several_streams_names_it() -> None:
    record = logging.LogRecord("mld.shards.sync", logging.INFO, "", 0, "leases created", (), None)
    with working_for("111111111111:orders:17"):
        text, line = TextFormatter(Scrubber()).format(record), JsonLines(Scrubber()).format(record)
        record.stream = "another"
        assert "stream=another" in TextFormatter(Scrubber()).format(record)
        del record.stream
    assert text.endswith("leases created  stream=111111111111:orders:17")
    assert json.loads(line)["stream"] == "111111111111:orders:17"
    assert "stream" not in TextFormatter(Scrubber()).format(record)
