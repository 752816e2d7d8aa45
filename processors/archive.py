"""A record processor that writes every record of every shard exactly once, as JSON lines, into files of a directory.

    python -m mld.processors.archive DIRECTORY

Each shard has one append-only file, `<shard id>.jsonl`, in the shard's order. A line holds `shard`, `sequence`, `sub`,
`partition_key`, `arrival_ms`, and the payload as `data` if it is UTF-8 text, else as `data_base64`.

Why each record is there exactly once
-------------------------------------

The daemon delivers a shard's records in order and may repeat them from the last checkpoint on. So the file itself shows
which records are done: a record at or before the file's last line is a repetition and is skipped, all others are
appended. A batch is written and fsynced before it is checkpointed. Hence everything up to the checkpoint is on disk,
and a crash can tear only the lines after it. When we open a file we read it from the checkpoint on, cut it at the first
line that is incomplete or out of order, and fsync the rest, because a process that died may have written lines without
an fsync. The daemon delivers the cut records again. If complete lines follow a damaged one, they are copied to another
file before they are cut.

Two processes may have one shard's file open for a while, because the old owner does not know yet that its lease is
gone. Each takes an exclusive lock per batch, and first reads what the other one has written meanwhile. Neither can
leave a gap: the next batch of a process always begins at or before the end of what that process has seen in the file.
The lock is not held between batches, because an old owner that hangs would then stop the new one. The lock is `flock`:
on one host it always works; a network file system must support it.

If anything fails (disk full, lock not free in time, file moved away) the batch is removed from the file and the
process ends with an error. It sends neither a checkpoint nor a status, so nothing is lost, and the daemon starts a new
process.

One directory belongs to one application. If the application reads several streams, each stream has a subdirectory of
its own, `<account>_<name>_<epoch>`, because shards of two streams may have the same id, and their sequence numbers
cannot be compared.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import time
from binascii import b2a_base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from mld.processors.checkpoint_errors import DependencyError, ShutdownError, ThrottlingError
from mld.processors.sdk import Checkpointer, Record, RecordProcessor, run

LOCK_WAIT_S = 60.0
"""A process holds the lock while it writes one batch. One that holds it for a minute hangs."""
LOCK_POLL_S = 0.05
PROBE_BYTES = 1024 * 1024
"""First guess of the bytes between the last checkpoint and the end of the file; doubled until the checkpoint is found.
"""
DIRECTORY_MODE, FILE_MODE = 0o700, 0o600
"""Only this user may read an archive, because it has a stream's raw data. An existing directory keeps its mode."""
FILE_NAME_CHARS_MAX = 200
"""File systems allow 255 bytes."""

Place = tuple[int, int]
"""Sequence number and sub-sequence number, as integers, so that places of one shard can be compared."""


class ArchiveError(Exception):
    """The archive cannot continue safely. The message is one sentence, and names the remedy."""


