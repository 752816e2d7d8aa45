"""Libraries stay quiet, whatever the level of the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from mld.logging.logs import QUIET_LIBRARIES, change_level


@pytest.fixture(autouse=True)
def levels_kept() -> Iterator[None]:
    before = {name: logging.getLogger(name or None).level for name in ("", *QUIET_LIBRARIES)}
    yield
    for name, level in before.items():
        logging.getLogger(name or None).setLevel(level)


@pytest.mark.parametrize(("level", "of_libraries"), [("debug", logging.WARNING), ("error", logging.ERROR)])
def test_libraries_log_at_warning_at_the_least(level: str, of_libraries: int) -> None:
    change_level(level)
    assert logging.getLogger().level == getattr(logging, level.upper())
    assert {logging.getLogger(name).level for name in QUIET_LIBRARIES} == {of_libraries}
