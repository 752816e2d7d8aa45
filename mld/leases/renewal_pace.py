"""How often leases are renewed, and a warning if the table is too slow for them (leases#renewal-rhythm)."""

from __future__ import annotations

import logging
import math

log = logging.getLogger(__name__)

SLOW_S = 300.0
"""How long leases are renewed at every other tick after the last tick at which renewals of the one before waited."""
FRESH_SHARE = 1.5
"""Of the renewal interval: what was confirmed since is passed over meanwhile. A third of the lease is left then."""


class RenewalPace:
    """Whether leases are renewed at every tick, or at every other one."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._slow_until = -math.inf

    def fresh_since(self, now: float, leases: int, *, is_late: bool) -> float:
        """Since when a lease must have been confirmed to be passed over at this tick.

        `is_late`: renewals of the tick before have not been sent. The first time that is a warning.
        """
        if is_late and now >= self._slow_until:
            log.warning(
                "the lease table is too slow to renew %d leases every %.1f s; they are renewed half as often now. "
                "Give the table more capacity, or set mld.heartbeat=worker: one write for the whole worker",
                leases,
                self._interval_s,
                extra={"action": "renewals_slow", "leases": leases},
            )
        if is_late:
            self._slow_until = now + SLOW_S
        return now - FRESH_SHARE * self._interval_s if now < self._slow_until else now
