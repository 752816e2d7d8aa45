"""`Resumer`: resumes leases whose rows name this worker although it does not hold them. Used by the keeper.

Rules: leases#resumed-leases, leases#lost-replies, leases#duplicate-worker-ids. A lease is never held because of a read
alone: one guarded renewal makes it ours again, and it is valid from the moment that renewal was sent
(leases#send-time-validity).

There are two kinds of such leases:

* *Found* leases: a row that names us was read, at the start or later.
* *Lapsed* leases: we held the lease, but no renewal was answered in time. If the row is still as we wrote it last, no
  other worker has had the lease. A renewal is tried as often as a held lease is renewed, until there is an answer. A
  lease that was lost is treated in the same way if its row names us again: another worker took it and gave it back, or
  the row was restored from a backup.

As with renewals of held leases, the next try may be sent while earlier ones still wait for their answers, because a
lease that is resumed by a late answer must soon be confirmed by another answer. If the row has changed in a way that
our own writes since the read do not explain, the lease is left until its row is read again. Such a change does not
prove that a twin (another process with our worker id) runs: only the holder of a lease knows all its own writes of the
row, so only the holder can distinguish a twin from itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, replace
from random import Random
from typing import Protocol

from mld.aws.table_calls import ANSWER_S_MAX
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

REACQUIRE_ATTEMPTS_MAX = 6  # a lease that cannot be resumed now is found again later
PAUSE_SHARE_MIN = 0.5
"""The shortest pause between two tries for a lapsed lease, as a share of the renewal interval. The longest pause is the
whole interval. So a lapsed lease costs about as many requests as a held one."""
AGAIN_SHARE = 0.1
"""If a try is unanswered for this share of the lease duration, another one is sent. That is early enough: after an
answer that took 0.8 of the duration, a fifth of the resumed lease is left, and another answer must come within it."""
OLDEST_SHARE = 0.125
"""While nothing is answered, the tries become rarer: the time between two of them is at least this share of the time
for which the oldest write of the row has been unanswered. A write is given up after a minute without an answer. So even
in a minute of silence, fewer than `OPEN_MAX` writes are open, and the next try is sent soon after the table answers
again. For leases of less than about 9 s the share is larger, see `oldest_share`."""
SILENT_TRIES_MAX = 16
"""The most tries between the end of a lease and the time when its oldest write is given up. The rest of `OPEN_MAX` is
for the renewals that were sent before the end, and for leases of only a second."""


def oldest_share(lease_duration_s: float) -> float:
    """Return `OLDEST_SHARE`, or the larger share that leases of this duration need.

    With each try, the time for which the oldest write is unanswered grows by this share, from the lease duration up to
    `ANSWER_S_MAX`. The share is so large that this takes no more than `SILENT_TRIES_MAX` tries.
    """
    growth: float = (ANSWER_S_MAX / lease_duration_s) ** (1 / SILENT_TRIES_MAX)
    return max(OLDEST_SHARE, growth - 1)


class _Tries:
    """The tries to resume one lease, and their outcome."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.is_held: bool | None = None  # None until that is known
        self.failure: MldError | None = None
        """The error of the last renewal, until it is handled."""
        self.changed = asyncio.Event()
        """Set when a try has ended, even if it failed."""
        self.settled = asyncio.Event()
        """Set when it is known whether the lease is held."""
        self.is_queued = False
        """Whether a try waits for a slot. Meanwhile no other is started, which would only make the queue longer."""


class Holdings(Protocol):
    """The part of `LeaseKeeper` that `Resumer` uses."""

    def has(self, key: str) -> bool: ...

    def look_again(self) -> None: ...

    def adopt(
        self, lease: Lease, sent_at: float, how: LeaseMove = ..., *, answered_sent_at: float | None = None
    ) -> HeldLease | None: ...

    def confirmed(self, shown: RowShown) -> None: ...

    async def send(self, seen: Lease, make: Callable[[Span], writes.HolderWrite]) -> RowShown | Refusal: ...


