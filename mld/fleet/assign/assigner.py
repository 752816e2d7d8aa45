"""`Assigner`, the lease assignment manager: the leader's loop of load, decide, write (coordination#assignment-runs).

`assignment` decides which leases move. It uses what this worker has seen of each lease (`Observations`) and of each
worker (`FleetMembership`); `Leadership` remembers facts from run to run. Every worker of a fleet in 3.x mode runs an
assigner, but only the leader's does anything. The assigner gives leases to workers and balances the load. Leases that
nobody renews are also taken by the failover watcher of any worker (`takeover`). Differences from Java:

* A lease is expired (coordination#expired-leases) only if it was unchanged from the end of one scan to the beginning of
  another, so the time between two runs may be of any length.
* When a worker has come or gone, the next scheduled run balances the load; in Java only every third run does.
* After three failed runs the leader steps down, and stays out of elections for longer than the other workers need to
  notice that (coordination#stepping-down).
* A worker found dead (`FleetMembership.exclude_dead`) gets no leases until it has written a newer report. The worker
  that found it dead has taken its leases.
* While it decides, it lets other tasks of the event loop run every millisecond.

The assigner never writes without a condition, and checks its leadership again before it writes. A refused write means
that another worker was faster; the next run reads the row again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import TypeVar

from mld.core.clock import Clock, millis_since
from mld.core.error_boundary import contained, survived
from mld.core.errors import MldError
from mld.core.periods import LOOK_PERIOD_S
from mld.core.row_lines import RowLines
from mld.core.turns import in_turns
from mld.core.waits import wait_for_event
from mld.fleet.assign.assignment import Plan, decide, shuffling
from mld.fleet.assign.fleet_load import Why, live_workers, reports_among
from mld.fleet.assign.leadership import FAILED_RUNS_MAX, Leadership, RunReport
from mld.fleet.assign.move_writer import MoveWriter, OnAssigned, Written
from mld.fleet.leader.decider import LeaderDecider
from mld.fleet.membership import FleetMembership
from mld.fleet.observations import Observations, expired_keys
from mld.fleet.report import reports
from mld.fleet.report.reports import FleetSnapshot, WorkerReport
from mld.fleet.report.reports_table import StoredReports
from mld.leases.lease import Lease
from mld.leases.table import LeaseTable
from mld.leases.table_view import Views
from mld.metrics.events import EventKind
from mld.metrics.registry import Metrics
from mld.properties.settings import Settings

log = logging.getLogger(__name__)

T = TypeVar("T")

LOAD_RETRY_S = 0.5  # most throttling is over by then
WAKE_GAP_S = 1.0  # shortest time between the starts of two runs, because each run reads the whole table
HOLD_OFF_S = 31.0  # how long a leader that steps down stays out of elections; followers check the lock every 30 s
HOLD_OFF_JITTER_S = 15.0
SILENT_NAMED_MAX = 10  # names of silent owners in the line of a run; rows may name any number of owners


@dataclass(eq=False)
class Assigner:
    """Gives leases to workers while this worker leads."""

    table: LeaseTable
    views: Views
    worker_id: str
    clock: Clock
    rng: random.Random
    settings: Settings
    _: KW_ONLY
    leader: LeaderDecider
    membership: FleetMembership
    stored_reports: StoredReports
    on_gave: Callable[[], None]
    """Called when this worker has given leases to other workers, or may have."""
    on_assigned: OnAssigned
    due: asyncio.Event
    """Set by other parts of the worker to ask for a run now."""
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self._observations = Observations(
            lease_duration_s=self.settings.leases.duration_s, handoff_timeout_s=self.settings.leases.handoff_timeout_s
        )
        self._writer = MoveWriter(
            self.table, self._observations, self.clock, self.worker_id, self.on_assigned, self.metrics
        )
        self._table_seen = self.metrics.worker.table
        self._counts = self.metrics.worker.operations.assignments
        self._one_run = asyncio.Lock()  # held during a run, so that there is one at a time
        self._wrote_at = -math.inf
        """When the writes of the last run ended. A view whose read began earlier may not show what they changed."""
        self._leadership: Leadership | None = None  # None while this worker does not lead
        self._known_corrupt: frozenset[tuple[str, str]] = frozenset()  # unreadable reports that were logged
        self._known_off: frozenset[str] = frozenset()  # workers with wrong clocks that were logged
        self._clock_lines = RowLines("clocks that disagree", self.clock)
        self._corrupt_lines = RowLines("reports that cannot be read", self.clock)

    def wake(self) -> None:
        """Make a run begin now."""
        self.due.set()

    async def run(self) -> None:
        """Make runs until cancelled: the first at once, then one in every interval, and *early* ones when woken. Only
        scheduled runs count for balancing.
        """
        # If a run was made at the start (`run_once`), the first run here is an early one: it does not balance, because
        # workers have not begun with the leases that they got. It is counted here, because early runs do not count, and
        # this one replaces a scheduled run.
        early = self._leadership is not None and self._leadership.runs > 0
        if self._leadership is not None and early:
            self._leadership = replace(self._leadership, runs=self._leadership.runs + 1)
        try:
            await self._run_forever(early=early)
        finally:
            self.close()

    def close(self) -> None:
        """Cancel the writes that go on although their run has ended or was cancelled."""
        self._writer.close()

    async def _run_forever(self, *, early: bool) -> None:
        """Make runs until cancelled: one in each interval, and an `early` one whenever `due` is set. `early` is whether
        the first run is an early one.
        """
        due_at = self.clock.monotonic() + self.settings.fleet.assignment_interval_s
        while True:
            self.due.clear()
            started_at = self.clock.monotonic()
            await self.run_once(early=early)
            now = self.clock.monotonic()
            if not early:
                due_at = now + self.settings.fleet.assignment_interval_s
            early = await wait_for_event(self.due, max(0.0, due_at - now))
            if early:
                await self.clock.sleep(max(0.0, started_at + WAKE_GAP_S - self.clock.monotonic()))

    async def run_once(self, *, early: bool = False) -> RunReport | None:
        """Make one run; return None if we do not lead, or if it failed. Failures are logged and counted."""
        async with self._one_run:
            if not await self.leader.is_leader():
                self._leadership = None
                self._counts.all.note(True, 0.0)  # a run in which another worker leads counts as a success
                return None
            leadership = self._leadership or self._take_over()
            try:
                with self._counts.all.timed(self.clock.monotonic):
                    report = await self._run(leadership, early=early)
            except Exception as error:  # of any kind, because another worker may be able to lead without it
                failure = survived(error, "assigning leases")
                log.warning("assignment run failed: %s", failure, extra={"action": "assignment_failed"})
            else:
                self._leadership = None if self._leadership is None else self._leadership.after_success()
                return report
            await self._count_failure()
            return None

    def _count_seen(self, corrupt: int, sorted_out: reports.SortedReports) -> None:
        """Count the reports that were read, and the rows that could not be read (`corrupt`)."""
        self._table_seen.corrupt = corrupt
        if corrupt:
            self._counts.corrupt_rows.note(corrupt)
        if sorted_out.failing:
            self._counts.failing_workers.note(len(sorted_out.failing))
        if sorted_out.invalid:
            self._counts.invalid_reports.note(len(sorted_out.invalid))

    def _count_plan(self, plan: Plan, *, balance: bool) -> None:
        """Report the figures of a plan to the metrics."""
        self._counts.total.note(plan.leases)
        self._counts.workers.note(plan.workers)
        self._counts.expired.note(plan.waiting)
        if plan.spillover:
            self._counts.spillover.note(plan.spillover)
        if balance:
            self._counts.reassigned.note(plan.count(Why.BALANCE))
        self._table_seen.workers, self._table_seen.unassigned = plan.workers, plan.waiting

    def forget(self) -> None:
        """Forget the leases of a table that is gone."""
        self._observations.forget()

    def _take_over(self) -> Leadership:
        """Begin a new leadership, and return it. What was seen in an earlier leadership is forgotten."""
        self._leadership = Leadership(self.clock.monotonic())
        self.forget()
        self.membership.begin_leadership()
        log.info("this worker assigns the leases now", extra={"action": "assignment_taken_over"})
        return self._leadership

    async def _count_failure(self) -> None:
        """Count a failed run. After too many in a row, step down and stay away from the election for a while."""
        self._leadership = None if self._leadership is None else self._leadership.after_failure()
        if self._leadership is not None:
            return
        self._counts.leader_released.note(1)
        hold_off_s = HOLD_OFF_S + self.rng.uniform(0.0, HOLD_OFF_JITTER_S)
        log.error(
            "%d assignment runs failed in a row; another worker should lead, this one stays away for %.0f s",
            FAILED_RUNS_MAX,
            hold_off_s,
            extra={"action": "leader_stepped_down"},
        )
        await self.leader.step_down(hold_off_s)

    # --- one run -----------------------------------------------------------------------------------------------------

    async def _run(self, leadership: Leadership, *, early: bool) -> RunReport | None:
        """Make one run: read leases and reports, decide the moves, check that this worker still leads, and write them.
        Return None if this worker leads no longer.

        An `early` run comes before the next scheduled one, because a part of the worker asked for it.
        """
        started_at = self.clock.monotonic()
        with self._counts.load.timed(self.clock.monotonic):
            view = await self._load(partial(self.views.newer_than, self._view_after(early=early)))
            legacy = await self._load(self.stored_reports.legacy)
        scan = view.scan
        await in_turns(self._observations.scanned(scan.leases, view.ended_at), self.clock)
        found = await in_turns(reports_among(scan.others), self.clock)
        everything = (*found.reports, *legacy)
        sorted_out = self.membership.saw_run(everything, self.clock.monotonic(), self.clock.wall())
        self._report_clocks()
        self._report_corrupt(found.corrupt)
        self._count_seen(len(scan.corrupt) + len(found.corrupt), sorted_out)
        self._table_seen.corrupt_rows, self._table_seen.lease_counts = scan.corrupt, scan.lease_counts
        expired = await in_turns(expired_keys(self._observations, scan.leases, view.began_at), self.clock)
        seen = FleetSnapshot(scan.leases, everything, expired)
        active = self._assignable(sorted_out.active)
        if all(report.worker != self.worker_id for report in everything) or not active:
            # This worker can get leases even if its first report was not read yet, or if no worker has a usable report.
            active = (*active, WorkerReport(self.worker_id, int(self.clock.wall())))

        present = [report.worker for report in active]
        balance = leadership.balances(present, self.settings.fleet.balance_every, early=early)
        balancing = self._counts.balance.timed(self.clock.monotonic) if balance else nullcontext()
        with self._counts.assign.timed(self.clock.monotonic), balancing:  # one call assigns and balances
            plan = await self._decide(scan.leases, active, view.began_at, balance=balance)
        if len(active) == 1:
            plan = self._held_back(leadership, plan, active[0].worker, seen)
        if not await self.leader.is_leader():
            self._leadership = None
            return None
        self._leadership = leadership.after_run(present, balanced=balance, early=early)

        self._count_plan(plan, balance=balance)
        began_at = self.clock.monotonic()
        written = Written()
        try:
            if plan.moves:
                await self._writer.in_time(self._writer.write(plan.moves, written), written, view.took_s)
        finally:
            self._wrote_at = self.clock.monotonic()
        self._counts.write.note(not written.errors, self.clock.monotonic() - began_at)
        self._counts.failed.note(written.refused)
        if written.is_late or any(lease.owner != self.worker_id for lease in written.done.values()):
            self.on_gave()
        await self._delete(sorted_out.stale)
        report = RunReport(plan, balance, len(written.done), written.refused)
        self._log_run(report, millis_since(self.clock, started_at))
        if written.errors:
            raise written.errors[0]
        return report

    def _view_after(self, *, early: bool) -> float:
        """Return the time after which the view for a run must have begun (coordination#assignment-runs): now for an
        early run, else up to `LOOK_PERIOD_S` ago, but after the writes of the last run.
        """
        now = self.clock.monotonic()
        return now if early else max(now - LOOK_PERIOD_S, self._wrote_at)

    async def _load(self, read: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `read`. It is called again after a failure; a second failure is raised."""
        doing = "loading what is assigned"
        try:
            return await contained(read(), doing)
        except MldError as error:
            log.info("load failed, once more: %s", error, extra={"action": "assignment_load_retry"})
        await self.clock.sleep(LOAD_RETRY_S)
        return await contained(read(), doing)

    def _assignable(self, active: Iterable[WorkerReport]) -> tuple[WorkerReport, ...]:
        """Return the reports of workers that may get leases. Log each worker that counts as dead because its report has
        not changed, although the time in the report is recent.
        """
        assignable, standing_still = self.membership.assignable(active, self.clock.monotonic())
        for report in standing_still:
            if not self._clock_lines.may_log():
                break
            log.warning(
                "worker %s is dead: its report stands still, though by this host's clock it is fresh (%d, now %d); "
                "the clocks of this fleet disagree",
                report.worker,
                report.updated_at_s or 0,
                self.clock.wall(),
                extra={"action": "clocks_disagree", "worker": report.worker},
            )
        return assignable

    async def _decide(
        self, leases: Sequence[Lease], active: Iterable[WorkerReport], now: float, *, balance: bool
    ) -> Plan:
        """Return the plan for these leases and the workers that wrote the reports `active`. Other tasks run in
        between.
        """
        workers = await in_turns(live_workers(active, self.settings.fleet.ema_alpha), self.clock)
        order = shuffling(self.rng)
        return await in_turns(
            decide(
                leases,
                workers,
                self._observations,
                now,
                self.settings,
                order,
                wall_s=self.clock.wall(),
                leader=self.worker_id,
                balance=balance,
            ),
            self.clock,
        )

    def _held_back(self, leadership: Leadership, plan: Plan, alone: str, seen: FleetSnapshot) -> Plan:
        """Return the part of the plan that may be written now (`Leadership.held_back`). `alone` is the only worker
        known so far: it gets only some of the leases at first, because others may be starting. If that is not the whole
        plan, have the next run begin soon.
        """
        now, wall_s = self.clock.monotonic(), self.clock.wall()
        allowed = leadership.held_back(plan, alone, seen, now=now, wall_s=wall_s)
        if allowed is not plan:
            self.wake()
        return allowed

    # --- after the writes ---------------------------------------------------------------------------------------------

    async def _delete(self, stale: Sequence[WorkerReport]) -> None:
        """Delete stale reports. If that fails, they stay for the next run."""
        if not stale:
            return
        try:
            await self.stored_reports.delete_stale(stale)
        except Exception as error:
            failure = survived(error, "deleting reports")
            log.info("stale reports stay: %s", failure, extra={"action": "stale_reports_kept"})

    # --- logs --------------------------------------------------------------------------------------------------------

    def _report_clocks(self) -> None:
        """Log each worker whose clock is newly found to be wrong, and pass all workers with wrong clocks to the
        metrics.
        """
        off = self.membership.clocks_off
        self._table_seen.clocks_off = off
        for worker in sorted(off.keys() - self._known_off):
            if not self._clock_lines.may_log():
                break
            words = f"its clock is {off[worker]:+.0f} s off ours"
            self.metrics.events.note(EventKind.CLOCK, words, worker=worker)
            log.warning(
                "clocks disagree: that of worker %s is %+.0f s off ours. It is judged by its reports' moving, and Java "
                "workers do not do so; set the clocks",
                worker,
                off[worker],
                extra={"action": "clocks_disagree", "worker": worker},
            )
        self._known_off = frozenset(off)

    def _report_corrupt(self, corrupt: Iterable[tuple[str, str]]) -> None:
        """Log each report that cannot be read, once for as long as it stays unreadable."""
        now = frozenset(corrupt)
        for key, reason in sorted(now - self._known_corrupt):
            if not self._corrupt_lines.may_log():
                break
            fields = {"action": "corrupt_report", "worker": key}
            log.warning("report of worker %s cannot be read: %s", key, reason, extra=fields)
        self._known_corrupt = now

    def _log_run(self, report: RunReport, millis: float) -> None:
        """Log what an assignment run has done. The level is DEBUG if it moved nothing and found nothing wrong."""
        plan = report.plan
        by_reason = {why.value: plan.count(why) for why in Why}
        worth_reading = plan.moves or plan.spillover or plan.silent
        log.log(
            logging.INFO if worth_reading else logging.DEBUG,
            "%d leases, %d workers: %d of %d moves written (%s), %d refused%s%s",
            plan.leases,
            plan.workers,
            report.moved,
            len(plan.moves),
            ", ".join(f"{count} {why}" for why, count in by_reason.items() if count) or "none needed",
            report.refused,
            f", {plan.spillover} leases find no worker with room" if plan.spillover else "",
            f", not renewing: {_named(plan.silent)}" if plan.silent else "",
            extra={
                "action": "assignment_run",
                "leases": plan.leases,
                "workers": plan.workers,
                "moved": report.moved,
                "refused": report.refused,
                "kept": plan.kept,
                "spillover": plan.spillover,
                "balanced": report.balanced,
                "millis": millis,
                **by_reason,
            },
        )


def _named(workers: Sequence[str]) -> str:
    """Return a text with the names of the first of these workers, and how many more there are."""
    more = len(workers) - SILENT_NAMED_MAX
    return ", ".join(workers[:SILENT_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
