"""The files of a dead letter, by the commits that have brought them.

Reads only; whose letters they are is checked before any of them is given out.
"""

from __future__ import annotations

from collections import defaultdict
from uuid import uuid4

from mld.processors.spark.commit.ledger_files import commit_of
from mld.processors.spark.commit.store import Store, failures

IDENTITY_FILE = "_mld_replay"
"""Beside the files, and not in `_mld`, so that it outlives the ledger as its numbers do; readers skip it."""


class StoredLetters:
    """The files of a dead letter. Raises SinkError."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def commits(self) -> dict[int, list[str]]:
        """Return the names of all files, by the number of their commit, sorted."""
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
        """Return a name that this directory has got once, and keeps for as long as its numbers go on."""
        with failures("naming the dead letter"):
            if not self._store.exists(IDENTITY_FILE):
                fresh = uuid4().hex
                draft = f"{IDENTITY_FILE}-{fresh}"
                self._store.create(IDENTITY_FILE, fresh.encode(), draft)  # somebody else's is as good
                self._store.remove(draft)
                self._store.sync("")
            return self._store.read(IDENTITY_FILE).decode()
