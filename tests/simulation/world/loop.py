"""One virtual-time loop with many *processes* in it, each of which can be stopped, resumed and killed from outside.

A process is a name in a context variable: every task and timer made inside it carries it. The loop looks at the name
whenever a callback becomes ready. Of a stopped process (SIGSTOP) the callbacks are kept, in order, until it resumes:
its timers are then all overdue, and it still believes what it believed. Of a killed process (SIGKILL) they are thrown
away: no `finally` runs, no last write is sent. What others do on its behalf (a request under way, a child process)
belongs to the world, which has no name and never stops.
"""

from __future__ import annotations

import asyncio
import contextvars
import selectors
import weakref
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.virtual_time import DeadlockError, JumpingSelector, VirtualTimeLoop

T = TypeVar("T")

TURNS_MAX = 20_000
"""At one instant. A start of 8 workers on 32 shards takes some hundred."""

_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Process:
    """A simulated operating-system process: all callbacks made inside it."""

    __slots__ = ("__weakref__", "dead", "kept", "name", "stopped", "tasks")

    def __init__(self, name: str) -> None:
        self.name = name
        self.stopped = False
        self.dead = False
        self.kept: deque[asyncio.Handle] = deque()
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()

    def spawn(self, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine inside this process."""
        context = contextvars.copy_context()
        context.run(_PROCESS.set, self)
        return asyncio.get_running_loop().create_task(main, context=context)

    def stop(self) -> None:
        self.stopped = True

    def resume(self) -> None:
        self.stopped = False
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulationLoop)
        kept, self.kept = self.kept, deque()
        loop.ready.extend(kept)

    def kill(self) -> None:
        self.dead = True
        self.kept.clear()


class _Gate(deque):  # type: ignore[type-arg]
    """The loop's queue of ready callbacks."""

    def append(self, handle: asyncio.Handle) -> None:
        process = handle._context.get(_PROCESS)  # type: ignore[attr-defined]
        if process is None or not (process.stopped or process.dead):
            deque.append(self, handle)
        elif not process.dead:
            process.kept.append(handle)


class LivelockError(AssertionError):
    """The loop turns without time going on: somebody works without ever waiting."""


class _NoSelector(JumpingSelector):
    """There are no files in a world: nothing to ask the system for."""

    def __init__(self) -> None:
        super().__init__()
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout == 0:
            self._turns += 1
            if self._turns > TURNS_MAX:
                raise LivelockError(f"{TURNS_MAX} turns of the loop at the same instant")
            return []
        if timeout is None:
            raise DeadlockError("no timer is set and nothing is ready")
        self._turns = 0
        self.jumped_s += timeout
        return []


class SimulationLoop(VirtualTimeLoop):
    """The loop of a world. asyncio's own queue is replaced by the gate; nothing else is touched."""

    def __init__(self) -> None:
        super().__init__(_NoSelector())
        self._ready = self.ready = _Gate()

    def create_task(self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None) -> Any:
        task = super().create_task(coro, name=name, context=context)
        process = _PROCESS.get() if context is None else context.get(_PROCESS)
        if process is not None:
            process.tasks.add(task)
        return task


def in_world(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run work that goes on whatever happens to the process that asked for it."""
    context = contextvars.copy_context()
    context.run(_PROCESS.set, None)
    return asyncio.get_running_loop().create_task(work, context=context)


def run_world(main: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine that is the world to its end, in virtual time.

    What is left then is dropped without a word: killed processes leave tasks behind that never end.
    """
    loop = SimulationLoop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.set_exception_handler(lambda _loop, _context: None)
        asyncio.set_event_loop(None)
        loop.close()
