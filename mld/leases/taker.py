"""`LeaseTaker`: takes the leases that this worker should have in 2.x mode, and has the keeper hold them.

Rules: leases#taker-observation (rhythm), leases#taking-one-by-one and leases#stealing-of-leases. Each lease is held as
soon as it is taken, and one failure does not affect the others. Before a lease is stolen, its row is read again. The
first passes of the workers of a fleet are spread over some time. `take_plan` decides which leases to take.

If the outcome of a take stays unknown, it may have made us the owner of a lease that nobody renews. So the counter
before the take is remembered, and the next pass resumes such a lease instead of waiting until it expires.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from mld.core.error_boundary import survived
from mld.core.log_fields import about
from mld.core.periods import EPSILON_S
from mld.core.stillness import Stillness
from mld.core.waits import wait_for_event
from mld.leases import writes
from mld.leases.keeper import LeaseKeeper
from mld.leases.lease import Lease
from mld.leases.table import Refusal, TableScan
from mld.leases.table_view import Views
from mld.leases.take_plan import Choice, SeenCounters, TakePlan, decide, observe
from mld.leases.validity import may_be_applied, retry_delay_s
from mld.metrics.registry import Metrics
from mld.metrics.worker import LeaseMove

log = logging.getLogger(__name__)

START_JITTER_S = 0.5  # so that workers that start together do not scan together; short compared with their start
FAILED_PASS_RETRY_S = 1.0
"""Pause after a failed pass. It doubles up to the period. So a failed scan does not delay take-overs by a whole period.
"""
TAKES_CONCURRENT_MAX = 10
TAKE_ATTEMPTS_MAX = 3
REFUSED_IN_A_ROW_MAX = 20
"""A pass ends after this many consecutive refusals: other workers take the same leases and are faster, and a refused
write costs as much as any other. If a tenth of the leases is still free, this ends one pass in eight too early; then
other workers take the rest."""

NO_ROOM_PATIENCE_S = 60.0
"""How long leases may be left for lack of room before that is reported. Meanwhile another worker may take them, or may
be starting.
"""
NAMED_MAX = 5  # shards named in a line of the log


class RoomWatch:
    """Reports leases of open shards that no worker takes: this worker has no room for them, and no other has taken them
    for `NO_ROOM_PATIENCE_S`.
    """

    def __init__(self, leases_max: int, metrics: Metrics) -> None:
        self._leases_max = leases_max
        self._table = metrics.worker.table
        self._since: dict[str, float] = {}
        """Since when this worker has left each lease to others, for lack of room."""
        self._reported: set[str] = set()
        """The leases that were logged, as long as nobody takes them."""

    def saw(self, left: Collection[str], now: float) -> None:
        """Note the leases that this worker has left to others at `now`, because it has no room. Report those that it
        has left for NO_ROOM_PATIENCE_S: if another worker had taken them, they would not be among `left`.
        """
        self._since = {key: self._since.get(key, now) for key in left}
        unread = {key for key, since in self._since.items() if now - since >= NO_ROOM_PATIENCE_S}
        self._table.without_room = len(unread)
        self._reported &= unread
        if unread <= self._reported:
            return
        self._reported = unread
        log.error(
            "no worker has had room for %d shards for %.0f s, so nobody reads them: %s%s; this worker has %d, all that "
            "maxLeasesForWorker allows. Start another worker, or raise maxLeasesForWorker",
            len(unread),
            NO_ROOM_PATIENCE_S,
            ", ".join(sorted(unread)[:NAMED_MAX]),
            ", ..." if len(unread) > NAMED_MAX else "",
            self._leases_max,
            extra={"action": "no_room", "shards": len(unread)},
        )


@dataclass(eq=False)
class LeaseTaker:
    """Takes leases for its `keeper`, once in two lease durations, and earlier when woken."""

    keeper: LeaseKeeper
    views: Views

    def __post_init__(self) -> None:
        self.table, self.clock, self.rng = self.keeper.table, self.keeper.clock, self.keeper.rng
        self.worker_id, self.settings = self.keeper.worker_id, self.keeper.settings
        self._worker = self.keeper.metrics.worker
        self._takes = self._worker.operations.takes
        self._taken = self._refused = 0  # how many takes of the present pass succeeded, and how many were refused
        self._room = RoomWatch(self.settings.held_max, self.keeper.metrics)
        self._period_s = (self.settings.duration_s + EPSILON_S) * 2
        self._pass_lock = asyncio.Lock()
        self._woken = asyncio.Event()
        self._seen: SeenCounters = Stillness()  # since when the counter of each lease has been unchanged
        self._ended: dict[str, float] = {}
        """Workers whose processes have ended, and the time until which no process is started under their ids."""
        self._unknown_takes: dict[str, int] = {}
        """The leases that this worker has tried to take and does not hold, with the counter of each before the take."""
        self._refused_in_a_row = 0
        """How many takes of this pass were refused since the last one that succeeded."""
        self._passes = 0
        """How many passes were made."""

    def wake(self) -> None:
        """Make the next pass now, because leases were created, or because workers have come or gone."""
        self._woken.set()

    def forget(self) -> None:
        """Forget the counters that were seen in a table that is gone."""
        self._seen.forget_all()
        self._unknown_takes.clear()

    def ended(self, worker: str, until: float) -> None:
        """Note that the process of `worker` has ended, and that none is started under its id before `until`
        (monotonic). Make a pass now, which treats that worker's leases as expired.
        """
        self._ended[worker] = until
        self.wake()

    async def run(self) -> None:
        """Take leases until cancelled. After a failed pass, which is logged, the next one comes sooner."""
        if self._passes:  # a pass was made at the start already: spread the next passes of the workers over the period
            first_delay_s = self.rng.uniform(self._period_s / 2, self._period_s)
        else:
            first_delay_s = self.rng.uniform(0.0, START_JITTER_S)
        await wait_for_event(self._woken, first_delay_s)
        failures = 0
        while True:
            self._woken.clear()
            try:
                await self.take_once()
                failures = 0
            except Exception as error:
                failures += 1
                log.warning("no leases taken: %s", survived(error, "taking leases"), extra={"action": "take_failed"})
            retry_s = FAILED_PASS_RETRY_S * 2.0 ** min(failures - 1, 10)
            await wait_for_event(self._woken, min(retry_s, self._period_s) if failures else self._period_s)

    async def take_once(self, scan: TableScan | None = None) -> tuple[str, ...]:
        """Make one pass; return the keys of the leases that were taken. A caller that has just scanned the table passes
        the `scan`.

        Raises TableError if the table cannot be scanned. Leases that cannot be taken are logged.
        """
        async with self._pass_lock:
            with self._takes.all.timed(self.clock.monotonic):
                return await self._pass(scan)

    async def _pass(self, scan: TableScan | None) -> tuple[str, ...]:
        """Look at all leases, decide which to take, and take them; return the keys of those that were taken. Leases of
        workers whose processes have ended count as expired. Leases that are held or being resumed are not taken.
        """
        if scan is None:
            with self._takes.list_leases.timed(self.clock.monotonic):
                scan = (await self.views.newer_than(self.clock.monotonic())).scan
        now = self.clock.monotonic()
        self._passes += 1
        observe(self._seen, scan.leases, now)
        ended = {worker for worker, until in self._ended.items() if until >= now}
        expired_at = now - 2 * self.settings.duration_s  # unchanged for so long: expired, but not very old
        for lease in scan.leases if ended else ():
            if lease.actual_owner in ended:
                self._seen.begin(lease.key, lease.counter, expired_at)
        await self._resume_unknown_takes(scan.leases)
        plan = decide(scan.leases, self._seen, self.worker_id, now, self.rng, self.settings)
        self._count(plan, scan)
        self._room.saw(plan.left, now)
        wanted = [
            choice
            for choice in plan.choices
            if not (self.keeper.has(choice.lease.key) or self.keeper.resumer.is_resuming(choice.lease.key))
        ]
        self._taken = self._refused = 0
        try:
            return await self._take_all(wanted)
        finally:
            self._takes.taken.note(self._taken)
            self._takes.untaken.note(self._refused)

    def _count(self, plan: TakePlan, scan: TableScan) -> None:
        """Report the figures of a pass to the metrics; those of the whole table only if this worker leads."""
        takes, table = self._takes, self._worker.table
        takes.total.note(len(scan.leases))
        takes.workers.note(plan.workers)
        takes.expired.note(plan.available)
        takes.needed.note(max(0, plan.needed))
        takes.to_take.note(len(plan.choices) - plan.very_old)
        takes.very_old.note(plan.very_old)
        takes.spillover.note(plan.spillover)
        table.corrupt, table.corrupt_rows = len(scan.corrupt), scan.corrupt
        if self._worker.is_leader:
            table.lease_counts = scan.lease_counts
            table.workers, table.unassigned = plan.workers, plan.available

    async def _resume_unknown_takes(self, leases: Iterable[Lease]) -> None:
        """Resume leases that an earlier take of unknown outcome has made ours; a take raises the counter by one.
        Remember the takes that may yet be applied, because the counter is unchanged, and forget the others.
        """
        by_key = {lease.key: lease for lease in leases if lease.key in self._unknown_takes}
        ours = [
            lease
            for key, lease in by_key.items()
            if lease.owner == self.worker_id and lease.counter == self._unknown_takes[key] + 1
        ]
        self._unknown_takes = {
            key: counter
            for key, counter in self._unknown_takes.items()
            if key in by_key and by_key[key].counter == counter
        }
        await self.keeper.resumer.reacquire(ours)

    async def _take_all(self, choices: list[Choice]) -> tuple[str, ...]:
        """Take the leases in order, a few at a time; return the keys of those that are held now.

        Each worker of a new fleet may choose all leases of the table. A task for each lease would take tens of
        megabytes and block the event loop. And if a thousand workers choose all leases, most takes are refused.
        """
        waiting = iter(choices)
        taken: list[str] = []
        self._refused_in_a_row = 0

        async def take_waiting() -> None:
            """Take waiting leases one after the other, until none is left or too many takes were refused."""
            while self._refused_in_a_row < REFUSED_IN_A_ROW_MAX and (choice := next(waiting, None)) is not None:
                if (key := await self._take(choice)) is not None:
                    taken.append(key)

        await asyncio.gather(*(take_waiting() for _ in range(min(len(choices), TAKES_CONCURRENT_MAX))))
        return tuple(taken)

    async def _take(self, choice: Choice) -> str | None:
        """Take one lease; return its key if it is held now."""
        lease = await self._fresh_victim(choice) if choice.is_steal else choice.lease
        return None if lease is None else await self._take_row(lease, choice.is_steal)

    async def _fresh_victim(self, choice: Choice) -> Lease | None:
        """Read the row of a lease that is to be stolen, and return it; None if it is gone, or does not belong to the
        chosen victim any more.

        A steal is conditional on the counter, and the living owner keeps renewing the lease. So with the counter from
        the scan, many steals would be refused.
        """
        try:
            fresh = await self.table.get(choice.lease.key)
        except Exception as error:
            survived(error, "looking at a lease", choice.lease.key)
            return choice.lease  # if this row is out of date, the take is refused
        return fresh if fresh is not None and fresh.owner == choice.lease.owner else None

    async def _take_row(self, lease: Lease, is_steal: bool) -> str | None:
        """Send the take of a row, and repeat it after an error, a few times. Return the key if we hold the lease now.

        If an earlier attempt may have been applied, the lease is valid from the time at which the first such attempt
        was sent.
        """
        key = lease.key
        started_at = self.clock.monotonic()
        unknown_since: float | None = None
        for attempt in range(1, TAKE_ATTEMPTS_MAX + 1):
            sent_at = self.clock.monotonic()
            resent = unknown_since is not None
            self._unknown_takes[key] = lease.counter
            try:
                with self._takes.take_lease.timed(self.clock.monotonic):
                    answer = await self.table.apply(writes.take(lease, self.worker_id, resent=resent))
            except Exception as error:
                failure = survived(error, "taking a lease", key)
                if may_be_applied(failure):
                    unknown_since = sent_at if unknown_since is None else unknown_since
                elif not resent:  # certainly not applied
                    del self._unknown_takes[key]
                remaining_s = started_at + self.settings.duration_s - self.clock.monotonic()
                delay_s = retry_delay_s(attempt, remaining_s, self.rng)
                if delay_s is None or attempt == TAKE_ATTEMPTS_MAX:
                    log.warning("cannot take %s: %s", key, failure, extra=about("take_failed", key))
                    return None
                await self.clock.sleep(delay_s)
                continue
            return self._settle(lease, answer, sent_at if unknown_since is None else unknown_since, is_steal)
        return None

    def _settle(self, lease: Lease, answer: Lease | Refusal, sent_at: float, is_steal: bool) -> str | None:
        """Note the answer to a take, and hold the lease if it is ours; return its key if we hold it now, else None.
        `sent_at` is the time from which the lease is valid.
        """
        if isinstance(answer, Refusal):
            self._refused += 1
            self._refused_in_a_row += 1
            log.debug("%s not taken: %s", lease.key, answer.why, extra=about("take_refused", lease.key))
            return None  # the note in `_unknown_takes` is judged by the next scan
        self._refused_in_a_row = 0
        self._taken += 1
        self._seen.begin(lease.key, answer.counter, self.clock.monotonic())
        log.info(
            "took lease %s from %s",
            lease.key,
            lease.actual_owner or "nobody",
            extra=about("lease_stolen" if is_steal else "lease_taken", lease.key),
        )
        if self.keeper.adopt(answer, sent_at, LeaseMove.TAKEN) is None:
            return None  # the answer came too late; the next pass resumes the row
        del self._unknown_takes[lease.key]
        return lease.key
