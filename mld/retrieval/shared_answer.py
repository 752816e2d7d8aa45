"""`Shared`: keeps one answer of AWS for all shards of a worker that ask the same question."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from mld.core.clock import Clock

T = TypeVar("T")


class Shared(Generic[T]):
    """Keeps the answer of `ask` for `fresh_s` seconds. Callers that ask at the same time share one request."""

    def __init__(self, ask: Callable[[], Awaitable[T]], clock: Clock, fresh_s: float) -> None:
        self._ask = ask
        self._clock = clock
        self._fresh_s = fresh_s
        self._asking = asyncio.Lock()
        self._answered_s = -fresh_s
        self._answer: T

    async def get(self) -> T:
        """Return the answer that is kept, or ask again if it is older than `fresh_s`. Raises what `ask` raises."""
        async with self._asking:
            if self._clock.monotonic() - self._answered_s >= self._fresh_s:
                self._answer = await self._ask()
                self._answered_s = self._clock.monotonic()
            return self._answer
