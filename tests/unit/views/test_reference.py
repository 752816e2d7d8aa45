"""docs/use/metrics.md is what the tables in code say."""

from __future__ import annotations

from pathlib import Path

from mld.views.reference import updated

PAGE = Path(__file__).resolve().parents[3] / "docs" / "use" / "metrics.md"


def test_the_page_is_current() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert updated(page) == page, "run python -m mld.views.reference docs/use/metrics.md"
