"""Long decisions cut into slices, so that no single turn of the event loop takes more than 2 ms. Pure.

A decision over thousands of shards is written as a generator that yields now and then and returns its result. It stays
a plain function of values: `finish` runs it in one go, `turns.in_turns` gives others a turn of the loop at each yield.
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
