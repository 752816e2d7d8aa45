"""The list of streams in a file, read again while the daemon runs: damage changes nothing, and is said once."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from mld.daemon import file_reads, streams_reader
from mld.daemon.streams_reader import StreamsReader
from mld.properties.loader import load
from mld.properties.scrubber import Scrubber

FILE = """\
executableName = child
applicationName = app
AwsCredentialsProvider = DefaultCredentialsProvider
regionName = eu-west-1
retrievalMode = POLLING
mld.streamsFile = {}
"""
SECRET = "StsAssumeRoleCredentialsProvider|arn:aws:iam::111111111111:role/r|s|externalId=geheimnis"


class Listed:
    def __init__(self, directory: Path) -> None:
        self.path = directory / "streams.txt"
        self.path.write_text("a\nb\n")
        file = directory / "app.properties"
        file.write_text(FILE.format(self.path))
        loaded = load(file)
        self.scrub = Scrubber()
        self.rest: str | None = None
        self.reader = StreamsReader(loaded.settings.streams, loaded.streams_file, self.scrub, self.write_on)

    async def write_on(self) -> None:
        if self.rest is not None:
            self.path.write_text(self.rest)

    async def names(self) -> list[str]:
        return [one.name for one in await self.reader.read()]


@pytest.fixture
def listed(tmp_path: Path) -> Listed:
    return Listed(tmp_path)


async def test_the_list_is_what_the_file_says_now(listed: Listed) -> None:
    assert await listed.names() == ["a", "b"]
    listed.path.write_text("b\nc\n")
    assert await listed.names() == ["b", "c"]


@pytest.mark.parametrize("half", ["b\n", "b\nc\nd", "b\nc\nord", "", "a, b\n"])
async def test_a_file_that_is_read_while_it_is_written_counts_when_it_is_whole(
    listed: Listed, half: str, caplog: pytest.LogCaptureFixture
) -> None:
    listed.path.write_text(half)
    listed.rest = "b\nc\norders\n"
    assert await listed.names() == ["a", "b"]
    assert await listed.names() == ["b", "c", "orders"]
    assert not caplog.records


@pytest.mark.parametrize("damage", ["", "a, b\n", "a\nmld.stream.x.epoch=1\n", "a\na\n", None, "\\u00"])
async def test_damage_changes_nothing_and_is_said_once(
    listed: Listed, caplog: pytest.LogCaptureFixture, damage: str | None
) -> None:
    listed.path.write_text("b\nc\n")
    await listed.names()
    listed.path.unlink() if damage is None else listed.path.write_text(damage)
    for _ in range(3):
        assert await listed.names() == ["b", "c"]
    (said,) = [record for record in caplog.records if vars(record).get("action") == "streams_file_refused"]
    assert "nothing changes" in said.getMessage()
    assert "streams.txt" in said.getMessage()


async def test_damage_that_comes_back_is_said_again(listed: Listed, caplog: pytest.LogCaptureFixture) -> None:
    for text in ("a, b\n", "a\n", "a, b\n"):
        listed.path.write_text(text)
        await listed.names()
    said = [record for record in caplog.records if vars(record).get("action") == "streams_file_refused"]
    assert len(said) == 2


async def test_a_new_secret_is_hidden_from_then_on(listed: Listed) -> None:
    listed.path.write_text(f"a\nmld.stream.a.credentials={SECRET}\n")
    (stream,) = await listed.reader.read()
    assert stream.credentials is not None
    assert "geheimnis" not in listed.scrub("refused: geheimnis")


async def test_damage_that_is_mended_elsewhere_is_noticed(listed: Listed, tmp_path: Path) -> None:
    """The list stays as it is, and what it refers to comes to be there."""
    secret = tmp_path / "role"
    listed.path.write_text(f"a\nc\nmld.stream.c.credentials=${{file:{secret}}}\n")
    assert await listed.names() == ["a", "b"]
    secret.write_text("ProfileCredentialsProvider|p")
    assert await listed.names() == ["a", "c"]
    assert await listed.names() == ["a", "c"]


@pytest.mark.parametrize("kind", ["pipe", "socket", "directory", "device", "loop", "large"])
async def test_whatever_takes_the_place_of_the_file_is_not_waited_for(
    listed: Listed, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    await listed.names()
    listed.path.unlink()
    with socket.socket(socket.AF_UNIX) as made:
        match kind:
            case "pipe":
                os.mkfifo(listed.path)  # nobody writes
            case "socket":
                made.bind(str(listed.path))
            case "directory":
                listed.path.mkdir()
            case "device":
                listed.path.symlink_to("/dev/zero")
            case "loop":
                listed.path.symlink_to(listed.path.name)
            case _:
                listed.path.write_text("a\n" * 10**6)
        assert await listed.names() == ["a", "b"]
    assert [vars(one).get("action") for one in caplog.records] == ["streams_file_refused"]


async def test_a_list_on_a_mount_that_hangs_is_said(
    listed: Listed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mount = threading.Event()
    monkeypatch.setattr(streams_reader, "bytes_of_list", lambda _: mount.wait())
    monkeypatch.setattr(file_reads, "READ_S_MAX", 0.05)
    try:
        assert await listed.names() == ["a", "b"]
    finally:
        mount.set()
    assert "was not read within 0.05 s: its disk or network mount hangs" in caplog.text
