"""`Slots`: limits how many requests for leases wait for their answers at the same time, and adapts the limit to the
table.

Answers are late either because the network path is long or because the table is busy. If the path is long, more
concurrent requests get more answers in the same time. If the table is busy (a server on a busy machine, or a proxy;
DynamoDB itself would throttle), it answers each request later when there are more, until every lease is renewed too
late. To find out which of the two it is, the limit is changed on trial. While answers are late and requests wait for a
slot, the limit is doubled; if requests then take longer, it is halved again. After such a trial in vain, half the limit
is tried first, and not double the limit: the table may have become quicker just when the limit was raised.

If no request at all has been answered for some time, each request that waits for an answer gives its slot to the next
request, because its connection may be dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median_high

ROOM_MAX = 96
"""The limit is never raised above this, because each request needs a connection of its own. It may be higher from the
beginning (`size`)."""
LONGER = 1.25
"""If requests take more than this many times as long with twice the limit, the table is busy."""
SILENT = 3
"""After this time in which no request was answered, requests give their slots away. In multiples of `late_s`."""
REST = 20
"""After the table was found busy, the limit is not raised for this time (a *rest*), in multiples of `late_s`. Each
further rest is twice as long as the one before."""
RESTS_MAX = 16
"""The longest rest, in multiples of the first rest."""


class Slots:
    """Slots for `size` concurrent requests, or for more as long as that helps. An answer that takes longer than
    `late_s` is late.

    Time is divided into rounds. With n slots, a round ends when n of the requests that began in it are answered. At its
    end it is decided whether to change the limit (`room`).
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
        """How many of the slots in use are to be removed when their requests end, because the limit was lowered."""
        self.answered_at = 0.0
        """When a request was last answered."""
        self._round_at = 0.0
        """When the present round began. Only requests that began after that count."""
        self._took_s: list[float] = []
        """How long the requests of the present round took."""
        self._was_short = False
        """Whether all slots were in use when the present round began, or when one of its requests came."""
        self._tried: tuple[int, float] | None = None
        """While a new limit is on trial: the limit of the previous round, and how long requests took in that round.
        None if no trial is under way."""
        self._rests = 1
        """How long the next rest lasts, in multiples of the first rest."""
        self._rests_until = 0.0
        """The time at which the present rest ends. 0 if the table was never found busy, or if the path has turned out
        to be long since."""

    def locked(self) -> bool:
        """Return whether the next request would have to wait."""
        return self._free.locked()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Hold a slot while the body of the `async with` waits for its answer. If no request at all is answered for
        `SILENT` times `late_s`, the slot goes to the next request even before the body ends.
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
        """Free a slot; or if the limit was lowered and a slot is still to be removed, remove this one."""
        if self._to_be_taken_back:
            self._to_be_taken_back -= 1
        else:
            self._free.release()

    def _judge(self, begun_at: float) -> None:
        """Note that the request that began at `begun_at` has ended. At the end of a round, change the limit if
        necessary:

        * A trial has shown that the table is busy: take the lower of the two limits, and begin a rest.
        * A trial of half the limit has shown that the table is not busy: take the full limit again.
        * Answers are not late: lower the limit towards `size`.
        * Answers are late, requests had to wait for slots, and there is no rest: try another limit.
        """
        now = asyncio.get_running_loop().time()
        self.answered_at = now
        if begun_at < self._round_at:
            return
        self._took_s.append(now - begun_at)
        if len(self._took_s) < self.room:
            return
        tried, self._tried = self._tried, None  # the limit before the trial that ends now, and how long requests took
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
            # The table was found busy before. It may have become quicker just then, so try half the limit first.
            is_doubtful = self._rests_until and self.room > self._size
            room = max(self._size, self.room // 2) if is_doubtful else min(self._room_max, self.room * 2)
            if room != self.room:
                self._tried = self.room, took_s
                self._resize(room)
        self._round_at, self._was_short = now, self.locked()
        self._took_s.clear()

    def _resize(self, room: int) -> None:
        """Change the limit to `room`. If it is lower, slots in use are removed when their requests end."""
        self._to_be_taken_back += max(0, self.room - room)
        for _ in range(room - self.room):
            self.leave()
        self.room = room


def _is_busy(room_before: int, took_before_s: float, room: int, took_s: float) -> bool:
    """Return whether two rounds with different limits (`room_before` and `room`) show that the table is busy: with the
    higher limit, each request took much longer.
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
        """Give the slot back, unless that was done already."""
        self._timer.cancel()
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.leave()
