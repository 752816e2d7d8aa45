"""Lets other tasks run during long work: runs `Steps` one by one, and many calls only a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from mld.core.clock import Clock
from mld.core.steps import Steps

T = TypeVar("T")

PIECE_S = 0.001  # half of the 2 ms that one turn of the event loop may take
CALLS_CONCURRENT_MAX = 20  # then 10,000 new leases take some seconds; a client has hardly more connections than this


async def in_turns(steps: Steps[T], clock: Clock | None = None) -> T:
    """Run `steps` and return their result. Values that the steps use must not change meanwhile, unless the decision
    allows it.

    Other tasks run at each yield. If the steps are many and cheap, pass a `clock`: then other tasks run once a
    millisecond.
    """
    since = clock.monotonic() if clock else 0.0
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        if clock is None or clock.monotonic() - since >= PIECE_S:
            await asyncio.sleep(0)
            since = clock.monotonic() if clock else 0.0


async def a_few_at_a_time(act: Callable[[T], Awaitable[None]], things: Sequence[T]) -> None:
    """Call `act` with each thing, at most CALLS_CONCURRENT_MAX at a time. Creating 10,000 tasks at once would block the
    loop.
    """
    waiting = iter(things)

    async def work() -> None:
        """Call `act` with waiting things one after the other, until none is left."""
        for thing in waiting:
            await act(thing)

    await asyncio.gather(*(work() for _ in range(min(len(things), CALLS_CONCURRENT_MAX))))
