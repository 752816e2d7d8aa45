"""Keeps the ledger of a sink in its directory, and publishes files by it: the one place where commits happen.

    <sink>/_mld/staging/<token>/     what one writer is about to publish: data/ and entry.json
    <sink>/_mld/ledger/<number>.json the entries; creating one exclusively is the commit
    <sink>/_mld/ledger/<number>.done every file of that entry is in its place, durably
    <sink>/_mld/trash/<token>/       staging areas taken away from their (dead, or much too late) writers

A commit
--------

1. The data are written below the staging area and made durable.
2. The head is read; the batch must fit it (`Fenced` otherwise). The entry that follows it goes to `entry.json`.
3. The head is read again, and `owner` must still be there: Spark makes missing directories, so a staging area that
   was taken away could have come back with half of its data. All well: `entry.json` gets the name `<number>.json` by a
   hard link, which fails if the name exists: so only one writer of a number can do it. The loser reads the new head
   and is back at 2, its data untouched: it has lost a race, not its shards.
4. Every entry that is not done is finished, in order: its files are renamed from the staging area to their targets, the
   directories are synced, `.done` is written. Anybody may do that, any number of times, at the same time: a file whose
   source is gone and whose target exists has been moved.

A writer that dies before 3 leaves a staging area and nothing else. One that dies after 3 has committed; whoever opens
or publishes next finishes it. A writer that answers late finds its number taken.

The answer of step 3 may get lost, and a network file system that repeats it by itself then hears that the name exists.
The entry of that number says by its token whose it is.

Cleaning
--------

Old entries may be removed although their numbers fence late writers, because a late writer's `entry.json` is taken away
first: the sweeper moves each staging area whose entry has a number that will go into the trash, then removes the
numbers. A writer that stands between 2 and 3 either wrote `entry.json` before the sweeper looked, then its source is
gone and its link fails; or after, then it sees at 3 a head that has moved on. There is no time limit in this.

A staging area belongs to a process as long as it holds `owner`, which it does no longer once it has ended.

The trash of a writer is deleted once no unfinished entry names its token; as its `entry.json` is in the trash, no later
entry can. Until then its files are moved to their targets from there.
"""

from __future__ import annotations

import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import PurePosixPath
from typing import Any
from uuid import uuid4

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.ledger import Admission, LedgerEntry, Names
from mld.processors.spark.commit.store import Store, failures, stage
from mld.processors.spark.high_water_marks import OF_A_RECORD, HighWaterMarks, ShardSpans
from mld.processors.spark.processes import boot_id
from mld.processors.spark.sink_port import Published, SinkError, SinkRefused

HOME = "_mld"
STAGING, LEDGER, TRASH = f"{HOME}/staging", f"{HOME}/ledger", f"{HOME}/trash"
ENTRY_FILE = "entry.json"
OWNER_FILE = "owner"
DATA = "data"
RACES_MAX = 1000
"""Each lost race is a commit of somebody else; whoever loses so many in a row lets its host back off."""
ABANDONED_S = 24 * 3600.0
"""A staging area of which nobody can tell whether its writer lives, such as one of another machine, is left alone for a
day."""


class SinkJournal(ABC):
    """The ledger of one sink, wherever it is kept. Raises SinkError and its kinds."""

    def __init__(self, name: str) -> None:
        self._name = name

    @abstractmethod
    def open(self) -> LedgerEntry | None:
        """Finish what is half done, clean up, and give the head."""

    @abstractmethod
    def head(self) -> LedgerEntry | None:
        """Return the newest entry, as it is now."""

    @abstractmethod
    def stage(self) -> str:
        """Return a new staging area; its token."""

    @abstractmethod
    def data(self, token: str) -> str:
        """Return where the data of a staging area stand, as a path of the store that Spark writes to."""

    @abstractmethod
    def check_owned(self, token: str) -> None:
        """Raise SinkError if somebody has taken the staging area away."""

    @abstractmethod
    def discard(self, token: str) -> None:
        """Remove a staging area that was not published. A failure leaves it to a later sweep."""

    @abstractmethod
    def commit(self, token: str, follow: Callable[[LedgerEntry | None], LedgerEntry]) -> LedgerEntry:
        """Publish a staging area whose data are durable.

        `follow` gives the entry after a head, or raises; it may be asked several times, once for each lost race."""

    @contextmanager
    def staged(self, token: str | None = None) -> Iterator[str]:
        """Give a staging area to commit, or this one; it is discarded if that raises anything."""
        token = self.stage() if token is None else token
        try:
            yield token
        except BaseException:
            self.discard(token)
            raise


