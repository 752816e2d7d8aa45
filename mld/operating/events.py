"""The history of a fleet: one row of the lease table, its reader and its writers. Rule: coordination#event-history.

A worker adds the events that its parts have noted to the row, at most once in a few seconds. Each time costs one small
read and one write, however many events there are. Each writer also removes old events. A worker creates the row only if
all workers of the fleet can cope with it; commands of operators add to the row but never create it. Events that cannot
be written are lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from mld.aws.boundary import raises_only
from mld.aws.table_calls import REFUSED_CODE, RefusedError, TableCalls
from mld.core.clock import Clock
from mld.core.error_boundary import kept_running, survived
from mld.core.errors import TableUnavailableError
from mld.core.turns import in_turns
from mld.leases import own_attribute, rows
from mld.leases.own_attribute import OwnAttribute, Row
from mld.leases.rows import EntityType
from mld.metrics.events import (
    EVENTS_MAX,
    LINES_CHARACTERS_MAX,
    Event,
    EventBuffer,
    EventKind,
    merged,
    pack,
    pack_steps,
    shortened,
    unpack,
)
from mld.properties.printable import printable
from mld.properties.scrubber import Scrubber

log = logging.getLogger(__name__)

KEY = "mldEvents"
WRITE_PERIOD_S = 5.0
"""Pause between two writes of a worker; if a thousand shards fail at once, one write has all these events."""
ATTEMPTS_MAX = 4
"""Attempts to write, because other workers write the same row; each attempt reads the row again."""
PAUSE_S_MAX = 0.5
"""Longest random pause before another attempt."""
LAST_WRITE_S = 1.0
"""How long a daemon that ends waits for the write of its last events."""
ALERTS_MAX = 200
"""How many raised alerts the row lists at most."""

_EVENTS = OwnAttribute(
    "events", "B", lambda found: unpack(own_attribute.binary(found)), pack((Event(EventKind.ENDED, at_s=1),))
)
_ALERTS = OwnAttribute("alerts", "SS", lambda found: frozenset(map(str, found[:ALERTS_MAX])), ["failing shardId-0"])
"""The two attributes of the row. The last argument of each is an example of its value."""


def events_in(row: Row | None) -> tuple[Event, ...]:
    """Return the events in the row, the oldest first; none if the row is missing or damaged."""
    return _EVENTS.read(row or {}) or ()


def alerts_in(row: Row | None) -> frozenset[str]:
    """Return the alerts that the row lists as raised and not ended."""
    return _ALERTS.read(row or {}) or frozenset()


@raises_only(TableUnavailableError)
class EventsTable:
    """The row of events in the lease table that `calls` reach. Its entity type makes KCL 3.5 ignore the row."""

    def __init__(self, calls: TableCalls, clock: Clock, rng: Random) -> None:
        self._calls = calls
        self._clock = clock
        self._rng = rng

    async def read(self) -> Row | None:
        """Return the row; None if the table has none. Raises TableError."""
        row: Row | None = (await self._calls.send("GetItem", {"Key": {rows.KEY: {"S": KEY}}})).get("Item")
        return row

    async def append(self, new: Sequence[Event], *, makes: bool) -> bool:
        """Add events to the row, by a write on condition that the row is as it was read. With `makes` a missing row is
        created.

        Returns False if there is no row and it may not be created, or if other writers were faster in each attempt.
        Raises TableError.
        """
        for _ in range(ATTEMPTS_MAX):
            row = await self.read()
            if row is None and not makes:
                return False
            packed = await in_turns(pack_steps(merged(events_in(row), new, self._clock.wall())))
            values: dict[str, Any] = {":type": {"S": EntityType.LEADER.value}, ":new": {"B": packed}}
            condition = f"attribute_not_exists(#{_EVENTS.name})"
            if row is not None and _EVENTS.name in row:
                values[":seen"], condition = dict(row[_EVENTS.name]), f"#{_EVENTS.name} = :seen"
            try:
                await self._update(f"SET #entityType = :type, #{_EVENTS.name} = :new", values, condition)
            except RefusedError:
                await self._clock.sleep(self._rng.uniform(0.0, PAUSE_S_MAX))
            else:
                return True
        return False

    async def set_alerts(self, alerts: Iterable[str]) -> None:
        """Store in the row, if it exists, which alerts are raised and have not ended. Raises TableError."""
        raised = sorted(alerts)[:ALERTS_MAX]
        update, values = "REMOVE #alerts", {}
        if raised:
            update, values = "SET #alerts = :alerts", {":alerts": {"SS": raised}}
        with contextlib.suppress(RefusedError):
            await self._update(update, values, f"attribute_exists(#{rows.KEY})")

    async def _update(self, update: str, values: dict[str, Any], condition: str) -> None:
        """Send the update of the row. Raises RefusedError if `condition` is not met; TableError."""
        request: dict[str, Any] = {
            "Key": {rows.KEY: {"S": KEY}},
            "UpdateExpression": update,
            "ConditionExpression": condition,
            "ExpressionAttributeNames": rows.names_in(f"{update} {condition}"),
        }
        request |= {"ExpressionAttributeValues": values} if values else {}
        await self._calls.send("UpdateItem", request, refusals=(REFUSED_CODE,))


@dataclass(eq=False)
class EventRecorder:
    """Writes the events that the parts of a worker note. `may_write` returns whether the table may have the row now."""

    buffer: EventBuffer
    table: EventsTable
    clock: Clock
    worker_id: str
    scrub: Scrubber
    may_write: Callable[[], bool]

    def __post_init__(self) -> None:
        self.buffer.wall = self.clock.wall
        self.recent: tuple[Event, ...] = ()
        """The latest events that this worker has noted, whether or not they were written."""

    async def run(self) -> None:
        """Write every few seconds, until cancelled."""
        while True:
            await self.clock.sleep(WRITE_PERIOD_S)
            await self.write()

    async def write(self) -> None:
        """Write the events that were noted since the last write. If that fails, these events are lost, which is
        logged. The newest events are also kept in `recent`, for the daemon's page.
        """
        new = [self._fit(event) for event in self.buffer.take()]
        if not new:
            return
        # A quarter is enough for the page: it shows them only if the table has no history.
        self.recent = merged(self.recent, new, self.clock.wall())[-EVENTS_MAX // 4 :]
        try:
            if self.may_write() and not await self.table.append(new, makes=True):
                log.info("events not written: others were faster", extra={"action": "events_lost", "count": len(new)})
        except Exception as error:
            failure = survived(error, "writing events")
            log.info("events not written: %s", failure, extra={"action": "events_lost", "count": len(new)})

    def _fit(self, event: Event) -> Event:
        """Return the event as it may be stored (see `fit`). If it names no worker, it gets this worker's id."""
        return fit(replace(event, worker=event.worker or self.worker_id), self.scrub)


