"""A file system in memory like HDFS: no hard links, all changes in one order, and answers that get lost.

A change is seen by others before the one who made it has its answer; with the answer it is durable, as is every change
before it. What dies in between leaves a change that the next power cut may undo, unless somebody else makes one.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from tests.twins.store import Disk, MemoryStore, _parent

LOST, UNKNOWN, FAILED = 0.1, 0.2, 0.25
"""Shares of renames whose answer is lost: repeated by the client, given up after it was done, given up before."""


class OrderedDisk(Disk):
    def sync(self, directory: str) -> None:
        for event in self.events:
            event.unsynced.clear()
        super().sync(directory)


class RenamingStore(MemoryStore):
    chance: Callable[[], float] = staticmethod(lambda: 1.0)

    def put(self, path: str, data: bytes) -> None:
        super().put(path, data)
        self._file(path).synced = True  # that is up to the data nodes
        self._answered()

    def take(self, source: str, target: str) -> bool:
        chance = self.chance()
        if UNKNOWN < chance <= FAILED:
            self._before("no answer")
            raise OSError(errno.ETIMEDOUT, "nobody answers")
        self._before(f"take {target}")
        self._file(source)
        if target in self.disk.names:
            return False
        self.disk.change({_parent(target)}, lambda names: names.__setitem__(target, names.pop(source)))
        self._answered()
        if chance <= LOST:
            self._before("repeated")
            raise FileNotFoundError(source)
        if chance <= UNKNOWN:
            raise OSError(errno.ETIMEDOUT, "nobody answers")
        return True

    def move(self, source: str, target: str) -> None:
        super().move(source, target)
        self._answered()

    def remove(self, path: str) -> None:
        super().remove(path)
        self._answered()

    def _answered(self) -> None:
        self._before("answer")
        self.disk.sync("")
