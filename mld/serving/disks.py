"""`DiskWatcher`: checks once a minute whether the daemon and its processors can still write to their directories."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from mld.aws.threads import Workers
from mld.core.clock import Clock
from mld.core.disks import DiskPlace, DiskRoom, room_of
from mld.metrics.disks import DiskMetrics
from mld.metrics.events import EventBuffer, EventKind

log = logging.getLogger(__name__)

LOOK_PERIOD_S = 60.0
ANSWER_TIMEOUT_S = 10.0
"""Longest wait for the checks of all directories together. A mount that hangs blocks the thread of its check, and is
checked again only once that check has ended.
"""

LookAt = Callable[[DiskPlace], Awaitable[DiskRoom]]
"""A function that checks one directory."""


@contextmanager
def in_threads(places: Sequence[DiskPlace]) -> Iterator[LookAt]:
    """Yield a function that checks a directory in a thread of its own, so that a mount that hangs delays no other
    check.
    """
    threads = {place: Workers(threads_max=1, name=f"disk-{place.name}") for place in places}
    try:
        yield lambda place: threads[place].run(lambda: room_of(place))
    finally:
        for one in threads.values():
            one.close()


@dataclass(eq=False)
class DiskWatcher:
    """Keeps the free room of each directory in the metrics, and logs changes."""

    places: Sequence[DiskPlace]
    look_at: LookAt
    metrics: DiskMetrics
    events: EventBuffer
    clock: Clock
    _under_way: dict[DiskPlace, asyncio.Future[DiskRoom]] = field(init=False, default_factory=dict)

    async def run(self) -> None:
        """Check every minute, until cancelled."""
        try:
            while True:
                await self.look()
                await self.clock.sleep(LOOK_PERIOD_S)
        finally:
            for one in self._under_way.values():
                one.cancel()

    async def look(self) -> None:
        """Check all directories once."""
        for place in self.places:
            if place not in self._under_way:
                self._under_way[place] = asyncio.ensure_future(self.look_at(place))
        await asyncio.wait(self._under_way.values(), timeout=ANSWER_TIMEOUT_S)
        before = self.metrics.faults()
        self.metrics.rooms = {place: self._taken(place) for place in self.places}
        self._log_changes(before, self.metrics.faults())

    def _taken(self, place: DiskPlace) -> DiskRoom | None:
        """Return the result of the check; None if it is still running."""
        return self._under_way.pop(place).result() if self._under_way[place].done() else None

    def _log_changes(self, before: dict[str, str], now: dict[str, str]) -> None:
        """Log each directory that has a fault now and had none before, and each whose fault is over.

        `before` and `now` have the faults, in words, by the name of the directory.
        """
        for name in sorted(now.keys() - before.keys()):
            log.warning("%s", now[name], extra={"action": "disk_trouble", "place": name})
            self.events.note(EventKind.DISK, now[name])
        for name in sorted(before.keys() - now.keys()):
            log.info("%s: there is room again", name, extra={"action": "disk_well", "place": name})
            self.events.note(EventKind.DISK, f"{name}: there is room again")
