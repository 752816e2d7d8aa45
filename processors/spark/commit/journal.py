"""Keeps the ledger of a sink in its directory, and publishes files with it. All commits of files are made here.

    <sink>/_mld/staging/<token>/       staging area of one writer: data/ and, on a disk, a draft of its entry
    <sink>/_mld/ledger/                the entries; to create one exclusively is the commit (`ledger_files`)

The directory is on a disk or in a bucket (`store`, `s3_store`); the rules are the same. The head is the entry with the
highest number.

A commit
--------

1. The data are written below the staging area and made durable.
2. The head is read. The marks in it must be those by which the batch was trimmed (`Fenced` otherwise).
3. `<number>.json` is created with the entry that follows the head, unless it exists. So only one writer can take a
   number. A writer that finds the number taken has lost a race, but it still owns its shards: it reads the new head and
   continues at 2 with the same data.
4. Every entry that is not done is finished, in order: its files are moved from the staging area to their targets, the
   directories are synced, `.done` is created. Any process may do that, any number of times, also at the same time: if
   the source of a file is gone and its target exists, the file has been moved.

A writer that dies before 3 leaves only a staging area. One that dies after 3 has committed, and the next process that
opens the sink or publishes to it finishes the commit. A writer that is late finds its number taken.

If the answer to the request of step 3 is lost, the writer repeats the step and may find that the name exists. The token
in that entry shows whether the entry is its own. On S3 a request without an answer may take effect at any later time,
as long as its number is free. So a writer that gives up after it has tried a number does not remove its staging area;
the cleaning does.

Cleaning
--------

Old entries are removed, although it is their numbers that stop late writers. So first a `.floor` file is created, named
by the highest number to remove. An entry that is created at or below the floor does not count, for any process. Every
writer checks the floor after it has created an entry, so it does not take such an entry for a commit.

A process locks the file `owner` in its staging area until it ends, so areas of dead processes can be found. For an area
of another machine, or in a bucket, nobody can find out whether its process lives. Such areas are removed after a day,
in two steps. First an entry is committed with the time up to which areas are removed (`swept_to`); after such an entry
a writer whose area is older does not commit. So a late writer either reads this entry, or it has read an older head and
finds its number taken. Then the areas are removed.

Files that an unfinished entry names are never removed.

A mark is the position up to which the records of a shard are in the sink. `stage(...)` names a place in the code for
tests, which kill or hold the process there (`faults`); otherwise it does nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from uuid import uuid4

from mld.processors.spark.commit import ledger, ledger_files
from mld.processors.spark.commit.faults import stage
from mld.processors.spark.commit.ledger import LedgerEntry
from mld.processors.spark.commit.ledger_files import DONE, FLOOR, HOME, LEDGER, Names, path_of
from mld.processors.spark.commit.store import Store, each, failures
from mld.processors.spark.sink_port import SinkError, SinkRefused

STAGING = f"{HOME}/staging"
ENTRY_FILE = "entry.json"
OWNER_FILE = "owner"
DATA = "data"
RACES_MAX = 1000
"""After this many lost races in a row, SinkError is raised, and the engine waits before the next attempt. Each lost
race is another writer's commit."""
ABANDONED_S = 24 * 3600
"""A staging area of this age is removed even if it is not known whether its writer lives."""
_TOKEN = re.compile(r"(?P<made>[0-9a-f]{10})-.+", re.ASCII)


