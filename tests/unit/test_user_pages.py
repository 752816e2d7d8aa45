"""The length of pages, the width of their code, and an index by task that names keys that there are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs" / "use").glob("*.md")), ROOT / "README.md"]
CODE_COLUMNS_MAX = 85
"""A block of the site shows more at 1,280 px (tests/support/site.css); half a screen and a quoted mail show this."""
WORDS_MAX = 2_000
REFERENCES = {"configuration.md", "CHANGELOG.md"}
"""Pages for looking up, which may be longer, as are those of docs/develop/rules. The first has a row for each key, and
an index by task above them."""
WIDE = {"worker.md", "simulation.md"}
"""The one is a picture of one screen; the other has no code, but paragraphs and tables below the items of a list."""
READ = [*PAGES, *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/develop").glob("*.md"), *(ROOT / "docs/lab").glob("*.md")]
READ += [page for page in ROOT.glob("*.md") if page not in READ]


def code_lines(page: str) -> Iterator[str]:
    """The lines of the code blocks of a page, without the indentation that makes them one."""
    fence, before = "", ""
    for line in page.splitlines():
        if (mark := re.match("```+", line)) and (not fence or line.startswith(fence)):
            fence = "" if fence else mark[0]
        elif fence:
            yield line
        elif line.startswith("    ") and (not before or before.startswith("    ")):
            yield line[4:]
        before = line


@pytest.mark.parametrize("page", READ, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_fits_the_column_of_the_site(page: Path) -> None:
    wide = [line for line in code_lines(page.read_text("utf-8")) if len(line) > CODE_COLUMNS_MAX]
    assert wide == [] or page.name in WIDE


@pytest.mark.parametrize("page", READ, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_short_enough_to_be_read(page: Path) -> None:
    assert page.name in REFERENCES or len(page.read_text("utf-8").split()) <= WORDS_MAX


def test_the_index_by_task_names_keys_that_the_tables_below_it_have() -> None:
    page = (ROOT / "docs" / "use" / "configuration.md").read_text("utf-8")
    index = page.split("\n## I want to …\n")[1].split("\n## ")[0]
    keys, tables = re.findall(r"`([^`]+)`", index), page.split("\n## Keys\n")[1]
    assert len(keys) > 30
    assert [key for key in keys if f"\n| `{key}` |" not in tables] == []
