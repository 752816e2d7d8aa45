"""What commands print of names that strangers chose."""

from __future__ import annotations

import logging
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from mld.cli import commands
from mld.core.terminal import loaded_of, say, say_what_is_logged, scrubber
from mld.operating.replayer import CHILD_STDERR, _ChildWords
from tests.support.patience import PATIENCE_S
from tests.unit.properties.conftest import MINIMUM

HOSTILE = "row \x1b[2J\x1b]0;title\x07 of\nmld: all is well \x9b31m \u202e"


@pytest.fixture
def restored_handlers() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:]
    yield
    root.handlers[:] = before


@pytest.mark.usefixtures("restored_handlers")
def test_a_warning_that_quotes_a_row_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    say_what_is_logged()
    logging.getLogger("mld.leases").warning("corrupt: %s", HOSTILE)
    logging.getLogger("mld.leases").info("not asked for")
    said = capsys.readouterr().err
    assert said.startswith("mld: corrupt: row ")
    assert said.endswith("\n")
    assert said[:-1].isprintable()


def test_one_message_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    say(HOSTILE)
    assert capsys.readouterr().err[:-1].isprintable()


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_a_stream_that_is_closed_is_an_empty_one_and_its_number_is_nobody_elses(closed: tuple[int, ...]) -> None:
    program = (
        "import os, sys, mld.core.terminal as t\n"
        "t.open_standard_streams()\n"
        "print('x', flush=True); print('y', file=sys.stderr, flush=True); sys.stdout.isatty(); sys.stdin.read()\n"
        "sys.exit(0 if os.open(os.devnull, os.O_RDONLY) > 2 else 1)"
    )
    redirected = " ".join(("<&-", ">&-", "2>&-")[number] for number in closed)
    command = ["sh", "-c", f'exec "$0" -c "$1" {redirected}', sys.executable, program]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert ended.returncode == 0
    assert ended.stdout == (b"" if 1 in closed else b"x\n")
    assert ended.stderr == (b"" if 2 in closed else b"y\n")


def test_a_shell_that_completes_gives_nobody_a_terminal_to_ask_at() -> None:
    """As botocore asks for the code of MFA, by getpass: /dev/tty, else stdin and stderr."""
    program = (
        "import getpass, sys\n"
        "import mld.cli, mld.core.terminal\n"
        "mld.core.terminal.leave_terminal()\n"
        "try: getpass.getpass('code: ')\n"
        "except EOFError: print('nobody')\n"
    )
    leader, follower = pty.openpty()
    try:
        asked = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            stdin=follower,
            stdout=subprocess.PIPE,
            stderr=follower,
            timeout=PATIENCE_S,
            check=True,
        )
        assert asked.stdout == b"nobody\n"
        os.set_blocking(leader, False)
        with pytest.raises(BlockingIOError):
            os.read(leader, 100)
    finally:
        os.close(leader)
        os.close(follower)


def test_a_child_that_is_replayed_steers_no_terminal_by_quoting_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    with _ChildWords():
        logging.getLogger("mld.consumer").info(HOSTILE, extra={"action": CHILD_STDERR})
    said = capsys.readouterr().err
    assert said.startswith("row \\x1b") and said[:-1].isprintable()


def test_an_error_does_not_show_what_the_properties_file_took_from_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "secret").write_text("pl4nted-Zq7+x")
    file = tmp_path / "app.properties"
    file.write_text(f"{MINIMUM}mld.notify=https://h/${{file:{tmp_path}/secret}}\n")
    loaded_of(str(file), ())
    say("refused: pl4nted-Zq7+x")
    scrubber.cache_clear()
    assert capsys.readouterr().err == "mld: refused: ***\n"


@pytest.mark.parametrize("command", [["run"], ["leases"], ["status"], ["systemd-unit"], ["check"]], ids=" ".join)
def test_a_misspelt_key_is_named_beside_the_one_that_is_missing(tmp_path: Path, command: list[str]) -> None:
    file = tmp_path / "app.properties"
    file.write_text(MINIMUM.replace("streamName", "streamNam").replace("applicationName", "applicationNam"))
    ended = CliRunner().invoke(commands, [*command, str(file)])
    assert ended.exit_code == 2
    lines = [line.strip() for line in ended.output.splitlines()]
    missing = next(n for n, line in enumerate(lines) if f"{file}: applicationName: is required" in line)
    misspelt = "applicationNam: is no known key and is ignored; did you mean applicationName?"
    assert f"warning: {file}:2: {misspelt}" in lines[missing:]
    if command != ["status"]:  # which needs no stream
        misspelt = "streamNam: is no known key and is ignored; did you mean streamName?"
        assert f"warning: {file}:3: {misspelt}" in lines


def test_what_an_empty_file_lacks_is_said_with_remedies_that_nothing_hides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An example with `AwsCredentialsProvider=` looked like a secret."""
    (tmp_path / "app.properties").write_text("")
    with pytest.raises(SystemExit):
        loaded_of(str(tmp_path / "app.properties"), ())
    said = capsys.readouterr().err
    assert "AwsCredentialsProvider: is required; for example DefaultCredentialsProvider\n" in said
    assert "***" not in said


@pytest.mark.parametrize("command", ["run", "check", "status", "tap"])
def test_two_files_are_one_too_many(command: str) -> None:
    ended = CliRunner().invoke(commands, [command, "a.properties", "b.properties", "c"])
    assert ended.exit_code == 2
    assert "Error: give one properties file, not " in ended.output
