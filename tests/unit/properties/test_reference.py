"""The tables of keys in the manual. That the page has them: test_written_pages."""

from __future__ import annotations

from tests.support.settings_page import ALL_KEYS, tables


def test_the_tables_have_a_row_for_every_key() -> None:
    rows = [line for line in tables().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [key.name for key in ALL_KEYS]
    assert all(row.replace("\\|", "").count("|") == 6 for row in rows)