class ShardFile:
    """The file of one shard.

    Everything up to `checkpoint`, the position that the daemon has stored, must be on disk already. With None the
    daemon has stored no position, and the file may end anywhere.
    """

    def __init__(self, directory: Path, shard_id: str, checkpoint: Place | None) -> None:
        self.path = directory / file_name(shard_id)
        self._shard_id = shard_id
        self._checkpoint = checkpoint
        make_directory(directory)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
        self._end = 0
        self._first: Place | None = None
        self._last: Place | None = None
        with self.locked():
            _sync_directory(directory)
            self._end = self._find_start()
            with self._reader(0) as file:
                self._first = decode_place(file.readline(), shard_id)
            self._read_on()

    @property
    def last(self) -> Place | None:
        """The place of the last record in the file; None if it is empty."""
        return self._last

    def append(self, records: Sequence[Record]) -> int:
        """Write and fsync the records that are not in the file yet, and return how many. First read the lines that
        another process has appended meanwhile.
        """
        with self.locked():
            self._check_in_place()
            if os.fstat(self._fd).st_size != self._end:
                self._read_on()
            fresh = self._fresh(records)
            if fresh:
                self._write(b"".join(encode_line(self._shard_id, record) for record in fresh))
                self._first = self._first or place_of(fresh[0])
                self._last = place_of(fresh[-1])
        return len(fresh)

    def close(self) -> None:
        os.close(self._fd)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the exclusive lock. Raises ArchiveError if another process keeps it for `LOCK_WAIT_S`."""
        deadline_s = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    raise ArchiveError(
                        f"{self.path} has been locked by another process for {LOCK_WAIT_S:.0f} s; end that process"
                    ) from None
                time.sleep(LOCK_POLL_S)
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _fresh(self, records: Sequence[Record]) -> list[Record]:
        """Return the records after the last one in the file. Raises ArchiveError if one is before the first."""
        fresh = []
        last = self._last
        for record in records:
            place = place_of(record)
            if self._first is not None and place < self._first:
                raise ArchiveError(
                    f"record {record.sequence_number} is older than the first one in {self.path}: another stream, or a "
                    "start further back; use an empty directory"
                )
            if last is None or place > last:
                fresh.append(record)
                last = place
        return fresh

    def _write(self, data: bytes) -> None:
        """Append data and fsync; after an error cut the file back. Raises ArchiveError."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
            os.fsync(self._fd)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._fd, self._end)
                os.fsync(self._fd)
            raise ArchiveError(f"cannot write {self.path}: {error}; nothing was checkpointed") from error
        self._end += len(data)

    def _check_in_place(self) -> None:
        """Raise ArchiveError if the file was moved, replaced or shortened."""
        opened = os.fstat(self._fd)
        with suppress(FileNotFoundError):
            named = self.path.stat()
            if (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino) and opened.st_size >= self._end:
                return
        raise ArchiveError(f"{self.path} was moved, replaced or shortened while its shard was being archived")

    def _find_start(self) -> int:
        """Return the offset at which to begin reading: that of a line near the end of the file whose record is at or
        before the checkpoint, or 0 if there is no such line.
        """
        size = os.fstat(self._fd).st_size
        back = PROBE_BYTES
        while self._checkpoint is not None and back < size:
            with self._reader(size - back) as file:
                file.readline()  # most likely the second half of a line
                start = file.tell()
                place = decode_place(file.readline(), self._shard_id)
                if place is not None and place <= self._checkpoint:
                    return start
            back *= 2
        return 0

    def _read_on(self) -> None:
        """Read from `_end` on. Cut the file at the first line that is torn or out of order, and fsync the rest."""
        with self._reader(self._end) as file:
            for line in file:
                place = decode_place(line, self._shard_id)
                if place is None or (self._last is not None and place <= self._last):
                    self._cut(line)
                    break
                self._first = self._first or place
                self._last = place
                self._end += len(line)
        os.fsync(self._fd)

    def _cut(self, bad_line: bytes) -> None:
        """Cut the file at `_end`. Raises ArchiveError if lines after this place are before the checkpoint."""
        is_needed = self._checkpoint is not None and (self._last is None or self._last < self._checkpoint)
        if is_needed and bad_line.endswith(b"\n"):
            # This is not a torn end. Cutting here could remove records that the daemon does not deliver again.
            raise ArchiveError(f"{self.path} is damaged at byte {self._end}, before the last checkpoint; repair it")
        if bad_line.endswith(b"\n"):
            self._put_aside()
        os.ftruncate(self._fd, self._end)
        _say(f"cut {self.path} at byte {self._end} after an interrupted write")

    def _put_aside(self) -> None:
        """Copy the lines that will be cut to a file of their own.

        If a power cut did the damage, they are delivered again. If the damage is older, this copy is all that is left.
        """
        aside = self.path.with_name(f"{self.path.name}.cut-{self._end}")
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
        with self._reader(self._end) as file, os.fdopen(fd, "ab") as copy:
            shutil.copyfileobj(file, copy)
            copy.flush()
            os.fsync(copy.fileno())
        _say(f"whole lines follow the damage; they are kept in {aside}")

    @contextmanager
    def _reader(self, start: int) -> Iterator[BinaryIO]:
        with os.fdopen(os.dup(self._fd), "rb") as file:
            file.seek(start)
            yield file


