"""Whatever the session host says contains no secret of its settings and no forged line, on every way out of it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from mld.processors.spark import link
from mld.processors.spark.host.connection import ChildConnection
from mld.processors.spark.host.host_status import HostStatus
from mld.processors.spark.sanitizing import LINE_CHARS_MAX, SanitizedLines, sanitizer_of
from mld.processors.spark.settings import load

SECRET = "pl4nted-s3cret"
FILE = f"""\
applicationName = app
streamName = s
mld.spark.pipeline = p.py:f
mld.spark.master = k8s://https://user:{SECRET}@cluster:6443
mld.spark.spool = /spool
mld.spark.conf.spark.hadoop.fs.s3a.secret.key = {SECRET}
mld.spark.sink.out.options.url = jdbc:postgresql://db/x?password={SECRET}
"""
FOUL = f"No suitable driver\x1b[2J for {SECRET} at jdbc:x://u:other-s3cret@h\u2028forged"
FIT = "No suitable driver\\x1b[2J for *** at jdbc:x://***@h\\u2028forged"


@pytest.fixture
def settings(tmp_path):
    file = tmp_path / "app.properties"
    file.write_text(FILE)
    return load(str(file), (), {"MY_TOKEN": "0ther-t0ken"})


def test_settings_know_what_is_secret_in_them(settings):
    assert settings.fit(FOUL) == FIT
    assert settings.fit("0ther-t0ken") == "***"
    assert SECRET not in repr(settings.fit) and settings.where == "k8s://***@cluster:6443"


def test_the_reason_that_a_child_is_given(settings):
    written = []
    writer = SimpleNamespace(write=written.append, close=lambda: None)
    ChildConnection(SimpleNamespace(gone=lambda child: None), 1, writer, settings.fit).fail(FOUL)
    head = json.loads(b"".join(written)[link.HEADER.size :])
    assert head["reason"] == FIT


PRINTING = """
import asyncio, os, sys, time
from mld.processors.spark.sanitizing import sanitizer_of
from mld.processors.spark.host.printed_lines import PrintedLines
out = os.dup(1)
said = []
async def main():
    fit = sanitizer_of([{secret!r}], {{}})
    printed = PrintedLines(asyncio.get_running_loop(), lambda text: said.append(text) or True, fit)
    os.write(2, ({foul!r} + "\\n").encode("utf-8", "surrogatepass"))
    while not said:
        await asyncio.sleep(0)
asyncio.run(main())
os.write(out, "".join(said).encode())
"""


def test_what_spark_and_the_user_print():
    program = PRINTING.format(secret=SECRET, foul=FOUL)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"spark: {FIT}\n"


def test_what_is_logged_before_the_host_listens(settings):
    record = logging.LogRecord("mld.spark", logging.ERROR, "f", 1, "%s", (FOUL,), None)
    assert SanitizedLines(settings.fit).format(record) == f"ERROR {FIT}"
    record.args = ("a column called x\nERROR of a daemon",)
    assert SanitizedLines(settings.fit).format(record) == r"ERROR a column called x\nERROR of a daemon"
    try:
        raise ValueError(f"{SECRET}\nforged")
    except ValueError:
        record.exc_info = sys.exc_info()
    assert SECRET not in SanitizedLines(settings.fit).format(record)


def test_the_status_file(settings, tmp_path):
    HostStatus(tmp_path, "app", "app.properties", os.getpid()).ready({"master": settings.where})
    assert SECRET not in (tmp_path / "status.json").read_text()


def test_fit_makes_one_line():
    assert sanitizer_of((), {})("a\r\nb") == "a\\r\\nb"


def test_no_line_is_longer_than_a_bound_whatever_things_in_a_sink_are_called():
    fit = sanitizer_of([SECRET], {})
    for text in ("x" * 50_000_000, "\x1b" * 5_000, ", ".join(f"column {n}\n" for n in range(10_000))):
        assert len(fit(text)) == LINE_CHARS_MAX and fit(text).isprintable()
    assert SECRET[:6] not in fit(f"{'x' * (LINE_CHARS_MAX - 6)}{SECRET}")
    assert fit("x" * LINE_CHARS_MAX) == "x" * LINE_CHARS_MAX