class Journal:
    """The ledger of one sink in its directory. Raises SinkError and its subclasses."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._tried: set[str] = set()
        """Tokens of entries that this process has tried to create, so that they may exist or may
        still come to exist.
        """

    def open(self) -> LedgerEntry | None:
        """Finish commits whose files are not all in their places, clean up, make the head durable, and return it; None
        if there is no entry yet.
        """
        with failures(f"sink {self._name}: opening its ledger"):
            self._store.prepare(self._name)
            self._store.make(LEDGER)
            self._finish()
            self._sweep()
            head = self.head()
            # If the head's writer died, the head may not be durable. Checkpoints will depend on it, so sync it.
            self._store.sync(LEDGER)
            return head

    def head(self) -> LedgerEntry | None:
        """Return the newest entry as it is now; None if there is none."""
        with failures(f"sink {self._name}: reading its ledger"):
            for _ in range(RACES_MAX):
                number = self._names().head
                if not number:
                    return None
                with suppress(FileNotFoundError):
                    return self._entry(number)
            raise SinkError(f"sink {self._name}: its ledger moves on faster than it can be read; it is tried again")

    @contextmanager
    def staged(self) -> Iterator[str]:
        """Yield the token of a new staging area. The area is removed after this block, unless a commit of it was tried:
        then it is published, or may still be published, and a later sweep removes it."""
        token = f"{int(self._store.now_s()):010x}-{uuid4().hex}"
        with failures(f"sink {self._name}: staging a batch"):
            self._store.make(f"{STAGING}/{token}")
            release = self._store.hold(f"{STAGING}/{token}/{OWNER_FILE}")
        try:
            yield token
        finally:
            release()
            if token not in self._tried:
                with suppress(OSError):
                    self._store.remove(f"{STAGING}/{token}")
            self._tried.discard(token)

    def data(self, token: str) -> str:
        """Return the path of a staging area's data."""
        return f"{STAGING}/{token}/{DATA}"

    def check_owned(self, token: str, head: LedgerEntry | None) -> None:
        """Raise SinkError if the staging area may have been removed, by the time `swept_to` of this head."""
        if head is not None and _made_at(token) < head.swept_to:
            raise SinkError(
                f"sink {self._name}: the staged batch was cleared away as abandoned, or the clock of this machine is a "
                "day behind; nothing is published, and it is tried again"
            )

    def commit(self, token: str, follow: Callable[[LedgerEntry | None], LedgerEntry]) -> LedgerEntry:
        """Publish a staging area whose data are durable.

        `follow` returns the entry that follows a given head, or raises. It is called again after each lost race.

        Raises SinkError if the number of the new entry is not above the floor, which is the highest number of the
        removed entries: perhaps another entry had this number before, and was removed."""
        with failures(f"sink {self._name}: committing a batch"):
            entry = self._take_number(token, follow)
            stage("committed")
            if entry.number <= self._finish(entry).floor:
                raise SinkError(
                    f"sink {self._name}: the commit {entry.number} came so late that nobody can tell whether it was "
                    "in time; the ledger is read again"
                )
            if entry.number % ledger_files.ENTRIES_KEPT == 0:
                self._sweep()
            return entry

    # --- a commit ----------------------------------------------------------------------------------------------------

    def _take_number(self, token: str, follow: Callable[[LedgerEntry | None], LedgerEntry]) -> LedgerEntry:
        """Create the entry that follows the head, and begin again after each lost race."""
        for _ in range(RACES_MAX):
            head = self.head()
            self.check_owned(token, head)
            entry = follow(head)
            # A time that the head has fenced stays fenced.
            entry = replace(entry, swept_to=max(entry.swept_to, head.swept_to if head else 0))
            if self._took(entry):
                return entry
        raise SinkError(
            f"sink {self._name}: {RACES_MAX} other commits came first, nothing was published; it is tried again"
        )

    def _took(self, entry: LedgerEntry) -> bool:
        """Try to create this entry. Return whether the entry of this number is now ours: it is also ours if an earlier
        request of ours has created it, and only the answer was lost.
        """
        self._tried.add(entry.token)
        stage("entry")
        if self._store.create(path_of(entry.number), ledger.encode(entry), f"{STAGING}/{entry.token}/{ENTRY_FILE}"):
            return True
        with suppress(FileNotFoundError):  # an answer may have been lost
            return self._entry(entry.number).token == entry.token
        return False

    def _entry(self, number: int) -> LedgerEntry:
        """Read the entry with this number. Raises FileNotFoundError and SinkRefused."""
        path = path_of(number)
        where = f"sink {self._name}: {self._store.uri(path)}"
        entry = ledger.decode(self._store.read(path), where)
        if entry.number != number:
            raise ledger.damaged(where, ValueError(f"it is that of {entry.number}"))
        return entry

    def _names(self) -> Names:
        return Names.of(self._store.names(LEDGER))

    # --- finishing ---------------------------------------------------------------------------------------------------

    def _finish(self, own: LedgerEntry | None = None) -> Names:
        """Move the files of every committed entry to their places. Return the names in the ledger before that.

        The entries are made durable first: otherwise, after a power cut, another commit could get the same number, and
        both would have files in place. `own` is an entry that the caller has, so that it need not be read."""
        names = self._names()
        if names.unfinished:
            self._store.sync(LEDGER)
        for number in names.unfinished:
            try:
                entry = own if own is not None and own.number == number else self._entry(number)
                self._move_all(entry)
            except FileNotFoundError:
                if number in self._names().unfinished:
                    raise
                continue  # another process has finished it meanwhile
            stage("moved")
            self._store.mark(path_of(number, DONE))
            stage("done")
            with suppress(OSError):
                self._store.remove(f"{STAGING}/{entry.token}")
        return names

    def _move_all(self, entry: LedgerEntry) -> None:
        """Move all files of an entry. Raises FileNotFoundError if another process has finished the entry meanwhile."""
        directories = sorted({str(PurePosixPath(move.target).parent) for move in entry.moves})
        for parent in directories:
            self._store.make(parent)
        each(self._store, partial(self._move, entry), entry.moves)
        for parent in directories:
            self._store.sync(parent)

    def _move(self, entry: LedgerEntry, move: ledger.FileMove) -> None:
        """Move one file from the staging area of its entry to its place, unless it is there already.

        If the file is in neither place, raises FileNotFoundError if another process has finished the entry meanwhile;
        else the file is lost, and SinkRefused is raised.
        """
        stage("moving")
        try:
            self._store.move(f"{STAGING}/{entry.token}/{move.source}", move.target)
        except FileNotFoundError:
            if self._store.exists(move.target):
                return
            if entry.number not in self._names().unfinished:
                raise
            raise SinkRefused(
                f"sink {self._name}: commit {entry.number} is published but its file {move.target} is nowhere; restore "
                f"it, or, if it was deleted on purpose, create {self._store.uri(path_of(entry.number, DONE))}"
            ) from None

    # --- cleaning ----------------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Remove staging areas of dead writers, and old entries. Errors are ignored: the next sweep tries again."""
        for remove in (self._remove_abandoned, self._remove_old):
            with suppress(OSError, SinkError):
                remove()

    def _remove_abandoned(self) -> None:
        """Remove the staging areas of dead writers, and areas that are a day old if it is unknown whether their writers
        live.

        A writer of an old area may still be about to commit. So before such areas are removed, the head must have their
        time as `swept_to`, after which no such area is committed; if it has not, an entry with this time is committed
        first (`_fence`). Without any entry only the areas of dead writers are removed. Areas whose files an unfinished
        entry has yet to move are kept.
        """
        to_s = int(self._store.now_s()) - ABANDONED_S
        held = {token: self._store.held(f"{STAGING}/{token}/{OWNER_FILE}") for token in self._store.names(STAGING)}
        dead = {token for token, is_held in held.items() if is_held is False}
        aged = {token for token, is_held in held.items() if is_held is None and _made_at(token) < to_s}
        if aged and (head := self.head()) is not None:
            if head.swept_to < to_s:
                self._fence(to_s)
            dead |= aged
        stage("sweeping")
        if dead:
            wanted = {self._entry(number).token for number in self._names().unfinished}
            for token in dead - wanted:
                with suppress(OSError):  # it may be another user's
                    self._store.remove(f"{STAGING}/{token}")

    def _fence(self, to_s: int) -> None:
        """Commit an entry without files, with the time `to_s` as its `swept_to`: after it no writer commits a staging
        area that was made before this time.
        """
        with self.staged() as token:

            def follow(head: LedgerEntry | None) -> LedgerEntry:
                assert head is not None, "there was one"
                return replace(head, number=head.number + 1, token=token, moves=(), batch_id="", rows=0, swept_to=to_s)

            self.commit(token, follow)

    def _remove_old(self) -> None:
        """Raise the floor, and then remove the entries up to it. In this order, a late writer that creates one of the
        removed numbers again finds that its entry does not count.
        """
        names = self._names()
        if not names.obsolete:
            return
        floor = max(names.floor, names.obsolete[-1])
        self._store.mark(path_of(floor, FLOOR))
        self._store.sync(LEDGER)
        for number in names.obsolete:
            self._store.remove(path_of(number))
        if names.floor and names.floor < floor:
            self._store.remove(path_of(names.floor, FLOOR))
        # These files are removed after the entries, because an entry without its `.done` would count as unfinished.
        for number in names.done:
            if number <= floor:
                self._store.remove(path_of(number, DONE))


def _made_at(token: str) -> int:
    """Return when a staging area was made, in seconds since 1970, from its token; 0 if the token has no time."""
    found = _TOKEN.fullmatch(token)
    return int(found["made"], 16) if found else 0
