"""Time, passed in. Decisions get `now` as a number; shells get a `Clock`.

`monotonic()` is for durations and never jumps; `wall()` is epoch seconds and may jump. Both are seconds. The real clock
follows the running event loop, so that a virtual-time loop drives it in tests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Return seconds of an arbitrary origin; only differences mean anything."""
        ...

    def wall(self) -> float:
        """Return seconds since the epoch: AWS's, as far as they are known, so that all workers mean the same."""
        ...

    async def sleep(self, seconds: float) -> None: ...


def iso_time(wall_s: float) -> str:
    """Return epoch seconds as people write them, in UTC."""
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def millis_since(clock: Clock, started_at: float) -> float:
    """Return milliseconds since `started_at`, a value of `clock.monotonic()`, for the log."""
    return round((clock.monotonic() - started_at) * 1000, 1)


class LoopClock:
    """The clock of the running event loop; `wall` tells the time, this machine's unless something better is known."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return self._wall()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
