"""Contains unexpected exceptions: one costs an item or a round, and never the loop.

Ports raise errors of `mld.core.errors` only. A bug, a machine without threads or memory, or an unforeseen row may still
raise anything, anywhere. Like an error of AWS, that means *unknown*: never lost, never done. So a loop that serves many
treats it like our own errors, and tries again. It is logged with its trace and counted.

An AssertionError is the exception to the rule: an invariant of ours is broken, nothing that follows can be trusted, and
the daemon ends. So it does for one inside an ExceptionGroup.

A `Task` is one line of a worker's list of tasks, and a `TaskList` runs those that the worker's state asks for, each
within the boundary.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Generic, TypeAlias, TypeVar

from mld.core.clock import Clock
from mld.core.errors import MldError, StartupError, UnexpectedError

log = logging.getLogger(__name__)

T = TypeVar("T")

StateT = TypeVar("StateT")

RESTART_PAUSE_S = 1.0  # before a loop that failed is restarted: the period of the busiest loops

_counts: Counter[tuple[str, str]] = Counter()
"""Counts of this process, by what was being done and the kind of exception."""
OnFailure: TypeAlias = Callable[[BaseException | None], None]


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


class Until(IntEnum):
    """How long a task runs when the worker stops, the shortest first."""

    LEAVING = 1
    """Until a stop is asked for: it could bring more leases."""
    RELEASED = 2
    """Until nothing is held any more."""
    CLOSED = 3
    """To the end."""


@dataclass(frozen=True, slots=True)
class Task(Generic[StateT]):
    """What runs until it is cancelled, in which states of the fleet, and how long while the worker stops."""

    name: str
    run: Callable[[], Awaitable[None]]
    runs_in: Callable[[StateT], bool] = lambda _: True
    until: Until = Until.LEAVING


class TaskList(Generic[StateT]):
    """Runs the tasks of the list that the state entered last asks for, from when that is allowed."""

    def __init__(self, tasks: Sequence[Task[StateT]], clock: Clock) -> None:
        self._list = tasks
        self._clock = clock
        self._on_failure: OnFailure | None = None
        self._running: dict[str, asyncio.Task[None]] = {}
        self._wanted: tuple[Task[StateT], ...] = ()

    async def enter(self, state: StateT) -> None:
        """Let exactly the tasks of this state run, once `allow` was called. Returns when the others have ended."""
        self._wanted = tuple(task for task in self._list if task.runs_in(state))
        await self._adjust()

    async def allow(self, on_failure: OnFailure) -> None:
        """Start what is wanted, now and from now on; `on_failure` hears of a task that ended by itself."""
        self._on_failure = on_failure
        await self._adjust()

    async def end(self, until: Until) -> None:
        """End the tasks that run so long and no longer."""
        self._wanted = tuple(task for task in self._wanted if task.until > until)
        await self._adjust()

    def running(self) -> frozenset[str]:
        """Return the names of the tasks that run."""
        return frozenset(self._running)

    async def _adjust(self) -> None:
        wanted = {} if self._on_failure is None else {task.name: task for task in self._wanted}
        ending = [self._running.pop(name) for name in list(self._running) if name not in wanted]
        for task in ending:
            task.cancel()
        for name in [name for name in wanted if name not in self._running]:
            task = asyncio.ensure_future(kept_running(wanted[name].run, name, self._clock))
            self._running[name] = task
            task.add_done_callback(self._on_done)
        others = [task for task in ending if task is not asyncio.current_task()]
        if others:
            await asyncio.wait(others)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task in self._running.values():
            assert self._on_failure is not None, "no task starts before it is allowed"
            self._on_failure(task.exception())


class BackgroundTasks:
    """Tasks that nobody waits for."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start one."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    @property
    def is_busy(self) -> bool:
        """Whether one is running."""
        return bool(self._running)

    def cancel(self) -> None:
        """End all of them without waiting."""
        for task in self._running:
            task.cancel()
