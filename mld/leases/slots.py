"""`Slots`: how many requests for leases wait for their answers at a time.

Answers are late because the way is long, or because the table is busy. On a long way more requests bring more answers.
A busy table (a server on a busy machine, a proxy; DynamoDB itself throttles) answers each of them later, until every
lease is renewed too late. Which of the two it is shows when there is more room, or less: while answers are late and
somebody waits for a slot, room is doubled, and halved again if requests take longer then. Where it has been doubled and
that was wrong once, half of it is tried before more: the table may have become quicker just when there was more room.

A request gives its slot away when none was answered for some time: the connections that have them may lead nowhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median_high

ROOM_MAX = 96
"""Requests at a time, if `size` is not more: each needs a connection of its own."""
LONGER = 1.25
"""Requests that take so many times as long with twice the room show a table that is busy."""
SILENT = 3
"""No answer to anything for so many times what is late: a request gives its slot away."""
REST = 20
"""Nothing is tried for so many times what is late, after room was halved the first time; then twice as long each time.
"""
RESTS_MAX = 16
"""But no longer than so many times that."""


class Slots:
    """Room for `size` requests, and for more while that helps. An answer that takes longer than `late_s` is late."""

    def __init__(self, size: int, late_s: float) -> None:
        self.room = size
        self._size = size
        self._room_max = max(size, ROOM_MAX)
        self._late_s = late_s
        self._free = asyncio.Semaphore(size)
        self.took_s = 0.0
        """How long requests took in the last round, half of them at least."""
        self._to_be_taken_back = 0
        """Slots that are gone as soon as who has them leaves them."""
        self.answered_at = 0.0
        """When a request was answered last."""
        # Room is judged by the first requests of a round, as many as there is room for.
        self._round_at = 0.0
        self._took_s: list[float] = []
        self._was_short = False
        self._tried: tuple[int, float] | None = None
        """The room in the round before, and how long requests took then, if another is tried since."""
        self._rests = 1
        self._rests_until = 0.0
        """When something is tried again after the table was found busy; 0 if it was not, or the way is long."""

    def locked(self) -> bool:
        """Return whether the next request would have to wait."""
        return self._free.locked()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Have a slot while the body waits for its answer; it is somebody else's before if there is silence."""
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
        """Note that a request was answered; give more room or less at the end of a round."""
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
    """Return whether more requests at a time took longer, or fewer less long."""
    return took_s > LONGER * took_before_s if room > room_before else took_before_s > LONGER * took_s


class _Slot:
    """What one request has of `slots`, until it is left."""

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
