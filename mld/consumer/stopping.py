"""The stop or pause that a consumer was asked for, and waits that end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from mld.consumer.lifecycle import StopReason
from mld.core.clock import Clock, Interruption

T = TypeVar("T")


class Stopping:
    """`stop` is None until one is asked for; a stronger one replaces a weaker one, and none is ever taken back."""

    def __init__(self, clock: Clock) -> None:
        self.stop: StopReason | None = None
        self._clock = clock
        self._asked = asyncio.Event()
        self._waiter: asyncio.Future[Any] | None = None
        self._interruption: Interruption | None = None

    def ask(self, stop: StopReason) -> None:
        if self.stop is None or stop > self.stop:
            self.stop = stop
            self._asked.set()
            if self._interruption is not None:
                asyncio.get_running_loop().call_soon(self._interruption.end)

    def close(self) -> None:
        """End the wait for a stop that never came."""
        if self._waiter is not None:
            self._waiter.cancel()

    async def unless(self, awaitable: Awaitable[T], over: asyncio.Future[Any] | None = None) -> T | None:
        """Return the awaitable's value, or None as soon as a stop is asked for or `over` is done."""
        assert self._interruption is None, "one wait at a time"
        with Interruption() as interruption:
            self._interruption = interruption
            if over is not None:
                over.add_done_callback(interruption.end)
            if self.stop is not None:
                asyncio.get_running_loop().call_soon(interruption.end)
            try:
                value = await awaitable
                return value if self.stop is None else None
            finally:
                self._interruption = None
                if over is not None:
                    over.remove_done_callback(interruption.end)
        return None

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
        """Return what is done when a stop is asked for; one for the life of the consumer."""
        if self._waiter is None:
            self._waiter = asyncio.ensure_future(self._asked.wait())
        return self._waiter


class PauseGate:
    """Holds back what comes from the reader while an operator has paused the shard; `on_turn` hears of a change."""

    def __init__(self, on_turn: Callable[[bool], None]) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._on_turn = on_turn

    def turn(self, is_paused: bool) -> bool:
        """Close it or open it; True if that is a change."""
        if is_paused is not self._open.is_set():
            return False
        if is_paused:
            self._open.clear()
        else:
            self._open.set()
        self._on_turn(is_paused)
        return True

    async def after(self, awaitable: Awaitable[T]) -> T:
        """Return the awaitable's value, as soon as it may pass. What is cancelled here is read again from the
        checkpoint.
        """
        value = await awaitable
        await self._open.wait()
        return value


async def _cancel_all(*tasks: asyncio.Future[Any]) -> None:
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
