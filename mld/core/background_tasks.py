"""`BackgroundTasks`: tasks that nobody waits for, kept alive until they end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundTasks:
    """Tasks that nobody waits for. asyncio itself keeps no reference to a task, so this object does."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task and return it."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    @property
    def is_busy(self) -> bool:
        """Whether a task is running."""
        return bool(self._running)

    def cancel(self) -> None:
        """Cancel all tasks without waiting for their end."""
        for task in self._running:
            task.cancel()
