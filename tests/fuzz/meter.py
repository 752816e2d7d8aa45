"""How much work is done in one step, counted and not timed: a slow machine counts the same.

Counted are the lines of our own code that run, and the bytes that the three functions get which work through a whole
payload in one call. A line takes some 50 ns, a byte about 1 ns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import pytest

import mld.protocol.codec
from mld.retrieval import kpl, rawbatch

LINES_PER_STEP_MAX = 30_000
BYTES_PER_STEP_MAX = 3 * 1024 * 1024
"""Between two turns there may be an end of a step and the beginning of the next one."""

T = TypeVar("T")


class Meter:
    """Counts while `counting`; `step` says that the loop goes round."""

    def __init__(self) -> None:
        self.lines_max = 0
        self.bytes_max = 0
        self.steps = 0
        self._lines = 0
        self._bytes = 0

    def step(self) -> None:
        self.lines_max = max(self.lines_max, self._lines)
        self.bytes_max = max(self.bytes_max, self._bytes)
        self._lines = self._bytes = 0
        self.steps += 1

    def each(self, steps: Iterable[T]) -> Iterator[T]:
        """Each of them is followed by a turn of the loop."""
        for one in steps:
            self.step()
            yield one
        self.step()

    @contextmanager
    def counting(self) -> Iterator[None]:
        traced = sys.gettrace()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kpl, "md5", self._digest)
            patch.setattr(rawbatch, "a2b_base64", self._counted(rawbatch.a2b_base64))
            patch.setattr(mld.protocol.codec, "b2a_base64", self._counted(mld.protocol.codec.b2a_base64))
            sys.settrace(self._traced)
            try:
                yield
            finally:
                sys.settrace(traced)
        self.step()

    def check(self) -> None:
        assert self.lines_max <= LINES_PER_STEP_MAX, f"{self.lines_max} lines in one step"
        assert self.bytes_max <= BYTES_PER_STEP_MAX, f"{self.bytes_max} bytes in one step"

    def _traced(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_globals.get("__name__", "")
        return self._line if name.startswith(("mld.", "protocol.")) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self._lines += 1
        return self._line

    def _counted(self, function: Callable[..., T]) -> Callable[..., T]:
        def counted(data: bytes, **options: Any) -> T:
            self._bytes += len(data)
            return function(data, **options)

        return counted

    def _digest(self, data: bytes | memoryview = b"", **options: Any) -> _Digest:
        return _Digest(self, data, options)

    def count_bytes(self, number: int) -> None:
        self._bytes += number


class _Digest:
    def __init__(self, meter: Meter, data: bytes | memoryview, options: dict[str, Any]) -> None:
        self._meter = meter
        self._md5 = REAL_MD5(**options)
        self.update(data)

    def update(self, data: bytes | memoryview) -> None:
        self._meter.count_bytes(len(data))
        self._md5.update(data)

    def digest(self) -> bytes:
        return self._md5.digest()


REAL_MD5 = kpl.md5
