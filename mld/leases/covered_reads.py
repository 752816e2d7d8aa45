"""`CoveredReads`: looks at the rows that a heartbeat covers, because nobody writes them. The keeper's collaborator.

Rules: leases#covered-leases, leases#slow-answers. Why they have to be read in time: `validity`, number 4 of its list.
Looks overlap while they wait for their answers, as renewals do.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mld.core.error_boundary import BackgroundTasks, survived
from mld.core.periods import CONFIRM_SHARE
from mld.leases import writes
from mld.leases.lease import Lease
from mld.leases.own_writes import OPEN_MAX, OwnWrites
from mld.leases.slots import Slots
from mld.leases.table import Refusal
from mld.leases.validity import CHAIN_SHARE, Holding, again_at, chain_end, counts_from, retry_delay_s

if TYPE_CHECKING:
    from mld.leases.keeper import LeaseKeeper

log = logging.getLogger(__name__)

READS_PER_BATCH = 100  # what one request can read


@dataclass(eq=False)
class CoveredReads:
    """`holdings`, `rows` and `slots` are the keeper's own."""

    keeper: LeaseKeeper
    holdings: Mapping[str, Holding]
    rows: OwnWrites
    slots: Slots

    def __post_init__(self) -> None:
        self._reading = BackgroundTasks()
        self._reads: list[float] = []
        """When the reads were sent that wait for their answers."""

    async def look(self, keys: Collection[str]) -> None:
        """Read these rows once."""
        await asyncio.gather(*(self._read(batch) for batch in _batches(list(keys))))

    def abandon(self) -> None:
        """End what is under way."""
        self._reading.cancel()

    async def run(self) -> None:
        """Read the covered rows again and again, except those that something else has confirmed lately; sooner while
        the last looks wait for their answers.
        """
        pause_s = CONFIRM_SHARE * self.keeper.validity.lease_duration_s
        while True:
            await self.keeper.validity.has_heartbeat.wait()
            looked_at = self.keeper.clock.monotonic()
            while (wait_s := self._look_again_at(looked_at, pause_s) - self.keeper.clock.monotonic()) > 0:
                await self.keeper.clock.sleep(wait_s)
            before = self.keeper.clock.monotonic() - pause_s / 2
            keys = [key for key, h in self.holdings.items() if h.covered.is_certain and h.confirmed_at < before]
            for batch in _batches(keys) if len(self._reads) < OPEN_MAX else ():
                self._reading.spawn(self._read_in_time(batch))

    def _look_again_at(self, looked_at: float, pause_s: float) -> float:
        duration_s, until = self.keeper.validity.lease_duration_s, self.keeper.validity.until
        if not self._reads:
            return looked_at + pause_s
        first = min((until(h) for h in self.holdings.values() if h.covered.is_certain), default=math.inf)
        return min(looked_at + pause_s, again_at(looked_at, first, duration_s))

    async def _read_in_time(self, keys: Sequence[str]) -> None:
        """Read these rows, again and again until it works or the leases have expired."""
        attempt = 0
        while not await self._read(keys):
            attempt += 1
            ends = [self.keeper.validity.until(h) for key in keys if (h := self.holdings.get(key)) is not None]
            delay_s = retry_delay_s(attempt, min(ends, default=0.0) - self.keeper.clock.monotonic(), self.keeper.rng)
            if delay_s is None:
                return
            await self.keeper.clock.sleep(delay_s)

    async def _read(self, keys: Sequence[str]) -> bool:
        """Look at these rows once; False if that failed."""
        looked_at = {
            key: (h, h.lease)
            for key in keys
            if (h := self.holdings.get(key)) is not None and h.covered.is_certain and not self.rows.is_pending(key)
        }
        if not looked_at:
            return True
        sent_at = self.keeper.clock.monotonic()
        self._reads.append(sent_at)
        try:
            async with self.slots.one():
                found = await self.keeper.table.get_many(list(looked_at))
        except Exception as error:
            failure = survived(error, "confirming leases")
            log.warning("cannot look at %d leases: %s", len(looked_at), failure, extra={"action": "confirm_failed"})
            return False
        finally:
            self._reads.remove(sent_at)
        now, duration_s = self.keeper.clock.monotonic(), self.keeper.settings.duration_s
        confirmed_at = counts_from(sent_at, now, chain_end(sent_at, self._reads, CHAIN_SHARE * duration_s), duration_s)
        for key, (holding, before) in looked_at.items():
            untouched = _is_same(holding.lease, before) and not self.rows.is_pending(key) and not holding.leaving
            if not (untouched and self.keeper.is_current(holding)):
                continue
            answer = writes.judge_read(before, found.get(key))
            if isinstance(answer, Refusal):
                self.keeper.lose(holding, answer)
                continue
            holding.lease = answer
            self.keeper.validity.confirm(holding, answer, confirmed_at)
            self.keeper.note_news(holding, before, answer)
        return True


def _is_same(lease: Lease, before: Lease) -> bool:
    """Return whether nothing was heard of the row in between that an answer under way may not show."""
    seen = (before.counter, before.owner, before.checkpoint_owner)
    return seen == (lease.counter, lease.owner, lease.checkpoint_owner)


def _batches(keys: Sequence[str]) -> list[Sequence[str]]:
    return [keys[start : start + READS_PER_BATCH] for start in range(0, len(keys), READS_PER_BATCH)]
