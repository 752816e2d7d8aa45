"""Which event loop the daemon runs on: asyncio's own, or uvloop's (extra `fast`), which costs less per poll."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any, TypeVar

from mld.core.extras import is_installed

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T], loop_factory: Callable[[], asyncio.AbstractEventLoop] | None) -> T:
    """Do as `asyncio.run`, on that loop."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(main)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the loop of uvloop; None, which stands for asyncio's own, where it is not installed."""
    if not is_installed("uvloop"):
        return None
    made: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return made