def fit(event: Event, scrub: Scrubber) -> Event:
    """Return the event without secrets and control characters, and of bounded length."""

    def shown(text: str) -> str:
        """Return a text in a form that may be stored and shown."""
        return shortened(printable(scrub(text)))

    lines = list(map(shown, event.lines))
    while sum(map(len, lines)) > LINES_CHARACTERS_MAX:
        del lines[0]
    return replace(
        event,
        text=shown(event.text),
        worker=shortened(printable(event.worker)),
        shard=shortened(printable(event.shard)),
        lines=tuple(lines),
    )


@asynccontextmanager
async def recording(
    recorder: EventRecorder, initialized: asyncio.Event, start: str, end: Callable[[], str]
) -> AsyncIterator[None]:
    """Write the events of a worker while the context is open, with an event for its start and one for its end.

    `start` and `end` are the texts of these two. `initialized` is set when the worker has initialized itself; nothing
    is written before that, except at the end of the context.
    """

    async def run() -> None:
        """Note the start once the worker is initialized, then write every few seconds, until cancelled."""
        await initialized.wait()
        recorder.buffer.note(EventKind.STARTED, start)
        await kept_running(recorder.run, "recording events", recorder.clock)

    running = asyncio.create_task(run())
    try:
        yield
    finally:
        running.cancel()
        if initialized.is_set():
            recorder.buffer.note(EventKind.ENDED, end())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WRITE_S):
                await recorder.write()
