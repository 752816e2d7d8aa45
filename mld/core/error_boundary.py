"""The error boundary of a loop: after an unexpected exception the loop skips one item or one round, and goes on.

Ports raise only errors of `mld.core.errors`. But a bug, a machine without threads or memory, or an unforeseen row may
raise anything, anywhere. Then the outcome of the call is *unknown*, as after an error of AWS: the work may or may not
have been done. So a loop that serves many items treats such an exception like our own errors and tries again. The
exception is logged with its traceback, and counted.

AssertionError is different: an invariant of ours is broken, so nothing that follows can be trusted, and the daemon
ends. The same holds for an AssertionError inside an ExceptionGroup.
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

RESTART_PAUSE_S = 1.0  # before a failed loop is restarted; as long as the period of the busiest loops

_counts: Counter[tuple[str, str]] = Counter()
"""Unexpected exceptions that this process has survived, counted by activity and exception class."""


def survived(error: Exception, doing: str, shard: str | None = None) -> MldError:
    """Return `error` if it is an MldError. Log and count any other error, and return an `UnexpectedError` in its place.

    `doing` completes the log line "unexpected, while …". It must be a constant text, because errors are counted by it.
    Raises `error` itself if it is a broken invariant. The traceback is logged the first time, and each time that the
    count has doubled.
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
    trace = error if count & (count - 1) == 0 else None  # the count is a power of two
    log.error("unexpected, while %s: %s: %s", doing, kind, error, exc_info=trace, extra=about)
    unexpected = UnexpectedError(f"unexpected {kind}: {error}")
    unexpected.__cause__ = error
    return unexpected


def is_broken_invariant(error: BaseException) -> bool:
    """Return whether `error` is or contains an AssertionError."""
    if isinstance(error, BaseExceptionGroup):
        return any(is_broken_invariant(inner) for inner in error.exceptions)
    return isinstance(error, AssertionError)


async def contained(call: Awaitable[T], doing: str, shard: str | None = None) -> T:
    """Return the result of `call`. Only MldErrors and broken invariants are raised; other errors become
    `UnexpectedError`.
    """
    try:
        return await call
    except MldError:
        raise
    except Exception as error:
        raise survived(error, doing, shard) from error


async def kept_running(loop: Callable[[], Awaitable[None]], doing: str, clock: Clock) -> None:
    """Run `loop` until it returns, and restart it after each exception. A StartupError and a broken invariant are
    raised, because they must end the daemon. So is any exception once this task is being cancelled.

    `doing` says in the log what the loop does; see `survived`.
    """
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
    """Keep `loop` running (`kept_running`) until the `async with` block ends."""
    task = asyncio.create_task(kept_running(loop, doing, clock))
    try:
        yield
    finally:
        task.cancel()


def _is_over(task: asyncio.Task[object] | None) -> bool:
    """Return whether the task is being cancelled, or its event loop is gone."""
    try:
        running = asyncio.current_task()
    except RuntimeError:  # the event loop is gone
        return True
    return running is None or running is not task or running.cancelling() > 0


def counts() -> dict[tuple[str, str], int]:
    """Return how many unexpected exceptions this process has survived, by (activity, exception class)."""
    return dict(_counts)


def total() -> int:
    """Return how many unexpected exceptions this process has survived, in all."""
    return sum(_counts.values())
