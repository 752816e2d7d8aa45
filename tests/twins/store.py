"""A file system in memory with the contract of `mld.processors.spark.commit.store.Store`, which can lose its power.

Names that were not synced may be gone after `lose_power`, each with everything after it in the same order of events;
contents that were not synced are gone. `before` is called before every operation, which is where a test interleaves
writers or kills them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath


@dataclass
class File:
    content: bytes
    synced: bool = False


@dataclass
class _Event:
    """One change of names: applied to the tree, and durable once a directory of `unsynced` is synced.

    A rename between directories is atomic, as in every file system with a journal."""

    apply: Callable[[dict[str, File | None]], None]
    unsynced: set[str]


@dataclass
class Disk:
    """The names (path -> file, or None for a directory) as processes see them, and what led there."""

    names: dict[str, File | None] = field(default_factory=lambda: {"": None})
    durable: dict[str, File | None] = field(default_factory=lambda: {"": None})
    events: list[_Event] = field(default_factory=list)
    now_s: float = 1_800_000_000.0

    def change(self, directories: set[str], apply: Callable[[dict[str, File | None]], None]) -> None:
        apply(self.names)
        self.events.append(_Event(apply, directories))

    def sync(self, directory: str) -> None:
        for event in self.events:
            if directory in event.unsynced:
                event.unsynced.clear()
        while self.events and not self.events[0].unsynced:
            self.events.pop(0).apply(self.durable)

    def lose_power(self, rng: random.Random) -> None:
        kept = rng.randint(0, len(self.events))
        for index, event in enumerate(self.events):
            if index < kept or not event.unsynced:
                event.apply(self.durable)
        for name, file in list(self.durable.items()):
            if name and not all(str(parent) in self.durable for parent in PurePosixPath(name).parents[:-1]):
                del self.durable[name]
            elif file is not None and not file.synced:
                file.content = b""
        self.names, self.events = dict(self.durable), []


class MemoryStore:
    """One process's view of a `Disk`; `pid` is who holds what it locks."""

    machine = b"here "
    at_once = 1
    place = "memory:/"

    def __init__(
        self,
        disk: Disk,
        pid: int = 0,
        before: Callable[[str], None] = lambda _: None,
        alive: set[int] | None = None,
    ) -> None:
        self.disk, self._pid, self._before = disk, pid, before
        self._alive = alive if alive is not None else {pid}

    def uri(self, path: str) -> str:
        return f"memory:/{path}"

    def prepare(self, sink: str) -> None:
        """Commits can be made here."""

    def now_s(self) -> float:
        return self.disk.now_s

    def names(self, path: str) -> list[str]:
        self._before(f"names {path}")
        return [PurePosixPath(name).name for name in self.disk.names if name and _parent(name) == _clean(path)]

    def read(self, path: str) -> bytes:
        self._before(f"read {path}")
        return self._file(path).content

    def put(self, path: str, data: bytes) -> None:
        """Write a file as Spark does: directories are made where they are missing, and nothing is synced."""
        self._before(f"put {path}")
        missing = []
        parent = _parent(path)
        while parent not in self.disk.names:
            missing.append(parent)
            parent = _parent(parent)
        for directory in reversed(missing):
            self.disk.change({_parent(directory)}, lambda names, d=directory: names.setdefault(d, None))
        file = File(data)
        self.disk.change({_parent(path)}, lambda names: names.__setitem__(path, file))

    def mark(self, path: str) -> None:
        self._before(f"mark {path}")
        if path not in self.disk.names:
            self.put(path, b"")

    def hold(self, path: str) -> Callable[[], None]:
        self._before(f"hold {path}")
        self.put(path, self.machine + str(self._pid).encode())
        return lambda: None

    def held(self, path: str) -> bool | None:
        self._before(f"held {path}")
        file = self.disk.names.get(path)
        if file is None or not file.content.startswith(self.machine):
            return None
        return int(file.content.removeprefix(self.machine)) in self._alive

    def make(self, path: str) -> None:
        path = _clean(path)
        if path in self.disk.names:
            return
        self.make(_parent(path))
        self._before(f"make {path}")
        self.disk.change({_parent(path)}, lambda names: names.setdefault(path, None))
        self.disk.sync(_parent(path))

    def create(self, path: str, data: bytes, draft: str) -> bool:
        self._before(f"draft {draft}")
        if _parent(draft) not in self.disk.names:
            raise FileNotFoundError(draft)
        self.put(draft, data)
        self._before(f"create {path}")
        file = self._file(draft)
        file.synced = True
        if path in self.disk.names:
            return False
        self.disk.change({_parent(path)}, lambda names: names.__setitem__(path, file))
        return True

    def move(self, source: str, target: str) -> None:
        self._before(f"move {target}")
        if source not in self.disk.names or _parent(target) not in self.disk.names:
            raise FileNotFoundError(source)

        def apply(names: dict[str, File | None]) -> None:
            for name in [name for name in names if name == source or name.startswith(f"{source}/")]:
                names[target + name[len(source) :]] = names.pop(name)

        self.disk.change({_parent(source), _parent(target)}, apply)

    def exists(self, path: str) -> bool:
        self._before(f"exists {path}")
        return _clean(path) in self.disk.names

    def remove(self, path: str) -> None:
        self._before(f"remove {path}")

        def apply(names: dict[str, File | None]) -> None:
            for name in [name for name in names if name == path or name.startswith(f"{path}/")]:
                del names[name]

        self.disk.change({_parent(path)}, apply)

    def files(self, path: str) -> Iterator[str]:
        self._before(f"files {path}")
        top = f"{_clean(path)}/".lstrip("/")
        found = [name for name, file in self.disk.names.items() if file is not None and name.startswith(top)]
        return (name[len(top) :] for name in found)

    def sync(self, path: str) -> None:
        self._before(f"sync {path}")
        self.disk.sync(_clean(path))

    def persist(self, path: str, files: Sequence[str]) -> None:
        self._before(f"persist {path}")
        for name in files:
            self._file(f"{path}/{name}").synced = True
            for parent in PurePosixPath(name).parents:
                self.disk.sync(str(PurePosixPath(path) / parent))

    def _file(self, path: str) -> File:
        file = self.disk.names.get(path)
        if file is None:
            raise FileNotFoundError(path)
        return file


def _clean(path: str) -> str:
    return "" if path == "." else path


def _parent(path: str) -> str:
    parent = str(PurePosixPath(path).parent)
    return _clean(parent)
