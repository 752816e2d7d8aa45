"""`Slot`: how many requests for leases are begun at a time. One that is late makes room for others."""

from __future__ import annotations

import asyncio

SLOT_S = 1.0
"""A request that takes longer gives its slot away: it costs nobody anything while it waits."""


class Slot:
    """Room for one request of `slots`, until it is answered or late."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots: asyncio.Semaphore | None = slots

    async def __aenter__(self) -> None:
        assert self._slots is not None, "a slot is used once"
        await self._slots.acquire()
        self._late = asyncio.get_running_loop().call_later(SLOT_S, self._free)

    async def __aexit__(self, *_: object) -> None:
        self._late.cancel()
        self._free()

    def _free(self) -> None:
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.release()
