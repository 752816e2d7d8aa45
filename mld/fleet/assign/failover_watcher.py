"""`FailoverWatcher`: reads the lease table at a bounded rate, and takes leases that nobody renews. The decisions are in
`takeover`.

Every worker of a fleet in 3.x mode has one. It works in the same way whoever leads. A read of the table is called a
*look*. A look that fails proves nothing about any worker; if the last successful look is too old, nothing is taken
before the next one. Looks begin at multiples of their period by the wall clock, so that the watchers of a fleet see the
same rows at the same time, and deal leases in the same way. If clocks disagree, some leases are only taken a little
later (`takeover.SECOND_CHANCE_S`).

A look at the whole table is a view (`TableView`). A view for which another part of this worker has asked, for example
the assigner, counts as a look. Other parts use what a look shows, too: discovery is given the leases that are ours, and
a leader's assigner is woken if leases are free.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field

from mld.core.background_tasks import BackgroundTasks
from mld.core.clock import Clock
from mld.core.error_boundary import survived
from mld.core.periods import LONE_LEADER_LOOK_S, LOOK_PERIOD_S
from mld.core.row_lines import RowLines
from mld.core.token_budget import BudgetLimit, TokenBudget
from mld.core.turns import in_turns
from mld.core.waits import wait_for_event
from mld.fleet.assign.fleet_load import Move, Why, reports_among
from mld.fleet.assign.move_writer import MoveWriter, Written
from mld.fleet.assign.takeover import Takeover
from mld.fleet.leader.decider import LeaderDecider
from mld.fleet.membership import FleetMembership
from mld.fleet.other_applications import other_application
from mld.fleet.report import reports
from mld.fleet.report.reports import WorkerReport
from mld.fleet.report.reports_table import StoredReports
from mld.leases.discovery import LeaseDiscovery
from mld.leases.lease import Lease
from mld.leases.table import LeaseTable, TableScan
from mld.leases.table_view import SeenTable, Views
from mld.leases.taker import RoomWatch
from mld.metrics.events import EventKind
from mld.metrics.registry import Metrics
from mld.properties.settings import Settings

log = logging.getLogger(__name__)

RETRY_S = 0.3  # pause after a failed look, when most throttling is over; it doubles up to `LOOK_PERIOD_S`
RETRIES_GROWING = 3
FRESH_S = 2 * LOOK_PERIOD_S
"""If the last look is older than this, the table is read again before leases are taken, because many of the writes
would be refused. A worker that is alone may use an older look, because no other worker renews leases."""
LEGACY_WAIT_S = 3.0  # how long a look waits for the legacy reports
LEGACY_PERIOD_S = 30.0
"""How often the reports of the legacy table are read; they do not change more often."""
TOO_SOON_SHARE = 0.25
"""If less than this share of a period is left until its next multiple, the look waits for the multiple after that."""
NEIGHBOUR_RUNS = BudgetLimit("neighbour_runs", 6, 60.0)
"""Limits the extra runs of the assigner that are made because a worker has started on a machine that has other workers.
Each run reads the whole table, and anybody who may write rows can invent any number of workers. New workers beyond the
limit wait for a regular run."""
DUE_MARGIN_S = 0.001  # added to timers, which may fire slightly early: then leases are certainly due


@dataclass(eq=False)
class FailoverWatcher:
    """Reads the table and takes leases while `run` runs."""

    table: LeaseTable
    views: Views
    clock: Clock
    settings: Settings
    worker_id: str
    _: KW_ONLY
    membership: FleetMembership
    stored_reports: StoredReports
    discovery: LeaseDiscovery
    leader: LeaderDecider
    assigning_due: asyncio.Event
    """Wakes the assigner."""
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self._me = self.worker_id
        self.takeover = Takeover(self.settings, self.worker_id, self.membership)
        self._room = RoomWatch(self.settings.leases.held_max, self.metrics)
        self._writer = MoveWriter(
            self.table,
            self.takeover.observations,
            self.clock,
            self.worker_id,
            self.discovery.wake,
            self.metrics,
        )
        self._reports: dict[str, WorkerReport] = {}
        """The report of each worker in the lease table, as of the last look at the whole table."""
        self._measuring: frozenset[str] = frozenset()
        """The workers whose reports had a meter (`reports.METER`) at the last look."""
        self._strangers: frozenset[str] = frozenset()
        """The workers of other applications that the last look showed alive; they were logged."""
        self._stranger_lines = RowLines("workers of other applications", self.clock)
        self._neighbour_runs = TokenBudget(NEIGHBOUR_RUNS)
        self._legacy: Sequence[WorkerReport] = ()
        """The reports in the table of KCL 3.0 to 3.4, as of the last read of that table."""
        self._legacy_due_at = -math.inf
        """When the table of KCL 3.0 to 3.4 is to be read next."""
        self._reading = BackgroundTasks()  # a read of the legacy reports that may take longer than a look
        self._whole_at = -math.inf
        """When the last look at the whole table began (monotonic)."""
        self._read_s = 0.0
        """How long the read of the table took at that look."""
        self._looked_at = -math.inf
        """When the last look ended, at the whole table or at parts of it."""
        self._began_at = math.inf
        """When `run` began."""
        self._free: set[str] = set()
        """The keys of leases without an owner for which the assigner was woken already, if this worker led."""
        self._is_asked = False
        """Whether `wake` has asked for a look at the whole table."""
        self._woken = asyncio.Event()
        self.views.wake(self._woken)

    def wake(self) -> None:
        """Look at the whole table now, because a worker may have come or gone."""
        self._is_asked = True
        self._woken.set()

    def ended(self, worker: str, until: float) -> None:
        """Note that the process of `worker` has ended, and that none is started under its id before `until`
        (monotonic). Look at the table now, because the leases of that worker may be taken at once.
        """
        self.takeover.ended(worker, until)
        self.wake()

    def gave(self) -> None:
        """Note that this worker gave a lease to another worker. The other worker may be dead, so it has to be watched
        from now on: if this worker was alone until now, look at the table at once.
        """
        was_alone = self.membership.is_alone
        self.membership.gave(self.clock.monotonic())
        if was_alone:
            self.wake()

    async def run(self) -> None:
        """Read the table and take leases until cancelled."""
        try:
            await self._look_forever()
        finally:
            self._reading.cancel()
            self._writer.close()

    async def _look_forever(self) -> None:
        """Look at the table when a look is due or was asked for, or use a view that another part of this worker has
        asked for; take leases in between. After a failed look the next one comes sooner.
        """
        failures, self._began_at = 0, self.clock.monotonic()
        again_at = -math.inf
        while True:
            self._woken.clear()
            is_asked, self._is_asked = self._is_asked, False
            try:
                if is_asked or self.clock.monotonic() >= again_at:
                    await self._look(is_whole=is_asked)
                    failures, again_at = 0, self._next_look_at()
                elif self._has_news:
                    await self._see_news()
                    # A lone leader counts its next look from this view. Other watchers look at the common times.
                    again_at = self._next_look_at() if self._leads_alone else min(again_at, self._next_look_at())
            except Exception as error:
                failure = survived(error, "looking at the leases")
                log.debug("cannot look at the leases: %s", failure, extra={"action": "look_failed"})
                again_at = self.clock.monotonic() + min(RETRY_S * 2**failures, LOOK_PERIOD_S)
                failures = min(failures + 1, RETRIES_GROWING)
            await self._take_until(again_at)

    # --- looking ------------------------------------------------------------------------------------------------------

    async def _look(self, *, is_whole: bool) -> None:
        """Look at the whole table if that was asked for (`is_whole`) or is due, if the table is not read in parts, or
        if this worker watches no part. Otherwise look only at the parts that this worker watches.
        """
        parts, part_count = self.takeover.my_parts(), self.takeover.part_count
        is_due = self.clock.monotonic() >= self._whole_at + self.takeover.whole_period_s()
        if is_whole or part_count == 1 or not parts or is_due:
            await self._read_legacy_if_due()
            await self._see(await self.views.newer_than(self.clock.monotonic()))
        else:
            await asyncio.gather(*(self._look_at_part(part, part_count) for part in parts))
        self._looked_at = self.clock.monotonic()

    @property
    def _has_news(self) -> bool:
        """Whether there is a view that another part has asked for, and that is newer than our last look."""
        return self.views.newest is not None and self.views.newest.began_at > self._whole_at

    async def _see_news(self) -> None:
        """Use the newest view, for which another part of this worker has asked, as a look."""
        await self._read_legacy_if_due()
        newest = self.views.newest
        if newest is not None:
            await self._see(newest)
            self._looked_at = newest.ended_at

    async def _see(self, view: SeenTable) -> None:
        """Use a view of the whole table as a look: note which workers live and which leases are due (`takeover`), pass
        our own leases on to discovery, and wake the assigner if leases are free or a worker has started on the machine
        of another. If the leader shows no life, also hand a lease to a worker that has none (`_welcome`).
        """
        scan, now = view.scan, view.ended_at
        read = await in_turns(reports_among(scan.others))
        found = read.reports
        self.metrics.worker.table.corrupt = len(scan.corrupt) + len(read.corrupt)
        self.metrics.worker.table.corrupt_rows = scan.corrupt
        self._reports = {report.worker: report for report in found}
        everybody = reports.newest_of_each((*found, *self._legacy))
        self._wake_for_neighbours(everybody)
        await in_turns(self.takeover.saw_all(scan.leases, everybody, now))
        self._report_strangers()
        self._whole_at, self._read_s = view.began_at, view.took_s
        self.discovery.saw_table(scan.leases, leads_alone=self._leads_alone)
        self._free &= {lease.key for lease in scan.leases if lease.actual_owner is None}
        self._note_free(scan.leases)
        self._room.saw(self.takeover.left(now), now)
        leader = self.leader.leader
        if leader is not None and leader not in self.membership.showing_life and not self.leader.leads:
            await self._welcome(everybody)

    def _report_strangers(self) -> None:
        """Count the living workers of other applications, and log each once."""
        strangers = self.membership.strangers
        self.metrics.worker.table.strangers = len(strangers)
        for worker in sorted(strangers.keys() - self._strangers):
            if not self._stranger_lines.may_log():
                break
            words = other_application(worker, strangers[worker], self.settings)
            self.metrics.events.note(EventKind.STRANGER, f"reads stream {strangers[worker]}", worker=worker)
            log.error("%s", words, extra={"action": "other_application", "worker": worker})
        self._strangers = frozenset(strangers)

    def _wake_for_neighbours(self, everybody: Iterable[WorkerReport]) -> None:
        """Wake the assigner if this worker leads and a worker has started on a machine that has other workers, because
        only the assigner can balance the load among the workers of one machine.
        """
        # The meter of a worker identifies the CPUs that it measures. Workers on one machine have the same meter.
        meters = {report.worker: meter for report in everybody if (meter := report.mld.get("meter"))}
        workers = Counter(meters.values())
        now = self.clock.monotonic()
        if (
            self.leader.leads
            and any(workers[meters[one]] > 1 for one in meters.keys() - self._measuring)
            and self._neighbour_runs.allows(now)
        ):
            self._neighbour_runs.charge(now)
            self.assigning_due.set()
        self._measuring = frozenset(meters)

    async def _welcome(self, reports: Iterable[WorkerReport]) -> None:
        """Hand one of our leases to a worker without leases, if we have more than our share. Called while the worker
        that owns the leader lock shows no life.
        """
        now, wall_s = self.clock.monotonic(), self.clock.wall()
        move = self.takeover.gift(self.membership.living(reports, now, wall_s), now, wall_s)
        if move is not None:
            written = Written()
            await self._writer.in_time(self._give(move, written), written, self._read_s)

    async def _give(self, move: Move, written: Written) -> None:
        """Hand one of our leases to a worker that has none. If that succeeds, watch the worker from now on (`gave`),
        and log it.
        """
        await self._writer.write([move], written)
        if written.done:
            self.gave()
            fields = {"action": "newcomer_welcomed", "shard": move.lease.key, "worker": move.to_worker}
            log.info(
                "lease %s goes to %s, which has none: no leader lives", move.lease.key, move.to_worker, extra=fields
            )

    async def _read_legacy_if_due(self) -> None:
        """Read the reports in the legacy table, where workers of KCL 3.0 to 3.4 write, if that is due. The look waits
        at most `LEGACY_WAIT_S` for the read, which then goes on in the background.
        """
        if self.clock.monotonic() >= self._legacy_due_at and not self._reading.is_busy:
            self._legacy_due_at = self.clock.monotonic() + LEGACY_PERIOD_S
            reading = self._reading.spawn(self._read_legacy_once())
            await asyncio.wait({reading}, timeout=LEGACY_WAIT_S)

    async def _read_legacy_once(self) -> None:
        """Read the reports in the table of KCL 3.0 to 3.4. If that fails, those of the last read are kept."""
        try:
            self._legacy = await self.stored_reports.legacy()
        except Exception as error:
            failure = survived(error, "reading the legacy reports")
            log.debug("no legacy reports: %s", failure, extra={"action": "look_failed"})

    async def _look_at_part(self, part: int, part_count: int) -> None:
        """Read one part of the table, and note the leases in it: when they become due, and whether they have owners."""
        scan: TableScan = await self.table.scan((part, part_count))
        await in_turns(self.takeover.saw_part(scan.leases, part, self.clock.monotonic()))
        self._note_free(scan.leases)

    def _note_free(self, leases: Sequence[Lease]) -> None:
        """Note the leases that have no owner. If there are new ones among them and this worker leads, wake the
        assigner.
        """
        free = {lease.key for lease in leases if lease.actual_owner is None}
        if free - self._free:
            self._free |= free
            if self.leader.leads:
                self.assigning_due.set()  # so that the best workers get these leases, before watchers take them

    @property
    def _leads_alone(self) -> bool:
        """Whether this worker leads and is alone. Then there is no other worker that could die or assign leases."""
        return self.membership.is_alone and self.leader.leads

    def _next_look_at(self) -> float:
        """Return the time of the next look (monotonic): the next multiple of the look period by the wall clock. A
        leader that is alone looks less often, and not at a multiple.
        """
        period_s = self.takeover.whole_period_s()
        if self.takeover.part_count > 1 and self.takeover.my_parts():
            period_s = LOOK_PERIOD_S
        elif (
            self._leads_alone and self.clock.monotonic() - self._began_at > LONE_LEADER_LOOK_S
        ):  # soon after the start, other workers of the fleet may be starting, too
            return self._whole_at + max(LONE_LEADER_LOOK_S, period_s)  # there are no other watchers to agree with
        wait_s = period_s - self.clock.wall() % period_s
        # If a timer fired slightly early, or the look took most of its period, the next multiple comes too soon.
        return self.clock.monotonic() + wait_s + (period_s if wait_s < TOO_SOON_SHARE * period_s else 0.0)

    # --- taking -------------------------------------------------------------------------------------------------------

    async def _take_until(self, look_at: float) -> None:
        """Take leases as they become due, until the next look is due (`look_at`) or something wakes this loop. If the
        last look is too old, take nothing before the next one.
        """
        while (now := self.clock.monotonic()) < look_at and not self._woken.is_set():
            due_at = look_at
            fresh_s = self.takeover.whole_period_s() + LOOK_PERIOD_S if self.membership.is_alone else FRESH_S
            if now - self._looked_at <= fresh_s:
                taken, next_at = self.takeover.plan(now)
                if taken:
                    await self._take(taken)
                    continue
                due_at = min(look_at, next_at)
            await wait_for_event(self._woken, due_at - now + DUE_MARGIN_S)

    async def _take(self, leases: Sequence[Lease]) -> None:
        """Take `leases`. If the answers are late, go on without them: the next look shows what became of the leases."""
        written = Written()
        if not await self._writer.in_time(self._write_takes(leases, written), written, self._read_s):
            self.takeover.tried(leases, {}, self.clock.monotonic())

    async def _write_takes(self, leases: Sequence[Lease], written: Written) -> None:
        """Take `leases` by conditional writes. Note which of the leases are ours now, and which of their former owners
        are dead (`_exclude_dead`).
        """
        now, reports_before = self.clock.monotonic(), self._reports
        owners = {lease.key: lease.actual_owner for lease in leases if lease.actual_owner not in (None, self._me)}
        gone_owners = {owner for owner in owners.values() if owner is not None and self.takeover.is_gone(owner, now)}
        moves = [
            Move(lease, self._me, False, Why.FREE if lease.actual_owner is None else Why.EXPIRED) for lease in leases
        ]
        await self._writer.write(moves, written, counter_matters=True)
        # If the answers are late, `_take` has noted all leases as tried, and later looks may have shown them again. So
        # only the leases that were taken are noted here then.
        tried = [lease for lease in leases if lease.key in written.done] if written.is_late else leases
        self.takeover.tried(tried, written.done, self.clock.monotonic())
        self._log(leases, written)
        # An owner is dead only if at least one of its leases was taken: if it woke up between the look and our writes,
        # all of these are refused. An owner that has reported while we waited for the answers is not dead either.
        for owner in sorted(gone_owners & {owners.get(key) for key in written.done}):
            if self._reports.get(owner) == reports_before.get(owner):
                await self._exclude_dead(owner)

    async def _exclude_dead(self, owner: str) -> None:
        """Note that the worker `owner` is dead, and delete its report, which would look fresh for another minute.

        For that minute leaders and leaving workers would give the dead worker leases, even more than others get,
        because it has none. If the worker lives after all, it writes its report again. Two kinds of reports stay: those
        in a legacy table, because the migration depends on them, and the report of a drained worker, because it has the
        operator's mark, which only the operator may remove.
        """
        self.membership.exclude_dead(owner, self.clock.wall())
        self.metrics.events.note(EventKind.DIED, f"found dead by {self._me}, which took leases of it", worker=owner)
        self.assigning_due.set()
        report = self._reports.get(owner)
        if report is None or report.legacy or reports.is_drained(report):
            return
        try:
            await self.stored_reports.delete_stale([report])
        except Exception as error:
            failure = survived(error, "forgetting a worker")
            log.debug("report of %s stays: %s", owner, failure, extra={"action": "report_kept", "worker": owner})

    def _log(self, leases: Sequence[Lease], written: Written) -> None:
        """Log which leases were taken from whom, and how many could not be taken."""
        taken = Counter(lease.actual_owner for lease in leases if lease.key in written.done)
        for owner, count in sorted(taken.items(), key=lambda item: item[0] or ""):
            if owner is None:
                log.info("took %d leases that were nobody's", count, extra={"action": "free_leases_taken"})
            elif owner == self._me:
                log.info("took %d leases of our own back", count, extra={"action": "own_leases_taken"})
            elif self.takeover.has_ended(owner, self.clock.monotonic()):
                fields = {"action": "worker_ended", "worker": owner, "leases": count}
                log.warning("worker %s has ended; took %d of its leases", owner, count, extra=fields)
            else:
                log.warning(
                    "worker %s is silent for %.0f s; took %d of its leases",
                    owner,
                    self.settings.leases.duration_s,
                    count,
                    extra={"action": "worker_silent", "worker": owner, "leases": count},
                )
        if written.errors:
            log.info(
                "%d leases not taken, for now: %s",
                len(written.errors),
                written.errors[0],
                extra={"action": "take_over_failed"},
            )
