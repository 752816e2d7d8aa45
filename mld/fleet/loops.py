"""`Loops`: the background loops of one worker, started and stopped by name as its mode asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping

from mld.clock import Clock
from mld.surviving import kept_running


class Loops:
    """`factories` make the loops, which run until cancelled; `on_failure` hears of one that ended by itself.

    An exception does not end a loop (`mld.surviving`), unless it says that the daemon must end.
    """

    def __init__(
        self,
        factories: Mapping[str, Callable[[], Awaitable[None]]],
        on_failure: Callable[[BaseException | None], None],
        clock: Clock,
    ) -> None:
        self._factories = factories
        self._on_failure = on_failure
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wanted: frozenset[str] = frozenset()
        self._allowed = False

    async def want(self, names: Collection[str]) -> None:
        """Let exactly these run, once `allow` was called. Returns when the others have ended."""
        assert set(names) <= self._factories.keys()
        self._wanted = frozenset(names)
        await self._adjust()

    async def allow(self) -> None:
        """The worker is ready: start what is wanted."""
        self._allowed = True
        await self._adjust()

    async def stop(self, names: Collection[str] | None = None) -> None:
        """End these loops, or all, and do not start them again."""
        await self.want(self._wanted - frozenset(self._factories if names is None else names))

    def running(self) -> frozenset[str]:
        return frozenset(self._tasks)

    async def _adjust(self) -> None:
        wanted = self._wanted if self._allowed else frozenset()
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
            self._on_failure(task.exception())
