"""docs/use/configuration.md is what the key table says."""

from __future__ import annotations

from pathlib import Path

from properties.reference import ALL_KEYS, tables, updated

PAGE = Path(__file__).parents[3] / "docs" / "use" / "configuration.md"


def test_the_page_is_current() -> None:
    page = PAGE.read_text("utf-8")
    assert page == updated(page), "run: python -m properties.reference docs/use/configuration.md"


def test_the_tables_have_a_row_for_every_key() -> None:
    rows = [line for line in tables().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [key.name for key in ALL_KEYS]
    assert all(row.replace("\\|", "").count("|") == 6 for row in rows)
