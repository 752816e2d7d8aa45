"""`Resumer`: leases that the table says are ours although we do not hold them. The keeper's collaborator.

Rules: leases#resumed-leases, leases#lost-replies, leases#duplicate-worker-ids. Nothing is held on the word of a read:
one guarded renewal makes it ours again, and it is valid from the sending of that (leases#send-time-validity).

* *Found*: somebody has read rows that name us, at the start or later.
* *Lapsed*: no renewal of a held lease came through in time. If its row still stands as we wrote it last, nobody else
  has had it. It is tried as often as it would be renewed, until there is an answer. So is a lease that was lost and
  whose row names us again: it was taken and given back, or restored from a backup.

A try that waits for its answer keeps nobody from the next one, as with renewals: a lease that is got by a late answer
has to be confirmed by another one soon. A row that has moved otherwise than our own writes may have moved it since
somebody read it is read again: only who holds a lease knows each write of its row, and can tell a twin, another process
with our worker id, from ourselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, replace
from random import Random
from typing import Protocol

from mld.core.background_tasks import BackgroundTasks
from mld.core.clock import Clock
from mld.core.error_boundary import survived
from mld.core.errors import MldError
from mld.core.log_fields import about
from mld.core.periods import renew_interval_s
from mld.core.stillness import Stillness
from mld.core.waits import wait_for_event
from mld.leases import writes
from mld.leases.lease import Lease
from mld.leases.own_writes import OPEN_MAX, OwnWrites, RowShown, Span
from mld.leases.slots import Slots
from mld.leases.table import Refusal
from mld.leases.validity import HeldLease, retry_delay_s
from mld.metrics.worker import LeaseMove
from mld.properties.settings import LeaseSettings

log = logging.getLogger(__name__)

REACQUIRE_ATTEMPTS_MAX = 6  # a lease that fails here is found again later
PAUSE_SHARE_MIN = 0.5
"""The shortest pause between two tries for a lapsed lease, as a share of the renewal interval, which is the longest: so
it costs what a held lease does."""
AGAIN_SHARE = 0.1
"""The time between two tries that wait for their answers, as a share of the lease duration: one that is answered after
0.8 of it leaves a fifth until the next must be."""


class _Tries:
    """What has come of the renewals of one row that is not held."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.is_held: bool | None = None
        self.failure: MldError | None = None
        """Of the last one, until it is dealt with."""
        self.changed = asyncio.Event()
        """One of them has come to something, be it a failure."""
        self.settled = asyncio.Event()
        """It is known whether it is held."""
        self.is_queued = False
        """One of them waits for a slot. A second would only be another one in the queue."""


class Holdings(Protocol):
    """The part of `LeaseKeeper` by which a lease is held again."""

    def has(self, key: str) -> bool: ...

    def look_again(self) -> None: ...

    def adopt(
        self, lease: Lease, sent_at: float, how: LeaseMove = ..., *, answered_at: float | None = None
    ) -> HeldLease | None: ...

    def confirmed(self, shown: RowShown) -> None: ...

    async def send(self, seen: Lease, make: Callable[[Span], writes.HolderWrite]) -> RowShown | Refusal: ...


