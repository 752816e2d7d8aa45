"""`Loops`: the background loops of one worker, started and stopped by name as its mode asks for them; `Tasks`: what it
does once beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from typing import Any, TypeAlias

from mld.core.clock import Clock
from mld.core.surviving import kept_running

OnFailure: TypeAlias = Callable[[BaseException | None], None]


class Loops:
    """`factories` make the loops, which run until cancelled.

    An exception does not end a loop (`mld.core.surviving`), unless it says that the daemon must end.
    """

    def __init__(self, factories: Mapping[str, Callable[[], Awaitable[None]]], clock: Clock) -> None:
        self._factories = factories
        self._clock = clock
        self._on_failure: OnFailure | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wanted: frozenset[str] = frozenset()

    async def want(self, names: Collection[str]) -> None:
        """Let exactly these run, once `allow` was called. Returns when the others have ended."""
        assert set(names) <= self._factories.keys()
        self._wanted = frozenset(names)
        await self._adjust()

    async def allow(self, on_failure: OnFailure) -> None:
        """The worker is ready: start what is wanted; `on_failure` hears of a loop that ended by itself."""
        self._on_failure = on_failure
        await self._adjust()

    async def stop(self, names: Collection[str] | None = None) -> None:
        """End these loops, or all, and do not start them again."""
        await self.want(self._wanted - frozenset(self._factories if names is None else names))

    def running(self) -> frozenset[str]:
        return frozenset(self._tasks)

    async def _adjust(self) -> None:
        wanted = frozenset() if self._on_failure is None else self._wanted
        ending = [self._tasks.pop(name) for name in list(self._tasks) if name not in wanted]
        for task in ending:
            task.cancel()
        for name in sorted(wanted - self._tasks.keys()):
            task = asyncio.ensure_future(kept_running(self._factories[name], name, self._clock))
            self._tasks[name] = task
            task.add_done_callback(self._on_done)
        others = [task for task in ending if task is not asyncio.current_task()]
        if others:
            await asyncio.wait(others)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task in self._tasks.values():
            assert self._on_failure is not None, "no loop starts before it is allowed"
            self._on_failure(task.exception())


class Tasks:
    """Tasks that nobody waits for."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def cancel(self) -> None:
        for task in self._running:
            task.cancel()
