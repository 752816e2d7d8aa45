"""`FleetParts`: what a `Fleet` is made of, from settings, with its adapters over the DynamoDB service."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from random import Random

import mld
from mld.aws.host import HostReader
from mld.aws.service import Service
from mld.core.clock import Clock
from mld.core.periods import HEARTBEATS_PER_LEASE
from mld.fleet.assign.assigner import Assigner, AssignerSettings
from mld.fleet.assign.failover_watcher import FailoverWatcher
from mld.fleet.assign.loads import AssignmentRules
from mld.fleet.assign.takeover import TakeoverRules
from mld.fleet.child_adopter import ChildAdopter
from mld.fleet.departure import Departure, Drain
from mld.fleet.heartbeat_writer import REQUEST_TIMEOUT_S_MAX, HeartbeatTable, HeartbeatWriter, JavaPeers
from mld.fleet.leader.election import AdaptiveElection, ShuffleElection
from mld.fleet.leader.lock import LockRow
from mld.fleet.leader.lock_election import LockElection, LockTable
from mld.fleet.membership import FleetMembership
from mld.fleet.migrate.states_table import StatesTable
from mld.fleet.migrate.table_migration import TableMigration
from mld.fleet.migrate.version_machine import VersionMachine
from mld.fleet.migrate.versions import FleetView
from mld.fleet.report.platform import LoadSource, detect
from mld.fleet.report.reporter import Reporter, ReporterRules
from mld.fleet.report.reports import EXPIRED_AFTER_PERIODS, ReportRules
from mld.fleet.report.reports_table import ReportsTable, StoredReports
from mld.fleet.values import COORDINATOR_TABLE_KEY, REPORTS_TABLE_KEY, LeaderDecider, Place, WorkerReport
from mld.leases.discovery import LeaseDiscovery
from mld.leases.keeper import LeaseKeeper
from mld.leases.lease import ShardStatus
from mld.leases.table import IndexStatus, LeaseTable, StoredTable
from mld.leases.table_maker import LegacyTable
from mld.leases.taker import LeaseTaker
from mld.metrics.registry import Metrics
from mld.properties.keys import BAKE_SECONDS_MAX, BAKE_SECONDS_MIN
from mld.properties.settings import Settings
from mld.properties.values import AssignmentStrategy, ClientVersionConfig, HeartbeatSetting, MetadataLayout

JAVA_DISCOVERY_SLACK_S = 1.0
"""A Java worker reads its leases every `leaseAssignmentIntervalMillis` / 2 and then renews them one after the other."""

DetectLoad = Callable[[], Awaitable[LoadSource | None]]


@dataclass(frozen=True, slots=True)
class FleetNeeds:
    """What a fleet is made of besides settings."""

    worker_id: str
    service: Service
    table: LeaseTable
    """With the leases that the fleet is to see."""
    stored: StoredTable
    keeper: LeaseKeeper
    taker: LeaseTaker
    clock: Clock
    rng: Random
    detect_load: DetectLoad
    status_of: Callable[[str], ShardStatus | None]
    """What people are told of a shard of this worker."""
    metrics: Metrics


class FleetParts:
    """The parts of a fleet for one worker, in the order in which they depend on each other; AWS is not asked yet.

    All ask `leader` who leads, which asks the election that suits the mode.
    """

    def __init__(self, settings: Settings, needs: FleetNeeds) -> None:
        self.settings = settings
        self.needs = needs
        self.worker_id = needs.worker_id
        self.clock = needs.clock
        self.stored = needs.stored
        self.index = needs.stored.index
        self.taker = needs.taker
        self.lease_duration_s = settings.leases.duration_s
        leases_max = settings.leases.held_max
        rules = ReportRules.of(settings.fleet)
        states = StatesTable(needs.service)
        self.migration = _migration(settings, needs, states, rules)
        reports = StoredReports(needs.service, lambda: self.migration.routes.report_read_places)
        heartbeats = HeartbeatTable(
            needs.service,
            settings.lease_table.name,
            needs.worker_id,
            request_timeout_s=min(self.lease_duration_s / HEARTBEATS_PER_LEASE, REQUEST_TIMEOUT_S_MAX),
        )
        self.java_peers = JavaPeers(
            needs.table, reports, heartbeats, needs.clock, lease_duration_s=self.lease_duration_s, rules=rules
        )
        self.leader = AdaptiveElection(
            needs.metrics, is_adaptive=settings.fleet.client_version is not ClientVersionConfig.VERSION_3X
        )
        self.membership = FleetMembership(needs.worker_id, lease_duration_s=self.lease_duration_s, rules=rules)
        self.discovery = LeaseDiscovery(
            needs.table, self.index, needs.keeper, needs.clock, worker_id=needs.worker_id, metrics=needs.metrics
        )
        assigning_due = asyncio.Event()
        self.failover_watcher = FailoverWatcher(
            needs.table,
            needs.clock,
            TakeoverRules(
                lease_duration_s=self.lease_duration_s,
                java_discovery_s=settings.fleet.assignment_interval_s / 2 + JAVA_DISCOVERY_SLACK_S,
                leases_max=leases_max,
            ),
            needs.worker_id,
            membership=self.membership,
            stored_reports=reports,
            discovery=self.discovery,
            leader=self.leader,
            assigning_due=assigning_due,
            fence=heartbeats.fence,
            metrics=needs.metrics,
        )
        self.assigner = Assigner(
            needs.table,
            needs.worker_id,
            needs.clock,
            needs.rng,
            _assigner_settings(settings, rules),
            leader=self.leader,
            membership=self.membership,
            stored_reports=reports,
            on_gave=self.failover_watcher.gave,
            fence=heartbeats.fence,
            on_assigned=self.discovery.wake,
            due=assigning_due,
            listeners=(
                self.failover_watcher.on_loaded,
                self.java_peers.on_loaded,
                self.migration.on_loaded,
            ),
            metrics=needs.metrics,
        )
        self.heartbeat = HeartbeatWriter(
            heartbeats,
            needs.keeper,
            needs.clock,
            needs.rng,
            worker_id=needs.worker_id,
            lease_duration_s=self.lease_duration_s,
            interval_s=self.lease_duration_s / HEARTBEATS_PER_LEASE,
            is_wanted=settings.leases.heartbeat is HeartbeatSetting.WORKER,
            leader=self._read_leader,
            java_peers=self.java_peers,
            status_of=needs.status_of,
            metrics=needs.metrics,
        )
        self.departure = Departure(
            needs.table,
            self.index,
            needs.keeper,
            reports,
            self.membership,
            needs.clock,
            worker_id=needs.worker_id,
            leases_max=leases_max,
        )
        self.drain = Drain(needs.table, needs.keeper, self.departure)
        self.versions = VersionMachine(
            states,
            self.migration,
            needs.clock,
            needs.rng,
            worker_id=needs.worker_id,
            configured=settings.fleet.client_version,
            is_leader=self.leader.is_leader,
            view=partial(self._view, reports, rules),
            metrics=needs.metrics,
        )
        self.child_adopter = ChildAdopter(
            needs.table, needs.keeper, self.discovery, worker_id=needs.worker_id, leases_max=leases_max
        )

    # --- what is made anew when the state of the fleet changes --------------------------------------------------------

    def new_election(self, *, by_lock: bool) -> LeaderDecider:
        """Make an election of the leader: by the lock, or in 2.x by a shuffle of the lease owners."""
        needs = self.needs
        if not by_lock:
            return ShuffleElection(
                self._owners, needs.clock, worker_id=needs.worker_id, on_change=self._on_leader_changed
            )
        return LockElection(
            lambda: LockTable(needs.service, self.migration.routes.lock_place),
            needs.clock,
            worker_id=needs.worker_id,
            new_version=lambda: str(uuid.UUID(int=needs.rng.getrandbits(128), version=4)),
            on_check=self.migration.on_check,
            on_change=self._on_leader_changed,
        )

    def _on_leader_changed(self, leads: bool) -> None:
        self.needs.metrics.worker.is_leader = leads
        if not leads:
            self.needs.metrics.worker.table.forget_leadership()
        self.migration.forget()
        if leads:
            self.assigner.wake()

    async def _view(self, reports: StoredReports, rules: ReportRules) -> FleetView:
        """Read what the readiness monitor looks at (coordination#readiness-for-3x-mode). Raises TableError."""
        index = await self.index.status()
        scan = await self.needs.table.scan()
        now, believed_s = self.clock.wall(), EXPIRED_AFTER_PERIODS * rules.report_period_s
        reporting = frozenset(
            report.worker
            for report in await reports.beside(scan)
            if report.updated_at_s is not None and report.updated_at_s + believed_s > now
        )
        return FleetView(index is IndexStatus.ACTIVE, {lease.key: lease.owner for lease in scan.leases}, reporting)

    async def _owners(self) -> set[str]:
        scan = await self.needs.table.scan()
        return {lease.owner for lease in scan.leases if lease.owner is not None}

    async def _read_leader(self) -> str | None:
        seen = await LockTable(self.needs.service, self.migration.routes.lock_place).read()
        return seen.owner if isinstance(seen, LockRow) and not seen.is_released else None

    async def new_reporter(self, place: Place) -> Reporter:
        """Make the reporter to this place."""
        settings, needs = self.settings, self.needs
        source = None if settings.fleet.ignores_load else await needs.detect_load()
        return Reporter(
            ReportsTable(needs.service, place),
            source,
            needs.clock,
            needs.rng,
            worker_id=needs.worker_id,
            version=mld.__version__,
            rules=ReporterRules(
                capture_period_s=settings.fleet.capture_period_s,
                report_period_s=settings.fleet.report_period_s,
                ring_length=settings.fleet.samples_per_report,
            ),
            on_own_row=self._on_own_row,
            ends=self.membership.ends,
            metrics=needs.metrics,
        )

    def _on_own_row(self, report: WorkerReport) -> None:
        self.heartbeat.on_own_report()
        self.drain.on_own_report(report)


async def no_load() -> None:
    """Measure nothing."""


def load_of_this_host(clock: Clock) -> DetectLoad:
    """Return what reads CPU figures of the machine or container we run in."""

    async def look() -> LoadSource | None:
        return await detect(HostReader(), os.environ, clock)

    return look


def _assigner_settings(settings: Settings, rules: ReportRules) -> AssignerSettings:
    return AssignerSettings(
        interval_s=settings.fleet.assignment_interval_s,
        lease_duration_s=settings.leases.duration_s,
        handoff_timeout_s=settings.leases.handoff_timeout_s,
        balance_every=settings.fleet.balance_every,
        by_count=settings.fleet.assignment_strategy is AssignmentStrategy.COUNT,
        rules=AssignmentRules(
            leases_max=settings.leases.held_max,
            throughput_max_kbps=settings.fleet.throughput_max_kbps,
            dampening_percent=settings.fleet.dampening_percent,
            threshold_percent=settings.fleet.threshold_percent,
            overshoot=settings.fleet.overshoot,
            graceful=settings.leases.hands_off_gracefully,
        ),
        reports=rules,
    )


def _migration(settings: Settings, needs: FleetNeeds, states: StatesTable, rules: ReportRules) -> TableMigration:
    return TableMigration(
        states,
        needs.clock,
        worker_id=needs.worker_id,
        lease_table=settings.lease_table.name,
        coordinator=LegacyTable(needs.service, needs.clock, settings.coordinator_state_table, COORDINATOR_TABLE_KEY),
        reports=LegacyTable(needs.service, needs.clock, settings.worker_metrics_table, REPORTS_TABLE_KEY),
        migrate=settings.fleet.migrates_to_lease_table,
        complete_bake_s=min(max(settings.fleet.bake_s, BAKE_SECONDS_MIN), BAKE_SECONDS_MAX),
        create_legacy=settings.fleet.metadata_layout is MetadataLayout.LEGACY,
        lease_duration_s=settings.leases.duration_s,
        report_period_s=rules.report_period_s,
        metrics=needs.metrics,
    )