class Journal(SinkJournal):
    """The ledger of one sink in its directory."""

    def __init__(self, store: Store, name: str) -> None:
        super().__init__(name)
        self._store = store
        self._owned: dict[str, Callable[[], None]] = {}

    def open(self) -> LedgerEntry | None:
        with failures(f"sink {self._name}: opening its ledger"):
            for path in (STAGING, LEDGER, TRASH):
                self._store.make(path)
            self._finish()
            self._sweep()
            head = self._head()
            # What we read may not be on disk yet if its writer died, but its shards are checkpointed by our word.
            self._store.sync(LEDGER)
            return head

    def head(self) -> LedgerEntry | None:
        with failures(f"sink {self._name}: reading its ledger"):
            return self._head()

    def restore(self, data: bytes) -> LedgerEntry:
        """Begin a ledger that was lost with an entry that was found elsewhere."""
        entry = ledger.decode(data)
        with failures(f"sink {self._name}: restoring its ledger"):
            token = self.stage()
            draft = f"{STAGING}/{token}/{ENTRY_FILE}"
            self._store.write(draft, data)
            self._store.mark(f"{LEDGER}/{ledger.done_name(entry.number)}")
            self._store.take(draft, f"{LEDGER}/{ledger.entry_name(entry.number)}")
            self._store.sync(LEDGER)
            self.discard(token)
        return entry

    def stage(self) -> str:
        token = _token()
        with failures(f"sink {self._name}: staging a batch"):
            self._store.make(f"{STAGING}/{token}")
            self._owned[token] = self._store.hold(f"{STAGING}/{token}/{OWNER_FILE}")
        return token

    def data(self, token: str) -> str:
        return f"{STAGING}/{token}/{DATA}"

    def check_owned(self, token: str) -> None:
        if not self._store.exists(f"{STAGING}/{token}/{OWNER_FILE}"):
            raise self._cleared_away()

    def discard(self, token: str) -> None:
        with suppress(OSError):
            self._disown(token)
            self._trash(token)
            self._purge()

    def commit(self, token: str, follow: Callable[[LedgerEntry | None], LedgerEntry]) -> LedgerEntry:
        with failures(f"sink {self._name}: committing a batch"):
            entry = self._take_number(follow)
            stage("linked")
            self._store.sync(LEDGER)
            stage("committed")
            self._finish()
            self._disown(token)
            if entry.number % ledger.ENTRIES_KEPT == 0:
                self._sweep()
            return entry

    def _take_number(self, follow: Callable[[LedgerEntry | None], LedgerEntry]) -> LedgerEntry:
        for _ in range(RACES_MAX):
            head = self._head()
            try:
                entry = follow(head)
                if self._took(entry):
                    return entry
            except FileNotFoundError as error:
                raise self._cleared_away() from error
        raise SinkError(
            f"sink {self._name}: {RACES_MAX} other commits came first, nothing was published; it is tried again"
        )

    def _took(self, entry: LedgerEntry) -> bool:
        """Try to be the one who creates this entry. Raises FileNotFoundError if our staging area is gone."""
        draft = f"{STAGING}/{entry.token}/{ENTRY_FILE}"
        target = f"{LEDGER}/{ledger.entry_name(entry.number)}"
        self._store.write(draft, ledger.encode(entry))
        stage("entry")
        if self._names().head != entry.number - 1:
            return False
        self.check_owned(entry.token)
        stage("checked")
        return self._store.take(draft, target) or self._is_ours(target, entry.token)

    def _cleared_away(self) -> SinkError:
        return SinkError(
            f"sink {self._name}: the staged batch was cleared away as abandoned, "
            "nothing is published; it is tried again"
        )

    def _is_ours(self, target: str, token: str) -> bool:
        """Return whether the entry is ours: a network file system may repeat what it has done, and then refuse it."""
        with suppress(FileNotFoundError):
            return ledger.decode(self._store.read(target)).token == token
        return False

    def _head(self) -> LedgerEntry | None:
        for _ in range(RACES_MAX):
            number = self._names().head
            if not number:
                return None
            with suppress(FileNotFoundError):
                return self._entry(number)
        raise SinkError(f"sink {self._name}: its ledger moves on faster than it can be read; it is tried again")

    def _entry(self, number: int) -> LedgerEntry:
        path = f"{LEDGER}/{ledger.entry_name(number)}"
        try:
            return ledger.decode(self._store.read(path))
        except ValueError as error:
            remedy = "restore it, or use a new directory"
            raise ledger.refusal(self._name, self._store.uri(path), error, remedy) from error

    def _names(self) -> Names:
        return Names.of(self._store.names(LEDGER))

    def _finish(self) -> None:
        """Bring the files of every committed entry to their places, once it is durable: if its number were given again
        after a power cut, its files would stand beside those of another commit."""
        unfinished = self._names().unfinished
        if unfinished:
            self._store.sync(LEDGER)
        for number in unfinished:
            try:
                entry = self._entry(number)
            except FileNotFoundError:
                continue  # finished and removed meanwhile
            if not self._move_all(entry):
                continue
            stage("moved")
            self._store.mark(f"{LEDGER}/{ledger.done_name(number)}")
            stage("done")
            with suppress(OSError):
                self._store.remove(f"{STAGING}/{entry.token}")

    def _move_all(self, entry: LedgerEntry) -> bool:
        """Return false if another process has finished the whole entry meanwhile."""
        directories = set()
        for index, move in enumerate(entry.moves):
            parent = str(PurePosixPath(move.target).parent)
            if parent not in directories:
                self._store.make(parent)
                directories.add(parent)
            if not self._moved(entry, move):
                return False
            if index == 0:
                stage("moving")
        for parent in sorted(directories):
            self._store.sync(parent)
        return True

    def _moved(self, entry: LedgerEntry, move: ledger.FileMove) -> bool:
        """Move one file unless somebody has. False if another process has finished the whole entry."""
        if self._store.exists(move.target):
            return True
        for place in (STAGING, TRASH):
            with suppress(FileNotFoundError):
                self._store.move(f"{place}/{entry.token}/{move.source}", move.target)
                return True
        if self._store.exists(move.target):
            return True
        names = self._names()
        if entry.number in names.done or entry.number not in names.taken:
            return False
        raise SinkRefused(
            f"sink {self._name}: commit {entry.number} is published but its file {move.target} is nowhere; restore it, "
            f"or, if it was deleted on purpose, create {self._store.uri(LEDGER)}/{ledger.done_name(entry.number)}"
        )

    def _sweep(self) -> None:
        """Remove old entries and the staging areas of the dead. Failing to clean is no failure."""
        with suppress(OSError):
            obsolete = self._names().obsolete
            for token in self._store.names(STAGING):
                if self._abandoned(token) or (obsolete and self._too_late(token, obsolete[-1])):
                    self._trash(token)
            stage("sweeping")
            for number in obsolete:
                self._store.remove(f"{LEDGER}/{ledger.entry_name(number)}")
            # Only now: an entry without its mark would count as unfinished.
            names = self._names()
            for number in names.done.difference(names.taken):
                self._store.remove(f"{LEDGER}/{ledger.done_name(number)}")
            self._purge()

    def _too_late(self, token: str, horizon: int) -> bool:
        try:
            return ledger.decode(self._store.read(f"{STAGING}/{token}/{ENTRY_FILE}")).number <= horizon
        except (FileNotFoundError, ValueError):
            return False

    def _abandoned(self, token: str) -> bool:
        with suppress(FileNotFoundError):
            if token.startswith(_machine()):
                return not self._store.held(f"{STAGING}/{token}/{OWNER_FILE}")
            return self._store.age_s(f"{STAGING}/{token}", time.time()) > ABANDONED_S
        return False

    def _disown(self, token: str) -> None:
        if release := self._owned.pop(token, None):
            release()

    def _trash(self, token: str) -> None:
        with suppress(FileNotFoundError):
            self._store.move(f"{STAGING}/{token}", f"{TRASH}/{token}")

    def _purge(self) -> None:
        trash = self._store.names(TRASH)
        if not trash:
            return
        wanted = set()
        for number in self._names().unfinished:
            with suppress(FileNotFoundError):
                wanted.add(self._entry(number).token)
        for token in trash:
            if token not in wanted:
                self._store.remove(f"{TRASH}/{token}")


