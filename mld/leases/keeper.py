"""`LeaseKeeper`: renews and checkpoints the leases of this worker, gives them away, and stops using them in time.

Rules: leases#holding-tokens, leases#send-time-validity, leases#renewal-rhythm, leases#local-expiry,
leases#overlapping-writes, leases#lost-replies, leases#retries-inside-the-lease, leases#handoff-deadline.

A *holding* is one uninterrupted possession of a lease under one token. It ends when a write is refused, when it expires
by our clock, when the lease is given away or dropped, or when the same key is adopted again. The writes of a holding do
not wait for one another: each allows for all states in which the earlier writes may have left the row (`own_writes`).
So a slow answer, a lost reply, a time-out and a cancelled caller are all handled in the same way. A late answer counts,
too: for the holding of its key that exists when it comes. If a row names us but we have no holding of it, `resumer`
takes care of the row.

A holding is *believed* while no other worker can have taken the lease (`validity`). After that it is first *suspended*:
nothing is delivered or stored for it, but it is renewed as before. If an answer shows that only our own writes have
changed the row, the holding is believed again, under the same token. Without such an answer the holding ends after some
time.

If the leader asks for a handoff, the answer to our next write shows the request. The keeper reports the handoff
(`on_change`) and sets a deadline for it; until the handoff is completed, nothing else changes. Once the keeper has
begun to give a lease away, it does not renew the lease any more; if the write fails, the lease expires, and other
workers take it.

The keeper must never write for a holding that has ended, and must never believe in a lease for longer than the lease
duration.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from mld.core.background_tasks import BackgroundTasks
from mld.core.clock import Clock
from mld.core.error_boundary import survived
from mld.core.errors import LeaseLostError, MldError, TableUnavailableError
from mld.core.log_fields import about
from mld.core.periods import renew_interval_s
from mld.core.positions import Position
from mld.core.waits import wait_for_event
from mld.leases import writes
from mld.leases.giving import GivingAway
from mld.leases.lease import Failing, Lease, ShardStatus
from mld.leases.own_writes import OPEN_MAX, OwnWrites, RowShown, Sent, Span
from mld.leases.resumer import Resumer
from mld.leases.slots import Slots
from mld.leases.table import LeaseTable, Refusal
from mld.leases.throughput import Throughput
from mld.leases.validity import (
    AGAIN_S_MIN_SHARE,
    CHAIN_SHARE,
    HeldLease,
    Holding,
    Storing,
    again_at,
    chain_end,
    counts_from,
    may_be_applied,
    retry_delay_s,
)
from mld.metrics.events import NOBODY, EventKind
from mld.metrics.registry import Metrics
from mld.metrics.worker import LeaseMove
from mld.properties.settings import LeaseSettings

log = logging.getLogger(__name__)

SLOW_S = 300.0
"""If a tick finds that some renewals of the previous tick are still not sent, each lease is renewed only at every other
tick for this long."""
FRESH_SHARE = 1.5
"""During `SLOW_S`, a tick skips leases that were confirmed within the last `FRESH_SHARE` renewal intervals. So a lease
is renewed about two intervals after its last renewal, when a third of the lease duration is left."""
LATENESS_SHARE = 0.1
"""An answer that takes longer than this share of the lease duration is late. Renewals are sent early enough that the
same share is left, in case an answer is slower than the one before."""
CHECKPOINT_ATTEMPTS_MAX = 4  # the child waits for the answer and can retry by itself
STARTS_PER_SLICE = 50  # renewal tasks started before other tasks run
EXPIRY_MARGIN_S = 0.001  # added to timers, which may fire slightly early: then the lease has certainly expired

STORE_AGAIN_SHARE = 0.5
"""If a checkpoint is unanswered for this share of the renewal interval, the next renewal of the lease sends the
checkpoint again."""

MakeWrite = Callable[[Lease, Span], writes.HolderWrite]
"""Makes a write of a held lease, from the row as last seen and the states in which the write may find it."""


@dataclass(eq=False)
class LeaseKeeper:
    """Knows which leases are ours now; all other parts of the worker ask the keeper.

    `on_change` is called when the set of our leases changes, when a handoff is requested, and when an operator's
    requests in a row change. It must return at once. `status_of` returns the status of the shard with this lease key,
    which renewals write into the row.
    """

    table: LeaseTable
    clock: Clock
    rng: random.Random
    _: KW_ONLY
    worker_id: str
    settings: LeaseSettings
    new_token: Callable[[], str]
    on_change: Callable[[], None]
    status_of: Callable[[str], ShardStatus | None] = lambda _key: None
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self.renew_interval_s = renew_interval_s(self.settings.duration_s)
        self._slots = Slots(self.settings.renewals_concurrent_max, LATENESS_SHARE * self.settings.duration_s)
        self._rows = OwnWrites()  # our writes of each row that are not answered yet
        self._unawaited = BackgroundTasks()  # writes that go on although their caller was cancelled
        self._holdings: dict[str, Holding] = {}  # by lease key
        self._slow_until = -math.inf
        """The time until which leases are renewed half as often, because the table is too slow."""
        self._late_logged_until = -math.inf
        """The time until which late answers are not logged again."""
        self._times_changed = asyncio.Event()
        self._next_check_at = math.inf
        """When the deadlines of the holdings are checked next, unless `_times_changed` is set before."""
        self.resumer = Resumer(
            self, self._rows, self._slots, self.clock, self.rng, worker_id=self.worker_id, settings=self.settings
        )
        self.giving = GivingAway(self.table, self.clock, self.rng, self.worker_id, self.metrics)

    # --- the held leases ----------------------------------------------------------------------------------------------

    def held(self) -> dict[str, HeldLease]:
        """Return the leases that are ours, by key, without suspended ones."""
        return {key: HeldLease(h.lease, h.token) for key, h in self._holdings.items() if self._is_believed(h)}

    def tokens(self) -> dict[str, str]:
        """Return the token of each holding by key, including suspended holdings."""
        return {key: holding.token for key, holding in self._holdings.items()}

    def has(self, key: str) -> bool:
        """Return whether there is a holding of this key, even a suspended one."""
        return key in self._holdings

    def forget_table(self) -> None:
        """Forget our open writes in a table that is gone, and its twins (other processes with our worker id)."""
        self._rows.forget()
        self.resumer.forget_table()

    def look_again(self) -> None:
        """Check now which leases have to be resumed, and which suspended holdings are believed again."""
        self._times_changed.set()

    def is_held(self, key: str, token: str) -> bool:
        """Return whether the lease is ours under this token now; False while the holding is suspended."""
        holding = self._holding(key, token)
        return holding is not None and self._is_believed(holding)

    async def until_held(self, key: str, token: str) -> bool:
        """Wait while the holding is suspended. Return True once the lease is ours again, False if the holding ended."""
        while (holding := self._holding(key, token)) is not None and self.is_current(holding):
            if holding.believed.is_set():
                return True
            await holding.believed.wait()
        return False

    def adopt(
        self, lease: Lease, sent_at: float, how: LeaseMove = LeaseMove.RESUMED, *, answered_sent_at: float | None = None
    ) -> HeldLease | None:
        """Hold `lease` under a new token, because a write has just made it ours or confirmed that it is ours. `how` is
        how we got the lease, for the metrics.

        The belief in the lease counts from `sent_at`. `answered_sent_at` is the time at which the answered write was
        sent, by default `sent_at`. Return None if the answer came so late that the lease has already expired.
        """
        throughput = Throughput(lease.throughput_kbps, self.renew_interval_s)
        holding = Holding(lease, "", throughput, self.settings.duration_s, confirmed_at=sent_at)
        holding.answered_sent_at = sent_at if answered_sent_at is None else answered_sent_at
        if not self._is_believed(holding):
            log.warning("lease %s expired before its answer", lease.key, extra=about("lease_late", lease.key))
            self.resumer.lapsed(lease)
            return None
        if (former := self._holdings.get(lease.key)) is not None:
            self.forget(former)
        holding.token = self.new_token()
        holding.believed.set()
        self._holdings[lease.key] = holding
        self._rows.begin(lease.key)
        self.resumer.adopted(lease.key)
        self.metrics.worker.lease_moves.add(how.value)
        if how is not LeaseMove.RESUMED:
            self.metrics.events.note(EventKind.MOVED, shard=lease.key)
        self._times_changed.set()
        log.info("holding lease %s", lease.key, extra=about("lease_held", lease.key))
        self.on_change()
        self._note_news(holding, lease, lease)  # only a pending handoff can be news here
        return HeldLease(lease, holding.token)

    def drop(self, key: str, token: str) -> bool:
        """Stop holding a lease without writing its row. Return False if it is not held under this token."""
        holding = self._holding(key, token)
        if holding is None:
            return False
        self.forget(holding)
        return True

    def record_delivery(self, key: str, data_bytes: int) -> None:
        """Count a batch with `data_bytes` of payload that went to the processor of `key`."""
        holding = self._holdings.get(key)
        if holding is not None:
            holding.throughput.record(data_bytes)

    def note_failing(self, key: str, token: str, note: Failing) -> None:
        """Have the next renewal write into the row that the record processor keeps failing (`note`). The next
        checkpoint removes the note from the row.

        If the lease is given away before that renewal, the note is lost.
        """
        holding = self._holding(key, token)
        if holding is not None:
            holding.failing = note

    # --- writes on behalf of a consumer -------------------------------------------------------------------------------

    async def checkpoint(self, key: str, token: str, position: Position) -> Position:
        """Store `position` in the row, unless the row has a later one (leases#checkpoints-only-advance). Waits while
        the holding is suspended.

        Return `position`, or SHARD_END if the row was already complete. Raises LeaseLostError if the lease is lost;
        TableError if it is unknown whether the position is stored; then the lease is kept.
        """
        holding = self._current(key, token)
        async with holding.storing_one:
            if not await self.until_held(key, token):
                raise LeaseLostError(key, "expired or given up")
            stored = asyncio.get_running_loop().create_future()
            holding.storing = storing = Storing(position, self.clock.monotonic(), stored)
            try:
                return await self._store(holding, storing)
            finally:
                holding.storing = None
                if not stored.cancel():
                    stored.exception()  # so that asyncio does not log it as never retrieved

    async def _store(self, holding: Holding, storing: Storing) -> Position:
        """Send a checkpoint, repeatedly if necessary, until the row has it. Return the position in the row: this one,
        or SHARD_END if the row had that already.

        After an error the next attempt waits. If the answer is that other writes of ours came first (`Overtaken`), so
        that nothing was stored, the next attempt follows at once. Meanwhile a renewal may also send the checkpoint
        (`_renew_once`); whichever write stores it sets `storing.stored`.
        """
        attempt = 0
        while True:
            attempt += 1
            await self.until_held(holding.lease.key, holding.token)
            if storing.stored.done():
                return storing.stored.result()
            storing.sent_at = self.clock.monotonic()
            sending = self._unawaited.spawn(self._store_once(holding, storing.position))
            waited_for: set[asyncio.Future[Any]] = {sending, storing.stored}
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
            if storing.stored.done():
                return storing.stored.result()
            failure = TableUnavailableError("the worker stops") if sending.cancelled() else sending.result()
            delay_s = self._retry_delay_s(holding, attempt, CHECKPOINT_ATTEMPTS_MAX)
            if delay_s is None:
                key = holding.lease.key
                failure = failure or TableUnavailableError(f"the checkpoint of {key} was overtaken {attempt} times")
                log.warning("checkpoint of %s failed: %s", key, failure, extra=about("checkpoint_failed", key))
                if not self.is_current(holding):
                    raise LeaseLostError(key, "expired while a checkpoint was under way") from failure
                raise failure
            if failure is not None:
                await asyncio.wait({storing.stored}, timeout=delay_s)
                if storing.stored.done():
                    return storing.stored.result()

    async def _store_once(self, holding: Holding, position: Position) -> MldError | None:
        """Send a checkpoint once, and note the row in the answer. Return the error if the outcome is unknown."""
        try:
            await self._write(holding, self._checkpoint_of(holding, position), position)
        except LeaseLostError as lost:
            self._end_storing(holding, lost)
        except Exception as error:
            return survived(error, "storing a checkpoint", holding.lease.key)
        return None

    def _checkpoint_of(self, holding: Holding, position: Position) -> MakeWrite:
        """Return a function that makes the write of a checkpoint. A later position in the row stays; if the row is
        complete, the condition of the write is not met.
        """
        return lambda seen, span: writes.checkpoint(
            seen,
            position if seen.is_complete else max(position, seen.checkpoint),
            span=span,
        )

    def _end_storing(self, holding: Holding, lost: LeaseLostError | None = None) -> None:
        """End the wait for a checkpoint if the row as last seen has it, or if the lease is `lost`."""
        storing, row = holding.storing, holding.lease
        if storing is None or storing.stored.done():
            return
        if lost is not None:
            storing.stored.set_exception(lost)
        elif row.checkpoint >= storing.position:  # it is later if a later one was stored and the answer lost
            storing.stored.set_result(row.checkpoint if row.is_complete else storing.position)

    # --- giving a lease away ------------------------------------------------------------------------------------------

    async def give_away(self, key: str, token: str) -> bool:
        """Give the lease to the next owner of a pending handoff; without one, release it, so that other workers may
        take it at once.

        Whatever the outcome, the lease is not ours afterwards. Return True if the row is known to belong to another
        worker, or to nobody.
        """
        holding = self._holding(key, token)
        if holding is None:
            return False
        holding.leaving = True
        try:
            return self.is_current(holding) and await self.giving.give(holding)
        finally:
            self.forget(holding)

    # --- renewals -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Renew leases and end expired holdings, until cancelled. The cancellation changes nothing in the table."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch_deadlines(tasks))
                await self._renew_forever(tasks)
        finally:
            self._unawaited.cancel()
            self.resumer.abandon()

    async def _renew_forever(self, tasks: asyncio.TaskGroup) -> None:
        """Start renewals at each tick of a fixed rate. Missed ticks are skipped."""
        tick_at = self.clock.monotonic()
        while True:
            self.metrics.ticked(len(self._holdings), self.clock.monotonic(), self.renew_interval_s)
            await self._start_renewals(tasks)
            # Timers may fire slightly early, and with a negative `late_s` this tick would be repeated.
            late_s = max(0.0, self.clock.monotonic() - tick_at)
            tick_at += self.renew_interval_s * (late_s // self.renew_interval_s + 1)
            await self.clock.sleep(max(0.0, tick_at - self.clock.monotonic()))

    async def _start_renewals(self, tasks: asyncio.TaskGroup) -> None:
        """Start a renewal of each lease that is due for one, the most urgent first."""
        urgent_first = sorted(self._holdings.values(), key=lambda holding: holding.until)
        is_late = self._slots.locked() and any(holding.renewing for holding in urgent_first)
        fresh_since = self._fresh_since(len(urgent_first), is_late=is_late)
        for number, holding in enumerate(urgent_first, start=1):
            is_busy = holding.renewing or holding.leaving or holding.confirmed_at > fresh_since
            if not is_busy and self._is_renewal_due(holding):
                self._start_renewal(holding, tasks)
            if number % STARTS_PER_SLICE == 0:
                await asyncio.sleep(0)

    def _fresh_since(self, leases: int, *, is_late: bool) -> float:
        """Return the time after which a lease must have been confirmed for this tick to skip it
        (leases#renewal-rhythm). Usually that is now, so no lease is skipped. While the table is too slow, the time is
        earlier, but a skipped lease never expires before the next tick renews it.

        `is_late`: some renewals of the previous tick have not been sent yet. When that happens for the first time in
        `SLOW_S`, a warning is logged.
        """
        now = self.clock.monotonic()
        if is_late and now >= self._slow_until:
            log.warning(
                "the lease table is too slow to renew %d leases every %.1f s; they are renewed half as often now. "
                "Give the table more capacity, or raise failoverTimeMillis: three times that is a third of the writes",
                leases,
                self.renew_interval_s,
                extra={"action": "renewals_slow", "leases": leases},
            )
        if is_late:
            self._slow_until = now + SLOW_S
        if now >= self._slow_until:
            return now
        answered_in_s = self.renew_interval_s + self._slots.took_s  # until renewals of the next tick are answered
        lasts_s = (1 - LATENESS_SHARE) * self.settings.duration_s
        return now + max(-FRESH_SHARE * self.renew_interval_s, answered_in_s - lasts_s)

    def _is_renewal_due(self, holding: Holding) -> bool:
        """Return whether to renew a lease at this tick. If several writes of its row are unanswered, another is sent
        only if the last of them is not recent and there are fewer than `OPEN_MAX`.
        """
        key = holding.lease.key
        newest_at, waiting = self._rows.newest_at(key), self._rows.waiting(key)
        if newest_at is None or waiting <= 1:
            return True
        return waiting < OPEN_MAX and self.clock.monotonic() - newest_at >= AGAIN_S_MIN_SHARE * self.settings.duration_s

    def _start_renewal(self, holding: Holding, tasks: asyncio.TaskGroup) -> None:
        holding.renewing = True
        tasks.create_task(self._renew(holding))

    async def _renew(self, holding: Holding) -> None:
        """Renew one lease; repeat that after errors, until the lease is renewed, lost or expired. While a renewal is
        about to be sent, `holding.renewing` is True; while it waits for its answer, another may be sent.
        """
        key = holding.lease.key
        attempt = 0
        try:
            kbps = holding.throughput.sample_kbps()
            while True:
                attempt += 1
                sent_at = self.clock.monotonic()
                try:
                    async with self._slots.one():
                        holding.renewing = False
                        if holding.leaving:
                            return None
                        await self._renew_once(holding, kbps)
                    return self.metrics.renewed(key, True, sent_at, self.clock.monotonic())
                except LeaseLostError:
                    return None
                except Exception as error:
                    failure = survived(error, "renewing a lease", key)
                    self.metrics.renewed(key, False, sent_at, self.clock.monotonic())
                    if holding.renewing or holding.confirmed_at >= sent_at:
                        return None  # another renewal is about to be sent, or a later one was answered first
                    delay_s = self._retry_delay_s(holding, attempt, None)
                    # While the lease is suspended, failures are logged as DEBUG; the suspension itself was a warning.
                    is_first_or_last = attempt == 1 or delay_s is None
                    level = logging.WARNING if is_first_or_last and self._is_believed(holding) else logging.DEBUG
                    log.log(level, "renewal of %s failed: %s", key, failure, extra=about("renew_failed", key))
                    if delay_s is None:
                        return None
                holding.renewing = True
                await self.clock.sleep(delay_s)
        except Exception as error:  # nothing was sent; the next tick tries again
            holding.renewing = False
            survived(error, "renewing a lease", key)

    async def _renew_once(self, holding: Holding, kbps: float | None) -> None:
        """Send a renewal. If a checkpoint waits too long for its answer, send that instead: it is a renewal, too."""
        storing, again_s = holding.storing, STORE_AGAIN_SHARE * self.renew_interval_s
        is_late = storing is not None and self.clock.monotonic() - storing.sent_at >= again_s
        if storing is not None and is_late and self._is_believed(holding):
            storing.sent_at = self.clock.monotonic()
            await self._write(holding, self._checkpoint_of(holding, storing.position), storing.position)
            return
        await self._write(
            holding,
            lambda seen, span: writes.renew(
                replace(seen, throughput_kbps=kbps),
                span=span,
                failing=seen.lacking(holding.failing),
                status=self.status_of(holding.lease.key),
            ),
        )

    async def _watch_deadlines(self, tasks: asyncio.TaskGroup) -> None:
        """Act at the deadlines of the holdings, until cancelled: suspend and end holdings, force handoffs, and send
        further renewals. Also resume lapsed leases.
        """
        while True:
            self._times_changed.clear()
            now = self.clock.monotonic()
            for holding in list(self._holdings.values()):
                if not self.is_current(holding):
                    continue
                if holding.handoff_by is not None and not holding.leaving and holding.handoff_by <= now:
                    self._force_handoff(holding, tasks)
                elif self._again_at(holding) <= now:
                    self._start_renewal(holding, tasks)
            for lease in self.resumer.due():
                tasks.create_task(self.resumer.resume(lease))
            now = self.clock.monotonic()
            self._next_check_at = min((self._due_at(holding) for holding in self._holdings.values()), default=math.inf)
            wait_s = None if self._next_check_at == math.inf else self._next_check_at - now + EXPIRY_MARGIN_S
            await wait_for_event(self._times_changed, wait_s)

    def _due_at(self, holding: Holding) -> float:
        """Return the next deadline of this holding: for suspension or end, a further renewal, or the handoff."""
        ends_at = holding.until if holding.believed.is_set() else holding.ends_at
        due_at = min(ends_at, self._again_at(holding))
        return due_at if holding.handoff_by is None or holding.leaving else min(due_at, holding.handoff_by)

    def _again_at(self, holding: Holding) -> float:
        """Return when to send another renewal because the last write is unanswered; infinity if no other is needed."""
        key = holding.lease.key
        newest_at = self._rows.newest_at(key)
        if newest_at is None or newest_at <= holding.answered_sent_at or holding.renewing or holding.leaving:
            return math.inf
        if self._rows.waiting(key) >= OPEN_MAX:
            return math.inf
        # The belief may count from the send time of a later write, which is itself unanswered (`counts_from`). Writes
        # must not become rarer by that, so the time is counted from the last answered write.
        until = min(holding.until, holding.answered_sent_at + self.settings.duration_s)
        return again_at(newest_at, until, self.settings.duration_s)

    def _force_handoff(self, holding: Holding, tasks: asyncio.TaskGroup) -> None:
        """Give a lease away although its consumer has not finished, because the deadline of the handoff has passed."""
        key, next_owner = holding.lease.key, holding.lease.handoff_to
        log.warning(
            "handoff of %s to %s is forced: its processor has not finished within %.1f s",
            key,
            next_owner,
            self.settings.handoff_timeout_s,
            extra=about("handoff_forced", key),
        )
        holding.leaving = True
        tasks.create_task(self.give_away(key, holding.token))

    # --- the one way to write -----------------------------------------------------------------------------------------

    async def _write(self, holding: Holding, make: MakeWrite, position: Position | None = None) -> None:
        """Send one conditional write for a holding, and update the holding from the answer. `make` makes the write;
        `position` is the checkpoint that it stores, if any.

        Raises LeaseLostError if the holding is over or the write is refused. After any other exception the outcome is
        unknown.
        """
        if not self.is_current(holding):
            raise LeaseLostError(holding.lease.key, "expired or given up")
        before = holding.lease
        shown = await self.send(before, lambda span: make(before, span), position)
        if isinstance(shown, Refusal):
            # While the holding was suspended, another worker may have had the lease, so the refusal proves no twin.
            self.lose(holding, shown if self._is_believed(holding) else replace(shown, by_twin=False))
            raise LeaseLostError(before.key, shown.why)
        self._note(holding, shown)

    async def send(
        self, seen: Lease, make: Callable[[Span], writes.HolderWrite], position: Position | None = None
    ) -> RowShown | Refusal:
        """Send one write, based on the row as `seen`; return the row that the answer shows, or the refusal. It is also
        a refusal if the row's counter shows a write by another process with our worker id. If this raises (a TableError
        or any other exception), the outcome of the write is unknown.
        """
        key = seen.key
        sent = self._rows.send(seen, self.clock.monotonic(), position)
        holding = self._holdings.get(key)
        if holding is not None and self._again_at(holding) < self._next_check_at:
            self._times_changed.set()
        try:
            answer = await self.table.apply(make(sent.span))
        except BaseException as error:
            self._rows.failed(key, sent, may_be_applied=not isinstance(error, MldError) or may_be_applied(error))
            raise
        if isinstance(answer, Refusal):
            self._rows.gone(key, sent)
            return answer
        is_accepted = isinstance(answer, Lease)
        valid_from = self._counts_from(key, sent) if is_accepted else None
        shown = RowShown(answer if isinstance(answer, Lease) else answer.row, sent.at, valid_from)
        if not self._rows.answered(key, sent, shown.row.counter, accepted=is_accepted):
            held = self._holdings.get(key)
            known = seen if held is None else held.lease
            return writes.unexplained(seen, max(known, shown.row, key=lambda row: row.counter))
        return shown

    def confirmed(self, shown: RowShown) -> None:
        """Note the answer to a renewal by the resumer, for a lease that is held by now because of another answer."""
        holding = self._holdings.get(shown.row.key)
        if holding is not None:
            self._note(holding, shown)

    def _counts_from(self, key: str, sent: Sent) -> float:
        """Return when the lease duration begins to count because of an accepted write. Count and log a late answer."""
        now, duration_s = self.clock.monotonic(), self.settings.duration_s
        followed_until = chain_end(sent.at, self._rows.sent_at(key), CHAIN_SHARE * duration_s)
        from_s = counts_from(sent.at, now, followed_until, duration_s)
        if from_s > sent.at:
            self._note_late(now - sent.at)
        return from_s

    def _note_late(self, took_s: float) -> None:
        """Count an answer that took most of the lease duration, and log a warning at most every `SLOW_S`."""
        now, duration_s = self.clock.monotonic(), self.settings.duration_s
        words = f"answers of DynamoDB take {took_s:.1f} s, and leases last {duration_s:g} s"
        self.metrics.worker.answered_late(words, now, duration_s)
        if now < self._late_logged_until:
            return
        self._late_logged_until = now + SLOW_S
        self.metrics.events.note(EventKind.SLOW, words)
        log.warning(
            "%s: two workers may deliver the same records; checkpoints stay safe. Find out what is slow, or raise "
            "failoverTimeMillis",
            words,
            extra={"action": "answers_late", "took_s": round(took_s, 1)},
        )

    def _note(self, holding: Holding, shown: RowShown) -> None:
        """Note the answer to a write of `holding`. If the lease has a newer holding by now, the answer counts for that.

        The row in the answer may be older than the row that we know; then the answer is used only to confirm the
        lease. If a newer row shows that another worker had the lease while the holding was suspended, the holding ends.
        If the write was accepted, the belief counts from `shown.counts_from`. If the holding has expired meanwhile, an
        accepted write adopts the lease again, unless we are giving it away.
        """
        row = shown.row
        current = self._holdings.get(row.key, holding)
        before = current.lease
        is_news = row.counter >= before.counter
        if is_news and not current.expired and not self._is_believed(current) and writes.has_changed_hands(before, row):
            self.lose(current, writes.given_back(row))
            return
        if is_news:
            current.lease = row
        if shown.counts_from is not None:
            current.answered_sent_at = max(current.answered_sent_at, shown.sent_at)
            current.confirm(shown.counts_from)
        if current.expired and not current.leaving:
            if is_news and shown.counts_from is not None:
                # The answer came after the holding had expired, but it shows that the row is ours.
                self.adopt(row, shown.counts_from, answered_sent_at=shown.sent_at)
            return
        self._end_storing(current)
        self._note_news(current, before, row)

    def _note_news(self, holding: Holding, before: Lease, row: Lease) -> None:
        """Report what is new in `row`, the row of an answer, compared with `before`: a requested handoff (once), or
        changed requests of an operator.
        """
        is_current = self.is_current(holding)
        if row.handoff_to is not None and holding.handoff_by is None and is_current:
            log.info("asked to hand %s to %s", row.key, row.handoff_to, extra=about("handoff_asked", row.key))
            holding.handoff_by = self.clock.monotonic() + self.settings.handoff_timeout_s
            self._times_changed.set()
            self.on_change()
        elif row.wishes != before.wishes:
            self.on_change()

    def _holding(self, key: str, token: str) -> Holding | None:
        """Return the holding with this key and token; None if it has ended."""
        holding = self._holdings.get(key)
        return holding if holding is not None and holding.token == token else None

    def _current(self, key: str, token: str) -> Holding:
        """Return the holding with this key and token. Raises LeaseLostError if it has ended."""
        holding = self._holding(key, token)
        if holding is None or not self.is_current(holding):
            raise LeaseLostError(key, "not held under this token")
        return holding

    def _is_believed(self, holding: Holding) -> bool:
        """Return whether the lease is certainly ours: no other worker can have taken it yet."""
        return self.clock.monotonic() < holding.until

    def is_current(self, holding: Holding) -> bool:
        """Return whether a holding still exists, even if it is suspended. Before that, do what is due by the clock:
        suspend it, lift its suspension, or end it.
        """
        key = holding.lease.key
        if self._holdings.get(key) is not holding:
            return False
        if self._is_believed(holding):
            if not holding.believed.is_set():
                holding.believed.set()
                self._rows.begin(key)
                log.info("lease %s is ours without a break", key, extra=about("lease_back", key))
                self.on_change()
            return True
        if holding.believed.is_set():
            holding.believed.clear()
            log.warning("lease %s suspended: no renewal is answered", key, extra=about("lease_suspended", key))
            self.on_change()
        if self.clock.monotonic() < holding.ends_at:
            return True
        holding.expired = True
        log.warning("lease %s expired without a renewal", key, extra=about("lease_expired", key))
        if not holding.leaving:
            self.resumer.lapsed(holding.lease)
        self.forget(holding, LeaseMove.EXPIRED)
        return False

    def lose(self, holding: Holding, refusal: Refusal) -> None:
        """End a holding because a write was refused. The resumer may get the lease back later."""
        if self._holdings.get(holding.lease.key) is holding:
            self.resumer.note_loss(holding.lease.key, refusal)
            self._end_storing(holding, LeaseLostError(holding.lease.key, refusal.why))
            if refusal.row is None:
                words = f"lost by {self.worker_id}: {refusal.why}"
                self.metrics.events.note(EventKind.MOVED, words, shard=holding.lease.key, worker=NOBODY)
            self.forget(holding, LeaseMove.TWIN if refusal.by_twin else LeaseMove.LOST)

    def forget(self, holding: Holding, lost: LeaseMove | None = None) -> None:
        """End a holding, and wake all callers that wait for it. `lost` is how the lease was lost, for the metrics."""
        if self._holdings.get(holding.lease.key) is holding:
            del self._holdings[holding.lease.key]
            holding.believed.set()
            self._end_storing(holding, LeaseLostError(holding.lease.key, "expired or given up"))
            if lost is not None:
                self.metrics.lost(lost)
            self.on_change()

    def _retry_delay_s(self, holding: Holding, attempt: int, attempts_max: int | None) -> float | None:
        """Return how many seconds to wait after failed attempt number `attempt`. Return None if there must be no
        further attempt, because `attempts_max` is reached (None: no limit), or the belief in the lease is about to end.
        """
        if attempts_max is not None and attempt >= attempts_max:
            return None
        return retry_delay_s(attempt, holding.until - self.clock.monotonic(), self.rng)
