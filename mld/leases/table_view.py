"""`TableView`: the newest view of the whole lease table, read once for all parts of a worker that look at it.

Rule: leases#one-view-of-the-table. A part says how new its view must be. It gets the newest view if that is new enough,
else the one that is being read, and else it makes the table read. So nobody decides on rows that are older than what
made it look, and parts that look at about the same time cost one read. A part that wants every view, whoever asked for
it, has an event set by each.

A view is never changed. It holds what was true at some moment between the beginning and the end of its read, row by
row; writes that are based on it are conditional.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Protocol

from mld.core.background_tasks import BackgroundTasks
from mld.core.clock import Clock
from mld.leases.table import LeaseTable, TableScan


@dataclass(frozen=True, slots=True, eq=False)
class SeenTable:
    """The table as one read showed it. Times are monotonic seconds."""

    scan: TableScan
    began_at: float
    ended_at: float


class Views(Protocol):
    """Where the parts of a worker get their views from."""

    @property
    def newest(self) -> SeenTable | None:
        """The view whose read began last; None before the first, and after `forget`."""
        ...

    async def newer_than(self, at: float) -> SeenTable:
        """Return a view whose read began after this time, in monotonic seconds. Raises `errors.TableError`."""
        ...

    def wake(self, event: asyncio.Event) -> None:
        """Set this event whenever there is a newer view."""
        ...


@dataclass(eq=False)
class _TableRead:
    began_at: float
    task: asyncio.Task[SeenTable]


class TableView:
    """Reads `table` for all who ask. Implements `Views`."""

    def __init__(self, table: LeaseTable, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._newest: SeenTable | None = None
        self._reading: _TableRead | None = None  # the one that began last, until it ends
        self._running = BackgroundTasks()
        self._valid_from = -math.inf
        self._events: list[asyncio.Event] = []

    @property
    def newest(self) -> SeenTable | None:
        """See `Views`."""
        return self._newest

    def wake(self, event: asyncio.Event) -> None:
        """See `Views`."""
        self._events.append(event)

    def forget(self) -> None:
        """Forget what was read of a table that is gone, and what is being read of it."""
        self._newest = self._reading = None
        self._valid_from = self._clock.monotonic()

    def close(self) -> None:
        """End all reads."""
        self._running.cancel()

    async def newer_than(self, at: float) -> SeenTable:
        """See `Views`. A read that began earlier goes on, and nobody waits for it who needs a newer one."""
        if self._newest is not None and self._newest.began_at > at:
            return self._newest
        if self._reading is None or self._reading.began_at <= at:
            self._begin()
        assert self._reading is not None
        return await asyncio.shield(self._reading.task)

    def _begin(self) -> None:
        began_at = self._clock.monotonic()
        task = self._running.spawn(self._read(began_at))
        task.add_done_callback(_retrieve)
        self._reading = _TableRead(began_at, task)

    async def _read(self, began_at: float) -> SeenTable:
        try:
            scan = await self._table.scan()
        finally:
            if self._reading is not None and self._reading.began_at == began_at:
                self._reading = None
        view = SeenTable(scan, began_at, self._clock.monotonic())
        if self._valid_from <= began_at and (self._newest is None or self._newest.began_at < began_at):
            self._newest = view
            for event in self._events:
                event.set()
        return view


def _retrieve(task: asyncio.Task[SeenTable]) -> None:
    """Take note of the error of a read, for which nobody may wait any more."""
    if not task.cancelled():
        task.exception()
