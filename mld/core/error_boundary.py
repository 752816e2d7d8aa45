"""Contains unexpected exceptions: one costs an item or a round, and never the loop.

Ports raise errors of `mld.core.errors` only. A bug, a machine without threads or memory, or an unforeseen row may still
raise anything, anywhere. Like an error of AWS, that means *unknown*: never lost, never done. So a loop that serves many
treats it like our own errors, and tries again. It is logged with its trace and counted.

An AssertionError is the exception to the rule: an invariant of ours is broken, nothing that follows can be trusted, and
the daemon ends. An AssertionError inside an ExceptionGroup counts as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from mld.core.clock import Clock
from mld.core.errors import MldError, StartupError, UnexpectedError

log = logging.getLogger(__name__)

T = TypeVar("T")

RESTART_PAUSE_S = 1.0  # before a loop that failed is restarted: the period of the busiest loops

_counts: Counter[tuple[str, str]] = Counter()
"""Counts of this process, by what was being done and the kind of exception."""


def survived(error: Exception, doing: str, shard: str | None = None) -> MldError:
    """Return `error` if it is one of ours; any other is logged and stands for an `UnexpectedError`, which is returned.

    `doing` completes "unexpected, while" and is one of a few constant texts. Raises `error` itself if it is a broken
    invariant. The trace is logged the first time, and whenever the count has doubled since.
    """
    if isinstance(error, MldError):
        return error
    if is_broken_invariant(error):
        raise error
    kind = type(error).__name__
    _counts[doing, kind] += 1
    count = _counts[doing, kind]
    about: dict[str, object] = {"action": "unexpected", "count": count}
    if shard is not None:
        about["shard"] = shard
    trace = error if count & (count - 1) == 0 else None
    log.error("unexpected, while %s: %s: %s", doing, kind, error, exc_info=trace, extra=about)
    unexpected = UnexpectedError(f"unexpected {kind}: {error}")
    unexpected.__cause__ = error
    return unexpected


def is_broken_invariant(error: BaseException) -> bool:
    """Return whether `error` is, or contains, an AssertionError."""
    if isinstance(error, BaseExceptionGroup):
        return any(is_broken_invariant(inner) for inner in error.exceptions)
    return isinstance(error, AssertionError)


async def contained(call: Awaitable[T], doing: str, shard: str | None = None) -> T:
    """Return what `call` returns. Raises nothing but our own errors, and broken invariants."""
    try:
        return await call
    except MldError:
        raise
    except Exception as error:
        raise survived(error, doing, shard) from error


async def kept_running(loop: Callable[[], Awaitable[None]], doing: str, clock: Clock) -> None:
    """Run `loop` to its end; restart it when an exception ends it, except a StartupError, which is meant to."""
    task = asyncio.current_task()
    while True:
        try:
            return await loop()
        except StartupError:
            raise
        except Exception as error:
            if _is_over(task):
                raise
            log.warning("begun anew, %s: %s", doing, survived(error, doing), extra={"action": "loop_restarted"})
        await clock.sleep(RESTART_PAUSE_S)


@asynccontextmanager
async def in_background(loop: Callable[[], Awaitable[None]], doing: str, clock: Clock) -> AsyncIterator[None]:
    """Keep `loop` running within the block."""
    task = asyncio.create_task(kept_running(loop, doing, clock))
    try:
        yield
    finally:
        task.cancel()


def _is_over(task: asyncio.Task[object] | None) -> bool:
    """Return whether the task is being cancelled, or discarded with its loop."""
    try:
        running = asyncio.current_task()
    except RuntimeError:  # there is no loop any more
        return True
    return running is None or running is not task or running.cancelling() > 0


def counts() -> dict[tuple[str, str], int]:
    """Return how often exceptions were survived, by (doing, kind of exception)."""
    return dict(_counts)


def total() -> int:
    """Return how many exceptions this process has survived."""
    return sum(_counts.values())
