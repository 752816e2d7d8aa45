"""`AdaptiveElection`: elects the leader by the rule of the fleet's mode: in 3.x by a lock in a table (`lock_election`),
in 2.x by Java's shuffle of the lease owners (`shuffle_election`).
"""

from __future__ import annotations

import asyncio

from mld.fleet.leader.decider import LeaderDecider
from mld.fleet.leader.lock_election import LockElection
from mld.metrics.registry import Metrics


class AdaptiveElection(LeaderDecider):
    """Asks one election, and can switch to another one.

    Before the first election is set, and during a switch, this worker does not lead. The answer of an election that was
    replaced meanwhile does not count. `is_adaptive`: the settings allow a fleet that comes from 2.x, so the election
    may change while the worker runs.
    """

    def __init__(self, metrics: Metrics | None = None, *, is_adaptive: bool = False) -> None:
        self._counts = (Metrics() if metrics is None else metrics).worker.operations.leadership
        self._is_adaptive = is_adaptive
        self._current = LeaderDecider()
        self._switches = asyncio.Lock()  # held while one election is replaced by another, or closed
        self._closed = False

    async def switch(self, to: LeaderDecider) -> None:
        """Close the current election, which releases its lock, and use `to` from now on."""
        async with self._switches:
            if self._closed:
                await to.close()
                return
            try:
                await self._current.close()
            finally:
                self._current = to

    @property
    def leads(self) -> bool:
        """Whether this worker leads by the current election, as last announced; sends no request."""
        return self._current.leads

    @property
    def leader(self) -> str | None:
        """The other worker that held the lock when the current election last read it; None if unknown, as in the modes
        of 2.x.
        """
        return self._current.leader

    @property
    def holds_lock(self) -> bool:
        """Whether this worker holds the lock now, as far as the current election can know; sends no request."""
        return self._current.holds_lock

    async def is_leader(self) -> bool:
        """Ask the current election whether this worker may act as leader now, and count the answer. May send requests.
        False while the election is replaced or closed.
        """
        leads = await self._leads_now()
        self._counts.is_leader.note(leads)
        if self._is_adaptive:  # only workers whose election may change publish which one is used
            by_lock = isinstance(self._current, LockElection)
            (self._counts.by_lock if by_lock else self._counts.by_shuffle).note(1)
        return leads

    async def _leads_now(self) -> bool:
        """Return whether the current election says that this worker leads. Its answer does not count if the election
        was replaced or closed meanwhile.
        """
        asked = self._current
        if self._is_ending() or not await asked.is_leader():
            return False
        return asked is self._current and not self._is_ending()

    def _is_ending(self) -> bool:
        """Return whether the current election is being closed."""
        return self._closed or self._switches.locked()

    async def step_down(self, hold_off_s: float) -> None:
        """Give up leadership in the current election for `hold_off_s`. After a switch to another election this worker
        may lead at once.
        """
        await self._current.step_down(hold_off_s)

    def ended(self, worker: str, until: float) -> None:
        """Have the current election note that the process of `worker` has ended, and that none is started under its id
        before `until` (monotonic), so that its lock may be claimed at once.
        """
        self._current.ended(worker, until)

    def abandon(self) -> None:
        """End the election without a request, for good: a lock stays until it expires, as after a crash."""
        self._closed = True
        self._current.abandon()

    async def close(self) -> None:
        """Give up leadership for good, after a switch that is under way; `is_leader` is False from now on."""
        self._closed = True
        async with self._switches:
            await self._current.close()
