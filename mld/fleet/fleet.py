"""`Fleet`: what one worker does with and for the others, in whichever mode the fleet is.

Rules: coordination#client-versions, coordination#leaving-workers, coordination#child-leases, leases#release-on-stop.
The version machine says what runs; this shell makes it so: the taker in the modes of 2.x, discovery, assigner and
lookout in those of 3.x, reports in between. Everything about one's own leases is the keeper's and the worker's.

*Leaving.* A worker that stops gives each lease to a living worker as soon as its consumer is done (`Keeper.heirs`),
instead of leaving it to the next assignment run: one scan tells who is there. Afterwards it looks once more for leases
that were assigned to it meanwhile, and only then deletes its report, which others count on while it owns leases.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mld.clock import Clock
from mld.errors import TableError, TableMissingError
from mld.fleet.assign.assigner import Assigner, Loaded
from mld.fleet.assign.assignment import spread
from mld.fleet.heartbeat.heart import Heartbeat
from mld.fleet.heartbeat.java_peers import JavaPeers
from mld.fleet.leader.election import AdaptiveElection
from mld.fleet.loops import Loops
from mld.fleet.migrate import single_table
from mld.fleet.migrate.table_migration import TableMigration
from mld.fleet.migrate.version_machine import VersionMachine
from mld.fleet.migrate.versions import Components, FleetView, IndexPolicy, Leader
from mld.fleet.report import reports
from mld.fleet.report.reporter import Activity, Reporter
from mld.fleet.report.reports import ReportRules
from mld.fleet.report.reports_table import ReportsTable
from mld.fleet.values import LEASE_TABLE_KEY, ClientVersion, LeaderDecider, Place, WorkerReport
from mld.fleet.watch.lookout import Lookout
from mld.leases.discovery import LeaseDiscovery
from mld.leases.keeper import LeaseKeeper
from mld.leases.lease import Lease
from mld.leases.table import FleetScan, IndexStatus, LeaseTable, Refusal, TableScan
from mld.leases.taker import LeaseTaker
from mld.surviving import ours

log = logging.getLogger(__name__)

LEAVE_SCAN_TIMEOUT_S = 2.0  # who is still there: worth a moment, not the time that the children need to stop
LAST_LOOK_TIMEOUT_S = 2.0
INDEX_RETRY_S = 60.0
"""An index that is missing (a migration tool deletes it) or forbidden is asked for again after that."""

TAKER, DISCOVERY, ASSIGNER, LOOKOUT, REPORTS, VERSIONS, INDEX, LATE_TABLES, HEARTBEAT = (
    "taker", "discovery", "assigner", "lookout", "reports", "versions", "index", "late tables", "heartbeat",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FleetParts:
    """The collaborators; `wiring` makes them. `elections` make a leader decider of each kind."""

    table: LeaseTable
    keeper: LeaseKeeper
    taker: LeaseTaker
    discovery: LeaseDiscovery
    migration: TableMigration
    elections: Mapping[Leader, Callable[[], LeaderDecider]]
    new_versions: Callable[[Fleet], VersionMachine]
    new_assigner: Callable[[Fleet], Assigner]
    new_lookout: Callable[[Fleet], Lookout]
    new_reporter: Callable[[Fleet, Place], Awaitable[Reporter]]
    reports_at: Callable[[Place], ReportsTable]
    report_rules: ReportRules
    strangers: JavaPeers
    heartbeat: Heartbeat
    clock: Clock


class Fleet:
    """Start it after the lease table exists, `run` it while the worker runs, `leave` and `close` it at the end."""

    def __init__(self, parts: FleetParts, *, worker_id: str, leases_max: int, lease_duration_s: float) -> None:
        self._parts = parts
        self._worker_id = worker_id
        self._leases_max = leases_max
        self._lease_duration_s = lease_duration_s
        self._first_seen: dict[str, tuple[int, float]] = {}
        self._components: Components | None = None
        self._leader_kind: Leader | None = None
        self._election: AdaptiveElection | None = None
        self._reporter: Reporter | None = None
        self._started = False
        self._leaving = False
        self._leads = False
        self._adopting: set[asyncio.Task[None]] = set()
        self._resigning: asyncio.Task[None] | None = None
        self._on_failure: Callable[[BaseException | None], None] = lambda _: None
        self._versions = parts.new_versions(self)
        self._assigner = parts.new_assigner(self)
        self._lookout = parts.new_lookout(self)
        self._loops = Loops(
            {
                TAKER: parts.taker.run,
                DISCOVERY: parts.discovery.run,
                ASSIGNER: self._assigner.run,
                LOOKOUT: self._lookout.run,
                REPORTS: self._report,
                VERSIONS: self._follow_version,
                INDEX: self._keep_index,
                LATE_TABLES: self._watch_for_late_tables,
                HEARTBEAT: parts.heartbeat.run,
            },
            lambda error: self._on_failure(error),  # noqa: PLW0108 - it is set later
            parts.clock,
        )

    # --- what others ask ----------------------------------------------------------------------------------------------

    @property
    def takes_leases(self) -> bool:
        """Whether workers take leases by themselves (2.x) instead of being given them."""
        return self._components is None or not self._components.assigner

    async def is_leader(self) -> bool:
        """Whether this worker leads now."""
        return self._election is not None and await self._election.is_leader()

    def wake_leases(self, _keys: tuple[str, ...] = ()) -> None:
        """Leases without an owner have appeared, or some of ours: look at once."""
        if self.takes_leases:
            self._parts.taker.wake()
        else:
            self._assigner.wake()
            self._parts.discovery.wake()

    async def step_down(self, hold_off_s: float) -> None:
        """See `LeaderDecider`."""
        if self._election is not None:
            await self._election.step_down(hold_off_s)

    def on_assigned(self, keys: tuple[str, ...]) -> None:
        """Leases were assigned to ourselves by our own assigner or lookout."""
        self._parts.discovery.wake(keys)

    # --- start --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find the mode and enter it. May be called again after an error; does nothing once it worked.

        Raises MldError; StartupError if trying again is of no use.
        """
        if self._started:
            return
        await self._parts.migration.start()
        place = self._parts.migration.report_place
        await self._parts.heartbeat.admit(place, self.legacy_reports)
        if self._reporter is None and place is not None:
            self._reporter = await self._parts.new_reporter(self, place)
        await self._versions.start()
        self._started = True

    async def first_leases(self, scan: TableScan) -> None:
        """Take, or as leader assign, what is free, before the loops begin."""
        if self.takes_leases:
            if self._components is None or self._components.taker:
                await self._parts.taker.take_once(scan)
        elif await self.is_leader():
            await self._assigner.run_once()

    async def enter(self, version: ClientVersion, components: Components) -> None:
        """Make a state's components run, in the order that a transition needs. Raises MldError; may be called again."""
        self._parts.heartbeat.check_mode(version)
        if not components.reporter:
            self._switch_reports(components)
        if not components.assigner:
            await self._want(components)
        if components.index is not IndexPolicy.UNUSED:
            await self._ensure_index()
        if components.reporter and self._started:
            await self._parts.migration.restore_reports_table()
        await self._elect_by(components.leader)
        self._components = components
        self._switch_reports(components)
        await self._want(components)

    async def _elect_by(self, kind: Leader) -> None:
        if kind is self._leader_kind:
            return
        election = self._parts.elections[kind]()
        if self._election is None:
            self._election = AdaptiveElection(election)
        else:
            await self._election.switch(election)
        self._leader_kind = kind

    def _switch_reports(self, components: Components) -> None:
        if self._reporter is not None and not self._leaving:
            self._reporter.switch(
                Activity.REPORTING if components.reporter else Activity.SAMPLING if components.sampler else Activity.OFF
            )

    async def _want(self, components: Components) -> None:
        if self._leaving:
            return
        wanted = {
            TAKER: components.taker,
            DISCOVERY: components.discovery,
            ASSIGNER: components.assigner,
            LOOKOUT: components.assigner,
            REPORTS: self._reporter is not None,
            VERSIONS: True,
            INDEX: components.index is not IndexPolicy.UNUSED,
            LATE_TABLES: True,
            HEARTBEAT: self._parts.heartbeat.is_wanted,
        }
        await self._loops.want([name for name, on in wanted.items() if on])

    async def _ensure_index(self) -> IndexStatus:
        status = await self._parts.table.ensure_owner_index()
        if status is IndexStatus.FORBIDDEN:
            log.warning(
                "the index of leases by owner cannot be created: allow dynamodb:UpdateTable and dynamodb:DescribeTable "
                "on the lease table. Until then leases are found by scans",
                extra={"action": "index_forbidden"},
            )
        return status

    # --- run ----------------------------------------------------------------------------------------------------------

    async def run(self, on_failure: Callable[[BaseException | None], None]) -> None:
        """Start the loops of the mode; `on_failure` hears of a loop that ended by itself. Returns at once."""
        self._on_failure = on_failure
        await self._loops.allow()

    async def _report(self) -> None:
        assert self._reporter is not None
        await self._reporter.run()

    async def _follow_version(self) -> None:
        await self._versions.run()
        await asyncio.Event().wait()  # nothing changes any more

    async def _keep_index(self) -> None:
        while True:
            await self._parts.clock.sleep(INDEX_RETRY_S)
            try:
                if await self._parts.table.owner_index_status() is IndexStatus.MISSING:
                    await self._ensure_index()
            except TableError as error:
                log.warning("owner index unknown: %s", error, extra={"action": "index_unknown"})

    async def _watch_for_late_tables(self) -> None:
        await self._parts.migration.watch()
        await asyncio.Event().wait()

    def on_own_row(self, _row: WorkerReport) -> None:
        """Our report was written."""
        self._parts.heartbeat.on_own_report()

    def on_leading(self, leads: bool) -> None:
        """Leadership was won or lost."""
        self._leads = leads
        self._first_seen = {}
        if leads:
            self._assigner.wake()

    # --- what the parts ask -------------------------------------------------------------------------------------------

    async def legacy_reports(self) -> tuple[WorkerReport, ...]:
        """The reports of the legacy worker-metrics table, if the fleet still has one. Raises TableError."""
        found: list[WorkerReport] = []
        for place in self._parts.migration.report_read_places():
            if place.key != LEASE_TABLE_KEY:
                try:
                    found += (await self._parts.reports_at(place).scan()).reports
                except TableMissingError as error:  # a migration tool deletes it; nobody reports there then
                    log.info("no legacy reports: %s", error, extra={"action": "reports_table_missing"})
        return tuple(found)

    async def delete_stale(self, stale: Iterable[WorkerReport]) -> None:
        """Delete left-over reports where they were read. Errors are logged."""
        places = {place.key != LEASE_TABLE_KEY: place for place in self._parts.migration.report_read_places()}
        for report in stale:
            if (place := places.get(report.legacy)) is not None:
                try:
                    await ours(self._parts.reports_at(place).delete_stale(report), "deleting reports")
                except TableError as error:
                    log.info("report %s not deleted: %s", report.worker, error, extra={"action": "stale_not_deleted"})

    # --- what the lookout tells ---------------------------------------------------------------------------------------

    def on_looked(self, leases: Sequence[Lease]) -> None:
        """Every row as just read."""
        self._parts.discovery.saw_table(leases, is_alone=self._lookout.takeover.is_alone)

    def on_given(self) -> None:
        """Leases go to somebody else, because we lead or because a leader has asked for ours: he may be dead."""
        self._lookout.gave()

    def on_free(self) -> None:
        """There are leases without an owner: a leader gives them to whom they fit best."""
        if self._leads:
            self._assigner.wake()

    async def on_gone(self, worker: str, report: WorkerReport | None) -> None:
        """A silent worker's leases were taken: delete its report, which would be believed for a minute.

        Otherwise leaders and leavers who do not know give it leases, and more than others, as it has none. A worker
        that lives after all writes its report anew. Those in a legacy table stay, because they decide the migration;
        so does one with a heartbeat, because the fence stands there. Raises TableError.
        """
        self._assigner.bury(worker)
        if report is not None and not report.legacy and "heartbeat" not in report.mld:
            await self.delete_stale([report])

    def on_loaded(self, loaded: Loaded) -> None:
        """What the assigner has just seen: for the migration to a single table, and for workers with heartbeats."""
        if self._lookout.takeover.is_alone and any(report.worker != self._worker_id for report in loaded.reports):
            self._lookout.wake()
        if (strangers := self._parts.strangers.look(loaded)) is not None:
            self._spawn(self._parts.strangers.tell(*strangers))
        self._parts.migration.push(
            single_table.summarise(
                loaded.leases,
                loaded.reports,
                wall_s=self._parts.clock.wall(),
                at=self._parts.clock.monotonic(),
                expired=loaded.expired,
                unproven=self._unproven(loaded.leases),
                report_period_s=self._parts.report_rules.report_period_s,
            )
        )

    def _unproven(self, leases: Iterable[Lease]) -> set[str]:
        """Leases that this leader has neither seen move nor watched for a lease duration."""
        now = self._parts.clock.monotonic()
        self._first_seen = {lease.key: self._first_seen.get(lease.key, (lease.counter, now)) for lease in leases}
        return {
            lease.key
            for lease in leases
            if self._first_seen[lease.key][0] == lease.counter
            and now - self._first_seen[lease.key][1] <= self._lease_duration_s
        }

    async def view(self) -> FleetView:
        """What the readiness monitor looks at (coordination#readiness-for-3x-mode). Raises TableError."""
        index = await self._parts.table.owner_index_status()
        scan = await self._parts.table.fleet_scan()
        now = self._parts.clock.wall()
        period_s = self._parts.report_rules.report_period_s
        reporting = frozenset(
            report.worker
            for report in await self._all_reports(scan)
            if report.updated_at_s is not None and report.updated_at_s + 2 * period_s > now
        )
        owners = {lease.key: lease.owner for lease in scan.leases}
        return FleetView(index is IndexStatus.ACTIVE, owners, reporting)

    async def owners(self) -> list[str]:
        """The distinct owners of all leases, for the shuffle. Raises TableError."""
        scan = await self._parts.table.scan()
        return sorted({lease.owner for lease in scan.leases if lease.owner is not None})

    async def _all_reports(self, scan: FleetScan) -> tuple[WorkerReport, ...]:
        return (*reports.parse_rows(scan.others, LEASE_TABLE_KEY).reports, *await self.legacy_reports())

    def adopt_children(self, keys: tuple[str, ...]) -> None:
        """Leases of child shards that we have just created, for nobody yet.

        A leader assigns them now. Anybody else takes them himself, so that nobody waits for the next run; that the
        parent's worker goes on with its children is what the leader will even out, if need be.
        """
        if self.takes_leases or (self._election is not None and self._leads):
            self.wake_leases()
            return
        self._spawn(self._adopt(keys))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    async def _adopt(self, keys: Iterable[str]) -> None:
        for key in keys:
            try:
                lease = await ours(self._parts.table.get(key), "adopting a child lease", key)
                if lease is None or lease.actual_owner is not None or self._leaving:
                    continue
                if not isinstance(await ours(self._parts.table.assign(lease, self._worker_id), "adopting"), Refusal):
                    self.on_assigned((key,))
            except TableError as error:
                log.info("child lease %s left to the leader: %s", key, error, extra={"action": "child_not_adopted"})

    async def _deal(self, scan: FleetScan, keys: Iterable[str]) -> dict[str, str]:
        """Who of the others gets these leases when we leave; nobody who is seen to be silent.

        A report may be of a dead worker, whatever its time says. So those whom we saw renew or report come first.
        """
        now = self._parts.clock.wall()
        active = reports.sort_out(await self._all_reports(scan), now, self._parts.report_rules).active
        counts = Counter(lease.actual_owner for lease in scan.leases)
        live = {report.worker for report in active} - self._lookout.takeover.silent - {self._worker_id}
        heirs = live & self._lookout.takeover.showing_life or live
        return spread(keys, {worker: counts[worker] for worker in heirs}, self._leases_max)

    # --- the end ------------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """A stop was asked for: no more leases come to us, and the keeper learns who inherits ours."""
        self._leaving = True
        await self._loops.stop([TAKER, DISCOVERY, ASSIGNER, LOOKOUT, VERSIONS, INDEX, LATE_TABLES])
        if not self.takes_leases:
            try:
                async with asyncio.timeout(LEAVE_SCAN_TIMEOUT_S):
                    self._parts.keeper.heirs = await ours(self._heirs(), "looking for heirs")
            except (TableError, TimeoutError) as error:
                log.warning("leases are released without heirs: %s", error, extra={"action": "heirs_unknown"})
        if self._election is not None:  # may take seconds, which the leases need not wait for
            self._resigning = asyncio.ensure_future(self._election.close())

    async def _heirs(self) -> dict[str, str]:
        scan = await self._parts.table.fleet_scan()
        return await self._deal(scan, self._parts.keeper.held())

    async def close(self) -> None:
        """Nothing is held any more: give on what was assigned to us meanwhile, delete the report, end the loops."""
        try:
            if not self.takes_leases:
                async with asyncio.timeout(LAST_LOOK_TIMEOUT_S):
                    await ours(self._give_on_late_ones(), "taking a last look")
        except (TableError, TimeoutError) as error:
            log.info("no last look for leases: %s", error, extra={"action": "last_look_failed"})
        finally:
            await self._loops.stop([HEARTBEAT])
            if self._reporter is not None:
                await self._reporter.close()
            await self._loops.stop()
            await self._parts.migration.close()
            if self._resigning is not None:
                await self._resigning
            elif self._election is not None:
                await self._election.close()

    async def abort(self) -> None:
        """End at once, whatever the state: nothing more is sent. Does nothing after `close`."""
        self._leaving = True
        if self._election is not None:
            self._election.abandon()
        for task in (*self._adopting, *([self._resigning] if self._resigning else [])):
            task.cancel()
        self._parts.migration.abandon()
        await self._loops.stop()

    async def _give_on_late_ones(self) -> None:
        """Leases that were assigned to us and never held: the heirs of the others get them, else they are released."""
        found = [await self._parts.table.get(key) for key in await self._parts.table.keys_owned_by(self._worker_id)]
        late = [lease for lease in found if lease is not None and lease.actual_owner == self._worker_id]
        if not late:
            return
        others = sorted(set(self._parts.keeper.heirs.values()))
        heirs = {lease.key: others[number % len(others)] for number, lease in enumerate(late) if others}
        if not others:  # nothing was held when we began to leave, so nobody was looked for
            scan = await self._parts.table.fleet_scan()
            heirs = await self._deal(scan, [lease.key for lease in late])
        for lease in late:
            heir = heirs.get(lease.key)
            if heir is None:
                await self._parts.table.release(lease)
            elif not isinstance(await self._parts.table.assign(lease, heir), Refusal):
                fields = {"action": "late_lease", "shard": lease.key}
                log.info("late lease %s given to %s", lease.key, heir, extra=fields)
