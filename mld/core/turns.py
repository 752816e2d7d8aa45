"""Work that leaves the event loop to others, so that no single turn of it takes more than 2 ms.

A decision over thousands of shards is written as a generator (`Steps`) that yields now and then and returns its result.
It stays a plain function of values: `finish` runs it in one go, `in_turns` gives others a turn of the loop at each
yield. `a_few_at_a_time` bounds many calls.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from functools import wraps
from itertools import islice
from typing import Any, ParamSpec, TypeAlias, TypeVar

from mld.core.clock import Clock

P = ParamSpec("P")
T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]

SLICE = 100
"""Items between two yields: the most expensive item, a new lease, costs about 5 µs, on a slow core four times that."""
SORTED_SLICE = 500
"""Items that are sorted, or merged, between two yields."""


def finish(steps: Steps[T]) -> T:
    """Return the result of a decision, computed in one go."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result


def at_once(decision: Callable[P, Steps[T]]) -> Callable[P, T]:
    """Return the decision as a function of the same values that computes it in one go."""

    @wraps(decision)
    def run(*args: P.args, **named: P.kwargs) -> T:
        return finish(decision(*args, **named))

    return run


def in_order(items: Iterable[T], key: Callable[[T], Any]) -> Steps[list[T]]:
    """Do as `sorted`, for many items."""
    left = iter(items)
    runs: list[list[T]] = []
    while run := list(islice(left, SORTED_SLICE)):
        run.sort(key=key)
        runs.append(run)
        yield
    merged = heapq.merge(*runs, key=key)
    ordered: list[T] = []
    while run := list(islice(merged, SORTED_SLICE)):
        ordered += run
        yield
    return ordered


PIECE_S = 0.001  # half of what the event loop's law allows
CALLS_CONCURRENT_MAX = 20  # 10,000 new leases take some seconds; one client has hardly more connections


async def in_turns(steps: Steps[T], clock: Clock | None = None) -> T:
    """Return the result of `steps`. Its arguments must be values that do not change meanwhile.

    Others run at every yield; with a `clock`, where yields are many and cheap, after every millisecond.
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
    """Do it with each of them: a task for each of 10,000 would stop the loop."""
    waiting = iter(things)

    async def work() -> None:
        for thing in waiting:
            await act(thing)

    await asyncio.gather(*(work() for _ in range(min(len(things), CALLS_CONCURRENT_MAX))))
