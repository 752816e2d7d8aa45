"""What the keeper tells about its leases, as it happens: its share of the worker's metrics."""

from __future__ import annotations

from mld.clock import Clock
from mld.metrics.java import RENEW_ALL
from mld.metrics.registry import LeaseMove, Metrics

RENEWALS = "renewals"


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
