"""The threat model names proofs that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:tests|mld|properties)/[\w/]+\.py)`", PAGE))))
def test_every_file_it_names_is_there_and_the_tests_hold_tests(path: str) -> None:
    source = (ROOT / path).read_text(encoding="utf-8")
    assert not path.startswith("tests/") or re.search(r"^\s*(?:async )?def test_", source, re.MULTILINE)


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`make ([\w-]+)`", PAGE))))
def test_every_command_it_names_is_there(target: str) -> None:
    assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)


def test_each_of_the_nine_attackers_has_a_proof() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| **")]
    assert len(rows) == 9
    for row in rows:
        assert "`tests/" in row.rsplit("|", 2)[-2], row
