"""`Fleet`: runs the tasks by which one worker takes part in the fleet, as the mode of the fleet requires.

Rules: coordination#client-versions, coordination#leaving-workers, coordination#child-leases. The version machine
decides the mode: whether the fleet works by the rules of KCL 2.x or 3.x. `Fleet` starts and stops the tasks:

* in the modes of 2.x the taker, by which a worker takes leases for itself;
* in those of 3.x the assigner (the leader gives leases to workers), discovery (finds the leases that the leader gave to
  this worker) and the failover watcher (takes leases that nobody renews);
* in most modes the reporter, which writes this worker's load into its report.

`Fleet` only gets leases for this worker and gives them away. The keeper renews the leases that are held, and the worker
consumes their shards.

A worker that stops deletes its report last, because others rely on the report while the worker owns leases.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from random import Random

import mld
from mld.aws.host_reader import HostReader
from mld.aws.service import Service
from mld.core.clock import Clock
from mld.core.periods import LOOK_PERIOD_S
from mld.core.tasks import OnFailure, Task, TaskList, Until
from mld.fleet.assign.assigner import Assigner
from mld.fleet.assign.failover_watcher import FailoverWatcher
from mld.fleet.child_adopter import ChildAdopter
from mld.fleet.departure import Departure
from mld.fleet.leader.decider import LeaderDecider
from mld.fleet.leader.election import AdaptiveElection
from mld.fleet.leader.lock_election import LockElection
from mld.fleet.leader.lock_table import LockTable
from mld.fleet.leader.shuffle_election import ShuffleElection
from mld.fleet.membership import FleetMembership
from mld.fleet.migrate.states import ClientVersion, TableStatus
from mld.fleet.migrate.states_table import StatesTable
from mld.fleet.migrate.table_migration import TableMigration
from mld.fleet.migrate.version_machine import Components, FleetView, VersionMachine
from mld.fleet.other_applications import refuse_living_others
from mld.fleet.report.platform import LoadSource, detect
from mld.fleet.report.reporter import Activity, Reporter
from mld.fleet.report.reports import EXPIRED_AFTER_PERIODS, WorkerReport
from mld.fleet.report.reports_table import ReportsTable, StoredReports
from mld.fleet.table_upkeep import LostTable, ensure_index, keep_index
from mld.leases.discovery import LeaseDiscovery
from mld.leases.keeper import LeaseKeeper
from mld.leases.lease import ShardStatus
from mld.leases.rows import COORDINATOR_TABLE_KEY, REPORTS_TABLE_KEY, Place
from mld.leases.table import IndexStatus, LeaseTable, StoredTable, TableScan
from mld.leases.table_maker import LegacyTable
from mld.leases.table_view import TableView, Views
from mld.leases.taker import LeaseTaker
from mld.metrics.registry import Metrics
from mld.properties.settings import Settings
from mld.properties.values import ClientVersionConfig

DetectLoad = Callable[[], Awaitable[LoadSource | None]]


@dataclass(eq=False)
class Fleet:
    """Makes this worker take part in the fleet. Call `start` when the lease table exists, then `run`; at the end of the
    worker `leave` and then `close`.

    `table` shows only the leases of the streams that this worker consumes, `stored` shows all leases. `status_of`
    returns the status of a shard of this worker. All parts ask `leader` whether this worker leads; `leader` asks the
    election that belongs to the mode.
    """

    settings: Settings
    _: KW_ONLY
    worker_id: str
    service: Service
    table: LeaseTable
    stored: StoredTable
    views: TableView
    """The views of `stored`."""
    visible: Views
    """The views of `table`."""
    keeper: LeaseKeeper
    taker: LeaseTaker
    clock: Clock
    rng: Random
    detect_load: DetectLoad
    place: Mapping[str, str]
    """Host, process id and start of this worker, for its reports (`reports.OWN_MEMBERS`)."""
    status_of: Callable[[str], ShardStatus | None]
    metrics: Metrics

    def __post_init__(self) -> None:
        """Make the parts, in the order in which they depend on each other. No request is sent yet."""
        settings = self.settings
        self._index = self.stored.index
        states = StatesTable(self.service)
        self._migration = self._new_migration(states)
        reports = self._reports = StoredReports(self.service, lambda: self._migration.routes.report_read_places)
        self.leader = AdaptiveElection(
            self.metrics, is_adaptive=settings.fleet.client_version not in (ClientVersionConfig.VERSION_3X, None)
        )
        self._membership = FleetMembership(self.worker_id, settings)
        self._discovery = LeaseDiscovery(
            self.table, self._index, self.keeper, self.clock, worker_id=self.worker_id, metrics=self.metrics
        )
        assigning_due = asyncio.Event()
        self.failover_watcher = self._new_failover_watcher(assigning_due)
        self._assigner = self._new_assigner(assigning_due)
        self._departure = Departure(
            self.table,
            self.stored,
            self.visible,
            self.keeper,
            reports,
            self._membership,
            self.clock,
            worker_id=self.worker_id,
            leases_max=settings.leases.held_max,
        )
        self._versions = self._new_version_machine(states)
        self._child_adopter = ChildAdopter(
            self.table, self.keeper, self._discovery, self._departure, worker_id=self.worker_id
        )
        self.on_lost_table: list[Callable[[], None]] = [
            self.keeper.forget_table,
            self.views.forget,
            self.taker.forget,
            self.failover_watcher.takeover.forget,
            self._assigner.forget,
            self._membership.forget,
        ]
        """Callbacks for the loss and the restoration of the lease table. Every part that remembers rows has one here
        to forget them, because the counters of restored rows begin at 0 again.
        """
        self._components: Components | None = None
        """The parts that run in the present mode; None before the mode is known."""
        self._is_led_by_lock: bool | None = None
        """Whether the present election uses the lock; None before the first election."""
        self._reporter: Reporter | None = None
        self._started = False
        self._leaving = False
        """Whether this worker has begun to stop."""
        self._resigning: asyncio.Task[None] | None = None
        """The task that gives up the leadership, when this worker stops."""
        self._tasks = self._new_tasks()

    # --- its parts ----------------------------------------------------------------------------------------------------

    def _new_migration(self, states: StatesTable) -> TableMigration:
        """Make the part that knows in which tables the rows live."""
        return TableMigration(
            states,
            self.clock,
            self.settings,
            coordinator=LegacyTable(
                self.service, self.clock, self.settings.coordinator_state_table, COORDINATOR_TABLE_KEY
            ),
            reports=LegacyTable(self.service, self.clock, self.settings.worker_metrics_table, REPORTS_TABLE_KEY),
            metrics=self.metrics,
        )

    def _new_failover_watcher(self, assigning_due: asyncio.Event) -> FailoverWatcher:
        """Make the failover watcher, which wakes the assigner by `assigning_due`."""
        return FailoverWatcher(
            self.table,
            self.visible,
            self.clock,
            self.settings,
            self.worker_id,
            membership=self._membership,
            stored_reports=self._reports,
            discovery=self._discovery,
            leader=self.leader,
            assigning_due=assigning_due,
            metrics=self.metrics,
        )

    def _new_assigner(self, assigning_due: asyncio.Event) -> Assigner:
        """Make the assigner, which runs at once when `assigning_due` is set."""
        return Assigner(
            self.table,
            self.visible,
            self.worker_id,
            self.clock,
            self.rng,
            self.settings,
            leader=self.leader,
            membership=self._membership,
            stored_reports=self._reports,
            on_gave=self.failover_watcher.gave,
            on_assigned=self._discovery.wake,
            due=assigning_due,
            metrics=self.metrics,
        )

    def _new_version_machine(self, states: StatesTable) -> VersionMachine:
        """Make the part that follows the mode of the fleet."""
        return VersionMachine(
            states,
            self._migration,
            self.clock,
            self.rng,
            worker_id=self.worker_id,
            configured=self.settings.fleet.client_version,
            lease_duration_s=self.settings.leases.duration_s,
            is_leader=self.leader.is_leader,
            view=partial(self._view, self._reports),
            metrics=self.metrics,
        )

    def _new_tasks(self) -> TaskList[Components]:
        """Make the list of the tasks. Each task has a name, the coroutine to run, a function that returns whether it
        runs in a mode (by default in every mode), and the step of the worker's stop at which it ends.
        """
        return TaskList(
            (
                Task("assigner", self._assigner.run, lambda on: on.assigner),
                Task("discovery", self._discovery.run, lambda on: on.assigner),
                Task("index", partial(keep_index, self._index, self.clock), lambda on: on.index),
                Task("late tables", self._watch_for_late_tables),
                Task("failover watcher", self.failover_watcher.run, lambda on: on.assigner),
                Task("lost table", self._keep_table),
                Task("reports", self._report, lambda _: self._reporter is not None, Until.CLOSED),
                Task("taker", self.taker.run, lambda on: on.taker),
                Task("versions", self._follow_version),
            ),
            self.clock,
        )

    @property
    def takes_leases(self) -> bool:
        """Whether workers take leases themselves (2.x); otherwise the leader assigns leases."""
        return self._components is None or not self._components.assigner

    @property
    def version(self) -> ClientVersion:
        """The mode that was entered last."""
        return self._versions.version

    @property
    def keeps_events(self) -> bool:
        """Whether the row of events may be in the lease table. It may once no worker from before KCL 3.5, which
        takes every row for a lease, can be in the fleet.
        """
        return self.version is ClientVersion.V3X and self._migration.status is TableStatus.COMPLETE

    @property
    def raises_alerts(self) -> bool:
        """Whether this worker raises alerts: it leads; or a Java worker leads, and this worker has the smallest id of
        all living mld workers.
        """
        if self.leader.leader in self._membership.java:
            return self.worker_id == min(self._membership.possible_watchers)
        return self.leader.leads

    def running(self) -> frozenset[str]:
        """Return the names of the tasks that run."""
        return self._tasks.running()

    def ended(self, worker: str, until: float) -> None:
        """Note that the process of another worker of this worker group has ended, so that its leases may be taken at
        once. No process is started under that worker's id before `until` (monotonic).
        """
        self.leader.ended(worker, until)
        self._assigner.wake()
        self.taker.ended(worker, until)
        self.failover_watcher.ended(worker, until)

    def wake_leases(self) -> None:
        """Make this worker look at once for leases that have no owner, or that were assigned to it."""
        if self.takes_leases:
            self.taker.wake()
        else:
            self._assigner.wake()
            self._discovery.wake()

    def adopt_children(self, keys: tuple[str, ...]) -> None:
        """Take or assign the leases of child shards that this worker has just created; they have no owners yet.

        In 3.x a leader makes an assignment run now. A worker that does not lead takes the leases itself, so that they
        do not wait for the next run; if that makes loads uneven, the leader balances them later. A leader that is alone
        does both: its run may read the table as it was just before, without the new rows, and no other worker would
        find them soon.
        """
        if self.takes_leases or self.leader.leads:
            self.wake_leases()
        if not self.takes_leases and (self._membership.is_alone or not self.leader.leads):
            self._child_adopter.adopt(keys)

    # --- start and run ------------------------------------------------------------------------------------------------

    async def start(self, scan: TableScan) -> None:
        """Find out the mode of the fleet and enter it; `scan` is the lease table as just read. May be called again
        after an error; after a success it does nothing.

        Raises MldError; in particular StartupError if another try would be useless.
        """
        if self._started:
            return
        await self._migration.start()
        await refuse_living_others(scan, self.visible, self._reports, self._membership, self.clock, self.settings)
        place = self._migration.routes.report_place
        if self._reporter is None and place is not None:
            self._reporter = await self._new_reporter(place)
        await self._versions.start(self._enter)
        self._started = True

    async def first_leases(self, scan: TableScan) -> None:
        """Take free leases, or assign them as leader, before the tasks begin."""
        if self.takes_leases:
            if self._components is None or self._components.taker:
                await self.taker.take_once(scan)
        elif await self.leader.is_leader():
            await self._assigner.run_once()

    async def run(self, on_failure: OnFailure) -> None:
        """Start the tasks of the mode and return. `on_failure` is called if a task ends by itself."""
        await self._tasks.allow(on_failure)

    async def _report(self) -> None:
        """Run the reporter, which exists whenever this task may run."""
        assert self._reporter is not None
        await self._reporter.run()

    async def _follow_version(self) -> None:
        """Follow the mode of the fleet until it is final, and then do nothing until cancelled."""
        await self._versions.run(self._enter)
        await asyncio.Event().wait()  # a task of the list must not end by itself

    async def _keep_table(self) -> None:
        """Restore the lease table whenever it is lost, until cancelled."""
        lost = LostTable(self.stored, self.clock, self.worker_id, self.on_lost_table, self.metrics)
        await lost.keep(self.settings.leases.duration_s)

    async def _watch_for_late_tables(self) -> None:
        """Watch until a legacy coordinator table appears, and then do nothing until cancelled."""
        await self._migration.watch()
        await asyncio.Event().wait()

    # --- modes --------------------------------------------------------------------------------------------------------

    async def _enter(self, version: ClientVersion, components: Components) -> None:
        """Make the parts of a mode run. If the mode has no reports, reporting ends first, and if it is one of 2.x, the
        tasks of 3.x end, too. Then the index is created and the election replaced, and the other tasks start or end
        last. May be called again after an error. Raises MldError.
        """
        self.stored.types_rows = version is not ClientVersion.INIT  # in INIT, workers of 2.x may use the table
        if not components.reporter:
            self._switch_reports(components)
        if not components.assigner:
            await self._run_tasks_of(components)
        if components.index:
            await ensure_index(self._index)
        if components.reporter and self._started:  # at the start, the migration has just looked for the table
            await self._migration.restore_reports_table()
        if components.assigner is not self._is_led_by_lock:
            await self.leader.switch(self._new_election(by_lock=components.assigner))
            self._is_led_by_lock = components.assigner
        self._components = components
        self._switch_reports(components)
        await self._run_tasks_of(components)

    def _switch_reports(self, components: Components) -> None:
        """Have the reporter, if there is one, do what the mode requires; do nothing if this worker is leaving."""
        if self._reporter is not None and not self._leaving:
            self._reporter.switch(
                Activity.REPORTING if components.reporter else Activity.SAMPLING if components.sampler else Activity.OFF
            )

    async def _run_tasks_of(self, components: Components) -> None:
        """Start and end tasks, so that those of the mode run; do nothing if this worker is leaving."""
        if not self._leaving:
            await self._tasks.enter(components)

    # --- the end ------------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Take no more leases, because this worker stops, and choose the receivers of its leases."""
        self._leaving = True
        self._child_adopter.stop()
        self._assigner.close()  # its task also does so when it ends, but may not have begun yet
        await self._tasks.end(Until.LEAVING)
        if not self.takes_leases:
            if self._reporter is not None:  # first, so that workers that leave later do not choose us as a receiver
                await self._reporter.leave()
            await self._departure.name_receivers()
        # Giving up the leadership may take seconds, and the leases need not wait for it.
        self._resigning = asyncio.ensure_future(self.leader.close())

    async def close(self) -> None:
        """Release leases that were assigned to this worker while it was stopping, delete its report, and end the tasks.
        Call this when no lease is held any more.
        """
        if not self.takes_leases:
            await self._departure.release_late_leases()
        await self._tasks.end(Until.RELEASED)
        if self._reporter is not None:
            await self._reporter.close()
        await self._tasks.end(Until.CLOSED)
        self.views.close()
        await (self._resigning or self.leader.close())

    async def abort(self) -> None:
        """End at once, in any state, without further requests. After `close` it does nothing."""
        self._leaving = True
        self.leader.abandon()
        self._child_adopter.abandon()
        self._assigner.close()
        self._departure.abandon()
        self.views.close()
        if self._resigning is not None:
            self._resigning.cancel()
        await self._tasks.end(Until.CLOSED)

    # --- parts that are made again when the mode changes --------------------------------------------------------------

    def _new_election(self, *, by_lock: bool) -> LeaderDecider:
        """Make an election of the leader: by the lock, or in 2.x by a shuffle of the lease owners."""
        if not by_lock:
            return ShuffleElection(
                self._owners, self.clock, worker_id=self.worker_id, on_change=self._on_leader_changed
            )
        return LockElection(
            lambda: LockTable(self.service, self._migration.routes.lock_place),
            self.clock,
            worker_id=self.worker_id,
            new_version=lambda: str(uuid.UUID(int=self.rng.getrandbits(128), version=4)),
            on_check=self._migration.on_check,
            on_change=self._on_leader_changed,
        )

    def _on_leader_changed(self, leads: bool) -> None:
        """Show in the metrics whether this worker leads. If it does, assign leases now; if not, forget the figures that
        only a leader has.
        """
        self.metrics.worker.is_leader = leads
        if not leads:
            self.metrics.worker.table.forget_leadership()
        if leads:
            self._assigner.wake()

    async def _view(self, reports: StoredReports) -> FleetView:
        """Return what the version machine needs to know whether the fleet is ready for 3.x
        (coordination#readiness-for-3x-mode). Raises TableError.
        """
        index = await self._index.status()
        scan = (await self.visible.newer_than(self.clock.monotonic() - LOOK_PERIOD_S)).scan
        now, believed_s = self.clock.wall(), EXPIRED_AFTER_PERIODS * self.settings.fleet.report_period_s
        reporting = frozenset(
            report.worker
            for report in await reports.all_reports(scan)
            if report.updated_at_s is not None and report.updated_at_s + believed_s > now
        )
        return FleetView(index is IndexStatus.ACTIVE, {lease.key: lease.owner for lease in scan.leases}, reporting)

    async def _owners(self) -> set[str]:
        """Return the owners of leases, by a new read of the table. Raises TableError."""
        scan = (await self.visible.newer_than(self.clock.monotonic())).scan
        return {lease.owner for lease in scan.leases if lease.owner is not None}

    async def _new_reporter(self, place: Place) -> Reporter:
        """Make the reporter that writes to this place."""
        source = None if self.settings.fleet.ignores_load else await self.detect_load()
        meter = "" if source is None else await source.meter()
        return Reporter(
            ReportsTable(self.service, place),
            source,
            self.clock,
            self.rng,
            worker_id=self.worker_id,
            version=mld.__version__,
            settings=self.settings.fleet,
            members={"stream": self.settings.stream_name, "meter": meter, **self.place},
            on_own_row=self._on_own_row,
            ends=self._membership.ends,
            metrics=self.metrics,
        )

    def _on_own_row(self, report: WorkerReport) -> None:
        """Act on this worker's report as just written (`Departure.on_own_report`), except in 2.x or while leaving."""
        if not (self.takes_leases or self._leaving):
            self._departure.on_own_report(report)


async def no_load() -> None:
    """Find no source of CPU figures, so that the worker does not measure its load."""


def load_of_this_host(clock: Clock) -> DetectLoad:
    """Return a function that finds out from where this machine's or container's CPU figures can be read."""
    return partial(detect, HostReader(), os.environ, clock)
