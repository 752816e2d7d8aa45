"""`Confirmer`: reads the rows of carried leases in time, because nothing is written to them. The keeper's collaborator.

Rules: `carried`, number 4 of its list. Which lease is held is the keeper's, and what a read is worth is `Validity`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from random import Random

from mld.core.clock import Clock
from mld.core.periods import CONFIRM_SHARE
from mld.core.surviving import survived
from mld.leases.holding import Holder, Holding
from mld.leases.lease import Lease
from mld.leases.retries import retry_delay_s
from mld.leases.table import LeaseTable, Refusal
from mld.leases.validity import Validity
from mld.leases.writes import judge_read

log = logging.getLogger(__name__)

READS_PER_BATCH = 100  # what one request can read


class Confirmer:
    """`holdings` is the keeper's own mapping; `slots` bounds its requests."""

    def __init__(
        self,
        table: LeaseTable,
        clock: Clock,
        rng: Random,
        holder: Holder,
        holdings: Mapping[str, Holding],
        validity: Validity,
        slots: asyncio.Semaphore,
    ) -> None:
        self._table = table
        self._clock = clock
        self._rng = rng
        self._holder = holder
        self._holdings = holdings
        self._validity = validity
        self._slots = slots

    async def confirm(self, keys: Collection[str]) -> None:
        """Read carried leases of ours to see that they still are. A read that fails is logged and changes nothing."""
        await asyncio.gather(*(self._read(batch) for batch in _batches(list(keys))))

    async def run(self) -> None:
        """Read the carried leases again and again, except those that something else has confirmed lately."""
        pause_s = CONFIRM_SHARE * self._validity.lease_duration_s
        while True:
            await self._validity.has_heartbeat.wait()
            await self._clock.sleep(pause_s)
            before = self._clock.monotonic() - pause_s / 2
            keys = [key for key, h in self._holdings.items() if h.carried.is_certain and h.confirmed_at < before]
            await asyncio.gather(*(self._read_in_time(batch) for batch in _batches(keys)))

    async def _read_in_time(self, keys: Sequence[str]) -> None:
        """Repeated until it works or the leases have expired."""
        attempt = 0
        while not await self._read(keys):
            attempt += 1
            ends = [self._validity.until(h) for key in keys if (h := self._holdings.get(key)) is not None]
            delay_s = retry_delay_s(attempt, min(ends, default=0.0) - self._clock.monotonic(), self._rng)
            if delay_s is None:
                return
            await self._clock.sleep(delay_s)

    async def _read(self, keys: Sequence[str]) -> bool:
        """One look at these rows; False if it failed."""
        looked_at = {
            key: (h, h.lease)
            for key in keys
            if (h := self._holdings.get(key)) is not None and h.carried.is_certain and h.unknown_since is None
        }
        if not looked_at:
            return True
        try:
            async with self._slots:
                sent_at = self._clock.monotonic()
                found = await self._table.get_many(list(looked_at))
        except Exception as error:
            failure = survived(error, "confirming leases")
            log.warning("cannot look at %d leases: %s", len(looked_at), failure, extra={"action": "confirm_failed"})
            return False
        for key, (holding, before) in looked_at.items():
            untouched = holding.lease is before and holding.unknown_since is None and not holding.leaving
            if untouched and self._holder.is_current(holding):
                self._judge(holding, found.get(key), sent_at)
        return True

    def _judge(self, holding: Holding, row: Lease | None, sent_at: float) -> None:
        answer = judge_read(holding.lease, row)
        if isinstance(answer, Refusal):
            self._holder.lose(holding, answer)
            return
        before, holding.lease = holding.lease, answer
        self._validity.confirm(holding, answer, sent_at)
        self._holder.note_news(holding, before, answer)


def _batches(keys: Sequence[str]) -> list[Sequence[str]]:
    return [keys[start : start + READS_PER_BATCH] for start in range(0, len(keys), READS_PER_BATCH)]
