"""Checker 16: a table that answers late, and always as late, costs time and nothing else.

Up to 0.8 of the lease duration no lease expires and nothing is delivered again, from the jump on. A theft among
workers of 2.x is left out for two lease durations: whoever lost the lease learns of it by a late answer.
However late it answers something new is delivered in each ten lease durations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checkers import Violation

if TYPE_CHECKING:
    from tests.simulation.world.slowness import Slowness
    from tests.simulation.world.world import World

KEPT_UP_TO = 0.8
PROGRESS = 10.0
"""All of the lease duration."""
NETWORK_S = 0.1
"""What the network adds to a round trip."""


class Steadiness:
    """Asked once a second, from the jump to the calm."""

    def __init__(self, world: World, slow: Slowness) -> None:
        self._world = world
        self._since, _ = slow.points[-1]
        self._duration_s = world.plan.failover_s
        self._is_kept = slow.most_s + NETWORK_S <= KEPT_UP_TO * self._duration_s
        self._before: tuple[int, int] | None = None

    def check(self) -> None:
        """Raises Violation."""
        world, ledger = self._world, self._world.ledger
        if world.is_calm() or world.now() < self._since:
            return
        if (silent_s := world.now() - max(self._since, ledger.news_at)) > PROGRESS * self._duration_s:
            raise Violation(f"checker 16 at {world.now():.2f} s: nothing new is delivered for {silent_s:.0f} s")
        if not self._is_kept:
            return
        counts = (ledger.expiries, ledger.repeats)
        self._before = self._before or counts
        if counts != self._before:
            more = [now - before for now, before in zip(counts, self._before, strict=True)]
            text = f"{more[0]} leases expired and {more[1]} records came again, though answers are in time"
            raise Violation(f"checker 16 at {world.now():.2f} s: {text}")