@dataclass(eq=False)
class Resumer:
    """`slots` bounds the keeper's requests, `rows` is the keeper's own."""

    keeper: Holdings
    rows: OwnWrites
    slots: Slots
    clock: Clock
    rng: Random
    _: KW_ONLY
    worker_id: str
    settings: LeaseSettings

    def __post_init__(self) -> None:
        self._lease_duration_s = self.settings.duration_s
        self._under_way: set[str] = set()
        self._lapsed: dict[str, Lease] = {}
        """As we wrote them last."""
        self._contested: Stillness[str, int] = Stillness()
        """Counters of the leases that a twin renews."""
        self._closed = False
        self._trying = BackgroundTasks()

    # --- what the keeper says -----------------------------------------------------------------------------------------

    def lapsed(self, lease: Lease) -> None:
        """Bring back a lease that has expired; this is the row as we wrote it last."""
        if not self._closed and lease.actual_owner == self.worker_id:
            self._lapsed[lease.key] = lease
            self.keeper.look_again()

    def adopted(self, key: str) -> None:
        """Forget what was remembered of a lease that is held now."""
        self._lapsed.pop(key, None)
        self._contested.forget(key)

    def note_loss(self, key: str, refusal: Refusal) -> None:
        """Remember that a write of ours was refused."""
        if not refusal.by_twin:
            log.info("lease %s lost: %s", key, refusal.why, extra=about("lease_lost", key))
            if refusal.row is not None:
                self.lapsed(refusal.row)
            return
        self._contested.begin(key, -1, self.clock.monotonic())
        log.error(
            "lease %s lost to another process with worker id %s (%s); give every process its own workerId",
            key,
            self.worker_id,
            refusal.why,
            extra=about("worker_id_twin", key),
        )

    def forget_table(self) -> None:
        """Suspect nobody of what was written to a table that is gone."""
        self._contested.forget_all()

    def close(self) -> None:
        """Bring nothing back that is not held now: this worker stops."""
        self._closed = True
        self._lapsed.clear()

    def abandon(self) -> None:
        """End what is under way."""
        self._trying.cancel()

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
            self.keeper.look_again()  # a lapsed one that it has not got is tried again
        return tuple(key for key, is_held in zip(mine, held, strict=True) if is_held)

    def _is_resumable(self, lease: Lease) -> bool:
        is_ours = lease.actual_owner == self.worker_id != lease.handoff_to  # no row that names us twice
        is_free = not self.keeper.has(lease.key) and lease.key not in self._under_way
        return is_ours and is_free and not self._is_a_twins(lease)

    def _is_a_twins(self, lease: Lease) -> bool:
        """Return whether a twin renews it: two processes with our worker id would take it from each other for ever."""
        if lease.key not in self._contested:
            return False
        now = self.clock.monotonic()
        self._contested.saw(lease.key, lease.counter, now)
        return not self._contested.is_still(lease.key, now, self._lease_duration_s)

    async def _reacquire_one(self, lease: Lease) -> bool:
        tries = _Tries(lease)
        started_at = self.clock.monotonic()
        failures = 0
        while True:
            failure = await self._try_again(tries, LeaseMove.ASSIGNED)
            if tries.is_held is not None:
                return tries.is_held
            if failure is None:
                continue
            failures += 1
            left_s = started_at + self._lease_duration_s - self.clock.monotonic()
            delay_s = retry_delay_s(failures, left_s, self.rng)
            if delay_s is None or failures == REACQUIRE_ATTEMPTS_MAX:
                log.warning("cannot resume %s: %s", lease.key, failure, extra=about("resume_failed", lease.key))
                return False
            await wait_for_event(tries.settled, delay_s)

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
        tries = _Tries(lease)
        try:
            while tries.is_held is None and self._lapsed.get(key) is lease:
                failure = await self._try_again(tries, LeaseMove.RESUMED)
                if failure is not None and tries.is_held is None:
                    log.debug("cannot resume %s yet: %s", key, failure, extra=about("resume_failed", key))
                    pause_s = renew_interval_s(self._lease_duration_s) * self.rng.uniform(PAUSE_SHARE_MIN, 1.0)
                    await wait_for_event(tries.settled, pause_s)
        finally:
            self._under_way.discard(key)
            if self._lapsed.get(key) is lease:
                del self._lapsed[key]
            self.keeper.look_again()  # its row may have been found anew meanwhile

    # --- the write ----------------------------------------------------------------------------------------------------

    async def _try_again(self, tries: _Tries, how: LeaseMove) -> MldError | None:
        """Renew the row once more, beside tries that wait for their answers. Return what went wrong with one, None if
        nothing has until the next is due.
        """
        tries.failure = None
        tries.changed.clear()
        if not tries.is_queued and self.rows.waiting(tries.lease.key) < OPEN_MAX:
            tries.is_queued = True
            self._trying.spawn(self._try(tries, how))
        await wait_for_event(tries.changed, AGAIN_SHARE * self._lease_duration_s)
        return tries.failure

    async def _try(self, tries: _Tries, how: LeaseMove) -> None:
        try:
            async with self.slots.one():
                tries.is_queued = False
                found = await self._confirm(tries, how) if tries.is_held is None else None
                if found is None and tries.is_held is None:  # the row has moved by writes of ours, and is known now
                    found = await self._confirm(tries, how)
            if tries.is_held is None:
                tries.is_held = found
        except Exception as error:
            tries.failure = survived(error, "resuming a lease", tries.lease.key)
        if tries.is_held is not None:
            tries.settled.set()
        if tries.is_held is not None or tries.failure is not None:
            tries.changed.set()

    async def _confirm(self, tries: _Tries, how: LeaseMove) -> bool | None:
        """Make one guarded renewal of a row that names us and is not held. Return whether it is held now; None if the
        row has to be tried again as it is now. Raises as `LeaseKeeper.send`.
        """
        seen = tries.lease
        if self.keeper.has(seen.key):
            return False  # somebody adopted it first, or the answer to a write of ours came late
        row = replace(seen, throughput_kbps=None)
        shown = await self.keeper.send(row, lambda span: writes.renew(row, span=span))
        if isinstance(shown, Refusal):
            if not self.keeper.has(seen.key):
                self.note_loss(seen.key, replace(shown, by_twin=False))
            return False
        if self.keeper.has(seen.key):
            self.keeper.confirmed(shown)
            return False
        tries.lease = max(tries.lease, shown.row, key=lambda lease: lease.counter)
        if shown.counts_from is None:
            return None
        if how is LeaseMove.RESUMED and self._lapsed.get(seen.key) is None:
            return False  # this worker stops
        return self.keeper.adopt(shown.row, shown.counts_from, how, answered_at=shown.sent_at) is not None
