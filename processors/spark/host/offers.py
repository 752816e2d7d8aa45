"""`OfferQueue`: keeps the records that wait for a micro-batch, and decides whether there is room for more.

A child asks for room before it adds a line of records; a few kilobytes of small lines it reports later
(`host_connection`). While BATCHES_IN_FLIGHT full micro-batches are in flight, which
means that their records are accepted but not committed, it has to wait; waiting children are admitted first in, first
out. The child writes admitted records into a page, which grows until the child reports it complete. When a micro-batch
begins, the children are asked to complete ("cut") all growing pages. `trigger` decides when a micro-batch begins.

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
"""How many full micro-batches may be accepted but not committed: the running one, and the next one."""
CUT_WAIT_S = 2.0
"""How long a micro-batch waits for pages to be completed. A page that comes later is for the next micro-batch."""


class OfferQueue:
    """Keeps all records that wait. Called on the host's event loop only."""

    def __init__(self, settings: SparkSettings, spool: Spool, children: Mapping[int, ChildConnection]) -> None:
        self._settings = settings
        self._spool = spool
        self._children = children
        self._held_back: deque[ChildConnection] = deque()
        """Children that wait with a line because there is no room."""
        self._pages: list[Offer] = []
        self._waiting_bytes = 0
        """Bytes of lines in growing and in complete pages."""
        self._first_waiting_at = 0.0
        """When the first of these lines was admitted."""
        self._taken: list[Offer] = []
        """Pages of the running micro-batch."""
        self._taken_bytes = 0
        self._asked = False
        """Whether the next micro-batch must begin at once (see `ask`)."""
        self._changed = asyncio.Event()

    # --- what children bring -----------------------------------------------------------------------------------------

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of lines whose records are accepted but not committed."""
        return self._waiting_bytes + self._taken_bytes

    def admit(self, child: ChildConnection) -> None:
        """Let a child continue with its line once there is room."""
        self._held_back.append(child)
        self._admit_first()

    def count(self, size: int) -> None:
        """Count bytes of lines that a child has added to its growing page without asking for room."""
        self._waiting_bytes += size

    def _admit_first(self) -> None:
        """Let waiting children go on, first in, first out, as long as there is room."""
        while self._held_back and self._has_room(self._held_back[0].asked_bytes):
            child = self._held_back.popleft()
            if not self._waiting_bytes:
                self._first_waiting_at = time.monotonic()
            self._waiting_bytes += child.asked_bytes
            child.go_on()
        self._changed.set()

    def _has_room(self, size: int) -> bool:
        """Return whether a line of this size may be admitted. If nothing is in flight, it may, whatever its size."""
        bytes_max = BATCHES_IN_FLIGHT * self._settings.batch_bytes_max
        return not self.in_flight_bytes or self.in_flight_bytes + size <= bytes_max

    def paged(self, offer: Offer | None) -> None:
        """Add a complete page. With None, the child was asked for its page and has none."""
        if offer is not None:
            self._spool.offered(offer)
            self._pages.append(offer)
        self._changed.set()

    def ask(self) -> None:
        """Have micro-batches begin at once, before their regular time, until all records that wait are committed."""
        self._asked = True
        self._changed.set()

    def drop(self, child: ChildConnection) -> None:
        """Drop the records of a child that is gone, unless a micro-batch with them is running. The daemon delivers them
        again."""
        dropped = [offer.size for offer in self._pages if offer.link == child.number]
        self._pages = [offer for offer in self._pages if offer.link != child.number]
        self._held_back = deque(held for held in self._held_back if held is not child)
        self._waiting_bytes -= child.open_bytes + sum(dropped)
        self._spool.remove_pages(child.number, {(offer.link, offer.number) for offer in self._taken})
        self._admit_first()

    # --- micro-batches -----------------------------------------------------------------------------------------------

    async def due(self, last_start: float) -> None:
        """Wait until the next micro-batch has to begin. The last one began at `last_start`.

        It begins at the time that the settings give, or sooner if many records wait, if a child waits for room, or if
        `ask` was called. If `ask` was called and no records wait, it begins at once, without records.
        """
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
        """Wait until a child has brought or asked something, but at most this long; without a limit for None."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._changed.wait()

    async def take(self) -> list[Offer]:
        """Ask the children to complete all growing pages, and wait for that at most CUT_WAIT_S. Then return the pages
        of the next micro-batch: as many, in their order, as it takes to be full.
        """
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
        """End the micro-batch: remove its pages, and admit children that wait for room."""
        for offer in self._taken:
            self._spool.remove(self._spool.page(offer.link, offer.number))
        self._taken, self._taken_bytes = [], 0
        self._admit_first()
