"""Offers on their way to a micro-batch: room for them, the file each is written to, and when the next batch is due.

Once `mld.spark.maxInFlightBytes` are in flight, further offers stay in their children's sockets, and are admitted first
in, first out. What one micro-batch gets stands in one file of the spool.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from mld.processors.spark.batch.micro_batch import Offer
from mld.processors.spark.batch.page_file import PageFile
from mld.processors.spark.batch.record_lines import ShardBatch
from mld.processors.spark.batch.spool import Spool
from mld.processors.spark.host.connection import ChildConnection
from mld.processors.spark.host.trigger_pace import TriggerPace
from mld.processors.spark.settings import SparkSettings


@dataclass(frozen=True, slots=True)
class Taken:
    """What one micro-batch is made of: offers that were `kept` from the last one, and those that are new, with the
    number and the length of their file (None if there are none)."""

    kept: list[Offer]
    new: list[Offer]
    number: int | None
    length: int


class OfferQueue:
    """All offers that wait. Called on the host's loop only."""

    def __init__(self, settings: SparkSettings, spool: Spool) -> None:
        self._spool = spool
        self._pace = TriggerPace(settings.trigger_interval_s, settings.trigger_quiet_s, settings.batch_bytes_max)
        self._batch_bytes_max = settings.batch_bytes_max
        self._in_flight_bytes_max = settings.in_flight_bytes_max
        self._waiting: list[Offer] = []
        self._waiting_bytes = 0
        self._filled = 0
        """Bytes of what waits or waited together with the file that grows."""
        self._complete: dict[int, int] = {}
        """Files that wait and get no more records, with their lengths."""
        self._held_back: deque[tuple[ChildConnection, int]] = deque()
        self._in_flight_bytes = 0
        self._asked = False
        self._changed = asyncio.Event()
        self._first_waiting_at = 0.0
        self._kept: list[Offer] = []
        """Offers that were in a micro-batch and that a sink misses, in their order; they are in flight."""
        self._again_at: float | None = None

    def admit(self, child: ChildConnection, size: int) -> bool:
        """Return whether a body of this size may be read now; if not, the child is told to go on once it may."""
        if self._held_back or not self._has_room(size):
            self._held_back.append((child, size))
            self._changed.set()
            return False
        self._in_flight_bytes += size
        return True

    def _has_room(self, size: int) -> bool:
        return not self._in_flight_bytes or self._in_flight_bytes + size <= self._in_flight_bytes_max

    def release(self, size: int) -> None:
        """Release so many bytes, which are no longer in flight: those held back are admitted, first in, first out."""
        self._in_flight_bytes -= size
        while self._held_back and self._has_room(self._held_back[0][1]):
            child, wanted = self._held_back.popleft()
            self._in_flight_bytes += wanted
            child.go_on()

    def add(self, child: ChildConnection, number: int, batch: ShardBatch, size: int) -> None:
        """Write an admitted batch, which has records, to the spool. Raises SpoolError."""
        assert child.shard is not None and batch.first is not None and batch.last is not None
        place = self._spool.append(batch.records)
        now = time.monotonic()
        offer = Offer(child.number, number, child.shard, batch.first, batch.last, batch.count, size, *place, now)
        self._add(child, offer)

    def add_page(self, child: ChildConnection, number: int, page: PageFile, size: int) -> None:
        """Add a page of an admitted batch that its child has written."""
        assert child.shard is not None
        place = self._spool.number, 0, 0
        now = time.monotonic()
        offer = Offer(child.number, number, child.shard, page.first, page.last, page.records, size, *place, now, True)
        self._add(child, offer)

    def _add(self, child: ChildConnection, offer: Offer) -> None:
        offer = replace(offer, preceding=child.reached)
        child.reached = offer.last
        if not self._waiting:
            self._first_waiting_at = offer.arrived_at
        self._waiting.append(offer)
        self._waiting_bytes += offer.size
        self._filled += offer.size
        if self._filled >= self._batch_bytes_max:
            self._cut()
        self._changed.set()

    def _cut(self) -> None:
        number, length = self._spool.cut()
        self._complete[number] = length
        self._filled = 0

    def ask(self) -> None:
        """Ask for the end of what is offered: the trigger's time is not waited for."""
        self._asked = True
        self._changed.set()

    def drop(self, child: ChildConnection) -> None:
        """Drop what a child that is gone has offered, unless it is in a job; whoever comes next gets it again."""
        dropped = [offer for offer in self._waiting if offer.link == child.number]
        if dropped:
            self._waiting = [offer for offer in self._waiting if offer.link != child.number]
            self._remove(dropped)
            for file in self._complete.keys() - {offer.spool for offer in self._waiting}:
                del self._complete[file]
                self._spool.path(file).unlink(missing_ok=True)
        if child.page is not None:
            self._spool.page(child.number, child.page).unlink(missing_ok=True)
        self._held_back = deque(held for held in self._held_back if held[0] is not child)
        size = sum(offer.size for offer in dropped)
        self._waiting_bytes -= size
        self.release(size + child.admitted_bytes)

    async def due(self, last_start: float) -> None:
        """Wait until a micro-batch is to start."""
        while True:
            self._changed.clear()
            now = time.monotonic()
            due_at = self._due_at(last_start)
            if self._waiting and self._pace.is_due(now, due_at, self._waiting_bytes, asked=self._is_asked):
                return
            if self._again_at is not None and now >= self._again_at:
                return
            times = [*([due_at] if self._waiting else []), *([] if self._again_at is None else [self._again_at])]
            with suppress(TimeoutError):
                async with asyncio.timeout(min(times) - now if times else None):
                    await self._changed.wait()

    def is_near(self, last_start: float) -> bool:
        """Return whether what waits is to start so soon that an answer may be held for its commit."""
        now, due_at = time.monotonic(), self._due_at(last_start)
        return self._pace.is_near(now, due_at, self._waiting_bytes, asked=self._is_asked)

    @property
    def hold_beat_s(self) -> float:
        return self._pace.hold_beat_s

    def _due_at(self, last_start: float) -> float:
        return self._pace.due_at(last_start, self._first_waiting_at, self._waiting_bytes)

    @property
    def _is_asked(self) -> bool:
        return self._asked or bool(self._held_back)

    def take(self) -> Taken:
        """Return the offers of the oldest file, which is complete then; and those that were kept."""
        kept, self._kept, self._again_at = self._kept, [], None
        if not self._waiting:
            return Taken(kept, [], None, 0)
        number = self._waiting[0].spool
        offers = [offer for offer in self._waiting if offer.spool == number]
        self._waiting = [offer for offer in self._waiting if offer.spool != number]
        self._waiting_bytes -= sum(offer.size for offer in offers)
        if self._waiting:
            self._first_waiting_at = self._waiting[0].arrived_at
        else:
            self._asked = False
        if number not in self._complete:
            self._cut()
        return Taken(kept, offers, number, self._complete.pop(number))

    def keep(self, offers: Iterable[Offer], again_in_s: float) -> None:
        """Keep offers of a micro-batch that a sink misses: they go into the next one, in this time at the latest."""
        self._kept = list(offers)
        self._again_at = time.monotonic() + again_in_s if self._kept else None
        self._changed.set()

    def clear(self, taken: Taken) -> None:
        """End the micro-batch: remove the files of which nothing is kept."""
        kept = {(offer.link, offer.number) for offer in self._kept}
        self._remove(offer for offer in (*taken.kept, *taken.new) if (offer.link, offer.number) not in kept)
        numbers = {offer.spool for offer in taken.kept} | ({taken.number} if taken.number is not None else set())
        for number in numbers - {offer.spool for offer in self._kept}:
            self._spool.path(number).unlink(missing_ok=True)

    def _remove(self, offers: Iterable[Offer]) -> None:
        for offer in offers:
            if offer.is_page:
                self._spool.page(offer.link, offer.number).unlink(missing_ok=True)
