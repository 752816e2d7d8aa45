"""`Carrier`: lets a worker's heartbeat stand for the renewals of its leases. The keeper's collaborator.

Rules: `carrying`, the numbers are of its list. The carrier knows the heartbeat and sets the validity of the holdings
(1), drops them when the worker was fenced (3), and reads their rows in time (4). Which lease is held is the keeper's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from random import Random
from statistics import fmean
from typing import Protocol

from mld.clock import Clock
from mld.leases.carrying import (
    CHECKPOINT_KBPS_S,
    CONFIRM_SHARE,
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
from mld.leases.lease import Failing, Lease
from mld.leases.retrying import retry_delay_s
from mld.leases.table import LeaseTable, Refusal
from mld.leases.writes import judge_read
from mld.surviving import survived

log = logging.getLogger(__name__)

READS_PER_BATCH = 100  # what one request can read


class Holder(Protocol):
    """What the carrier needs of the keeper."""

    def is_current(self, holding: Holding) -> bool: ...

    def lose(self, holding: Holding, refusal: Refusal) -> None: ...

    def forget(self, holding: Holding) -> None: ...

    def note_handoff(self, holding: Holding, row: Lease) -> None: ...


class Carrier:
    """`holdings` is the keeper's own mapping; `slots` bounds its requests."""

    def __init__(
        self,
        table: LeaseTable,
        clock: Clock,
        rng: Random,
        holder: Holder,
        holdings: Mapping[str, Holding],
        lease_duration_s: float,
        slots: asyncio.Semaphore,
    ) -> None:
        self._table = table
        self._clock = clock
        self._rng = rng
        self._holder = holder
        self._holdings = holdings
        self._lease_duration_s = lease_duration_s
        self._slots = slots
        self._beat: Beat | None = None
        self._has_beat = asyncio.Event()
        self._marks = True

    # --- the heartbeat ------------------------------------------------------------------------------------------------

    def carry(self, beat: Beat) -> None:
        """Our heartbeat was accepted: it stands for the renewals of the leases marked with its epoch.

        A new epoch may begin only when nothing is held under the old one (`drop`).
        """
        assert self._beat is None or (beat.epoch == self._beat.epoch and beat.sent_at >= self._beat.sent_at)
        self._beat = beat
        self._has_beat.set()
        for holding in self._holdings.values():
            if holding.carried:
                holding.valid_until = valid_until(holding.confirmed_at, beat, self._lease_duration_s)

    def drop(self) -> tuple[str, ...]:
        """The heartbeat is over: stop holding every lease that it may have stood for. Returns their keys."""
        self._beat = None
        self._has_beat.clear()
        dropped = [holding for holding in self._holdings.values() if holding.may_be_carried]
        for holding in dropped:
            self._holder.forget(holding)
        return tuple(holding.lease.key for holding in dropped)

    def stop_marking(self) -> None:
        """Leases are renewed one by one from now on; `carried` tells which still rest on the heartbeat."""
        self._marks = False

    def carried(self) -> tuple[str, ...]:
        """Keys of the held leases that the heartbeat may stand for."""
        return tuple(key for key, holding in self._holdings.items() if holding.may_be_carried)

    # --- notes of failures --------------------------------------------------------------------------------------------

    def note_failing(self, key: str, token: str, note: Failing) -> None:
        """The record processor of `key` failed: the next renewal says so on the row, the next checkpoint takes it off.

        What is given away before that renewal goes without the note.
        """
        holding = self._holdings.get(key)
        if holding is not None and holding.token == token:
            holding.failing = note

    # --- what a write means -------------------------------------------------------------------------------------------

    def mark(self) -> str | None:
        """The mark for a row that is written now."""
        return mark_for(self._beat, self._clock.monotonic(), self._lease_duration_s) if self._marks else None

    def prepare_mark(self, holding: Holding) -> str | None:
        """The mark for a renewal that is sent now. The holding believes no longer than either outcome allows."""
        mark = self.mark()
        if mark is None:
            holding.carried = False
        else:
            assert self._beat is not None
            holding.may_be_carried = True
            holding.valid_until = min(holding.valid_until, self._beat.sent_at + self._lease_duration_s)
        return mark

    def is_kept(self, holding: Holding) -> bool:
        """Whether the heartbeat makes a renewal unnecessary. Samples the throughput instead."""
        if not holding.carried or not self._marks:
            return False
        kbps = holding.throughput.sample_kbps()
        if kbps is not None:
            holding.samples.append(kbps)
            del holding.samples[:-SAMPLES_MAX]
        if self.mark() is None:
            return True  # the heartbeat has trouble: nothing is gained by giving it up for this lease
        told_s = self._clock.monotonic() - holding.told_at
        is_due = is_refresh_due(holding.lease.throughput_kbps, holding.samples, told_s, holding.refresh_s)
        return holding.unknown_since is None and not is_due and holding.lease.lacking(holding.failing) is None

    def kbps_for_renewal(self, holding: Holding) -> float | None:
        """The throughput to write: of a carried lease the mean since the last time, for it has to last for minutes."""
        if not holding.carried:
            return holding.throughput.sample_kbps()
        if not holding.samples:
            return None
        holding.telling = True
        return round(fmean(holding.samples) if holding.figures else holding.samples[-1], 6)

    def kbps_for_checkpoint(self, holding: Holding) -> float | None:
        """The same for a carried lease if it is time."""
        told_s = self._clock.monotonic() - holding.told_at
        due = told_s >= min(holding.refresh_s, CHECKPOINT_KBPS_S)
        return self.kbps_for_renewal(holding) if holding.carried and due else None

    def accept(self, holding: Holding, row: Lease, sent_at: float) -> None:
        """A write of `holding` sent at `sent_at` has made the row what it is."""
        was_carried = holding.carried
        self._confirm(holding, row, sent_at)
        if not holding.carried or (was_carried and not holding.telling):
            return
        holding.figures = holding.figures + 1 if was_carried else 0
        holding.telling = False
        holding.samples.clear()
        holding.told_at = self._clock.monotonic()
        jitter = self._rng.uniform(1 - REFRESH_JITTER, 1 + REFRESH_JITTER)
        holding.refresh_s = jitter * refresh_s(holding.figures, self._lease_duration_s)

    def is_of_lost_epoch(self, row: Lease) -> bool:
        """A row marked by a write that was overtaken: its mark must be replaced before anybody may believe in it."""
        return row.heartbeat is not None and not is_carried(row, self._beat)

    def _confirm(self, holding: Holding, row: Lease, sent_at: float) -> None:
        holding.confirmed_at = sent_at
        holding.carried = holding.may_be_carried = is_carried(row, self._beat)
        holding.valid_until = valid_until(sent_at, self._beat if holding.carried else None, self._lease_duration_s)

    # --- reads --------------------------------------------------------------------------------------------------------

    async def confirm(self, keys: Collection[str]) -> None:
        """Read carried leases of ours to see that they still are. A read that fails is logged and changes nothing."""
        await asyncio.gather(*(self._read(batch) for batch in _batches(list(keys))))

    async def run(self) -> None:
        """Read each carried lease before half of its time is over, unless something else has confirmed it."""
        pause_s = CONFIRM_SHARE * self._lease_duration_s
        while True:
            await self._has_beat.wait()
            await self._clock.sleep(pause_s)
            before = self._clock.monotonic() - pause_s / 2
            keys = [key for key, holding in self._holdings.items() if holding.carried and holding.confirmed_at < before]
            await asyncio.gather(*(self._read_in_time(batch) for batch in _batches(keys)))

    async def _read_in_time(self, keys: Sequence[str]) -> None:
        """Repeated until it works or the leases have expired."""
        attempt = 0
        while not await self._read(keys):
            attempt += 1
            ends = [holding.valid_until for key in keys if (holding := self._holdings.get(key)) is not None]
            delay_s = retry_delay_s(attempt, min(ends, default=0.0) - self._clock.monotonic(), self._rng)
            if delay_s is None:
                return
            await self._clock.sleep(delay_s)

    async def _read(self, keys: Sequence[str]) -> bool:
        """One look at these rows; False if it failed."""
        looked_at = {
            key: (holding, holding.lease)
            for key in keys
            if (holding := self._holdings.get(key)) is not None and holding.carried and holding.unknown_since is None
        }
        if not looked_at:
            return True
        try:
            async with self._slots:
                sent_at = self._clock.monotonic()
                found = await self._table.get_many(list(looked_at))
        except Exception as error:
            failure = survived(error, "confirming leases")
            log.warning("cannot look at %d leases: %s", len(looked_at), failure, extra={"action": "confirm_failed"})
            return False
        for key, (holding, before) in looked_at.items():
            untouched = holding.lease is before and holding.unknown_since is None and not holding.leaving
            if untouched and self._holder.is_current(holding):
                self._judge(holding, found.get(key), sent_at)
        return True

    def _judge(self, holding: Holding, row: Lease | None, sent_at: float) -> None:
        answer = judge_read(holding.lease, row)
        if isinstance(answer, Refusal):
            self._holder.lose(holding, answer)
            return
        holding.lease = answer
        if is_carried(answer, self._beat):
            self._confirm(holding, answer, max(sent_at, holding.confirmed_at))
        else:  # somebody has taken the mark away; others judge it by its counter, which a read does not move
            holding.carried = holding.may_be_carried = False
        self._holder.note_handoff(holding, answer)


def _batches(keys: Sequence[str]) -> list[Sequence[str]]:
    return [keys[start : start + READS_PER_BATCH] for start in range(0, len(keys), READS_PER_BATCH)]
