"""`Resumer`: leases that the table says are ours although we do not hold them. The keeper's collaborator.

Rules: leases#resumed-leases, leases#lost-replies, leases#duplicate-worker-ids. Nothing is held on the word of a read:
one guarded renewal makes it ours again, and it is valid from the sending of that (leases#send-time-validity).

* *Found*: somebody has read rows that name us, at the start or later.
* *Lapsed*: no renewal of a held lease came through in time. If its row still stands as we wrote it last, nobody else
  has had it. It is tried as often as it would be renewed, until there is an answer. So is a lease that was lost and
  whose row names us again: it was taken and given back, or restored from a backup.

A write of ours may still be on its way then, or have lost its reply. Each write of a row waits for the one before
(`RowsWritten`), and a row that is one step ahead of a counter over which we have sent a write of unknown outcome is
taken for ours, and renewed in its turn. A row that has moved otherwise since somebody read it is read again: only who
holds a lease knows each write of its row, and can tell a twin, another process with our worker id, from ourselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mld.core.error_boundary import survived
from mld.core.errors import MldError
from mld.core.log_fields import about
from mld.leases import writes
from mld.leases.lease import Lease
from mld.leases.table import Refusal
from mld.leases.validity import RowsWritten, may_be_applied, retry_delay_s
from mld.metrics.registry import LeaseMove

if TYPE_CHECKING:
    from mld.leases.keeper import LeaseKeeper

log = logging.getLogger(__name__)

REACQUIRE_ATTEMPTS_MAX = 6  # a lease that fails here is found again later
PAUSE_SHARE_MIN = 0.5
"""The shortest pause between two tries for a lapsed lease, as a share of the renewal interval, which is the longest: so
it costs what a held lease does."""


@dataclass(eq=False)
class Resumer:
    """`slots` bounds the keeper's requests, `rows` is the keeper's own."""

    keeper: LeaseKeeper
    rows: RowsWritten
    slots: asyncio.Semaphore

    def __post_init__(self) -> None:
        self.clock, self.rng = self.keeper.clock, self.keeper.rng
        self.worker_id, self._lease_duration_s = self.keeper.worker_id, self.keeper.settings.duration_s
        self._under_way: set[str] = set()
        self._lapsed: dict[str, Lease] = {}
        """As we wrote them last."""
        self._contested: dict[str, tuple[int, float]] = {}
        """Leases that a twin renews: the counter seen last, and since when it has not moved."""
        self._closed = False

    # --- what the keeper says -----------------------------------------------------------------------------------------

    def lapsed(self, lease: Lease) -> None:
        """Bring back a lease that has expired; this is the row as we wrote it last."""
        if not self._closed and lease.actual_owner == self.worker_id:
            self._lapsed[lease.key] = lease
            self.keeper.lapse_noticed()

    def adopted(self, key: str) -> None:
        """Forget what was remembered of a lease that is held now."""
        self._lapsed.pop(key, None)
        self._contested.pop(key, None)

    def note_loss(self, key: str, refusal: Refusal) -> None:
        """Remember that a write of ours was refused."""
        if not refusal.by_twin:
            log.info("lease %s lost: %s", key, refusal.why, extra=about("lease_lost", key))
            if refusal.row is not None:
                self.lapsed(refusal.row)
            return
        self._contested[key] = (-1, self.clock.monotonic())
        log.error(
            "lease %s lost to another process with worker id %s (%s); give every process its own workerId",
            key,
            self.worker_id,
            refusal.why,
            extra=about("worker_id_twin", key),
        )

    def forget_table(self) -> None:
        """Suspect nobody of what was written to a table that is gone."""
        self._contested.clear()

    def close(self) -> None:
        """Bring nothing back that is not held now: this worker stops."""
        self._closed = True
        self._lapsed.clear()

    def is_resuming(self, key: str) -> bool:
        """Return whether the lease is about to be brought back."""
        return key in self._lapsed or key in self._under_way

    # --- found leases -------------------------------------------------------------------------------------------------

    async def reacquire(self, leases: Iterable[Lease]) -> tuple[str, ...]:
        """Renew in parallel the leases that the table says are ours; each is held as soon as it is renewed.

        Rows of others, or held already, are passed over; so are those that a twin has taken from us, until they have
        stood still for a lease duration. One failure does not touch the others. Returns the keys held by this call.
        """
        mine = {lease.key: lease for lease in leases if self._is_resumable(lease)}
        self._under_way |= mine.keys()
        try:
            held = await asyncio.gather(*(self._reacquire_one(lease) for lease in mine.values()))
        finally:
            self._under_way -= mine.keys()
            self.keeper.lapse_noticed()  # a lapsed one that it has not got is tried again
        return tuple(key for key, is_held in zip(mine, held, strict=True) if is_held)

    def _is_resumable(self, lease: Lease) -> bool:
        is_ours = lease.actual_owner == self.worker_id != lease.handoff_to  # no row that names us twice
        is_free = not self.keeper.has(lease.key) and lease.key not in self._under_way
        return is_ours and is_free and not self._is_a_twins(lease)

    def _is_a_twins(self, lease: Lease) -> bool:
        """Return whether a twin renews it: two processes with our worker id would take it from each other for ever."""
        contested = self._contested.get(lease.key)
        if contested is None:
            return False
        now = self.clock.monotonic()
        counter, since = contested
        if lease.counter != counter:
            self._contested[lease.key] = (lease.counter, now)
            return True
        return now - since <= self._lease_duration_s

    async def _reacquire_one(self, lease: Lease) -> bool:
        found: Lease | bool = lease
        started_at = self.clock.monotonic()
        failures = 0
        while isinstance(found, Lease):
            try:
                found = await self._confirm(found)
            except Exception as error:
                failure = survived(error, "resuming a lease", lease.key)
                failures += 1
                left_s = started_at + self._lease_duration_s - self.clock.monotonic()
                delay_s = retry_delay_s(failures, left_s, self.rng)
                if delay_s is None or failures == REACQUIRE_ATTEMPTS_MAX:
                    log.warning("cannot resume %s: %s", lease.key, failure, extra=about("resume_failed", lease.key))
                    return False
                await self.clock.sleep(delay_s)
        return found

    # --- lapsed leases ------------------------------------------------------------------------------------------------

    def due(self) -> list[Lease]:
        """Return the lapsed leases that are not being brought back yet. The caller must pass each of them to
        `resume`.
        """
        found = [lease for key, lease in self._lapsed.items() if key not in self._under_way]
        self._under_way.update(lease.key for lease in found)
        return found

    async def resume(self, lease: Lease) -> None:
        """Renew a lapsed lease until there is an answer. If it is not ours any more, others look for what is."""
        key = lease.key
        found: Lease | bool = lease
        try:
            while isinstance(found, Lease) and self._lapsed.get(key) is lease:
                try:
                    found = await self._confirm(found, is_lapsed=True)
                except Exception as error:
                    failure = survived(error, "resuming a lease", key)
                    log.debug("cannot resume %s yet: %s", key, failure, extra=about("resume_failed", key))
                    await self.clock.sleep(self.keeper.renew_interval_s * self.rng.uniform(PAUSE_SHARE_MIN, 1.0))
        finally:
            self._under_way.discard(key)
            if self._lapsed.get(key) is lease:
                del self._lapsed[key]
            self.keeper.lapse_noticed()  # its row may have been found anew meanwhile

    # --- the write ----------------------------------------------------------------------------------------------------

    async def _confirm(self, seen: Lease, *, is_lapsed: bool = False) -> Lease | bool:
        """Make one guarded renewal of a row that names us and is not held. Return whether it is held now.

        A lease: what a write of ours with unknown outcome seems to have made of the row. It may as well be the last
        write of our dead predecessor: renew on top of it. Raises TableError if the outcome is unknown, and it is after
        any other exception, too.
        """
        key = seen.key
        async with self.slots, self.rows.lock_of(key):
            if self.keeper.has(key):
                return False  # somebody adopted it first, or the answer to a write of ours came late
            resent = self.rows.is_unknown(seen)
            self.rows.sent(seen)
            sent_at = self.clock.monotonic()
            try:
                mark, row = self.keeper.validity.mark(), replace(seen, throughput_kbps=None)
                answer = await self.keeper.table.apply(writes.renew(row, resent=resent, heartbeat=mark))
            except MldError as error:
                if not resent and not may_be_applied(error):
                    self.rows.settled(key)
                raise
            self.rows.settled(key)
            if isinstance(answer, Refusal):
                self.note_loss(key, replace(answer, by_twin=False))
                return False
            if resent:
                return answer
            if self.keeper.validity.has_lost_mark(answer):
                return False  # the mark must be replaced first
            how = LeaseMove.RESUMED if is_lapsed else LeaseMove.ASSIGNED
            return self.keeper.adopt(answer, sent_at, how) is not None
