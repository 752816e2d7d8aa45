"""What the keeper tells about its leases, as it happens: its share of the worker's metrics."""

from __future__ import annotations

from mld.clock import Clock
from mld.metrics.java import RENEW_ALL
from mld.metrics.registry import Metrics

RENEWALS = "renewals"


class LeaseCounters:
    """Verbs for the keeper, so that it says what happened and not which instrument that is."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock

    def ticked(self, held: int, period_s: float) -> None:
        """The renewals of all leases are started, and are started again after `period_s`."""
        self._metrics.progress.step(RENEWALS, self._clock.monotonic(), period_s)
        self._metrics.worker.operation(RENEW_ALL).note("CurrentLeases", held)

    def renewed(self, key: str, ok: bool, sent_at: float) -> None:
        """A renewal that was begun at `sent_at` was answered, or failed."""
        now = self._clock.monotonic()
        self._metrics.worker.operation(RENEW_ALL).step("RenewLease", ok, now - sent_at)
        part = self._metrics.shards.get(key)
        if ok and part is not None:
            part.renewed_at = now

    def gained(self) -> None:
        self._metrics.worker.lease_moves.add("gained")

    def parted(self, how: str) -> None:
        """A lease was given away: released or handed_over."""
        self._metrics.worker.lease_moves.add(how)

    def lost(self, how: str) -> None:
        """A lease is gone that we wanted to keep: taken or expired."""
        self._metrics.worker.lease_moves.add(how)
        self._metrics.worker.leases_lost += 1
        self._metrics.worker.operation(RENEW_ALL).note("LostLeases", 1)
