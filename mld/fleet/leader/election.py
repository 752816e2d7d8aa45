"""`AdaptiveElection`: changes between the ways of electing a leader, as the mode of the fleet does."""

from __future__ import annotations

import asyncio

from mld.fleet.leader.lock_election import LockElection
from mld.fleet.values import LeaderDecider
from mld.metrics.registry import Metrics


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
        """Only workers that may have to change their way of electing tell which one it is, as in KCL."""
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
