"""Makes a `Fleet` from settings: milliseconds to seconds, policies to numbers, adapters over the DynamoDB service."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random

import mld
from mld.aws.host import HostReader
from mld.aws.service import Service
from mld.core.clock import Clock
from mld.core.periods import HEARTBEATS_PER_LEASE
from mld.fleet.assign.assigner import Assigner, AssignerParts, AssignerSettings
from mld.fleet.assign.loads import AssignmentRules
from mld.fleet.child_adopter import ChildAdopter
from mld.fleet.departure import Departure
from mld.fleet.drain import Drain
from mld.fleet.fleet import Fleet, FleetParts
from mld.fleet.heartbeat.heart import Heartbeat
from mld.fleet.heartbeat.heartbeat_table import REQUEST_TIMEOUT_S_MAX, HeartbeatTable
from mld.fleet.heartbeat.java_peers import JavaPeers
from mld.fleet.index_keeper import IndexKeeper
from mld.fleet.leader.election import AdaptiveElection
from mld.fleet.leader.lock import LockRow
from mld.fleet.leader.lock_election import LockElection
from mld.fleet.leader.lock_table import LockTable
from mld.fleet.leader.shuffle_election import ShuffleElection
from mld.fleet.migrate.fleet_view import ReadinessReader, Summaries
from mld.fleet.migrate.legacy_tables import LegacyTable, LegacyTables
from mld.fleet.migrate.states_table import StatesTable
from mld.fleet.migrate.table_migration import TableMigration
from mld.fleet.migrate.version_machine import VersionMachine
from mld.fleet.report.platform import LoadSource, detect
from mld.fleet.report.reporter import Reporter, ReporterRules
from mld.fleet.report.reports import ReportRules
from mld.fleet.report.reports_table import ReportsTable
from mld.fleet.report.stored_reports import StoredReports
from mld.fleet.roster import Roster
from mld.fleet.table_keeper import TableKeeper
from mld.fleet.values import COORDINATOR_TABLE_KEY, REPORTS_TABLE_KEY, LeaderDecider, Place, WorkerReport
from mld.fleet.watch.lookout import Lookout, LookoutParts
from mld.fleet.watch.takeover import TakeoverRules
from mld.leases.discovery import LeaseDiscovery
from mld.leases.keeper import LeaseKeeper
from mld.leases.lease import ShardStatus
from mld.leases.table import LeaseTable, StoredTable
from mld.leases.taker import LeaseTaker
from mld.leases.validity import HeartbeatValidity
from mld.metrics.registry import Metrics
from mld.properties.keys import BAKE_SECONDS_MAX, BAKE_SECONDS_MIN
from mld.properties.settings import Settings
from mld.properties.values import AssignmentStrategy, ClientVersionConfig, MetadataLayout

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
    heartbeat_validity: HeartbeatValidity | None
    taker: LeaseTaker
    clock: Clock
    rng: Random
    detect_load: DetectLoad
    status_of: Callable[[str], ShardStatus | None]
    """What people are told of a shard of this worker."""
    metrics: Metrics


def make_fleet(settings: Settings, needs: FleetNeeds) -> Fleet:
    """A fleet for one worker, its parts in the order in which they depend on each other; AWS is not asked yet."""
    lease_duration_s = settings.failover_time_millis / 1000
    rules = _report_rules(settings)
    index = needs.stored.index
    states = StatesTable(needs.service)
    migration = _migration(settings, needs, states)
    reports = StoredReports(needs.service, migration)
    heartbeats = HeartbeatTable(
        needs.service,
        settings.table_name,
        needs.worker_id,
        request_timeout_s=min(lease_duration_s / HEARTBEATS_PER_LEASE, REQUEST_TIMEOUT_S_MAX),
    )
    java_peers = JavaPeers(
        needs.table, reports, heartbeats, needs.clock, lease_duration_s=lease_duration_s, rules=rules
    )
    summaries = Summaries(
        migration,
        needs.clock,
        lease_duration_s=lease_duration_s,
        report_period_s=rules.report_period_s,
        metrics=needs.metrics,
    )
    leader = AdaptiveElection(
        needs.metrics, is_adaptive=settings.client_version_config is not ClientVersionConfig.VERSION_3X
    )
    roster = Roster(needs.worker_id, lease_duration_s=lease_duration_s, rules=rules)
    discovery = LeaseDiscovery(
        needs.table, index, needs.keeper, needs.clock, worker_id=needs.worker_id, metrics=needs.metrics
    )
    assigning_due = asyncio.Event()
    lookout = Lookout(
        needs.table,
        needs.clock,
        TakeoverRules(
            lease_duration_s=lease_duration_s,
            java_discovery_s=settings.lease_assignment_interval_millis / 2000 + JAVA_DISCOVERY_SLACK_S,
            leases_max=settings.max_leases_for_worker,
        ),
        needs.worker_id,
        LookoutParts(
            roster=roster,
            reports=reports,
            discovery=discovery,
            leader=leader,
            assigning_due=assigning_due,
            fence=heartbeats.fence,
            metrics=needs.metrics,
        ),
    )
    assigner = Assigner(
        needs.table,
        needs.worker_id,
        needs.clock,
        needs.rng,
        _assigner_settings(settings, rules),
        AssignerParts(
            leader=leader,
            roster=roster,
            reports=reports,
            lookout=lookout,
            fence=heartbeats.fence,
            on_assigned=discovery.wake,
            due=assigning_due,
            listeners=(lookout, java_peers, summaries),
            metrics=needs.metrics,
        ),
    )
    heartbeat = Heartbeat(
        heartbeats,
        needs.keeper,
        needs.heartbeat_validity,
        needs.clock,
        needs.rng,
        worker_id=needs.worker_id,
        lease_duration_s=lease_duration_s,
        interval_s=lease_duration_s / HEARTBEATS_PER_LEASE,
        leader=_reader_of_leader(needs, migration),
        java_peers=java_peers,
        status_of=needs.status_of,
        metrics=needs.metrics,
    )
    departure = Departure(
        needs.table,
        index,
        needs.keeper,
        reports,
        roster,
        needs.clock,
        worker_id=needs.worker_id,
        leases_max=settings.max_leases_for_worker,
    )
    drain = Drain(needs.table, needs.keeper, departure)
    by_lock, by_shuffle = _elections(needs, migration, summaries, assigner)
    return Fleet(
        FleetParts(
            leader=leader,
            new_lock_election=by_lock,
            new_shuffle_election=by_shuffle,
            versions=VersionMachine(
                states,
                migration,
                needs.clock,
                needs.rng,
                worker_id=needs.worker_id,
                configured=settings.client_version_config,
                is_leader=leader.is_leader,
                view=ReadinessReader(needs.table, index, reports, rules, needs.clock).read,
                metrics=needs.metrics,
            ),
            migration=migration,
            taker=needs.taker,
            discovery=discovery,
            assigner=assigner,
            lookout=lookout,
            new_reporter=_maker_of_reporter(settings, needs, heartbeat, drain, roster),
            index=IndexKeeper(index, needs.clock),
            table_keeper=TableKeeper(needs.stored, needs.clock, needs.worker_id, lease_duration_s),
            heartbeat=heartbeat,
            java_peers=java_peers,
            child_adopter=ChildAdopter(
                needs.table,
                needs.keeper,
                discovery,
                worker_id=needs.worker_id,
                leases_max=settings.max_leases_for_worker,
            ),
            departure=departure,
            drain=drain,
            clock=needs.clock,
        )
    )


async def no_load() -> None:
    """This worker measures nothing."""


def load_of_this_host(clock: Clock) -> DetectLoad:
    """CPU figures of the machine or container we run in."""

    async def look() -> LoadSource | None:
        return await detect(HostReader(), os.environ, clock)

    return look


def _report_rules(settings: Settings) -> ReportRules:
    return ReportRules(
        report_period_s=settings.worker_metrics_reporter_freq_in_millis / 1000,
        stale_after_s=settings.stale_worker_metrics_entry_cleanup_duration.total_seconds(),
        ema_alpha=settings.worker_metrics_ema_alpha,
    )


def _assigner_settings(settings: Settings, rules: ReportRules) -> AssignerSettings:
    return AssignerSettings(
        interval_s=settings.lease_assignment_interval_millis / 1000,
        lease_duration_s=settings.failover_time_millis / 1000,
        handoff_timeout_s=settings.graceful_lease_handoff_timeout_millis / 1000,
        balance_every=settings.variance_balancing_frequency,
        by_count=settings.lease_assignment_strategy is AssignmentStrategy.COUNT,
        rules=AssignmentRules(
            leases_max=settings.max_leases_for_worker,
            throughput_max_kbps=settings.max_throughput_per_host_kbps,
            dampening_percent=settings.dampening_percentage,
            threshold_percent=settings.rebalance_threshold_percentage,
            overshoot=settings.allow_throughput_overshoot,
            graceful=settings.is_graceful_lease_handoff_enabled,
        ),
        reports=rules,
    )


def _elections(
    needs: FleetNeeds, migration: TableMigration, summaries: Summaries, assigner: Assigner
) -> tuple[Callable[[], LeaderDecider], Callable[[], LeaderDecider]]:
    """What makes a lock election, and a shuffle."""

    def on_change(leads: bool) -> None:
        needs.metrics.worker.is_leader = leads
        if not leads:
            needs.metrics.worker.table.forget_leadership()
        summaries.forget()
        if leads:
            assigner.wake()

    async def owners() -> set[str]:
        scan = await needs.table.scan()
        return {lease.owner for lease in scan.leases if lease.owner is not None}

    def by_lock() -> LeaderDecider:
        return LockElection(
            lambda: LockTable(needs.service, migration.lock_place()),
            needs.clock,
            worker_id=needs.worker_id,
            new_version=lambda: str(uuid.UUID(int=needs.rng.getrandbits(128), version=4)),
            on_check=migration.on_check,
            on_change=on_change,
        )

    def by_shuffle() -> LeaderDecider:
        return ShuffleElection(owners, needs.clock, worker_id=needs.worker_id, on_change=on_change)

    return by_lock, by_shuffle


def _reader_of_leader(needs: FleetNeeds, migration: TableMigration) -> Callable[[], Awaitable[str | None]]:
    async def read() -> str | None:
        seen = await LockTable(needs.service, migration.lock_place()).read()
        return seen.owner if isinstance(seen, LockRow) and not seen.is_released else None

    return read


def _maker_of_reporter(
    settings: Settings, needs: FleetNeeds, heartbeat: Heartbeat, drain: Drain, roster: Roster
) -> Callable[[Place], Awaitable[Reporter]]:
    def on_own_row(report: WorkerReport) -> None:
        heartbeat.on_own_report()
        drain.on_own_report(report)

    async def make(place: Place) -> Reporter:
        source = None if settings.disable_worker_metrics else await needs.detect_load()
        return Reporter(
            ReportsTable(needs.service, place),
            source,
            needs.clock,
            needs.rng,
            worker_id=needs.worker_id,
            version=mld.__version__,
            rules=ReporterRules(
                capture_period_s=settings.in_memory_worker_metrics_capture_frequency_millis / 1000,
                report_period_s=settings.worker_metrics_reporter_freq_in_millis / 1000,
                ring_length=settings.no_of_persisted_metrics_per_worker_metrics,
            ),
            on_own_row=on_own_row,
            ends=roster.ends,
            metrics=needs.metrics,
        )

    return make


def _migration(settings: Settings, needs: FleetNeeds, states: StatesTable) -> TableMigration:
    return TableMigration(
        states,
        LegacyTables(needs.service, needs.clock),
        needs.clock,
        worker_id=needs.worker_id,
        lease_table=settings.table_name,
        coordinator=_coordinator_table(settings),
        reports=_reports_table(settings),
        migrate=settings.migrate_all_entities_to_lease_table,
        complete_bake_s=min(
            max(settings.table_migration_complete_bake_time_seconds, BAKE_SECONDS_MIN), BAKE_SECONDS_MAX
        ),
        create_legacy=settings.metadata_layout is MetadataLayout.LEGACY,
        metrics=needs.metrics,
    )


def _coordinator_table(settings: Settings) -> LegacyTable:
    return LegacyTable(
        name=settings.coordinator_state_table_name,
        key=COORDINATOR_TABLE_KEY,
        billing_mode=settings.coordinator_state_billing_mode.value,
        read_capacity=settings.coordinator_state_read_capacity,
        write_capacity=settings.coordinator_state_write_capacity,
        point_in_time_recovery=settings.coordinator_state_point_in_time_recovery_enabled,
        deletion_protection=settings.coordinator_state_deletion_protection_enabled,
        tags=dict(settings.coordinator_state_tags),
    )


def _reports_table(settings: Settings) -> LegacyTable:
    return LegacyTable(
        name=settings.worker_metrics_table_name,
        key=REPORTS_TABLE_KEY,
        billing_mode=settings.worker_metrics_billing_mode.value,
        read_capacity=settings.worker_metrics_read_capacity,
        write_capacity=settings.worker_metrics_write_capacity,
        point_in_time_recovery=settings.worker_metrics_point_in_time_recovery_enabled,
        deletion_protection=settings.worker_metrics_deletion_protection_enabled,
        tags=dict(settings.worker_metrics_tags),
    )
