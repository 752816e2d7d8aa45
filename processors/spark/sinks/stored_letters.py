"""Reads the files of a dead letter, grouped by the commits that brought them."""

from __future__ import annotations

from collections import defaultdict
from uuid import uuid4

from mld.processors.spark.commit.ledger_files import commit_of
from mld.processors.spark.commit.store import Store, failures

IDENTITY_FILE = "_mld_replay"
"""Beside the files and not in `_mld`, so that it outlives the ledger, as the numbers of commits do. Readers skip it."""


class StoredLetters:
    """The files of a dead letter. Raises SinkError."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def commits(self) -> dict[int, list[str]]:
        """Return the names of all files, sorted, by the number of their commit."""
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
        """Return the id of this directory. It is made at the first call, and kept as long as the numbers of commits
        continue."""
        with failures("naming the dead letter"):
            if not self._store.exists(IDENTITY_FILE):
                fresh = uuid4().hex
                draft = f"{IDENTITY_FILE}-{fresh}"
                self._store.create(IDENTITY_FILE, fresh.encode(), draft)  # or another process's id wins
                self._store.remove(draft)
                self._store.sync("")
            return self._store.read(IDENTITY_FILE).decode()
