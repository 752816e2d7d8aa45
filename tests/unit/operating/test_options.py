"""How the words of an act are read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete

from mld.cli import commands
from mld.core.terminal import EXIT_FAILURE, EXIT_OK
from mld.operating.command_ends import finish
from mld.operating.options import Invocation, file_and_words, with_file

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


@pytest.mark.parametrize(
    ("words", "option", "names", "meant"),
    [
        ((), None, (), ("env.conf", ())),
        (("3",), None, ("SHARD",), ("env.conf", ("3",))),
        ((FILE, "3"), None, ("SHARD",), (FILE, ("3",))),
        (("3",), "o.conf", ("SHARD",), ("o.conf", ("3",))),
    ],
)
def test_the_environment_names_the_file_for_commands_that_are_given_none(
    words: tuple[str, ...],
    option: str | None,
    names: tuple[str, ...],
    meant: tuple[str, tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLD_PROPERTIES", "env.conf")
    assert file_and_words(words, option, *names) == meant


@pytest.mark.parametrize(
    ("variable", "words", "found"),
    [
        ("env.conf", ["3", "--", "cat"], ("env.conf", ("3",), ("cat",))),
        ("env.conf", [FILE, "3", "cat"], (FILE, ("3",), ("cat",))),
        ("", [FILE, "3", "--", "cat"], (FILE, ("3",), ("cat",))),
        ("env.conf", ["-p", "o.conf", "3", "cat"], ("o.conf", ("3",), ("cat",))),
    ],
)
def test_words_that_follow_begin_behind_the_file_if_it_is_there(
    variable: str,
    words: list[str],
    found: tuple[str, tuple[str, ...], tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    @click.command()
    @with_file("SHARD", more="[-- COMMAND]")
    def command(invocation: Invocation) -> None:
        seen.append((invocation.file, invocation.arguments, invocation.more))

    monkeypatch.setenv("MLD_PROPERTIES", variable)
    command.main(words, standalone_mode=False)
    assert seen == [found]


def completions(
    words: list[str],
    begun: str,
    monkeypatch: pytest.MonkeyPatch,
    variable: str | None = None,
    workers: Sequence[str] = ("w1", "w2"),
) -> list[tuple[str, str]]:
    """Of `mld move`, over a fleet of two workers and three shards; what a shell is offered, with its kind."""

    class Reader:
        async def look(self) -> Any:
            shards = [SimpleNamespace(key=f"shardId-{number:012d}") for number in range(3)]
            return SimpleNamespace(open_shards=shards, workers=[SimpleNamespace(worker=one) for one in workers])

    @asynccontextmanager
    async def reader(settings: Any, bound_s: float) -> AsyncIterator[Reader]:
        if settings == "gone.properties":
            raise OSError("no such table")
        yield Reader()

    monkeypatch.setattr("mld.operating.fleet_reader.fleet_reader", reader)
    monkeypatch.setattr("mld.properties.loader.load", lambda file, *_: SimpleNamespace(settings=file))
    if variable is None:
        monkeypatch.delenv("MLD_PROPERTIES", raising=False)
    else:
        monkeypatch.setenv("MLD_PROPERTIES", variable)
    complete = ShellComplete(commands, {}, "mld", "_MLD_COMPLETE")
    return [(item.type, item.value) for item in complete.get_completions(["move", *words], begun)]


def test_a_shell_is_offered_files_shards_and_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = [("plain", f"shardId-{number:012d}") for number in range(3)]
    workers = [("plain", "w1"), ("plain", "w2")]
    assert completions([], "app", monkeypatch) == [("file", "app")]
    assert completions([FILE], "", monkeypatch) == shards
    assert completions([], "shardId-00000000000", monkeypatch, FILE) == shards
    assert completions(["-p", "o.conf"], "", monkeypatch) == shards
    assert completions([FILE, "3"], "w", monkeypatch) == workers
    assert completions(["3"], "w2", monkeypatch, FILE) == workers[1:]
    assert completions([FILE, "3", "w2"], "", monkeypatch) == []
    assert completions(["3"], "", monkeypatch) == []


def test_a_shell_is_offered_no_name_that_it_would_take_for_more_than_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bash puts what is offered into the line as it is: `$(…)` would run when the line does."""
    hostile = [
        "$(reboot)",
        "`reboot`",
        "w;reboot",
        "w|sh",
        "w>f",
        "w x",
        "w\nfile,/etc/passwd",
        "w\x1b[2J",
        "w'",
        "*",
        "--execute",
        "=ls",
        "",
    ]
    plain = ["host-1.ec2.internal:4711:7f3a-11", "w_1", "1:a:9"]
    assert completions([FILE, "3"], "", monkeypatch, workers=[*hostile, *plain]) == [("plain", one) for one in plain]


def test_a_shell_is_offered_nothing_where_the_table_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert completions(["gone.properties"], "", monkeypatch) == []


@pytest.mark.parametrize(("more", "code"), [("", EXIT_FAILURE), (", is_open_ended=True", EXIT_OK)])
def test_an_output_that_nobody_reads_is_a_failure_unless_the_command_has_no_end(more: str, code: int) -> None:
    program = f"import click, mld.operating.command_ends as o\no.finish(lambda: click.echo('x') or 0{more})"
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
        "import asyncio, os, mld.operating.command_ends as o\n"
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
        "import os, signal, mld.operating.command_ends as o\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        f"o.finish(lambda: os.kill(os.getpid(), {int(signal.SIGHUP)}) or 0)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == EXIT_OK