@dataclass(eq=False)
class Resumer:
    """Resumes leases whose rows name this worker although it does not hold them. `slots` (the limit of concurrent
    requests) and `rows` (our open writes) are the keeper's.
    """

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
        self._under_way: set[str] = set()  # keys of the leases that are being resumed
        self._lapsed: dict[str, Lease] = {}
        """Lapsed leases by key, each as we last wrote its row."""
        self._contested: Stillness[str, int] = Stillness()
        """The leases that a twin may renew: their counters, and since when these are unchanged."""
        self._closed = False  # whether this worker stops, so that no more leases are resumed
        self._trying = BackgroundTasks()  # the renewals under way

    # --- reports of the keeper ----------------------------------------------------------------------------------------

    def lapsed(self, lease: Lease) -> None:
        """Resume a lease that has expired or that we lost, if its row names us. `lease` is the row as last known."""
        if not self._closed and lease.actual_owner == self.worker_id:
            self._lapsed[lease.key] = lease
            self.keeper.look_again()

    def adopted(self, key: str) -> None:
        """Note that the lease with this key is held now, so that it need not be resumed."""
        self._lapsed.pop(key, None)
        self._contested.forget(key)

    def note_loss(self, key: str, refusal: Refusal) -> None:
        """Note that we lost a lease because a write was refused. Resume it if its row names us. If a twin (another
        process with our worker id) has it, resume it only after the twin has not renewed it for a lease duration.
        """
        if not refusal.by_twin:
            log.info("lease %s lost: %s", key, refusal.why, extra=about("lease_lost", key))
            if refusal.row is not None:
                self.lapsed(refusal.row)
            return
        # Begin to watch the twin's renewals. The counter -1 stands for "not read yet", because no row has it: the lease
        # duration is counted from the next time that the row is read.
        self._contested.begin(key, -1, self.clock.monotonic())
        log.error(
            "lease %s lost to another process with worker id %s (%s); give every process its own workerId",
            key,
            self.worker_id,
            refusal.why,
            extra=about("worker_id_twin", key),
        )

    def forget_table(self) -> None:
        """Forget the twins that were seen in a table that is gone."""
        self._contested.forget_all()

    def close(self) -> None:
        """Resume no more leases, because this worker stops."""
        self._closed = True
        self._lapsed.clear()

    def abandon(self) -> None:
        """Cancel the renewals that are under way."""
        self._trying.cancel()

    def is_resuming(self, key: str) -> bool:
        """Return whether the lease is being resumed, or waits to be resumed."""
        return key in self._lapsed or key in self._under_way

    # --- found leases -------------------------------------------------------------------------------------------------

    async def reacquire(self, leases: Iterable[Lease]) -> tuple[str, ...]:
        """Renew in parallel those of `leases` whose rows name us; each lease is held as soon as it is renewed.

        Rows of other workers and leases already held are skipped. Leases that a twin has taken from us are skipped,
        too, until their counters have been unchanged for a lease duration. A failure affects only its own lease. Return
        the keys of the leases that are held because of this call.
        """
        mine = {lease.key: lease for lease in leases if self._is_resumable(lease)}
        self._under_way |= mine.keys()
        try:
            outcomes = await asyncio.gather(*(self._reacquire_one(lease) for lease in mine.values()))
        finally:
            self._under_way -= mine.keys()
            self.keeper.look_again()  # lapsed leases that were not resumed are tried again
        return tuple(key for key, is_held in zip(mine, outcomes, strict=True) if is_held)

    def _is_resumable(self, lease: Lease) -> bool:
        """Return whether to resume a lease: its row names us, no twin seems to renew it, and this worker neither holds
        nor resumes it yet.
        """
        is_ours = lease.actual_owner == self.worker_id != lease.handoff_to  # a row that names us twice is refused
        is_free = not self.keeper.has(lease.key) and lease.key not in self._under_way
        return is_ours and is_free and not self._is_a_twins(lease)

    def _is_a_twins(self, lease: Lease) -> bool:
        """Return whether a twin seems to renew the lease. We must not take such a lease, or the twin and we would take
        it from each other for ever.
        """
        if lease.key not in self._contested:
            return False
        now = self.clock.monotonic()
        self._contested.saw(lease.key, lease.counter, now)
        return not self._contested.is_still(lease.key, now, self._lease_duration_s)

    async def _reacquire_one(self, lease: Lease) -> bool:
        """Renew one found row until there is an answer, for at most a lease duration and a few errors. Return whether
        the lease is held because of this call.
        """
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
        """Return the lapsed leases that are not being resumed yet. The caller must pass each of them to `resume`."""
        found = [lease for key, lease in self._lapsed.items() if key not in self._under_way]
        self._under_way.update(lease.key for lease in found)
        return found

    async def resume(self, lease: Lease) -> None:
        """Renew a lapsed lease until there is an answer. If the lease is not ours any more, forget it."""
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
            self.keeper.look_again()  # the lease may have lapsed again meanwhile

    # --- the write ----------------------------------------------------------------------------------------------------

    async def _try_again(self, tries: _Tries, how: LeaseMove) -> MldError | None:
        """Send another renewal, even if earlier ones are unanswered, and wait until one ends or the next is due. Return
        the error if a renewal failed, else None.
        """
        tries.failure = None
        tries.changed.clear()
        if not tries.is_queued and self.rows.waiting(tries.lease.key) < OPEN_MAX:
            tries.is_queued = True
            self._trying.spawn(self._try(tries, how))
        await wait_for_event(tries.changed, self._again_s(tries.lease.key))
        return tries.failure

    def _again_s(self, key: str) -> float:
        """Return how many seconds after the last try the next one is sent: a share of the lease duration, or a share of
        the time for which the oldest write of the row has been unanswered, whichever is longer.
        """
        sent_at = self.rows.sent_at(key)
        oldest_s = self.clock.monotonic() - sent_at[0] if sent_at else 0.0
        return max(AGAIN_SHARE * self._lease_duration_s, oldest_share(self._lease_duration_s) * oldest_s)

    async def _try(self, tries: _Tries, how: LeaseMove) -> None:
        """Send a renewal when there is a slot, and note its outcome in `tries`."""
        try:
            async with self.slots.one():
                tries.is_queued = False
                found = await self._confirm(tries, how) if tries.is_held is None else None
                if found is None and tries.is_held is None:  # our other writes have changed the row: renew the new row
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
        """Send one guarded renewal of a row that names us, although we do not hold the lease. Return whether the lease
        is held because of this renewal. Return None if nothing was written; then `tries.lease` is the row as it is now,
        on which the renewal must be repeated. Raises as `LeaseKeeper.send` does.
        """
        seen = tries.lease
        if self.keeper.has(seen.key):
            return False  # the lease was adopted meanwhile, perhaps because of a late answer to another write
        row = replace(seen, throughput_kbps=None)
        shown = await self.keeper.send(row, lambda span: writes.renew(row, span=span))
        if isinstance(shown, Refusal):
            if not self.keeper.has(seen.key):
                self.note_loss(seen.key, replace(shown, by_twin=False))
            return False
        if self.keeper.has(seen.key):
            self.keeper.confirmed(shown)
            return False
        if tries.is_held is not None:
            return False  # another try was answered before, but the lease was given away or lost since
        tries.lease = max(tries.lease, shown.row, key=lambda lease: lease.counter)
        if shown.counts_from is None:
            return None
        if how is LeaseMove.RESUMED and self._lapsed.get(seen.key) is None:
            return False  # this worker stops
        return self.keeper.adopt(shown.row, shown.counts_from, how, answered_sent_at=shown.sent_at) is not None
