"""Records on their way to a micro-batch: room for them, which pages wait, and when the next batch is due.

Once BATCHES_IN_FLIGHT full micro-batches are in flight, children wait with further lines, and are admitted first in,
first out. What is admitted is in a page that grows, until the child says that it is complete: the pages of a
micro-batch are cut as it begins.

When a micro-batch starts.

Every micro-batch costs a job and adds a file, however little is in it. So by default records gather: a micro-batch
starts 30 s after the one before it, or 120 s while little waits, or as soon as one is full. After a silence that was
longer than this, the first record starts one at once, so whoever sends a record now and then sees it without delay.
Nothing starts while nothing waits.

With a `mld.spark.triggerIntervalMillis` of the user's there is one interval, whatever waits.

Pure: values in, values out; all times on one monotonic clock, in seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from mld.processors.spark.batch.micro_batch import Offer
from mld.processors.spark.batch.spool import Spool
from mld.processors.spark.host.connection import ChildConnection
from mld.processors.spark.settings import SparkSettings

BATCHES_IN_FLIGHT = 2
"""Full micro-batches that may be accepted and not committed: one that runs, and the next one."""
LITTLE_BYTES = 1024 * 1024
"""Less than this makes a file so small that the next records are waited for."""
GATHER_MAX_S = 0.1
"""Shards that are read on one beat offer within this time; a tenth of the interval if that is less."""

STALLED_S = 120.0
"""A trigger that takes longer is said to make no progress, and again each time it has taken twice as long."""


def is_stalled(trigger_s: float, times_said: int) -> bool:
    """Return whether it is time to say that a trigger of this age has not ended."""
    return trigger_s >= STALLED_S * (1 << times_said)


@dataclass(frozen=True, slots=True)
class TriggerPace:
    """`interval_s` from the start of one micro-batch to the next, `quiet_s` while less than LITTLE_BYTES wait;
    `bytes_max` is a full micro-batch."""

    interval_s: float
    quiet_s: float
    bytes_max: int

    def due_at(self, last_start: float, first_waiting_at: float, waiting_bytes: int) -> float:
        """Return when a micro-batch is to start if nothing else comes. Something has to wait."""
        interval_s = self.interval_s if waiting_bytes >= LITTLE_BYTES else self.quiet_s
        gathered_at = first_waiting_at + min(GATHER_MAX_S, self.interval_s / 10)
        return max(last_start + interval_s, gathered_at)

    def is_due(self, now: float, due_at: float, waiting_bytes: int, *, asked: bool) -> bool:
        """Return whether a micro-batch starts now: its time has come, it is full, or somebody waits for the end of
        it.
        """
        return asked or waiting_bytes >= self.bytes_max or now >= due_at


CUT_WAIT_S = 2.0
"""How long a micro-batch waits for its pages; what comes later is for the next one."""


class OfferQueue:
    """All records that wait. Called on the host's loop only."""

    def __init__(self, settings: SparkSettings, spool: Spool) -> None:
        self._spool = spool
        self._pace = TriggerPace(settings.trigger_interval_s, settings.trigger_quiet_s, settings.batch_bytes_max)
        self._in_flight_bytes_max = BATCHES_IN_FLIGHT * settings.batch_bytes_max
        self._open: dict[int, ChildConnection] = {}
        """Children with records in a page that grows."""
        self._pages: list[Offer] = []
        self._waiting_bytes = 0
        """Of pages that grow and of those that are complete."""
        self._held_back: deque[ChildConnection] = deque()
        self._in_flight_bytes = 0
        self._asked = False
        self._changed = asyncio.Event()
        self._first_waiting_at = 0.0
        self._taken: list[Offer] = []
        """Pages of the micro-batch that runs."""

    # --- what children bring -----------------------------------------------------------------------------------------

    def admit(self, child: ChildConnection) -> None:
        """Let a child go on with its line once there is room."""
        self._held_back.append(child)
        self._admit_first()
        if self._held_back:
            self._changed.set()

    def _admit_first(self) -> None:
        while self._held_back and self._has_room(self._held_back[0].asked_bytes):
            child = self._held_back.popleft()
            self._in_flight_bytes += child.asked_bytes
            child.go_on()

    def _has_room(self, size: int) -> bool:
        return not self._in_flight_bytes or self._in_flight_bytes + size <= self._in_flight_bytes_max

    def release(self, size: int) -> None:
        """Release so many bytes, which are no longer in flight: those held back are admitted, first in, first out."""
        self._in_flight_bytes -= size
        self._admit_first()

    def brought(self, child: ChildConnection, size: int) -> None:
        """Note that so much more is in the child's page."""
        if not size:
            return
        if not self._waiting_bytes:
            self._first_waiting_at = time.monotonic()
        self._waiting_bytes += size
        self._open[child.number] = child
        self._changed.set()

    def paged(self, child: ChildConnection, offer: Offer | None) -> None:
        """Add a complete page; None: the child was asked for one, and has none."""
        if offer is not None:
            self._spool.offered(offer)
            self._pages.append(offer)
        if not child.open_bytes:
            self._open.pop(child.number, None)
        self._changed.set()

    def ask(self) -> None:
        """Ask for the end of what waits: the trigger's time is not waited for."""
        self._asked = True
        self._changed.set()

    def drop(self, child: ChildConnection) -> None:
        """Drop what a child that is gone has brought, unless it is in a job; whoever comes next gets it again."""
        self._open.pop(child.number, None)
        dropped = [offer for offer in self._pages if offer.link == child.number]
        self._pages = [offer for offer in self._pages if offer.link != child.number]
        self._held_back = deque(held for held in self._held_back if held is not child)
        size = child.open_bytes + sum(offer.size for offer in dropped)
        self._waiting_bytes -= size
        busy = {(offer.link, offer.number) for offer in self._taken}
        self._spool.remove_pages(child.number, busy)
        self.release(size)
        self._changed.set()

    # --- micro-batches -----------------------------------------------------------------------------------------------

    async def due(self, last_start: float) -> None:
        """Wait until a micro-batch is to start."""
        while True:
            self._changed.clear()
            now, due_at = time.monotonic(), self._due_at(last_start)
            waits = bool(self._waiting_bytes)
            if waits and self._pace.is_due(now, due_at, self._waiting_bytes, asked=self._is_asked):
                return
            await self._change(due_at - now if waits else None)

    async def _change(self, within_s: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._changed.wait()

    def _due_at(self, last_start: float) -> float:
        return self._pace.due_at(last_start, self._first_waiting_at, self._waiting_bytes)

    @property
    def _is_asked(self) -> bool:
        return self._asked or bool(self._held_back)

    async def take(self) -> list[Offer]:
        """Return the pages of a micro-batch, once all that grow are cut."""
        asked = list(self._open.values())
        for child in asked:
            child.cut()
        deadline = time.monotonic() + CUT_WAIT_S
        while any(one.is_cutting and not one.closed for one in asked) and (left := deadline - time.monotonic()) > 0:
            self._changed.clear()
            await self._change(left)
        taken, size = 0, 0
        while taken < len(self._pages) and size < self._pace.bytes_max:
            size += self._pages[taken].size
            taken += 1
        self._taken, self._pages = self._pages[:taken], self._pages[taken:]
        self._waiting_bytes -= size
        if self._pages:
            self._first_waiting_at = self._pages[0].arrived_at
        elif self._open:
            self._first_waiting_at = min(child.open_since for child in self._open.values())
        else:
            self._asked = False
        return self._taken

    def clear(self) -> None:
        """End the micro-batch: remove its pages."""
        for offer in self._taken:
            self._spool.remove(self._spool.page(offer.link, offer.number))
        self._taken = []
