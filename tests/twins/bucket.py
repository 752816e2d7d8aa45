"""A bucket in memory with the contract of `mld.processors.spark.commit.s3_store.Objects`, which loses answers.

`before` is called before every request, which is where a test interleaves writers or kills them. `fault` says, for each
request that writes, whether it is answered: a request without an answer was carried out, was not, or is carried out at
any later time, once (`Bucket.later`), if its condition holds then.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TypeVar

from mld.aws.objects import TRIES_MAX, ListedObject, NotMatched, ObjectError, SourceGone, StoredObject

Result = TypeVar("Result")


class Fault(Enum):
    NONE = "answered"
    NOT_DONE = "not carried out, and not answered"
    DONE = "carried out, and not answered"
    LATE = "carried out later, and not answered"


@dataclass
class BucketInMemory:
    """The objects as all see them, and the requests that are still on their way."""

    objects: dict[str, tuple[bytes, str, float]] = field(default_factory=dict)
    later: list[Callable[[], None]] = field(default_factory=list)
    now_s: float = 1_800_000_000.0
    etags: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)

    def put(self, key: str, data: bytes) -> str:
        etag = f'"{self.etags()}"'
        self.objects[key] = (data, etag, self.now_s)
        return etag


class MemoryObjects:
    """One process's view of a bucket. `ignores_conditions`: as some stores do."""

    def __init__(
        self,
        bucket: BucketInMemory,
        before: Callable[[str], None] = lambda _: None,
        fault: Callable[[], Fault] = lambda: Fault.NONE,
        *,
        ignores_conditions: bool = False,
    ) -> None:
        self.bucket, self._before, self._fault = bucket, before, fault
        self._ignores_conditions = ignores_conditions

    name = "bucket"

    def repeated(self, attempt: Callable[[], Result]) -> Result:
        for _ in range(TRIES_MAX - 1):
            try:
                return attempt()
            except NotMatched:
                raise
            except ObjectError:
                pass
        return attempt()

    def now_s(self) -> float:
        return self.bucket.now_s

    def put(self, key: str, data: bytes, *, if_etag: str | None = None, if_absent: bool = False) -> str:
        def act() -> str:
            there = self.bucket.objects.get(key)
            stale = there is not None if if_absent else if_etag is not None and (there is None or there[1] != if_etag)
            if stale and not self._ignores_conditions:
                raise NotMatched(key)
            return self.bucket.put(key, data)

        return self._write("put", act)

    def upload(self, key: str, file: Path) -> None:
        data = self.read_local(file)
        self._write("upload", lambda: self.bucket.put(key, data))

    def read_local(self, file: Path) -> bytes:
        return file.read_bytes()

    def get(self, key: str) -> StoredObject | None:
        self._before("get")
        found = self.bucket.objects.get(key)
        return None if found is None else StoredObject(found[0], found[1])

    def exists(self, key: str) -> bool:
        self._before("exists")
        return key in self.bucket.objects

    def copy(self, source: str, target: str) -> None:
        def act() -> None:
            found = self.bucket.objects.get(source)
            if found is None:
                raise SourceGone(source)
            self.bucket.put(target, found[0])

        self._write("copy", act)

    def delete(self, keys: Iterable[str]) -> None:
        def act(keys: tuple[str, ...]) -> None:
            for key in keys:
                self.bucket.objects.pop(key, None)

        if keys := tuple(keys):
            self._write("delete", lambda: act(keys))

    def list(self, prefix: str) -> list[ListedObject]:
        self._before("list")
        names = sorted(key for key in self.bucket.objects if key.startswith(prefix))
        found = ((key, *self.bucket.objects[key]) for key in names)
        return [ListedObject(key, len(data), made_s, etag) for key, data, etag, made_s in found]

    def _write(self, operation: str, act: Callable[[], Result]) -> Result:
        self._before(operation)
        match self._fault():
            case Fault.NONE:
                return act()
            case Fault.DONE:
                act()
            case Fault.LATE:
                self.bucket.later.append(lambda: _carry_out(act))
            case Fault.NOT_DONE:
                pass
        raise ObjectError(f"{operation}: no answer")


def _carry_out(act: Callable[[], object]) -> None:
    with suppress(ObjectError):
        act()
