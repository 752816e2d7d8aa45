"""What the keeper tells about its leases, as it happens: its share of the worker's metrics, and a warning if the table
is too slow for them (leases#renewal-rhythm)."""

from __future__ import annotations

import logging
import math

from mld.clock import Clock
from mld.metrics.java import RENEW_ALL
from mld.metrics.registry import LeaseMove, Metrics

log = logging.getLogger(__name__)

RENEWALS = "renewals"
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


class _Run:
    """The renewals between two ticks, which KCL counts as one."""

    def __init__(self, began_at: float) -> None:
        self.began_at = began_at
        self.answered_at = began_at
        self.ok = True


class LeaseCounters:
    """Verbs for the keeper, so that it says what happened and not which instrument that is."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._operation = metrics.worker.operation(RENEW_ALL)
        self._run: _Run | None = None
        self._lost = 0

    def ticked(self, held: int, period_s: float) -> None:
        """The renewals of all leases are started, and are started again after `period_s`."""
        now = self._clock.monotonic()
        self._metrics.progress.step(RENEWALS, now, period_s)
        if self._run is not None:
            self._operation.done(self._run.ok, self._run.answered_at - self._run.began_at)
        self._run = _Run(now)
        self._operation.note("CurrentLeases", held)
        self._operation.note("LostLeases", self._lost)
        self._lost = 0

    def renewed(self, key: str, ok: bool, sent_at: float) -> None:
        """A renewal that was begun at `sent_at` was answered, or failed."""
        now = self._clock.monotonic()
        self._operation.step("RenewLease", ok, now - sent_at)
        if self._run is not None:
            self._run.answered_at = now
            self._run.ok = self._run.ok and ok
        part = self._metrics.shards.get(key)
        if ok and part is not None:
            part.renewed_at = now

    def gained(self, how: LeaseMove) -> None:
        self._metrics.worker.lease_moves.add(how.value)

    def parted(self, how: LeaseMove, given: bool) -> bool:
        """A lease was given away, or left to expire if that failed; returns `given`."""
        if given:
            self._metrics.worker.lease_moves.add(how.value)
        return given

    def lost(self, how: LeaseMove) -> None:
        """A lease is gone that we wanted to keep: lost or expired."""
        self._metrics.worker.lease_moves.add(how.value)
        self._metrics.worker.leases_lost += 1
        self._lost += 1
