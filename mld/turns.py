"""Work that leaves the event loop to others: a decision in slices, and many calls a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from mld.steps import Steps

T = TypeVar("T")

CALLS_CONCURRENT_MAX = 20  # 10,000 new leases take some seconds; one client has hardly more connections


async def in_turns(steps: Steps[T]) -> T:
    """The result of `steps`. Its arguments must be values that nobody changes meanwhile."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        await asyncio.sleep(0)


async def a_few_at_a_time(act: Callable[[T], Awaitable[None]], things: Sequence[T]) -> None:
    """Do it with each of them: a task for each of 10,000 would stop the loop."""
    waiting = iter(things)

    async def work() -> None:
        for thing in waiting:
            await act(thing)

    await asyncio.gather(*(work() for _ in range(min(len(things), CALLS_CONCURRENT_MAX))))
