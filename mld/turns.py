"""Carries out a decision in slices, with a turn of the event loop for everybody else between them."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from mld.steps import Steps

T = TypeVar("T")


async def in_turns(steps: Steps[T]) -> T:
    """The result of `steps`. Its arguments must be values that nobody changes meanwhile."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        await asyncio.sleep(0)
