"""Records on their way to a micro-batch: room for them, and which pages wait.

Once BATCHES_IN_FLIGHT full micro-batches are in flight, children wait with further lines, and are admitted first in,
first out. What is admitted is in a page that grows, until the child says that it is complete: the pages of a
micro-batch are cut as it begins. `trigger` says when that is.

All times are on one monotonic clock, in seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress

from mld.processors.spark.batch.micro_batch import Offer
from mld.processors.spark.batch.spool import Spool
from mld.processors.spark.host.connection import ChildConnection
from mld.processors.spark.host.trigger import due_at
from mld.processors.spark.settings import SparkSettings

BATCHES_IN_FLIGHT = 2
"""Full micro-batches that may be accepted and not committed: one that runs, and the next one."""
CUT_WAIT_S = 2.0
"""How long a micro-batch waits for its pages; what comes later is for the next one."""


class OfferQueue:
    """All records that wait. Called on the host's loop only."""

    def __init__(self, settings: SparkSettings, spool: Spool, children: Mapping[int, ChildConnection]) -> None:
        self._settings = settings
        self._spool = spool
        self._children = children
        self._held_back: deque[ChildConnection] = deque()
        """Children with a line for which there is no room."""
        self._pages: list[Offer] = []
        self._waiting_bytes = 0
        """Bytes of pages that grow and of those that are complete."""
        self._first_waiting_at = 0.0
        self._taken: list[Offer] = []
        """Pages of the micro-batch that runs."""
        self._taken_bytes = 0
        self._asked = False
        self._changed = asyncio.Event()

    # --- what children bring -----------------------------------------------------------------------------------------

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of records that are accepted and not committed."""
        return self._waiting_bytes + self._taken_bytes

    def admit(self, child: ChildConnection) -> None:
        """Let a child go on with its line once there is room."""
        self._held_back.append(child)
        self._admit_first()

    def _admit_first(self) -> None:
        while self._held_back and self._has_room(self._held_back[0].asked_bytes):
            child = self._held_back.popleft()
            if not self._waiting_bytes:
                self._first_waiting_at = time.monotonic()
            self._waiting_bytes += child.asked_bytes
            child.go_on()
        self._changed.set()

    def _has_room(self, size: int) -> bool:
        bytes_max = BATCHES_IN_FLIGHT * self._settings.batch_bytes_max
        return not self.in_flight_bytes or self.in_flight_bytes + size <= bytes_max

    def paged(self, offer: Offer | None) -> None:
        """Add a complete page; None: a child was asked for one, and has none."""
        if offer is not None:
            self._spool.offered(offer)
            self._pages.append(offer)
        self._changed.set()

    def ask(self) -> None:
        """Ask for the end of what waits: the trigger's time is not waited for."""
        self._asked = True
        self._changed.set()

    def drop(self, child: ChildConnection) -> None:
        """Drop what a child that is gone has brought, unless it is in a job; whoever comes next gets it again."""
        dropped = [offer.size for offer in self._pages if offer.link == child.number]
        self._pages = [offer for offer in self._pages if offer.link != child.number]
        self._held_back = deque(held for held in self._held_back if held is not child)
        self._waiting_bytes -= child.open_bytes + sum(dropped)
        self._spool.remove_pages(child.number, {(offer.link, offer.number) for offer in self._taken})
        self._admit_first()

    # --- micro-batches -----------------------------------------------------------------------------------------------

    async def due(self, last_start: float) -> None:
        """Wait until a micro-batch is to start."""
        while True:
            self._changed.clear()
            left_s = None
            if self._asked and not self._waiting_bytes:
                return
            if self._waiting_bytes:
                asked = self._asked or bool(self._held_back)
                at = due_at(self._settings, last_start, self._first_waiting_at, self._waiting_bytes, asked=asked)
                left_s = at - time.monotonic()
                if left_s <= 0:
                    return
            await self._change(left_s)

    async def _change(self, within_s: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._changed.wait()

    async def take(self) -> list[Offer]:
        """Return the pages of a micro-batch, once all that grow are cut."""
        asked = [child for child in self._children.values() if child.open_bytes]
        for child in asked:
            child.cut()
        deadline = time.monotonic() + CUT_WAIT_S
        while any(one.is_cutting and not one.closed for one in asked) and (left := deadline - time.monotonic()) > 0:
            self._changed.clear()
            await self._change(left)
        taken = 0
        while taken < len(self._pages) and self._taken_bytes < self._settings.batch_bytes_max:
            self._taken_bytes += self._pages[taken].size
            taken += 1
        self._taken, self._pages = self._pages[:taken], self._pages[taken:]
        self._waiting_bytes -= self._taken_bytes
        self._asked = self._asked and bool(self._waiting_bytes)
        return self._taken

    def clear(self) -> None:
        """End the micro-batch: remove its pages, and admit what waits for their room."""
        for offer in self._taken:
            self._spool.remove(self._spool.page(offer.link, offer.number))
        self._taken, self._taken_bytes = [], 0
        self._admit_first()
