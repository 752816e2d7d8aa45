"""Logback files as Java's logback reads them: what is a level here, and what is left out and named."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from mld.logging.logback import LogbackError, LogbackLevels, levels_of


def read(tmp_path: Path, text: str, **env: str) -> LogbackLevels:
    file = tmp_path / "logback.xml"
    file.write_text(f"<configuration>{text}</configuration>")
    return levels_of(str(file), env)


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ('<root level="warn"/>', logging.WARNING),
        ('<ROOT level=" Error "/>', logging.ERROR),
        ('<root level="${LEVEL:-TRACE}"/>', logging.DEBUG),
        ('<root level="${SET:-TRACE}"/>', logging.ERROR),
        ('<root level="${NOT_SET:-${SET:-INFO}}"/>', logging.ERROR),
        ('<property name="own" value="${SET}"/><root level="${own}"/>', logging.ERROR),
        ('<variable name="SET" value="INFO"/><root level="${SET}"/>', logging.INFO),
        ('<root><level value="${SET}"/></root>', logging.ERROR),
        ('<logger name="ROOT" level="INFO"/>', logging.INFO),
        ('<root level="OFF"/>', logging.CRITICAL + 1),
    ],
)
def test_the_level_of_all(tmp_path: Path, text: str, level: int) -> None:
    assert read(tmp_path, text, SET="ERROR") == LogbackLevels({"": level})


@pytest.mark.parametrize("word", ["INHERITED", "NULL", "null"])
def test_a_logger_may_take_the_level_of_the_one_above(tmp_path: Path, word: str) -> None:
    assert read(tmp_path, f'<logger name="mld.leases" level="{word}"/>').levels == {"mld.leases": logging.NOTSET}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('<root level="LOUD"/>', "'LOUD' of root"),
        ('<root level="NULL"/>', "'NULL' of root"),
        ('<logger name="mld" level="${LEVEL}"/>', "'${LEVEL}' of mld"),
        ('<property name="A" value="${A}"/><root level="${A}"/>', "'${A}' of root"),
        ('<include resource="more.xml"/>', "<include>"),
        ('<if condition="true"><then><root level="DEBUG"/></then></if>', "<if>"),
        ('<property file="my.properties"/>', "<property>"),
    ],
)
def test_what_cannot_be_used_is_left_out_and_named(tmp_path: Path, text: str, named: str) -> None:
    found = read(tmp_path, text)
    assert not found.levels
    (ignored,) = found.ignored
    assert named in ignored


def test_loggers_of_java_are_said_to_do_nothing(tmp_path: Path) -> None:
    text = '<logger name="software.amazon.kinesis" level="DEBUG"/><logger name="mld.consumer" level="DEBUG"/>'
    found = read(tmp_path, text)
    assert found.levels == {"mld.consumer": logging.DEBUG}
    (ignored,) = found.ignored
    assert "loggers of Java (software.amazon.kinesis), which log nothing here" in ignored


def test_a_file_for_log4j_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogbackError, match="for Log4j 2"):
        read(tmp_path, '<Appenders/><Loggers><Root level="warn"/></Loggers>')


def test_what_is_no_xml_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(LogbackError, match=r"mismatched|no element"):
        read(tmp_path, "<root>")
