"""`make docs` writes every page that code writes, and none of them is stale."""

from __future__ import annotations

import shutil
import subprocess

import click
import pytest

from mld.cli import commands
from tests.support.patience import PATIENCE_S
from tests.support.servers import ROOT
from tests.support.written_pages import PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_says(name: str) -> None:
    page = (ROOT / name).read_text("utf-8")
    assert PAGES[name](page) == page, "run: make docs"


def test_make_docs_writes_them() -> None:
    assert "\ndocs: $(DEV)\n\t$(BIN)/python -m tests.support.written_pages\n" in (ROOT / "Makefile").read_text()


def test_no_page_of_users_and_developers_is_written_by_anything_else() -> None:
    """A marked part of it belongs to a writer in the list."""
    marked = {
        str(page.relative_to(ROOT))
        for room in ("use", "develop")
        for page in (ROOT / "docs" / room).glob("*.md")
        if "<!--" in page.read_text("utf-8")
    }
    assert marked == {name for name in PAGES if name.endswith(".md")}


def test_the_manual_page_has_the_text_of_every_command_and_option() -> None:
    page = (ROOT / "bin/mld.1").read_text("ascii")
    plain = page.replace("\\-", "-")
    for name in commands.list_commands(click.Context(commands)):
        command = commands.get_command(click.Context(commands), name)
        assert command is not None
        assert f"\n.SS {name}\n" in plain
        for option in command.params:
            assert isinstance(option, click.Argument) or option.opts[-1] in plain or getattr(option, "hidden", False)
    assert "--until-caught-up" not in page, "a hyphen that cannot be copied"


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_the_formatter_of_manual_pages_finds_nothing_in_it() -> None:
    command = ["groff", "-man", "-ww", "-Tutf8", ROOT / "bin/mld.1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stderr == ""
    assert "Empty a worker" in " ".join(done.stdout.split()), "whatever blanks justify the line"
