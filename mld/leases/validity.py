"""How long a held lease may be believed, and what its writes must say for that. The keeper asks.

Rules: leases#send-time-validity, leases#local-expiry; with heartbeats `carried`, whose list the numbers below refer to.
`Validity` is that of leases which are renewed one by one. `HeartbeatValidity` lets the worker's heartbeat stand for the
renewals of the leases that bear its mark, and is the same for all others. What a holding's belief rests on
(`confirmed_at`, `carried`) is written here and nowhere else. No requests are sent here.
"""

from __future__ import annotations

import asyncio
import math
from random import Random
from statistics import fmean

from mld.core.clock import Clock
from mld.leases.carried import (
    CHECKPOINT_KBPS_S,
    REFRESH_JITTER,
    SAMPLES_MAX,
    Beat,
    is_carried,
    is_refresh_due,
    mark_for,
    refresh_s,
    valid_until,
)
from mld.leases.holding import Holding
from mld.leases.lease import Lease


class Validity:
    """A lease is valid for its duration from the sending of the last write that confirmed it."""

    def __init__(self, lease_duration_s: float) -> None:
        self.lease_duration_s = lease_duration_s
        self.has_heartbeat = asyncio.Event()
        """Set while leases may be carried, and their rows have to be read."""

    def until(self, holding: Holding) -> float:
        """When the belief in this lease ends (monotonic)."""
        return holding.confirmed_at + self.lease_duration_s

    def accept(self, holding: Holding, row: Lease, sent_at: float) -> None:
        """A write of `holding` sent at `sent_at` has made the row what it is."""
        holding.confirmed_at = sent_at

    def confirm(self, holding: Holding, row: Lease, sent_at: float) -> None:
        """A consistent read of a carried lease, sent at `sent_at`, shows that the row still is ours."""

    def is_renewal_due(self, holding: Holding) -> bool:
        """Whether the lease is to be renewed now. Asked at every tick."""
        return True

    def mark(self) -> str | None:
        """The heartbeat's mark for a row that is written now; None if no heartbeat may stand for it."""
        return None

    def mark_for_renewal(self, holding: Holding) -> str | None:
        """The mark for a renewal that is sent now. The belief is cut down to what either outcome allows."""
        return None

    def kbps_for_renewal(self, holding: Holding) -> float | None:
        """The throughput to write."""
        return holding.throughput.sample_kbps()

    def kbps_for_checkpoint(self, holding: Holding) -> float | None:
        """The throughput to write, if renewals do not tell it often enough."""
        return None

    def has_lost_mark(self, row: Lease) -> bool:
        """Whether a row of ours bears a mark that means nothing any more: written, and overtaken by a new epoch."""
        return row.heartbeat is not None


