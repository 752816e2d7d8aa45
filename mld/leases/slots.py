"""`Slots`: limits how many requests for leases wait for their answers at the same time, and adapts the limit to the
table.

Answers are late either because the network path is long or because the table is busy. On a long path, more concurrent
requests bring more answers. A busy table (a server on a busy machine, or a proxy; DynamoDB itself would throttle)
answers each request later if there are more, until every lease is renewed too late. To find out which of the two is the
case, the limit is changed. While answers are late and requests wait for a slot, the limit is doubled; if requests then
take longer, it is halved again. After a doubling that did not help, half the limit is tried before double the limit,
because the table may have become quicker just when the limit was raised.

If no request has been answered for some time, a waiting request gives its slot to the next one: the connections of the
waiting requests may be dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median_high

ROOM_MAX = 96
"""The highest limit, unless `size` is higher: each request needs a connection of its own."""
LONGER = 1.25
"""If requests take more than this many times as long with twice the limit, the table is busy."""
SILENT = 3
"""If no request was answered for this long, a request gives its slot to the next one; in multiples of `late_s`."""
REST = 20
"""How long the limit is not raised after the table was found busy for the first time, in multiples of `late_s`. Each
further time this rest is twice as long."""
RESTS_MAX = 16
"""The longest rest, in multiples of the first rest."""


class Slots:
    """Slots for `size` concurrent requests, or for more as long as that helps. An answer that takes longer than
    `late_s` is late.

    Whether to change the limit (`room`) is decided once a round. A round ends when as many requests that began in it
    are answered as there are slots.
    """

    def __init__(self, size: int, late_s: float) -> None:
        self.room = size
        self._size = size
        self._room_max = max(size, ROOM_MAX)
        self._late_s = late_s
        self._free = asyncio.Semaphore(size)
        self.took_s = 0.0
        """How long requests took in the last round: the (high) median."""
        self._to_be_taken_back = 0
        """How many of the slots in use are removed when their requests end, because the limit was lowered."""
        self.answered_at = 0.0
        """When a request was last answered."""
        self._round_at = 0.0
        """When the present round began. Only requests that began after that count."""
        self._took_s: list[float] = []
        """How long the requests of the present round took."""
        self._was_short = False
        """Whether all slots were in use when the present round began."""
        self._tried: tuple[int, float] | None = None
        """While a new limit is being tried: the limit of the previous round, and how long requests took in that
        round."""
        self._rests = 1
        """How long the next rest lasts, in multiples of the first rest."""
        self._rests_until = 0.0
        """When the limit may be raised again after the table was found busy; 0 if it was not found busy, or if the path
        is long."""

    def locked(self) -> bool:
        """Return whether the next request would have to wait."""
        return self._free.locked()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Hold a slot while the body waits for its answer. If no request at all is answered for `SILENT`, the slot goes
        to the next request even before the body ends.
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
        """Free a slot, or remove it if the limit was lowered."""
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
            # After a doubling that did not help, the table may just have become quicker: try half the limit first.
            is_doubtful = self._rests_until and self.room > self._size
            room = max(self._size, self.room // 2) if is_doubtful else min(self._room_max, self.room * 2)
            if room != self.room:
                self._tried = self.room, took_s
                self._resize(room)
        self._round_at, self._was_short = now, self.locked()
        self._took_s.clear()

    def _resize(self, room: int) -> None:
        """Change the limit to `room`. Slots in use are removed only when their requests end."""
        self._to_be_taken_back += max(0, self.room - room)
        for _ in range(room - self.room):
            self.leave()
        self.room = room


def _is_busy(room_before: int, took_before_s: float, room: int, took_s: float) -> bool:
    """Return whether the table is busy: with more concurrent requests each took longer, or with fewer each took less
    time.
    """
    return took_s > LONGER * took_before_s if room > room_before else took_before_s > LONGER * took_s


class _Slot:
    """The slot of one request, until the request ends or gives the slot away."""

    def __init__(self, slots: Slots, silent_s_max: float) -> None:
        self._slots: Slots | None = slots
        self._silent_s_max = silent_s_max
        self._loop = asyncio.get_running_loop()
        self.begun_at = self._loop.time()
        self._timer = self._loop.call_later(silent_s_max, self._check_silence)

    def _check_silence(self) -> None:
        """Give the slot away if no request was answered for some time; otherwise check again later."""
        assert self._slots is not None
        silent_until = self._slots.answered_at + self._silent_s_max
        if self._loop.time() >= silent_until:
            self.leave()
        else:
            self._timer = self._loop.call_at(silent_until, self._check_silence)

    def leave(self) -> None:
        self._timer.cancel()
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.leave()
