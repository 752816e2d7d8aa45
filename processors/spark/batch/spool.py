"""Records on their way to Spark: lines of JSON, of which a micro-batch has one file, and pages, each a file of its own.

Written before an offer is accepted, so that a full disk is an error before any acknowledgement; read by Spark; removed
when the batch is done. A file is private to its host and worth nothing after it; what a killed host has left behind in
a directory that is not its own alone, the next one on the machine removes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from mld.processors.spark.batch import page_file
from mld.processors.spark.batch.micro_batch import Offer, Row
from mld.processors.spark.commit.store import local_directory
from mld.processors.spark.sink_port import SinkRefused

LOCK_FILE = ".lock"


class SpoolError(Exception):
    """There is no place for records; one sentence with the remedy."""


class Spool:
    """A directory of numbered files. `append` is called on one thread, the rest on any."""

    def __init__(self, directory: Path, *, shared: bool = False) -> None:
        """Open the spool; `shared`: executors read it, by the rights of this user's group at the least."""
        self.directory = directory
        self.number = 1
        """Of the file that grows."""
        self._file: BinaryIO | None = None
        self._end = 0
        try:
            directory.mkdir(mode=0o750 if shared else 0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise self._error(error) from error
        self.takes_pages = _has_links(directory)

    def append(self, records: bytes | bytearray) -> tuple[int, int, int]:
        """Append; return file, start and stop of what was written. Raises SpoolError; the file is as before then."""
        try:
            if self._file is None:
                self._file = self.path(self.number).open("wb", buffering=0)
            rest = memoryview(records)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            if self._file is not None:
                self._file.truncate(self._end)
                self._file.seek(self._end)
            raise self._error(error) from error
        start, self._end = self._end, self._end + len(records)
        return self.number, start, self._end

    def cut(self) -> tuple[int, int]:
        """Return the file that is complete now, and its length, 0 if there is none; what comes next goes into another
        one.
        """
        if self._file is not None:
            self._file.close()
            self._file = None
        complete = self.number, self._end
        self.number, self._end = self.number + 1, 0
        return complete

    def path(self, number: int) -> Path:
        return self.directory / f"{number:08d}.jsonl"

    def page(self, link: int, number: int) -> Path:
        """Return where the records of an offer stand that is a page; its child writes them."""
        return self.directory / f"{link:08d}-{number:08d}.parquet"

    def gather(self, name: str, pages: Iterable[Offer]) -> Path:
        """Return a directory that has these pages and nothing else, until it is removed. Raises SpoolError."""
        path = self.directory / name
        try:
            path.mkdir()
            for offer in pages:
                page = self.page(offer.link, offer.number)
                os.link(page, path / page.name)
        except OSError as error:
            shutil.rmtree(path, ignore_errors=True)
            raise self._error(error) from error
        return path

    def read(self, offers: Iterable[Offer]) -> list[bytes]:
        """Return the records of each offer, as lines."""
        found = []
        for offer in offers:
            if offer.is_page:
                found.append(page_file.lines(self.page(offer.link, offer.number)))
                continue
            with self.path(offer.spool).open("rb") as file:
                file.seek(offer.start)
                found.append(file.read(offer.stop - offer.start))
        return found

    def write_rows(self, name: str, rows: Iterable[Sequence[Row]]) -> Path:
        """Return a file of its own for a part of a batch. Raises SpoolError."""
        path = self.directory / f"{name}.jsonl"
        try:
            with path.open("wb") as file:
                for mine in rows:
                    file.writelines(line for _, line in mine)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise self._error(error) from error
        return path

    def remove(self, path: Path) -> None:
        """Remove what `gather` or `write_rows` has made."""
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        self.cut()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _error(self, error: OSError) -> SpoolError:
        return SpoolError(page_file.no_room(self.directory, error))


def _has_links(directory: Path) -> bool:
    """Return whether one file may stand in two directories there."""
    probe = directory / ".probe"
    try:
        probe.touch()
        os.link(probe, directory / ".link")
    except OSError:
        return False
    finally:
        for path in (probe, directory / ".link"):
            path.unlink(missing_ok=True)
    return True


def open_spool(named: str | None, scratch: Path) -> Spool:
    """Return a spool of this process alone: below the directory of `mld.spark.spool`, or in `scratch`. Raises
    SpoolError.
    """
    if named is None:
        return Spool(scratch / "spool")
    try:
        base = local_directory(named, "mld.spark.spool")
    except SinkRefused as error:
        raise SpoolError(
            f"mld.spark.spool = {named} is in no file system of this machine; name a directory that every node mounts "
            "at the same path"
        ) from error
    mine = f"mld-{os.uname().nodename}-"
    _sweep(base, mine)
    spool = Spool(base / f"{mine}{os.getpid()}-{uuid4().hex[:8]}", shared=True)  # a container's pid is not unique
    held = os.open(spool.directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with suppress(OSError):  # where there are no locks, nobody can take it either, and nothing is swept
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends
    return spool


def _sweep(base: Path, prefix: str) -> None:
    """Remove what killed hosts of this machine have left: nobody holds their locks any more."""
    for directory in base.glob(f"{prefix}*"):
        with suppress(OSError), (directory / LOCK_FILE).open("rb+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
