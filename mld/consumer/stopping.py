"""`Stopping`: keeps the reason for which a consumer must stop, and ends its waits when a stop is requested."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from mld.consumer.lifecycle import StopReason
from mld.core.clock import Clock
from mld.core.waits import Interruption

T = TypeVar("T")


class Stopping:
    """`stop` is the reason to stop; None until a stop is requested. A stronger reason replaces a weaker one, and no
    reason is ever withdrawn.
    """

    def __init__(self, clock: Clock) -> None:
        self.stop: StopReason | None = None
        self._clock = clock
        self._interruption: Interruption | None = None  # the wait under way

    def ask(self, stop: StopReason) -> None:
        """Ask the consumer to stop, which ends its present wait. A reason that is not stronger than the present one is
        ignored.
        """
        if self.stop is None or stop > self.stop:
            self.stop = stop
            if self._interruption is not None:  # ended by a callback, because only a waiting task can be interrupted
                asyncio.get_running_loop().call_soon(self._interruption.end)

    async def unless(self, awaitable: Awaitable[T], over: asyncio.Future[Any] | None = None) -> T | None:
        """Return the awaitable's value; None as soon as a stop is requested or `over` is done, which interrupts the
        awaitable.
        """
        assert self._interruption is None, "one wait at a time"
        with Interruption() as interruption:
            self._interruption = interruption
            if over is not None:
                over.add_done_callback(interruption.end)
            if self.stop is not None:  # interrupt the wait as soon as it has begun
                asyncio.get_running_loop().call_soon(interruption.end)
            try:
                value = await awaitable
                return value if self.stop is None else None
            finally:
                self._interruption = None
                if over is not None:
                    over.remove_done_callback(interruption.end)
        return None  # the interruption has ended the wait and left the block

    async def pause(self, seconds: float, also: asyncio.Event | None = None) -> None:
        """Sleep, but wake at once when a stop is requested or `also` is set."""
        over = None if also is None else asyncio.ensure_future(also.wait())
        try:
            await self.unless(self._clock.sleep(seconds), over)
        finally:
            if over is not None:
                over.cancel()
