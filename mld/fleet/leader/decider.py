"""`LeaderDecider`: the interface of every election. Other parts ask it whether this worker leads."""

from __future__ import annotations


class LeaderDecider:
    """The interface of an election. This class itself is an election in which nobody leads.

    No method raises because a table cannot be reached: if the answer is not known, it is False.
    """

    @property
    def leads(self) -> bool:
        """Whether this worker leads, as last announced; sends no request."""
        return False

    @property
    def leader(self) -> str | None:
        """The other worker that held the lock when it was last read; None if unknown, as in the modes of 2.x."""
        return None

    @property
    def holds_lock(self) -> bool:
        """Whether this worker holds the lock now, as far as it can know; sends no request."""
        return False

    async def is_leader(self) -> bool:
        """Return whether this worker may act as leader now. This may read and write the lock row."""
        return False

    async def step_down(self, hold_off_s: float) -> None:
        """Give up leadership, and do not try to win it again for `hold_off_s`."""

    async def close(self) -> None:
        """Give up leadership for good; `is_leader` is False from now on."""

    def ended(self, worker: str, until: float) -> None:
        """Note that the process of `worker` has ended, and that none is started under its id before `until`
        (monotonic), so that its lock may be claimed at once.
        """

    def abandon(self) -> None:
        """End without a request: the lock row stays until it expires, as after a crash."""
