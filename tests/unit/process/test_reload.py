"""A running daemon reads its file again: what changes, what stays, and what the log says of it."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mld.daemon import file_reads, reload
from mld.daemon.reload import LogOptions, Reloader, ReloadRequests
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
async def test_a_change_of_the_level_is_told_whether_the_log_gets_louder_or_quieter(
    file: File, caplog: pytest.LogCaptureFixture, level: str, number: int
) -> None:
    file.write(f"mld.logLevel={level}\n")
    assert (await file.reloader.reload()).settings is not None
    assert told(caplog, "reloaded") == "reloaded: mld.logLevel changed"
    assert logging.getLogger().level == number
    assert logging.getLogger("botocore").level == max(number, logging.WARNING)


async def test_a_file_with_errors_changes_nothing_not_even_what_is_right_in_it(
    file: File, caplog: pytest.LogCaptureFixture
) -> None:
    file.write("mld.logLevel=debug\nmaxRecords=many\ntaskBackoffTimeMillis=0.5\n")
    done = await file.reloader.reload()
    assert done.settings is None and "maxRecords" in done.why
    said = told(caplog, "reload_failed")
    assert "maxRecords" in said and "taskBackoffTimeMillis" in said
    assert logging.getLogger().level == logging.INFO


async def test_a_refused_file_shows_none_of_its_secrets(file: File, caplog: pytest.LogCaptureFixture) -> None:
    file.path.write_text(USABLE.replace("/bin/cat", "/nowhere/rosebud --token rosebud"))
    done = await file.reloader.reload()
    assert done.settings is None and "no executable file" in done.why
    assert "rosebud" not in done.why + told(caplog, "reload_failed")


async def test_a_refused_file_names_the_misspelt_key_too(file: File, caplog: pytest.LogCaptureFixture) -> None:
    file.path.write_text(USABLE.replace("streamName", "streamNam"))
    assert (await file.reloader.reload()).settings is None
    assert "streamName: is required" in told(caplog, "reload_failed")
    assert "streamNam: is no known key and is ignored; did you mean streamName?" in told(caplog, "configuration")


async def test_what_the_command_line_says_wins(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = File(tmp_path / "app.properties", LogOptions(Scrubber(), level="warning"))
    logging.getLogger().setLevel(logging.WARNING)
    file.write("mld.logLevel=debug\nmaxRecords=5\n")
    assert (await file.reloader.reload()).settings is not None
    assert "mld.logLevel has no effect, because --log-level overrides it" in told(caplog, "reloaded")
    assert "maxRecords needs a restart" in told(caplog, "reloaded")
    assert logging.getLogger().level == logging.WARNING


async def test_the_levels_of_a_logback_file_are_read_again_unless_it_is_broken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logback = tmp_path / "logback.xml"
    logback.write_text(LOGBACK.format("ERROR"))
    file = File(tmp_path / "app.properties", LogOptions(Scrubber(), file=str(logback)))
    await file.reloader.reload()
    assert logging.getLogger("mld.daemon.reload.test").level == logging.ERROR
    logback.write_text("<configuration>")
    await file.reloader.reload()
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
async def test_no_logback_file_can_raise_in_a_reload(tmp_path: Path, text: str) -> None:
    logback = tmp_path / "logback.xml"
    logback.write_text(text)
    file = File(tmp_path / "app.properties", LogOptions(Scrubber(), file=str(logback)))
    assert (await file.reloader.reload()).settings is not None


@pytest.mark.parametrize("kind", ["pipe", "directory", "missing"])
async def test_a_logback_file_that_is_none_neither_raises_nor_blocks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    logback = tmp_path / "logback.xml"
    {"pipe": lambda: os.mkfifo(logback), "directory": logback.mkdir, "missing": lambda: None}[kind]()
    file = File(tmp_path / "app.properties", LogOptions(Scrubber(), file=str(logback)))
    assert (await file.reloader.reload()).settings is not None
    assert "stay as they are" in told(caplog, "log_configuration")


async def test_a_file_that_the_next_start_would_refuse_is_refused_now(file: File) -> None:
    file.path.write_text(MINIMUM.replace("=child", "=/no/such/program") + "mld.logLevel=debug\n")
    done = await file.reloader.reload()
    assert done.settings is None and "/no/such/program" in done.why
    assert logging.getLogger().level == logging.INFO


async def test_what_nobody_expected_of_a_file_is_a_refusal(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(logging.Logger, "setLevel", broken)
    done = await file.reloader.reload()
    assert done.settings is None and "a defect" in done.why


async def test_a_secret_that_is_new_in_the_file_is_hidden_from_then_on(file: File) -> None:
    file.write("kinesisClient.proxyUrl=http://me:pl4nted-x@proxy:3128\n")
    await file.reloader.reload()
    assert "pl4nted-x" not in file.scrub("refused: pl4nted-x")


async def test_a_mount_that_hangs_blocks_no_loop_and_is_named(
    file: File, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mount = threading.Event()

    def hanging(*given: Any) -> Any:
        mount.wait()
        return load(*given)

    monkeypatch.setattr(reload, "load", hanging)
    monkeypatch.setattr(file_reads, "READ_S_MAX", 0.05)
    loop_goes_on = asyncio.create_task(asyncio.sleep(0))
    try:
        done = await file.reloader.reload()
        assert loop_goes_on.done()
        assert done.settings is None and "was not read within 0.05 s: its disk or network mount hangs" in done.why
        assert done.why in told(caplog, "reload_failed")
        assert "0.05 s" in (await file.reloader.reload()).why, "the next one does not wait in the loop, either"
    finally:
        mount.set()
    monkeypatch.setattr(file_reads, "READ_S_MAX", 60.0)
    file.write("mld.logLevel=debug\n")
    assert (await file.reloader.reload()).settings is not None
    assert told(caplog, "reloaded") == "reloaded: mld.logLevel changed"


async def test_requests_during_a_reload_lead_to_one_more() -> None:
    begun: list[asyncio.Event] = []

    async def one() -> None:
        begun.append(asyncio.Event())
        await begun[-1].wait()

    requests = ReloadRequests(one)
    for _ in range(4):
        requests.ask()
        await asyncio.sleep(0)
    assert len(begun) == 1
    for event in begun:  # grows by the second one
        event.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert len(begun) == 2
