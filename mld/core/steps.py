"""Divides long decisions into steps, so that no turn of the event loop takes more than 2 ms. Pure.

A decision over thousands of shards is written as a generator that yields between its steps and returns the result. It
is still a pure function: `finish` runs all steps at once, and `turns.in_turns` lets other tasks run at each yield.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable
from functools import wraps
from itertools import islice
from typing import Any, ParamSpec, TypeAlias, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]

SLICE = 100
"""Items between two yields. The most expensive item, a new lease, takes about 5 µs, and four times that on a slow
core."""
SORTED_SLICE = 500
"""Items that are sorted or merged between two yields."""


def finish(steps: Steps[T]) -> T:
    """Run all steps at once and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result


def at_once(decision: Callable[P, Steps[T]]) -> Callable[P, T]:
    """Return the decision as an ordinary function that runs all steps at once."""

    @wraps(decision)
    def run(*args: P.args, **named: P.kwargs) -> T:
        return finish(decision(*args, **named))

    return run


def in_order(items: Iterable[T], key: Callable[[T], Any]) -> Steps[list[T]]:
    """Return the sorted items, like `sorted` but in steps: first sort slices of SORTED_SLICE items, then merge them."""
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
