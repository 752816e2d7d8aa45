"""A running daemon reads its file again: what changes, what stays, and what the log says of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mld.daemon.reload import LogOptions, Reloader
from mld.properties.loader import load
from mld.properties.scrubber import Scrubber
from tests.unit.properties.conftest import MINIMUM

USABLE = MINIMUM.replace("=child", "=/bin/cat")
LOGBACK = '<configuration><logger name="mld.daemon.reload.test" level="{}"/></configuration>'


@pytest.fixture(autouse=True)
def _levels(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    root, library = logging.getLogger(), logging.getLogger("botocore")
    before = root.level, library.level
    root.setLevel(logging.INFO)
    yield
    root.setLevel(before[0])
    library.setLevel(before[1])
    logging.getLogger("mld.daemon.reload.test").setLevel(logging.NOTSET)


class File:
    def __init__(self, path: Path, options: LogOptions) -> None:
        self.path = path
        self.write("")
        self.scrub = options.scrub
        self.reloader = Reloader(load(path, (), {}), str(path), (), {}, options)

    def write(self, text: str) -> None:
        self.path.write_text(USABLE + text)


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path / "app.properties", LogOptions(Scrubber()))


def told(caplog: pytest.LogCaptureFixture, action: str) -> str:
    """The last event of this kind."""
    return [record.getMessage() for record in caplog.records if getattr(record, "action", "") == action][-1]


@pytest.mark.parametrize(("level", "number"), [("error", logging.ERROR), ("debug", logging.DEBUG)])
def test_a_change_of_the_level_is_told_whether_the_log_gets_louder_or_quieter(
    file: File, caplog: pytest.LogCaptureFixture, level: str, number: int
) -> None:
    file.write(f"mld.logLevel={level}\n")
    assert file.reloader.reload().settings is not None
    assert told(caplog, "reloaded") == "reloaded: mld.logLevel changed"
    assert logging.getLogger().level == number
    assert logging.getLogger("botocore").level == max(number, logging.WARNING)


def test_a_file_with_errors_changes_nothing_not_even_what_is_right_in_it(
    file: File, caplog: pytest.LogCaptureFixture
) -> None:
    file.write("mld.logLevel=debug\nmaxRecords=many\ntaskBackoffTimeMillis=0.5\n")
    done = file.reloader.reload()
    assert done.settings is None and "maxRecords" in done.why
    said = told(caplog, "reload_failed")
    assert "maxRecords" in said and "taskBackoffTimeMillis" in said
    assert logging.getLogger().level == logging.INFO


def test_a_refused_file_names_the_misspelt_key_too(file: File, caplog: pytest.LogCaptureFixture) -> None:
    file.path.write_text(USABLE.replace("streamName", "streamNam"))
    assert file.reloader.reload().settings is None
    assert "streamName: is required" in told(caplog, "reload_failed")
    assert "streamNam: is no known key and is ignored; did you mean streamName?" in told(caplog, "configuration")


def test_what_the_command_line_says_wins(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = File(tmp_path / "app.properties", LogOptions(Scrubber(), level="warning"))
    logging.getLogger().setLevel(logging.WARNING)
    file.write("mld.logLevel=debug\nmaxRecords=5\n")
    assert file.reloader.reload().settings is not None
    assert "mld.logLevel has no effect, because --log-level overrides it" in told(caplog, "reloaded")
    assert "maxRecords needs a restart" in told(caplog, "reloaded")
    assert logging.getLogger().level == logging.WARNING


def test_the_levels_of_a_logback_file_are_read_again_unless_it_is_broken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logback = tmp_path / "logback.xml"
    logback.write_text(LOGBACK.format("ERROR"))
    file = File(tmp_path / "app.properties", LogOptions(Scrubber(), file=str(logback)))
    file.reloader.reload()
    assert logging.getLogger("mld.daemon.reload.test").level == logging.ERROR
    logback.write_text("<configuration>")
    file.reloader.reload()
    assert "stay as they are" in told(caplog, "log_configuration")
    assert logging.getLogger("mld.daemon.reload.test").level == logging.ERROR


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("<configuration><root level='LOUD'/></configuration>", id="a level that nobody knows"),
        pytest.param("<configuration><root level='${LEVEL}'/></configuration>", id="a variable without a value"),
        pytest.param("<configuration><root level='INHERITED'/></configuration>", id="a root that inherits"),
        pytest.param("<?xml version='1.0' encoding='nonsense'?><configuration/>", id="an encoding that nobody knows"),
        pytest.param("<configuration>" + "<a>" * 100_000, id="deep"),
        pytest.param("<a/>\0", id="a null"),
        pytest.param("x" * 2_000_000, id="long"),
        pytest.param("", id="empty"),
    ],
)
def test_no_logback_file_can_raise_in_a_reload(tmp_path: Path, text: str) -> None:
    logback = tmp_path / "logback.xml"
    logback.write_text(text)
    file = File(tmp_path / "app.properties", LogOptions(Scrubber(), file=str(logback)))
    assert file.reloader.reload().settings is not None


@pytest.mark.parametrize("kind", ["pipe", "directory", "missing"])
def test_a_logback_file_that_is_none_neither_raises_nor_blocks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    logback = tmp_path / "logback.xml"
    {"pipe": lambda: os.mkfifo(logback), "directory": logback.mkdir, "missing": lambda: None}[kind]()
    file = File(tmp_path / "app.properties", LogOptions(Scrubber(), file=str(logback)))
    assert file.reloader.reload().settings is not None
    assert "stay as they are" in told(caplog, "log_configuration")


def test_a_file_that_the_next_start_would_refuse_is_refused_now(file: File) -> None:
    file.path.write_text(MINIMUM.replace("=child", "=/no/such/program") + "mld.logLevel=debug\n")
    done = file.reloader.reload()
    assert done.settings is None and "/no/such/program" in done.why
    assert logging.getLogger().level == logging.INFO


def test_what_nobody_expected_of_a_file_is_a_refusal(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(logging.Logger, "setLevel", broken)
    done = file.reloader.reload()
    assert done.settings is None and "a defect" in done.why


def test_a_secret_that_is_new_in_the_file_is_hidden_from_then_on(file: File) -> None:
    file.write("kinesisClient.proxyUrl=http://me:pl4nted-x@proxy:3128\n")
    file.reloader.reload()
    assert "pl4nted-x" not in file.scrub("refused: pl4nted-x")
