"""`make docs` writes every page that code writes, and none of them is stale."""

from __future__ import annotations

import pytest

from tests.support.servers import ROOT
from tests.support.written_pages import PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_says(name: str) -> None:
    page = (ROOT / name).read_text("utf-8")
    assert PAGES[name](page) == page, "run: make docs"


def test_make_docs_writes_them() -> None:
    assert "\ndocs: $(DEV)\n\t$(BIN)/python -m tests.support.written_pages\n" in (ROOT / "Makefile").read_text()


def test_no_page_of_the_manual_is_written_by_anything_else() -> None:
    """A marked table in `docs/use` belongs to a writer in the list."""
    marked = {
        str(page.relative_to(ROOT))
        for page in (ROOT / "docs" / "use").glob("*.md")
        if "<!--" in page.read_text("utf-8")
    }
    assert marked == {name for name in PAGES if name.endswith(".md")}
