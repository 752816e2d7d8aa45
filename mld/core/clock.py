"""Time, passed in. Decisions get `now` as a number; shells get a `Clock`.

`monotonic()` is for durations and never jumps; `wall()` is epoch seconds and may jump. Both are seconds. The real clock
follows the running event loop, so that a virtual-time loop drives it in tests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    def monotonic(self) -> float:
        """Return seconds of an arbitrary origin; only differences mean anything."""
        ...

    def wall(self) -> float:
        """Return seconds since the epoch."""
        ...

    async def sleep(self, seconds: float) -> None: ...


def iso_time(wall_s: float) -> str:
    """Return epoch seconds as people write them, in UTC."""
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def millis_since(clock: Clock, started_at: float) -> float:
    """Return milliseconds since `started_at`, a value of `clock.monotonic()`, for the log."""
    return round((clock.monotonic() - started_at) * 1000, 1)


class LoopClock:
    """The clock of the running event loop and of the system."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def wait_for_event(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Wait until `event` is set or the time is over; True if it is set."""
    if event.is_set():
        return True
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return event.is_set()
    return True


async def unless(event: asyncio.Event, work: Awaitable[T]) -> T | None:
    """Return what `work` returns; None if `event` is set before: then `work` is cancelled, whatever it waits for."""
    working = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        waiting.cancel()
        if working.cancel():
            await asyncio.wait({working})
            _ = working.cancelled() or working.exception()  # of work that nobody wants any more
