"""The files of a dead letter, by the commits that have brought them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol
from uuid import uuid4

from mld.aws.objects import NotMatched, ObjectError
from mld.processors.spark.commit.s3_staging import Objects
from mld.processors.spark.commit.store import Store, as_sink_error
from mld.processors.spark.sink_port import SinkError

IDENTITY_FILE = "_mld_replay"
"""Beside the files, and not in `_mld`, so that it outlives the ledger as its numbers do; readers skip it."""
_NAME = re.compile(r"(?:c|mld_commit=)(\d+)[-/][^/]+", re.ASCII)


class LetterFiles(Protocol):
    """Raises SinkError."""

    def commits(self) -> dict[int, list[str]]:
        """Return the names of all files, by the number of their commit, sorted."""

    def read(self, name: str) -> bytes: ...

    def identity(self) -> str:
        """Return a name that this directory has got once, and keeps for as long as its numbers go on."""


class StoredLetters:
    """In a directory of a file system."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def commits(self) -> dict[int, list[str]]:
        try:
            names: list[str] = []
            for name in self._store.names(""):
                inside = self._store.names(name) if name.startswith("mld_commit=") else None
                names += [name] if inside is None else [f"{name}/{one}" for one in inside]
            return _by_commit(names)
        except OSError as error:
            raise as_sink_error(error, "listing the dead letter") from error

    def read(self, name: str) -> bytes:
        try:
            return self._store.read(name)
        except OSError as error:
            raise as_sink_error(error, f"reading {name} of the dead letter") from error

    def identity(self) -> str:
        try:
            if not self._store.exists(IDENTITY_FILE):
                fresh = uuid4().hex
                draft = f"{IDENTITY_FILE}-{fresh}"
                self._store.write(draft, fresh.encode())
                self._store.take(draft, IDENTITY_FILE)  # somebody else's is as good
                self._store.remove(draft)
                self._store.sync("")
            return self._store.read(IDENTITY_FILE).decode()
        except OSError as error:
            raise as_sink_error(error, "naming the dead letter") from error


class LetterObjects:
    """In a bucket, below a key that ends with a slash or is empty."""

    def __init__(self, objects: Objects, prefix: str) -> None:
        self._objects = objects
        self._prefix = prefix

    def commits(self) -> dict[int, list[str]]:
        try:
            return _by_commit(one.key.removeprefix(self._prefix) for one in self._objects.list(f"{self._prefix}c"))
        except ObjectError as error:
            raise SinkError(f"listing the dead letter: {error}") from error

    def read(self, name: str) -> bytes:
        try:
            found = self._objects.get(self._prefix + name)
        except ObjectError as error:
            raise SinkError(f"reading {name} of the dead letter: {error}") from error
        if found is None:
            raise SinkError(f"reading {name} of the dead letter: it is gone")
        return found.data

    def identity(self) -> str:
        key = self._prefix + IDENTITY_FILE
        try:
            if self._objects.get(key) is None:
                with suppress(NotMatched):  # somebody else's is as good
                    self._objects.put(key, uuid4().hex.encode(), if_absent=True)
            return self.read(IDENTITY_FILE).decode()
        except ObjectError as error:
            raise SinkError(f"naming the dead letter: {error}") from error


def _by_commit(names: Iterable[str]) -> dict[int, list[str]]:
    found: defaultdict[int, list[str]] = defaultdict(list)
    for name in sorted(names):
        if (match := _NAME.fullmatch(name)) is not None and not name.rpartition("/")[2].startswith(("_", ".")):
            found[int(match[1])].append(name)
    return dict(sorted(found.items()))
