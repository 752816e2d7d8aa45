"""`TaskList`: runs the tasks of a worker that its current state needs, each within the error boundary.

A `Task` is one entry of the list: its name, the states in which it runs, and how long it continues when the worker
stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeAlias, TypeVar

from mld.core.clock import Clock
from mld.core.error_boundary import kept_running

StateT = TypeVar("StateT")
OnFailure: TypeAlias = Callable[[BaseException | None], None]
"""Gets the exception with which a task has ended by itself; None if the task has just returned."""


class Until(IntEnum):
    """How long a task runs while the worker stops, the shortest first."""

    LEAVING = 1
    """Until a stop is requested, for tasks that could acquire more leases."""
    RELEASED = 2
    """Until the worker holds no lease."""
    CLOSED = 3
    """Until everything else has ended."""


@dataclass(frozen=True, slots=True)
class Task(Generic[StateT]):
    """A function that runs until it is cancelled. `runs_in` tells in which states of the fleet it runs."""

    name: str
    run: Callable[[], Awaitable[None]]
    runs_in: Callable[[StateT], bool] = lambda _: True
    until: Until = Until.LEAVING


class TaskList(Generic[StateT]):
    """Runs the tasks that the current state needs, once `allow` was called."""

    def __init__(self, tasks: Sequence[Task[StateT]], clock: Clock) -> None:
        self._list = tasks
        self._clock = clock
        self._on_failure: OnFailure | None = None  # None until `allow` was called
        self._running: dict[str, asyncio.Task[None]] = {}
        self._wanted: tuple[Task[StateT], ...] = ()  # the tasks of the current state, except those that were ended

    async def enter(self, state: StateT) -> None:
        """Run exactly the tasks of this state, once `allow` was called. Returns when all other tasks have ended."""
        self._wanted = tuple(task for task in self._list if task.runs_in(state))
        await self._adjust()

    async def allow(self, on_failure: OnFailure) -> None:
        """Start the tasks of the current state, and from now on those of each new state. `on_failure` is called if a
        task ends by itself.
        """
        self._on_failure = on_failure
        await self._adjust()

    async def end(self, until: Until) -> None:
        """End the tasks that run no longer than `until`."""
        self._wanted = tuple(task for task in self._wanted if task.until > until)
        await self._adjust()

    def running(self) -> frozenset[str]:
        """Return the names of the running tasks."""
        return frozenset(self._running)

    async def _adjust(self) -> None:
        """Cancel the running tasks that are not wanted, start the wanted ones that are missing, and wait for the
        cancelled ones.
        """
        wanted = {} if self._on_failure is None else {task.name: task for task in self._wanted}
        ending = [self._running.pop(name) for name in list(self._running) if name not in wanted]
        for task in ending:
            task.cancel()
        for name in [name for name in wanted if name not in self._running]:
            task = asyncio.ensure_future(kept_running(wanted[name].run, name, self._clock))
            self._running[name] = task
            task.add_done_callback(self._on_done)
        others = [task for task in ending if task is not asyncio.current_task()]  # a task cannot wait for itself
        if others:
            await asyncio.wait(others)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """Report the failure of a task that has ended by itself, although it is still wanted."""
        if not task.cancelled() and task in self._running.values():
            assert self._on_failure is not None, "no task starts before it is allowed"
            self._on_failure(task.exception())
