"""The tables of keys in the manual. That the page has them: test_written_pages."""

from __future__ import annotations

import re

from tests.support.settings_page import ALL_KEYS, tables


def test_the_tables_name_every_key_once() -> None:
    rows = [line for line in tables().splitlines() if line.startswith("| `")]
    names = [name for row in rows for name in re.findall(r"`([^`]*)`", row.split(" | ")[0])]
    assert sorted(names) == sorted(key.name for key in ALL_KEYS)
    assert all(row.replace("\\|", "").count("|") == 4 for row in rows)
