"""`AdaptiveElection`: changes between the ways of electing a leader, as the mode of the fleet does.

`ShuffleElection`: who leads a 2.x fleet (coordination#shuffled-leader); whom a shuffle elects, `shuffle` decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import KW_ONLY, dataclass

from mld.core.clock import Clock
from mld.core.error_boundary import survived
from mld.fleet.leader import shuffle
from mld.fleet.leader.lock_election import LockElection
from mld.fleet.values import LeaderDecider
from mld.metrics.registry import Metrics

log = logging.getLogger(__name__)

FIRST_REELECTION_S = 60.0  # Java's
REELECTION_S = 300.0  # Java's
NO_OWNERS_RECHECK_S = 1.0  # while nobody owns leases everybody leads, and Java elects at every question
LONG_AGO = float("-inf")


@dataclass(eq=False)
class ShuffleElection:
    """Leads while the shuffle of all lease owners says so. `owners` reads them from the table.

    Elections happen when somebody asks and the last one is too old, one at a time: there is no timer to leak.
    """

    owners: Callable[[], Awaitable[Iterable[str]]]
    clock: Clock
    _: KW_ONLY
    worker_id: str
    on_change: Callable[[bool], None] = lambda _: None

    def __post_init__(self) -> None:
        self._elections = asyncio.Lock()
        self._elected: frozenset[str] | None = None
        self._next_at = LONG_AGO
        self._resting_until = LONG_AGO
        self._leads = False
        self._closed = False

    @property
    def leads(self) -> bool:
        """See `LeaderDecider`."""
        return self._leads

    async def is_leader(self) -> bool:
        """See `LeaderDecider`. Before the first successful election the answer is False."""
        if self._may_lead():
            async with self._elections:
                if self.clock.monotonic() >= self._next_at and self._may_lead():
                    await self._elect()
        self._announce(self._may_lead() and self._elected is not None and shuffle.leads(self.worker_id, self._elected))
        return self._leads

    async def step_down(self, hold_off_s: float) -> None:
        """See `LeaderDecider`. The others elect the same worker all the same: meanwhile nobody leads."""
        self._resting_until = max(self._resting_until, self.clock.monotonic() + hold_off_s)
        self._announce(False)

    async def close(self) -> None:
        """See `LeaderDecider`."""
        self._closed = True
        self._announce(False)

    def _may_lead(self) -> bool:
        return not self._closed and self.clock.monotonic() >= self._resting_until

    async def _elect(self) -> None:
        """Elect anew; the old leaders stay if that fails."""
        is_first = not self._elected
        try:
            self._elected = shuffle.leaders(await self.owners())
        except Exception as error:
            failure = survived(error, "electing leaders")
            log.warning("no election of leaders: %s", failure, extra={"action": "election_failed"})
        later_s = FIRST_REELECTION_S if is_first else REELECTION_S
        self._next_at = self.clock.monotonic() + (later_s if self._elected else NO_OWNERS_RECHECK_S)

    def _announce(self, leads: bool) -> None:
        if leads is self._leads:
            return
        self._leads = leads
        if leads:
            log.info("%s leads now", self.worker_id, extra={"action": "leader_won"})
        else:
            log.info("%s does not lead any more", self.worker_id, extra={"action": "leader_lost"})
        self.on_change(leads)


class AdaptiveElection:
    """One election after the other. Nobody leads before the first and during a switch; an answer of the election before
    does not count. `is_adaptive`: the settings are those of a fleet that comes from 2.x."""

    def __init__(self, metrics: Metrics | None = None, *, is_adaptive: bool = False) -> None:
        self._worker = (Metrics() if metrics is None else metrics).worker
        self._is_adaptive = is_adaptive
        self._current: LeaderDecider | None = None
        self._switches = asyncio.Lock()
        self._is_switching = False
        self._closed = False

    async def switch(self, to: LeaderDecider) -> None:
        """Close the current election, which releases what it holds, and go on with `to`."""
        async with self._switches:
            if self._closed:
                await to.close()
                return
            self._is_switching = True
            try:
                if self._current is not None:
                    await self._current.close()
            finally:
                self._current = to
                self._is_switching = False

    @property
    def leads(self) -> bool:
        """See `LeaderDecider`."""
        return self._current is not None and self._current.leads

    @property
    def leader(self) -> str | None:
        """See `LockElection.leader`; None in the modes of 2.x."""
        return self._current.leader if isinstance(self._current, LockElection) else None

    @property
    def holds_lock(self) -> bool:
        """See `LockElection.holds_lock`; False in the modes of 2.x."""
        return isinstance(self._current, LockElection) and self._current.holds_lock

    async def is_leader(self) -> bool:
        """See `LeaderDecider`."""
        leads = await self._leads_now()
        self._note(leads)
        return leads

    async def _leads_now(self) -> bool:
        asked = self._current
        if asked is None or self._is_switching or self._closed or not await asked.is_leader():
            return False
        return asked is self._current and not self._is_switching and not self._closed

    def _note(self, leads: bool) -> None:
        """Count who leads; only workers that may have to change their way of electing tell which one it is, as in
        KCL.
        """
        counts = self._worker.operations.leadership
        counts.is_leader.note(leads)
        if self._is_adaptive and self._current is not None:
            by_lock = isinstance(self._current, LockElection)
            (counts.by_lock if by_lock else counts.by_shuffle).note(1)

    async def step_down(self, hold_off_s: float) -> None:
        """See `LeaderDecider`. The hold-off ends with a switch."""
        if self._current is not None:
            await self._current.step_down(hold_off_s)

    def ended(self, worker: str, until: float) -> None:
        """See `LockElection.ended`."""
        if isinstance(self._current, LockElection):
            self._current.ended(worker, until)

    def abandon(self) -> None:
        """See `LockElection.abandon`."""
        self._closed = True
        if isinstance(self._current, LockElection):
            self._current.abandon()

    async def close(self) -> None:
        """See `LeaderDecider`."""
        self._closed = True
        async with self._switches:
            if self._current is not None:
                await self._current.close()
