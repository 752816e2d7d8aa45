"""How the words of an act are read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import click
import pytest

from mld.core.terminal import EXIT_FAILURE, EXIT_OK
from mld.operating.options import file_and_words, finish

FILE = "app.properties"


@pytest.mark.parametrize(
    ("words", "option", "names", "meant"),
    [
        ((FILE, "3", "w2"), None, ("SHARD", "WORKER"), (FILE, ("3", "w2"))),
        (("3", "w2", FILE), None, ("SHARD", "WORKER"), (FILE, ("3", "w2"))),
        (("app.conf", "3"), None, ("SHARD",), ("app.conf", ("3",))),
        ((FILE, "w.properties"), None, ("WORKER",), (FILE, ("w.properties",))),
        (("3",), FILE, ("SHARD",), (FILE, ("3",))),
        ((FILE,), None, (), (FILE, ())),
    ],
)
def test_the_file_stands_before_or_after_the_words(
    words: tuple[str, ...], option: str | None, names: tuple[str, ...], meant: tuple[str, tuple[str, ...]]
) -> None:
    assert file_and_words(words, option, *names) == meant


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((FILE,), "missing argument: WORKER"),
        ((FILE, "3"), "missing argument: WORKER"),
        (("3", "w2"), "give a properties file"),
        ((FILE, "3", "w2", "w3"), "too many arguments"),
    ],
)
def test_what_is_missing_or_too_much_is_said(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(click.UsageError, match=says):
        file_and_words(words, None, "SHARD", "WORKER")


@pytest.mark.parametrize(("more", "code"), [("", EXIT_FAILURE), (", is_open_ended=True", EXIT_OK)])
def test_an_output_that_nobody_reads_is_a_failure_unless_the_command_has_no_end(more: str, code: int) -> None:
    program = f"import click, mld.operating.options as o\no.finish(lambda: click.echo('x') or 0{more})"
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run([sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writer)
    assert ended.returncode == code
    assert ended.stderr == (b"mld: nobody reads the output\n" if code else b"")


def test_ctrl_c_is_a_failure_that_says_what_nobody_knows(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        finish(work, doubt="it may be written or not")
    assert ended.value.code == EXIT_FAILURE
    assert capsys.readouterr().err == "mld: interrupted: it may be written or not\n"
    with pytest.raises(SystemExit) as ended:
        finish(work, is_open_ended=True)
    assert ended.value.code == EXIT_OK


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_the_end_of_the_terminal_ends_a_command_in_order(number: signal.Signals) -> None:
    program = (
        "import asyncio, os, mld.operating.options as o\n"
        "async def work():\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    try: await asyncio.Event().wait()\n"
        "    finally: print('given back')\n"
        "o.finish(work)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (EXIT_FAILURE, b"given back\n", b"mld: interrupted\n")


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    program = (
        "import os, signal, mld.operating.options as o\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        f"o.finish(lambda: os.kill(os.getpid(), {int(signal.SIGHUP)}) or 0)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == EXIT_OK
