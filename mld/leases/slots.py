"""`Slots`: limits how many requests for leases wait for their answers at the same time, and adapts that limit.

Answers are late either because the network path is long or because the table is busy. On a long path, more requests at
a time bring more answers. A busy table (a server on a busy machine, a proxy; DynamoDB itself would throttle) answers
each of them later, until every lease is renewed too late. To find out which of the two it is, the limit is changed:
while answers are late and requests wait for a slot, the limit is doubled, and halved again if requests then take
longer. Once a doubling has turned out wrong, half the limit is tried before double, because the table may have become
quicker just when the limit was raised.

If no request has been answered for some time, a waiting request gives its slot to the next one: the connections of the
waiting requests may be dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median_high

ROOM_MAX = 96
"""The highest limit (or `size`, if that is higher): each request needs a connection of its own."""
LONGER = 1.25
"""If requests take this many times as long with twice the limit, the table is busy."""
SILENT = 3
"""In multiples of `late_s`: if nothing was answered for this long, a request gives its slot away."""
REST = 20
"""In multiples of `late_s`: how long the limit is not raised after the table was first found busy. Each further time
the rest is twice as long."""
RESTS_MAX = 16
"""The longest rest, in multiples of the first."""


class Slots:
    """Slots for `size` requests, and for more while more help. An answer that takes longer than `late_s` is late.

    The limit (`room`) is judged once a round. A round ends when as many of its requests are answered as there are
    slots.
    """

    def __init__(self, size: int, late_s: float) -> None:
        self.room = size
        self._size = size
        self._room_max = max(size, ROOM_MAX)
        self._late_s = late_s
        self._free = asyncio.Semaphore(size)
        self.took_s = 0.0
        """The (high) median of how long requests took in the last round."""
        self._to_be_taken_back = 0
        """How many slots in use disappear when their requests leave them, because the limit was lowered."""
        self.answered_at = 0.0
        """When a request was last answered."""
        self._round_at = 0.0
        self._took_s: list[float] = []
        self._was_short = False
        self._tried: tuple[int, float] | None = None
        """If a new limit is being tried: the limit of the round before, and how long requests took then."""
        self._rests = 1
        self._rests_until = 0.0
        """When the limit may be raised again after the table was found busy; 0 if it was not, or the path is long."""

    def locked(self) -> bool:
        """Return whether the next request would have to wait."""
        return self._free.locked()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Hold a slot while the body waits for its answer. If nothing is answered for `SILENT`, the next request gets
        the slot before that.
        """
        self._was_short = self._was_short or self.locked()
        await self._free.acquire()
        slot = _Slot(self, SILENT * self._late_s)
        try:
            yield
        finally:
            slot.leave()
            self._judge(slot.begun_at)

    def leave(self) -> None:
        if self._to_be_taken_back:
            self._to_be_taken_back -= 1
        else:
            self._free.release()

    def _judge(self, begun_at: float) -> None:
        """Note that a request was answered; at the end of a round, raise or lower the limit."""
        now = asyncio.get_running_loop().time()
        self.answered_at = now
        if begun_at < self._round_at:
            return
        self._took_s.append(now - begun_at)
        if len(self._took_s) < self.room:
            return
        tried, self._tried = self._tried, None
        self.took_s = took_s = median_high(self._took_s)
        if tried is not None and _is_busy(*tried, self.room, took_s):
            self._rests_until = now + self._rests * REST * self._late_s
            self._rests = min(2 * self._rests, RESTS_MAX)
            self._resize(min(tried[0], self.room))
        elif tried is not None and self.room < tried[0]:
            self._rests, self._rests_until = 1, 0.0
            self._resize(tried[0])
        elif took_s <= self._late_s:
            self._resize(max(self._size, self.room // 2))
        elif self._was_short and now >= self._rests_until:
            is_doubtful = self._rests_until and self.room > self._size
            room = max(self._size, self.room // 2) if is_doubtful else min(self._room_max, self.room * 2)
            if room != self.room:
                self._tried = self.room, took_s
                self._resize(room)
        self._round_at, self._was_short = now, self.locked()
        self._took_s.clear()

    def _resize(self, room: int) -> None:
        self._to_be_taken_back += max(0, self.room - room)
        for _ in range(room - self.room):
            self.leave()
        self.room = room


def _is_busy(room_before: int, took_before_s: float, room: int, took_s: float) -> bool:
    """Return whether the table is busy: more requests at a time took longer, or fewer took less time."""
    return took_s > LONGER * took_before_s if room > room_before else took_before_s > LONGER * took_s


class _Slot:
    """The slot of one request, until the request leaves it or it is given away."""

    def __init__(self, slots: Slots, silent_s_max: float) -> None:
        self._slots: Slots | None = slots
        self._silent_s_max = silent_s_max
        self._loop = asyncio.get_running_loop()
        self.begun_at = self._loop.time()
        self._look = self._loop.call_later(silent_s_max, self._mind_silence)

    def _mind_silence(self) -> None:
        assert self._slots is not None
        silent_until = self._slots.answered_at + self._silent_s_max
        if self._loop.time() >= silent_until:
            self.leave()
        else:
            self._look = self._loop.call_at(silent_until, self._mind_silence)

    def leave(self) -> None:
        self._look.cancel()
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.leave()
