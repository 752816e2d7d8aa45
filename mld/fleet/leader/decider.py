"""`LeaderDecider`: what every way of electing a leader offers to those who ask who leads.

An answer never raises for an unreachable table: "not known" is False.
"""

from __future__ import annotations


class LeaderDecider:
    """Who leads: here, nobody. Never sleeps, never raises for an unreachable table: "not known" is False."""

    @property
    def leads(self) -> bool:
        """What was announced last, without asking anybody."""
        return False

    @property
    def leader(self) -> str | None:
        """Which other worker held the lock at the last look; None if that is not known, as in the modes of 2.x."""
        return None

    @property
    def holds_lock(self) -> bool:
        """Whether the lock is held at this moment, as far as this process can know. Asks nobody."""
        return False

    async def is_leader(self) -> bool:
        """Return whether this worker may act as leader now; may read and write the lock row."""
        return False

    async def step_down(self, hold_off_s: float) -> None:
        """Give leadership up and do not ask for it again for `hold_off_s`."""

    async def close(self) -> None:
        """Give leadership up for good; `is_leader` is False from now on."""

    def ended(self, worker: str, until: float) -> None:
        """Have the lock claimed of a worker that is known to have ended, and none of whose name runs before `until`."""

    def abandon(self) -> None:
        """End without a request: the row stays until it expires, as after a crash."""
