"""Reads the files to which records were written as dead letters (`mld.spark.deadLetter`), so that these records can
be replayed. The files are grouped by the commits that wrote them.
"""

from __future__ import annotations

from collections import defaultdict
from uuid import uuid4

from mld.processors.spark.commit.ledger_files import commit_of
from mld.processors.spark.commit.store import Store, failures

IDENTITY_FILE = "_mld_replay"
"""File with the id of the directory. It is in the directory itself and not in `_mld`, so that it outlives the ledger,
as do the numbers of commits in the names of files. Readers skip it, because of its name.
"""


class StoredLetters:
    """Gives access to the files of a dead letter. Raises SinkError."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def commits(self) -> dict[int, list[str]]:
        """Return the names of all files, sorted, for each number of a commit."""
        with failures("listing the dead letter"):
            found: defaultdict[int, list[str]] = defaultdict(list)
            for name in sorted(self._store.names("")):
                if (number := commit_of(name)) is not None:
                    found[number].append(name)
            return dict(sorted(found.items()))

    def read(self, name: str) -> bytes:
        with failures(f"reading {name} of the dead letter"):
            return self._store.read(name)

    def identity(self) -> str:
        """Return the id of this directory. The first call makes it. It stays the same as long as the numbers of commits
        continue."""
        with failures("naming the dead letter"):
            if not self._store.exists(IDENTITY_FILE):
                fresh = uuid4().hex
                draft = f"{IDENTITY_FILE}-{fresh}"
                self._store.create(IDENTITY_FILE, fresh.encode(), draft)  # if another process was faster, its id stays
                self._store.remove(draft)
                self._store.sync("")
            return self._store.read(IDENTITY_FILE)[:64].decode("ascii", "replace")
