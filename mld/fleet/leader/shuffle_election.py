"""`ShuffleElection`: elects the leader of a 2.x fleet by the shuffle of `java_shuffle`. Rule:
coordination#shuffled-leader.

This leadership is no lock: if two workers have read different lease owners, both may lead for a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import KW_ONLY, dataclass

from mld.core.clock import Clock
from mld.core.error_boundary import survived
from mld.fleet.leader.decider import LeaderDecider
from mld.fleet.leader.java_shuffle import leaders, leads

log = logging.getLogger(__name__)

FIRST_REELECTION_S = 60.0  # Java's
REELECTION_S = 300.0  # Java's
NO_OWNERS_RECHECK_S = 1.0
"""Time between elections while no lease has an owner. Every worker leads then, and Java makes an election each time it
checks whether it leads."""
LONG_AGO = float("-inf")


@dataclass(eq=False)
class ShuffleElection(LeaderDecider):
    """Leads while the shuffle of all lease owners elects this worker. `owners` reads them from the table.

    No timer is needed: `is_leader` makes a new election if the last one is too old. There is one election at a time.
    """

    owners: Callable[[], Awaitable[Iterable[str]]]
    clock: Clock
    _: KW_ONLY
    worker_id: str
    on_change: Callable[[bool], None] = lambda _: None

    def __post_init__(self) -> None:
        self._elections = asyncio.Lock()  # held during an election, so that there is one at a time
        self._elected: frozenset[str] | None = None
        """The workers that the last election chose as leaders; None before the first election."""
        self._next_at = LONG_AGO
        """From this time on the last election is too old."""
        self._resting_until = LONG_AGO
        """Until this time the worker does not lead, because it has stepped down."""
        self._leads = False  # as last announced
        self._closed = False

    @property
    def leads(self) -> bool:
        """Whether this worker leads, as last announced; sends no request."""
        return self._leads

    async def is_leader(self) -> bool:
        """Return whether this worker may act as leader now; hold an election first if the last one is too old. Before
        the first successful election the answer is False.
        """
        if self._may_lead():
            async with self._elections:
                if self.clock.monotonic() >= self._next_at and self._may_lead():
                    await self._elect()
        self._announce(self._may_lead() and self._elected is not None and leads(self.worker_id, self._elected))
        return self._leads

    async def step_down(self, hold_off_s: float) -> None:
        """Do not lead for `hold_off_s`. For the other workers this one stays elected, so nobody leads meanwhile."""
        self._resting_until = max(self._resting_until, self.clock.monotonic() + hold_off_s)
        self._announce(False)

    async def close(self) -> None:
        """Give up leadership for good; `is_leader` is False from now on."""
        self._closed = True
        self._announce(False)

    def _may_lead(self) -> bool:
        """Return whether this worker may lead at all: the election is not closed, and this worker has not stepped down
        for now.
        """
        return not self._closed and self.clock.monotonic() >= self._resting_until

    async def _elect(self) -> None:
        """Make a new election. If that fails, the workers that were elected last stay leaders. The next one is due
        after REELECTION_S; if nobody was elected before this one, after FIRST_REELECTION_S; if nobody is elected now,
        after NO_OWNERS_RECHECK_S.
        """
        is_first = not self._elected
        try:
            self._elected = leaders(await self.owners())
        except Exception as error:
            failure = survived(error, "electing leaders")
            log.warning("no election of leaders: %s", failure, extra={"action": "election_failed"})
        later_s = FIRST_REELECTION_S if is_first else REELECTION_S
        self._next_at = self.clock.monotonic() + (later_s if self._elected else NO_OWNERS_RECHECK_S)

    def _announce(self, leads: bool) -> None:
        """Note whether this worker leads; log and report each change."""
        if leads is self._leads:
            return
        self._leads = leads
        if leads:
            log.info("%s leads now", self.worker_id, extra={"action": "leader_won"})
        else:
            log.info("%s does not lead any more", self.worker_id, extra={"action": "leader_lost"})
        self.on_change(leads)
