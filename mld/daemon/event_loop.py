"""The event loop of the daemon: uvloop's if that package is installed, else asyncio's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any, TypeVar

from mld.core.installed import is_installed

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T], loop_factory: Callable[[], asyncio.AbstractEventLoop] | None) -> T:
    """Run `main` as `asyncio.run` does, on a loop that `loop_factory` makes; with None, on asyncio's own loop."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(main)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the function that makes a loop of uvloop. If that package is missing, return None, for asyncio's loop."""
    if not is_installed("uvloop"):
        return None
    new_loop: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return new_loop