class Archive(RecordProcessor):
    """Archives one shard into `directory`, and checkpoints after every batch."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: ShardFile | None = None

    def initialize(self, shard_id: str, sequence_number: str | None, sub_sequence_number: int | None) -> None:
        """Open the shard's file. Warn if it ends before the checkpoint."""
        checkpoint = None
        if sequence_number is not None and sequence_number.isdigit():
            checkpoint = int(sequence_number), sub_sequence_number or 0
        directory = self._directory
        if self.stream is not None:
            make_directory(directory)
            directory /= directory_name(self.stream.id)
        self._file = ShardFile(directory, shard_id, checkpoint)
        if checkpoint is not None and (self._file.last is None or self._file.last < checkpoint):
            _say(
                f"{self._file.path} ends before the checkpoint {sequence_number}: what lies between was "
                "archived elsewhere or not at all"
            )

    def process_records(
        self, records: Sequence[Record], checkpointer: Checkpointer, millis_behind_latest: int | None
    ) -> None:
        """Append the records that the file lacks, and checkpoint the batch."""
        assert self._file is not None
        self._file.append(records)
        if not records:
            return
        try:
            checkpointer.checkpoint(records[-1])
        except (ThrottlingError, DependencyError) as error:
            # The records are safe; the checkpoint after the next batch covers them.
            _say(f"{error}; going on without it")
        except ShutdownError:
            _leave_to_new_owner()

    def shard_ended(self, checkpointer: Checkpointer) -> None:
        try:
            checkpointer.checkpoint()
        except ShutdownError:
            _leave_to_new_owner()


def _leave_to_new_owner() -> None:
    """Log that the new owner of the lease has to checkpoint: it gets these records again, and finds them in the
    file.
    """
    _say("the lease is lost, the checkpoint is left to its new owner")


def place_of(record: Record) -> Place:
    return int(record.sequence_number), record.sub_sequence_number


def encode_line(shard_id: str, record: Record) -> bytes:
    """Return one line of the archive, in ASCII."""
    line: dict[str, str | int] = {
        "shard": shard_id,
        "sequence": record.sequence_number,
        "sub": record.sub_sequence_number,
        "partition_key": record.partition_key,
        "arrival_ms": record.approximate_arrival_ms,
    }
    try:
        line["data"] = record.data.decode("utf-8")
    except UnicodeDecodeError:
        line["data_base64"] = b2a_base64(record.data, newline=False).decode("ascii")
    return json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n"


def decode_place(line: bytes, shard_id: str) -> Place | None:
    """Return the place of the record in a line; None if it is not a complete line of this shard."""
    if not line.endswith(b"\n"):
        return None
    try:
        value = json.loads(line)
        if value["shard"] != shard_id:
            return None
        return int(value["sequence"]), int(value["sub"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def file_name(shard_id: str) -> str:
    """Return the name of a shard's file, quoted so that it cannot contain a slash."""
    name = quote(shard_id, safe="")
    if not name or len(name) > FILE_NAME_CHARS_MAX:
        raise ArchiveError(f"the shard id cannot be a file name: {shard_id[:80]!r}")
    return f"{name}.jsonl"


def directory_name(stream_id: str) -> str:
    """Return the name of a stream's directory. It is unique, because in ``account:name:epoch`` account and epoch are
    digits, and no name has a colon."""
    name = quote(stream_id.replace(":", "_"), safe="$")
    if len(name) > FILE_NAME_CHARS_MAX:
        raise ArchiveError(f"the stream's identifier cannot be a directory's name: {stream_id[:80]!r}")
    return name


def make_directory(directory: Path) -> None:
    """Make a directory for this user alone, durably. An existing one keeps its mode."""
    directory.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    for one in (directory, directory.absolute().parent):
        _sync_directory(one)


def _say(text: str) -> None:
    """Write one line to standard error, which the daemon logs."""
    sys.stderr.write(f"archive: {text}\n")


def _sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def main(arguments: Sequence[str]) -> None:
    """Run the archive processor in the directory that is given."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write("usage: python -m mld.processors.archive DIRECTORY\n")
        raise SystemExit(2)
    directory = Path(arguments[0])
    run(lambda: Archive(directory))


if __name__ == "__main__":
    main(sys.argv[1:])
