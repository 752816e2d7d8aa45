"""`BackgroundTasks`: starts tasks that no caller awaits, and keeps a reference to each until it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundTasks:
    """Running tasks that no caller awaits. asyncio holds only weak references to tasks, so this object holds strong
    ones.
    """

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