class AdmittedSink:
    """What sinks whose ledger has entries share: whose marks count, and what an entry of theirs says."""

    exactly_once = True
    _admission: Admission

    def retire(self, ended: HighWaterMarks) -> None:
        """Forget shards and single records, as `Sink.retire` says, with the next commit."""
        before = {shard: mark for shard, mark in self._admission.ended.items() if OF_A_RECORD not in shard.shard}
        self._admission = replace(self._admission, ended={**before, **ended})

    def _entry_after(
        self, head: LedgerEntry | None, batch: ShardSpans, batch_id: str, *, token: str = "", **said: Any
    ) -> LedgerEntry:
        """Return the entry that follows `head` with this batch, and says for people which process has written it, and
        when; without a `token` its own is made. Raises SinkRefused and Fenced.
        """
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        writer = f"{socket.gethostname()} pid {os.getpid()}"
        token = token or uuid4().hex
        return self._admission.following(head, batch, token, batch_id=batch_id, writer=writer, at=at, **said)

    def _published(self, entry: LedgerEntry, rows: int | None) -> Published:
        """Return what the commit of the entry has done."""
        return Published(self._admission.marks(entry), entry.number, rows)


def _token() -> str:
    """Return a token that is unique and says on which machine its writer runs."""
    return f"{_machine()}{uuid4().hex}"


@cache
def _machine() -> str:
    """Return this boot of this machine, whose locks its processes can ask each other about."""
    return f"{boot_id() or uuid4()}."  # if it is not known, nobody else can tell: left alone for a day
