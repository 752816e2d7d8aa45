"""What commands print of names that strangers chose."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from mld.core.terminal import say, say_what_is_logged

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
