"""`Clock`: the time is passed to all code, and never taken from the system. Pure decisions get `now` as a number;
everything else gets a `Clock`.

`monotonic()` is for durations and never jumps; `wall()` is epoch seconds and may jump. Both are seconds. `LoopClock`
follows the running event loop, so tests can run it in virtual time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Return seconds from an arbitrary origin; only differences have a meaning."""
        ...

    def wall(self) -> float:
        """Return epoch seconds, by the clock of AWS as far as it is known, so that all workers agree."""
        ...

    async def sleep(self, seconds: float) -> None: ...


def iso_time(wall_s: float) -> str:
    """Return epoch seconds as text in UTC, like `2026-01-02T03:04:05Z`."""
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def millis_since(clock: Clock, started_at: float) -> float:
    """Return the milliseconds since `started_at`, a value of `clock.monotonic()`, rounded for the log."""
    return round((clock.monotonic() - started_at) * 1000, 1)


class LoopClock:
    """The clock of the running event loop. `wall` returns epoch seconds, by default those of this machine."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return self._wall()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
