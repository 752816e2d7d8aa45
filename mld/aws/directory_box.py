"""`DirectoryBox`: writes dead letters as files into a directory."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from mld.aws.letters import PUT_TIMEOUT_S, Letter, file_name
from mld.aws.threads import Workers
from mld.core.errors import DeadLetterError


class DirectoryBox:
    """Writes each letter as one line into a file that only its owner may read:
    ``application/stream/shard/sequence-sub.json``.
    """

    def __init__(self, directory: str) -> None:
        self._root = Path(directory).absolute()
        self._threads = Workers(threads_max=1, name="aws-letters")

    async def open(self) -> None:
        """Do nothing: the directory is made with the first letter."""

    async def put(self, letter: Letter) -> str:
        """Write a letter durably, and return the path of its file. Raises DeadLetterError, as `LetterBox.put` does."""
        try:
            async with asyncio.timeout(PUT_TIMEOUT_S):
                return await self._threads.run(lambda: self._write(letter))
        except Exception as error:  # from the file system, the threads or the time limit: the letter may not be durable
            reason = getattr(error, "strerror", None) or str(error) or f"not done within {PUT_TIMEOUT_S:g} s"
            raise DeadLetterError(f"{self._root}: {reason} (key mld.deadLetter)") from error

    async def close(self) -> None:
        self._threads.close()

    def _write(self, letter: Letter) -> str:
        """Write a letter durably, under a temporary name first, and return its path."""
        directory = self._root.joinpath(*map(file_name, letter.path))
        _make(directory)
        file = directory / f"{letter.name}.json"
        draft = directory / f".{letter.name}.{os.getpid()}.tmp"
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()  # left by a former process with our id
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as out:
            out.write(letter.body + b"\n")
            out.flush()
            os.fsync(out.fileno())
        draft.rename(file)
        _sync(directory)
        return str(file)


def _make(directory: Path) -> None:
    """Make the directory and those missing above it, durably (they survive a power failure) and for the owner only."""
    if directory.is_dir():
        return
    _make(directory.parent)
    with contextlib.suppress(FileExistsError):  # another shard's letter, or another process
        directory.mkdir(0o700)
    _sync(directory.parent)


def _sync(directory: Path) -> None:
    """Make the entries of a directory durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
