"""Files of the configuration that are read while the daemon runs: what a mount that hangs may cost."""

from __future__ import annotations

import threading

import pytest

from mld.daemon import file_reads
from mld.daemon.file_reads import FileHangsError, FileReads


async def test_reads_do_not_queue_up_behind_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_reads, "READ_S_MAX", 0.05)
    reads, mount = FileReads("test"), threading.Event()
    try:
        for _ in range(3):
            with pytest.raises(FileHangsError):
                await reads.run(mount.wait)
        assert len(reads._threads._open) == 1
    finally:
        mount.set()
    monkeypatch.setattr(file_reads, "READ_S_MAX", 30.0)
    assert await reads.run(lambda: "read") == "read"


async def test_a_read_that_fails_leaves_the_turn_to_the_next_one() -> None:
    reads = FileReads("test")
    with pytest.raises(ZeroDivisionError):
        await reads.run(lambda: 1 / 0)
    assert await reads.run(lambda: "read") == "read"
