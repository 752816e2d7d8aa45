"""The inbox of the streaming mode: what a host publishes, exactly once, and its queries consume.

    <checkpoint>/inbox/<number>.parquet   one micro-batch, a page, until every query has committed it
    <checkpoint>/inbox/_mld/              its ledger: the marks of all shards (`mld.processors.spark.commit.journal`)
    <checkpoint>/queries/<sink>/          Spark's checkpoint of one query
    <checkpoint>/worker                   locked by the JVM that runs the queries

The ledger drops what is delivered again. A file's modification time is its number, in seconds: Spark takes files in
that order, and forgets those that it has taken by it, whatever the clock says.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from mld.processors.spark.batch.page_file import write_records
from mld.processors.spark.batch.record_columns import SparkRecord
from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.journal import LEDGER, AdmittedSink, Journal
from mld.processors.spark.commit.ledger import Admission, LedgerEntry
from mld.processors.spark.commit.store import PosixStore, as_sink_error, stage
from mld.processors.spark.high_water_marks import HighWaterMarks, ShardSpans
from mld.processors.spark.sink_port import SinkError, SinkRefused
from mld.processors.spark.writer_identity import WriterIdentity

NAME = "inbox"
SUFFIX = ".parquet"
DATA = f"records{SUFFIX}"
_FILE = re.compile(r"(\d{12,})\.\w+", re.ASCII)
LAYOUT = "inbox"


class Inbox(AdmittedSink):
    """The inbox, for this user alone. Raises SinkError and its kinds."""

    def __init__(self, root: Path, identity: WriterIdentity | None = None) -> None:
        self._admission = Admission(
            identity or WriterIdentity(),
            NAME,
            f"mld.spark.checkpoint = {root}",
            "State and progress in it are one stream's: use another directory",
        )
        self._root = root
        self._store = PosixStore(root / NAME, private=True)
        self._journal = Journal(self._store, NAME)

    def make_home(self, name: str) -> None:
        """Make a directory beside the inbox, into which others write: as private as the inbox."""
        try:
            PosixStore(self._root, private=True).make(name)
        except OSError as error:
            raise as_sink_error(error, f"making {name} in mld.spark.checkpoint") from error

    @property
    def directory(self) -> Path:
        return self._root / NAME

    def open(self) -> LedgerEntry | None:
        """Finish what others left half done; the newest entry. Raises SinkRefused if the inbox is somebody else's."""
        head = self._journal.open()
        self._admission.marks(head)
        return head

    def marks(self, head: LedgerEntry | None) -> HighWaterMarks:
        """Return what the inbox holds of each shard. Raises SinkRefused if it is somebody else's."""
        return self._admission.marks(head)

    def head(self) -> LedgerEntry | None:
        """Return the newest entry; its file, or that of one before, may still be on its way."""
        return self._journal.head()

    def publish(self, batch: ShardSpans, records: Iterable[SparkRecord], batch_id: str) -> LedgerEntry:
        """Publish the records of a batch. Raises Fenced if a shard is not where the batch was trimmed."""
        self._admission.check(self._journal.head(), batch)
        with self._journal.staged() as token:
            stage("staging")
            path = self._write(token, records)
            stage("durable")

            def follow(head: LedgerEntry | None) -> LedgerEntry:
                self._admission.check(head, batch)
                number = head.number + 1 if head else 1
                _date(path, number)
                moves = (ledger.FileMove(f"data/{DATA}", name_of(number)),)
                return self._entry_after(head, batch, batch_id, token=token, layout=LAYOUT, moves=moves)

            return self._journal.commit(token, follow)

    def _write(self, token: str, records: Iterable[SparkRecord]) -> Path:
        data = self._journal.data(token)
        path = self._store.root / data / DATA
        try:
            self._store.make(data)
            write_records(path, records)
            self._store.sync_below(data)
        except OSError as error:
            raise as_sink_error(error, "publishing a batch in the inbox") from error
        return path

    # --- for the queries ---------------------------------------------------------------------------------------------

    def pending(self) -> dict[int, Path]:
        """Return the files that are there."""
        found = {number_of(name): self._store.root / name for name in self._store.names("")}
        return {number: path for number, path in sorted(found.items(), key=lambda item: item[0] or 0) if number}

    def settle(self) -> list[int]:
        """Set the time of each file that lost it, by a copy or a power cut, before a query starts; their numbers."""
        pending = self.pending()
        for number, path in pending.items():
            _date(path, number)
        return list(pending)

    def clear(self, number: int) -> None:
        """Remove files up to this number, which every query has committed. Failing to clean is no failure."""
        try:
            self._store.sync(LEDGER)  # a file that is gone and not marked as done would be missed after a power cut
            for found, path in self.pending().items():
                if found <= number:
                    path.unlink(missing_ok=True)
        except OSError:
            return


def name_of(number: int) -> str:
    return f"{number:0{ledger.NUMBER_DIGITS}d}{SUFFIX}"


def number_of(name: str) -> int | None:
    """Return the number of a file of the inbox, also of one that an older version has written; None of another."""
    found = _FILE.fullmatch(name)
    return int(found[1]) if found else None


def check_not_lost(head: LedgerEntry | None, newest: int) -> None:
    """Raise SinkRefused if the ledger of the inbox has lost the last number that is known."""
    if newest > (head.number if head else 0):
        raise SinkRefused(
            f"mld.spark.checkpoint: its queries have taken batch {newest}, and the ledger of its inbox knows "
            f"only {head.number if head else 'none'}; restore the whole directory, or use a new one"
        )


def _date(path: Path, number: int) -> None:
    """Set durably the time by which Spark orders files. Raises SinkError."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if int(os.fstat(handle).st_mtime) != number:
                os.utime(handle, (number, number))
                os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise SinkError(f"inbox: {path} does not take a time: {error.strerror}; it is tried again") from error