class HeartbeatValidity(Validity):
    """Owner of the fact which heartbeat of this worker was accepted last; `Heartbeat` tells."""

    def __init__(self, clock: Clock, rng: Random, lease_duration_s: float) -> None:
        super().__init__(lease_duration_s)
        self._clock = clock
        self._rng = rng
        self._beat: Beat | None = None
        self._marks = True

    # --- the heartbeat ------------------------------------------------------------------------------------------------

    def carry(self, beat: Beat) -> None:
        """Our heartbeat was accepted: it stands for the renewals of the leases marked with its epoch.

        A new epoch may begin only when nothing is held under the old one: after `end_epoch` and `drop_carried`.
        """
        assert self._beat is None or (beat.epoch == self._beat.epoch and beat.sent_at >= self._beat.sent_at)
        self._beat = beat
        self.has_heartbeat.set()

    def end_epoch(self) -> None:
        """The heartbeat is over (3): the keeper must drop every lease that it may stand for, at once."""
        self._beat = None
        self.has_heartbeat.clear()

    def stop_marking(self) -> None:
        """Leases are renewed one by one from now on (5)."""
        self._marks = False

    # --- belief (1) ---------------------------------------------------------------------------------------------------

    def until(self, holding: Holding) -> float:
        if holding.carried.is_certain:
            return valid_until(holding.confirmed_at, self._beat, self.lease_duration_s)
        return min(holding.confirmed_at, holding.carried.capped_at) + self.lease_duration_s

    def accept(self, holding: Holding, row: Lease, sent_at: float) -> None:
        was_carried = holding.carried.is_certain
        self._believe(holding, row, sent_at)
        carried = holding.carried
        if not carried.is_certain or (was_carried and not carried.telling):
            return
        carried.figures = carried.figures + 1 if was_carried else 0
        carried.telling = False
        carried.samples.clear()
        carried.told_at = self._clock.monotonic()
        jitter = self._rng.uniform(1 - REFRESH_JITTER, 1 + REFRESH_JITTER)
        carried.refresh_s = jitter * refresh_s(carried.figures, self.lease_duration_s)

    def confirm(self, holding: Holding, row: Lease, sent_at: float) -> None:
        if is_carried(row, self._beat):
            self._believe(holding, row, max(sent_at, holding.confirmed_at))
        else:  # somebody has taken the mark away; others judge it by its counter, which a read does not move
            self._let_go(holding)
            holding.carried.is_possible = False

    def mark(self) -> str | None:
        return mark_for(self._beat, self._clock.monotonic(), self.lease_duration_s) if self._marks else None

    def mark_for_renewal(self, holding: Holding) -> str | None:
        mark = self.mark()
        if mark is None:
            self._let_go(holding)
        else:
            assert self._beat is not None
            holding.carried.is_possible = True
            holding.carried.capped_at = min(holding.carried.capped_at, self._beat.sent_at)
        return mark

    def has_lost_mark(self, row: Lease) -> bool:
        return row.heartbeat is not None and not is_carried(row, self._beat)

    def _believe(self, holding: Holding, row: Lease, sent_at: float) -> None:
        holding.confirmed_at = sent_at
        carried = holding.carried
        carried.is_certain = carried.is_possible = is_carried(row, self._beat)
        carried.capped_at = math.inf

    def _let_go(self, holding: Holding) -> None:
        """Later heartbeats do not prolong the belief any more."""
        carried = holding.carried
        if carried.is_certain and self._beat is not None:
            carried.capped_at = self._beat.sent_at
        carried.is_certain = False

    # --- what is written, and when ------------------------------------------------------------------------------------

    def is_renewal_due(self, holding: Holding) -> bool:
        """Also samples the throughput of a lease that the heartbeat keeps."""
        carried = holding.carried
        if not carried.is_certain or not self._marks:
            return True
        kbps = holding.throughput.sample_kbps()
        if kbps is not None:
            carried.samples.append(kbps)
            del carried.samples[:-SAMPLES_MAX]
        if self.mark() is None:
            return False  # the heartbeat has trouble: nothing is gained by giving it up for this lease
        told_s = self._clock.monotonic() - carried.told_at
        is_due = is_refresh_due(holding.lease.throughput_kbps, carried.samples, told_s, carried.refresh_s)
        return holding.unknown_since is not None or is_due or holding.lease.lacking(holding.failing) is not None

    def kbps_for_renewal(self, holding: Holding) -> float | None:
        """Of a carried lease the mean since the last figure, for it has to last for minutes."""
        carried = holding.carried
        if not carried.is_certain:
            return super().kbps_for_renewal(holding)
        if not carried.samples:
            return None
        carried.telling = True
        return round(fmean(carried.samples) if carried.figures else carried.samples[-1], 6)

    def kbps_for_checkpoint(self, holding: Holding) -> float | None:
        carried = holding.carried
        told_s = self._clock.monotonic() - carried.told_at
        is_due = carried.is_certain and told_s >= min(carried.refresh_s, CHECKPOINT_KBPS_S)
        return self.kbps_for_renewal(holding) if is_due else None
