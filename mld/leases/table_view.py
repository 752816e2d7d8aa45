"""`TableView`: reads the whole lease table once for all parts of a worker that need it, and keeps the newest view.

Rule: leases#one-view-of-the-table. A part of the worker asks for a view whose read began after a given time. It gets
the newest view, or the result of the read that is under way, if one of these is new enough; otherwise the table is read
again. So no part decides on rows that are older than the event that made it look, and parts that look at about the same
time cause only one read. A part that wants to know of every new view registers an `asyncio.Event`, which is set each
time.

A view is never changed. It shows each row as it was at some moment between the beginning and the end of the read, and
the row may have changed since. So writes that are based on a view are conditional.
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
    """The whole table as one read of it has shown it. Times are in monotonic seconds."""

    scan: TableScan
    began_at: float
    ended_at: float

    @property
    def took_s(self) -> float:
        """How long the read took, in seconds."""
        return self.ended_at - self.began_at


class Views(Protocol):
    """The interface by which the parts of a worker get views of the table."""

    @property
    def newest(self) -> SeenTable | None:
        """The newest view; None before the first read has ended, and after `forget`."""
        ...

    async def newer_than(self, at: float) -> SeenTable:
        """Return a view whose read began after the time `at`, in monotonic seconds. Raises `errors.TableError`."""
        ...

    def wake(self, event: asyncio.Event) -> None:
        """Set this event from now on whenever there is a newer view."""
        ...


@dataclass(eq=False)
class _TableRead:
    """A read of the table that is under way."""

    began_at: float
    task: asyncio.Task[SeenTable]


class TableView:
    """Reads `table` for all parts of the worker. Implements `Views`."""

    def __init__(self, table: LeaseTable, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._newest: SeenTable | None = None
        self._reading: _TableRead | None = None  # the read that began last, until it ends
        self._running = BackgroundTasks()
        self._valid_from = -math.inf  # views whose reads began earlier are of a table that is gone
        self._events: list[asyncio.Event] = []  # set whenever there is a newer view

    @property
    def newest(self) -> SeenTable | None:
        """The newest view; None before the first read has ended, and after `forget`."""
        return self._newest

    def wake(self, event: asyncio.Event) -> None:
        """Set this event from now on whenever there is a newer view."""
        self._events.append(event)

    def forget(self) -> None:
        """Forget the views of a table that is gone. Reads of it that are under way are ignored when they end."""
        self._newest = self._reading = None
        self._valid_from = self._clock.monotonic()

    def close(self) -> None:
        """Cancel all reads."""
        self._running.cancel()

    async def newer_than(self, at: float) -> SeenTable:
        """Return a view whose read began after `at`, in monotonic seconds; read the table if there is no such view. A
        read that is under way but began too early goes on for the callers that wait for it. Raises
        `errors.TableError`.
        """
        if self._newest is not None and self._newest.began_at > at:
            return self._newest
        if self._reading is None or self._reading.began_at <= at:
            self._begin()
        assert self._reading is not None
        return await asyncio.shield(self._reading.task)

    def _begin(self) -> None:
        """Begin a read of the table, for which any number of callers may wait."""
        began_at = self._clock.monotonic()
        task = self._running.spawn(self._read(began_at))
        task.add_done_callback(_retrieve)
        self._reading = _TableRead(began_at, task)

    async def _read(self, began_at: float) -> SeenTable:
        """Read the table. Keep the view as the newest, unless a newer one exists or the table was forgotten
        meanwhile.
        """
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
    """Take the error of a read, so that asyncio does not log it as never retrieved if no caller waits any more."""
    if not task.cancelled():
        task.exception()
