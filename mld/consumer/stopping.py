"""The stop that a consumer was asked for, and waits that end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from mld.clock import Clock
from mld.consumer.lifecycle import StopReason

T = TypeVar("T")


class Stopping:
    """`stop` is None until one is asked for; a stronger one replaces a weaker one, and none is ever taken back."""

    def __init__(self, clock: Clock) -> None:
        self.stop: StopReason | None = None
        self._clock = clock
        self._asked = asyncio.Event()
        self._waiter: asyncio.Future[Any] | None = None

    def ask(self, stop: StopReason) -> None:
        if self.stop is None or stop > self.stop:
            self.stop = stop
            self._asked.set()

    def close(self) -> None:
        """End the wait for a stop that never came."""
        if self._waiter is not None:
            self._waiter.cancel()

    async def unless(self, awaitable: Awaitable[T], over: asyncio.Future[None] | None = None) -> T | None:
        """The awaitable's value, or None as soon as a stop is asked for or `over` is done."""
        task = asyncio.ensure_future(awaitable)
        ends = {self._wait()} if over is None else {self._wait(), over}
        try:
            await asyncio.wait({task, *ends}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() and self.stop is None else None
        finally:
            await _cancel_all(task)

    async def pause(self, seconds: float, also: asyncio.Event | None = None) -> None:
        """Sleep, but wake at once when a stop is asked for or `also` is set."""
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._clock.sleep(seconds))]
        if also is not None:
            waits.append(asyncio.ensure_future(also.wait()))
        try:
            await asyncio.wait({*waits, self._wait()}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancel_all(*waits)

    def _wait(self) -> asyncio.Future[Any]:
        """Done when a stop is asked for; one for the life of the consumer, which waits for it at every page."""
        if self._waiter is None:
            self._waiter = asyncio.ensure_future(self._asked.wait())
        return self._waiter


async def _cancel_all(*tasks: asyncio.Future[Any]) -> None:
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
