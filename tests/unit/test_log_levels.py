"""Levels change while a daemon runs, and go back to what was configured."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from mld.logging.logs import QUIET_LIBRARIES, LevelChange, LogLevels, UnknownLoggerError, keep_quiet

NAME = "mld.of_a_test"


@pytest.fixture(autouse=True)
def levels_kept() -> Iterator[None]:
    names = ["", NAME, *QUIET_LIBRARIES]
    before = {name: logging.getLogger(name or None).level for name in names}
    logging.getLogger().setLevel(logging.INFO)
    keep_quiet()
    yield
    for name, level in before.items():
        logging.getLogger(name or None).setLevel(level)


def test_the_root_changes_and_comes_back() -> None:
    levels = LogLevels()
    assert levels.change("debug") == [LevelChange("", "info", "debug")]
    assert levels.change("error") == [LevelChange("", "debug", "error")]
    assert levels.reset() == [LevelChange("", "error", "info")]
    assert levels.reset() == []


def test_one_logger_changes_alone() -> None:
    levels = LogLevels()
    assert levels.change("debug", NAME) == [LevelChange(NAME, "inherited", "debug")]
    assert logging.getLogger().level == logging.INFO
    levels.change("warning")
    assert levels.reset(NAME) == [LevelChange(NAME, "debug", "inherited")]
    assert logging.getLogger().level == logging.WARNING
    assert levels.reset() == [LevelChange("", "warning", "info")]


def test_a_name_that_nobody_logs_under_is_refused() -> None:
    with pytest.raises(UnknownLoggerError, match=r"no logger 'mld.consmer'"):
        LogLevels().change("debug", "mld.consmer")
    with pytest.raises(UnknownLoggerError):
        LogLevels().reset("mld.consmer")


def test_libraries_stay_quiet_unless_somebody_chose_otherwise() -> None:
    levels = LogLevels()
    levels.change("debug")
    assert logging.getLogger("botocore").level == logging.WARNING
    levels.change("debug", "botocore")
    levels.change("error")
    assert logging.getLogger("botocore").level == logging.DEBUG
    assert logging.getLogger("urllib3").level == logging.ERROR
    levels.reset()
    assert {logging.getLogger(name).level for name in QUIET_LIBRARIES} == {logging.WARNING}


def test_a_level_that_was_configured_meanwhile_is_not_put_back() -> None:
    levels = LogLevels()
    levels.change("debug")
    logging.getLogger().setLevel(logging.WARNING)
    assert levels.reset() == []
    levels.change("error")
    assert levels.reset() == [LevelChange("", "error", "warning")]
