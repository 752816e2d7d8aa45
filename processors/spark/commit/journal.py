"""Keeps the ledger of a sink in its directory, and publishes files by it: the one place where commits happen.

    <sink>/_mld/staging/<token>/       what one writer is about to publish: data/ and, on a disk, a draft of its entry
    <sink>/_mld/ledger/<number>.json   the entries; creating one exclusively is the commit
    <sink>/_mld/ledger/<number>.done   every file of that entry is in its place, durably
    <sink>/_mld/ledger/<number>.floor  all entries up to that number were done, and are removed

The directory is one of a disk or of a bucket (`store`, `s3_store`); the rules are the same.

A commit
--------

1. The data are written below the staging area and made durable.
2. The head is read; the batch must fit it (`Fenced` otherwise).
3. `<number>.json` is created with the entry that follows the head, unless it exists: so only one writer of a number can
   do it. The loser reads the new head and is back at 2, its data untouched: it has lost a race, not its shards.
4. Every entry that is not done is finished, in order: its files are moved from the staging area to their targets, the
   directories are synced, `.done` is created. Anybody may do that, any number of times, at the same time: a file whose
   source is gone and whose target exists has been moved.

A writer that dies before 3 leaves a staging area and nothing else. One that dies after 3 has committed; whoever opens
or publishes next finishes it. A writer that answers late finds its number taken.

The answer of step 3 may get lost, and whoever repeats it then hears that the name exists. The entry of that number says
by its token whose it is. On S3 a request without an answer may be carried out at any time after, while its number is
free. So a writer that gives up once it has tried a number leaves its staging area to those who clean.

Cleaning
--------

Old entries are removed although their numbers fence late writers. First `.floor` says which: an entry that is created
at or below it is void, whoever looks; and its writer, who looks once it is created, does not know it as committed.

A staging area belongs to a process as long as it holds `owner`, which it does no longer once it has ended. Of one that
another machine has made, or any in a bucket, nobody can tell. Those go after a day: first an entry is committed that
says up to which time of their making they are swept, and no writer commits over such an entry if its own is older. So
it either reads that entry, or has read an older one, and finds the number taken.

Files that an unfinished entry names are never removed.
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
"""Each lost race is a commit of somebody else; whoever loses so many in a row lets its host back off."""
ABANDONED_S = 24 * 3600
"""A staging area of which nobody can tell whether its writer lives is left alone for a day."""
_TOKEN = re.compile(r"(?P<made>[0-9a-f]{10})-.+", re.ASCII)


class Journal:
    """The ledger of one sink in its directory. Raises SinkError and its kinds."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._tried: set[str] = set()
        """Tokens of entries that may have been created, or may be yet."""

    def open(self) -> LedgerEntry | None:
        """Finish what is half done, clean up, and give the head."""
        with failures(f"sink {self._name}: opening its ledger"):
            self._store.prepare(self._name)
            self._store.make(LEDGER)
            self._finish()
            self._sweep()
            head = self.head()
            # What we read may not be on disk yet if its writer died, but its shards are checkpointed by our word.
            self._store.sync(LEDGER)
            return head

    def head(self) -> LedgerEntry | None:
        """Return the newest entry, as it is now."""
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
        """Give a staging area to commit, by its token. It is removed unless that was tried: then it is published, or
        may be yet, and a later sweep knows."""
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
        """Return where the data of a staging area stand."""
        return f"{STAGING}/{token}/{DATA}"

    def check_owned(self, token: str, head: LedgerEntry | None) -> None:
        """Raise SinkError if somebody may have taken the staging area away, by this head."""
        if head is not None and _made_at(token) < head.swept_to:
            raise SinkError(
                f"sink {self._name}: the staged batch was cleared away as abandoned, or the clock of this machine is a "
                "day behind; nothing is published, and it is tried again"
            )

    def commit(self, token: str, follow: Callable[[LedgerEntry | None], LedgerEntry]) -> LedgerEntry:
        """Publish a staging area whose data are durable.

        `follow` gives the entry after a head, or raises; it may be asked several times, once for each lost race."""
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
        for _ in range(RACES_MAX):
            head = self.head()
            self.check_owned(token, head)
            entry = follow(head)
            entry = replace(entry, swept_to=max(entry.swept_to, head.swept_to if head else 0))
            if self._took(entry):
                return entry
        raise SinkError(
            f"sink {self._name}: {RACES_MAX} other commits came first, nothing was published; it is tried again"
        )

    def _took(self, entry: LedgerEntry) -> bool:
        """Try to be the one who creates this entry."""
        self._tried.add(entry.token)
        stage("entry")
        if self._store.create(path_of(entry.number), ledger.encode(entry), f"{STAGING}/{entry.token}/{ENTRY_FILE}"):
            return True
        with suppress(FileNotFoundError):  # an answer may have been lost
            return self._entry(entry.number).token == entry.token
        return False

    def _entry(self, number: int) -> LedgerEntry:
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
        """Bring the files of every committed entry to their places, once it is durable: if its number were given again
        after a power cut, its files would stand beside those of another commit. `own`: what need not be read."""
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
        """Move all files of an entry. Raises FileNotFoundError if another process has finished it meanwhile."""
        directories = sorted({str(PurePosixPath(move.target).parent) for move in entry.moves})
        for parent in directories:
            self._store.make(parent)
        each(self._store, partial(self._move, entry), entry.moves)
        for parent in directories:
            self._store.sync(parent)

    def _move(self, entry: LedgerEntry, move: ledger.FileMove) -> None:
        """Move one file unless somebody has. Raises FileNotFoundError as `_move_all`."""
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
        """Remove the staging areas of the dead, and old entries. Failing to clean is no failure."""
        with suppress(OSError, SinkError):
            self._remove_abandoned()
            self._remove_old()

    def _remove_abandoned(self) -> None:
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
                self._store.remove(f"{STAGING}/{token}")

    def _fence(self, to_s: int) -> None:
        """Commit that nobody commits any more what was staged before."""
        with self.staged() as token:

            def follow(head: LedgerEntry | None) -> LedgerEntry:
                assert head is not None, "there was one"
                return replace(head, number=head.number + 1, token=token, moves=(), batch_id="", rows=0, swept_to=to_s)

            self.commit(token, follow)

    def _remove_old(self) -> None:
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
        # Only now: an entry without its mark would count as unfinished.
        for number in names.done:
            if number <= floor:
                self._store.remove(path_of(number, DONE))


def _made_at(token: str) -> int:
    """Return when a staging area was made, in seconds since 1970; 0 if its token does not say."""
    found = _TOKEN.fullmatch(token)
    return int(found["made"], 16) if found else 0
