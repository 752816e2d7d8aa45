"""A running daemon reads its file again: what changes, what stays, and what the log says of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from mld.daemon.reload import LogOptions, Reloader
from mld.properties.loader import load
from mld.properties.redaction import Scrubber
from tests.unit.properties.conftest import MINIMUM

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
        self.path.write_text(MINIMUM + text)


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
    assert file.reloader.reload() is not None
    assert told(caplog, "reloaded") == "reloaded: mld.logLevel changed"
    assert logging.getLogger().level == number
    assert logging.getLogger("botocore").level == max(number, logging.WARNING)


def test_a_file_with_errors_changes_nothing_not_even_what_is_right_in_it(
    file: File, caplog: pytest.LogCaptureFixture
) -> None:
    file.write("mld.logLevel=debug\nmaxRecords=many\ntaskBackoffTimeMillis=0.5\n")
    assert file.reloader.reload() is None
    said = told(caplog, "reload_failed")
    assert "maxRecords" in said and "taskBackoffTimeMillis" in said
    assert logging.getLogger().level == logging.INFO


def test_what_the_command_line_says_wins(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = File(tmp_path / "app.properties", LogOptions(Scrubber(), level="warning"))
    logging.getLogger().setLevel(logging.WARNING)
    file.write("mld.logLevel=debug\nmaxRecords=5\n")
    assert file.reloader.reload() is not None
    assert "mld.logLevel is without effect beside --log-level" in told(caplog, "reloaded")
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


def test_a_secret_that_is_new_in_the_file_is_hidden_from_then_on(file: File) -> None:
    file.write("kinesisClient.proxyUrl=http://me:pl4nted-x@proxy:3128\n")
    file.reloader.reload()
    assert "pl4nted-x" not in file.scrub("refused: pl4nted-x")
