"""The inbox of the streaming mode: what all workers publish, exactly once, and one query at a time consumes.

    <checkpoint>/inbox/<number>.jsonl     one micro-batch of one worker, until every query has committed it
    <checkpoint>/inbox/_mld/              its ledger: the marks of all shards (`mld.processors.spark.commit.journal`)
    <checkpoint>/progress                 the last number that every query has committed
    <checkpoint>/leader                   locked by the one host that runs the queries
    <checkpoint>/queries/<sink>/          Spark's checkpoint of one query

Several workers publish at the same time; the ledger puts their batches into one order and drops what is delivered
again, so a shard may move whenever it likes. A file's modification time is its number, in seconds: Spark takes files in
that order, and forgets those that it has taken by it, whatever the clocks of the workers say.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.journal import LEDGER, AdmittedSink, Journal
from mld.processors.spark.commit.ledger import Admission, LedgerEntry
from mld.processors.spark.commit.store import PosixStore, as_sink_error, stage
from mld.processors.spark.high_water_marks import HighWaterMarks, ShardSpans
from mld.processors.spark.processes import boot_id, started_at, stat_of
from mld.processors.spark.sink_port import SinkError, SinkRefused
from mld.processors.spark.writer_identity import WriterIdentity

log = logging.getLogger("mld.spark")

NAME = "inbox"
SUFFIX = ".jsonl"
DATA = f"records{SUFFIX}"
LAYOUT = "inbox"
PROGRESS, LEADER, QUERIES = "progress", "leader", "queries"


class Inbox(AdmittedSink):
    """One thread's view of the inbox. Raises SinkError and its kinds."""

    def __init__(
        self,
        root: Path,
        identity: WriterIdentity | None = None,
        *,
        private: bool = False,
    ) -> None:
        """Open the inbox; `private`: for this user alone, which executors of a cluster may not be."""
        self._admission = Admission(
            identity or WriterIdentity(),
            NAME,
            f"mld.spark.checkpoint = {root}",
            "State and progress in it are one stream's: use another directory",
        )
        self._root = root
        self._home = PosixStore(root, private=private)
        self._store = PosixStore(root / NAME, private=private)
        self._journal = Journal(self._store, NAME)

    def make_home(self, name: str) -> None:
        """Make a directory beside the inbox, into which others write: as private as the inbox."""
        try:
            self._home.make(name)
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

    def number(self) -> int:
        """Return the number of the newest entry; 0 if there is none."""
        return ledger.Names.of(self._store.names(LEDGER)).head

    def publish(self, batch: ShardSpans, write: Callable[[BinaryIO], None], batch_id: str) -> LedgerEntry:
        """Publish the records of a batch. Raises Fenced if a shard is not where the batch was trimmed."""
        self._admission.check(self._journal.head(), batch)
        with self._journal.staged() as token:
            stage("staging")
            path = self._write(token, write)
            stage("durable")

            def follow(head: LedgerEntry | None) -> LedgerEntry:
                self._admission.check(head, batch)
                number = head.number + 1 if head else 1
                _date(path, number)
                moves = (ledger.FileMove(f"data/{DATA}", name_of(number)),)
                return self._entry_after(head, batch, batch_id, token=token, layout=LAYOUT, moves=moves)

            return self._journal.commit(token, follow)

    def _write(self, token: str, write: Callable[[BinaryIO], None]) -> Path:
        data = self._journal.data(token)
        path = self._store.root / data / DATA
        try:
            self._store.make(data)
            with path.open("wb") as file:
                write(file)
            self._store.sync_below(data)
        except OSError as error:
            raise as_sink_error(error, "publishing a batch in the inbox") from error
        return path

    # --- what the leader does ----------------------------------------------------------------------------------------

    def pending(self) -> dict[int, Path]:
        """Return the files that are there."""
        found = {number_of(name): self._store.root / name for name in self._store.names("")}
        return {number: path for number, path in sorted(found.items(), key=lambda item: item[0] or 0) if number}

    def settle(self) -> None:
        """Set the time of each file that lost it, by a copy or a power cut; before a query starts."""
        for number, path in self.pending().items():
            with suppress(FileNotFoundError):
                _date(path, number)

    def progress(self) -> int:
        """Return the last number that every query has committed; 0 if nobody knows, which only makes one look again."""
        try:
            return int(json.loads(self._home.read(PROGRESS))["number"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def advance(self, number: int) -> None:
        """Note that every query has committed all up to this number."""
        try:
            self._home.write(PROGRESS, json.dumps({"number": number}).encode())
        except OSError as error:
            raise as_sink_error(error, "writing down the progress of the queries") from error

    def clear(self, number: int) -> None:
        """Remove files up to this number, which has to be the progress. Failing to clean is no failure."""
        try:
            self._store.sync(LEDGER)  # a file that is gone and not marked as done would be missed after a power cut
            for found, path in self.pending().items():
                if found <= number:
                    path.unlink(missing_ok=True)
        except OSError:
            return


class LeadLock:
    """The right to run the queries: a lock that the kernel drops at the end of its holder.

    The JVM of a host that was killed ends a moment after it. On the same machine that is waited for; between machines,
    Spark's exclusive creation of each batch in its checkpoint and the sinks' ledgers stand against a late one."""

    def __init__(self, root: Path, jvm_pid: int | None) -> None:
        self._path = root / LEADER
        self._jvm_pid = jvm_pid
        self._held: int | None = None
        self._waits = False

    def take(self) -> bool:
        """Return whether the lock was free, and is ours now. Raises SinkError if the file system has no place for
        the lock.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise as_sink_error(error, "taking the lead of the streaming queries") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return False
        if self._lives(os.read(handle, 4096)):
            os.close(handle)
            if not self._waits:
                self._waits = True
                log.info("the JVM of the last leader is still at its end; waiting for it")
            return False
        self._waits = False
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(self._said()).encode(), 0)
        self._held = handle
        return True

    def release(self) -> None:
        if self._held is not None:
            os.ftruncate(self._held, 0)
            os.close(self._held)
            self._held = None

    def _said(self) -> dict[str, object]:
        jvm = self._jvm_pid
        return {"machine": _machine(), "pid": os.getpid(), "jvm": jvm, "started": started_at(jvm) if jvm else None}

    def _lives(self, said: bytes) -> bool:
        """Return whether the JVM of the leader before us still runs on this machine."""
        try:
            before = json.loads(said)
            jvm = before["jvm"]
            if jvm is None or jvm == self._jvm_pid or before["machine"] != _machine():
                return False
            found = stat_of(int(jvm))
            return found is not None and found.started == before["started"] and not found.has_ended
        except (ValueError, KeyError, TypeError):
            return False


def name_of(number: int) -> str:
    return f"{number:0{ledger.NUMBER_DIGITS}d}{SUFFIX}"


def number_of(name: str) -> int | None:
    return ledger.number_of(name, SUFFIX)


def check_not_lost(head: LedgerEntry | None, progress: int) -> None:
    """Raise SinkRefused if the ledger of the inbox is younger than the queries."""
    if progress > (head.number if head else 0):
        raise SinkRefused(
            f"mld.spark.checkpoint: its queries have committed batch {progress}, and the ledger of its inbox knows "
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
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SinkError(f"inbox: {path} does not take a time: {error.strerror}; it is tried again") from error


def _machine() -> str:
    return boot_id() or os.uname().nodename
