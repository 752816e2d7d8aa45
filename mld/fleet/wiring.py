"""Makes a `Fleet` from settings: milliseconds to seconds, policies to numbers, adapters over the DynamoDB service."""

from __future__ import annotations

import os
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random

import mld
from mld.aws.host import HostReader
from mld.aws.service import Service
from mld.clock import Clock
from mld.fleet.assign.assigner import Assigner, AssignerHooks, AssignerSettings
from mld.fleet.assign.loads import AssignmentRules
from mld.fleet.fleet import Fleet, FleetParts
from mld.fleet.heartbeat.heart import Heartbeat
from mld.fleet.heartbeat.heartbeat_table import REQUEST_TIMEOUT_S_MAX, HeartbeatTable
from mld.fleet.heartbeat.java_peers import JavaPeers
from mld.fleet.leader.election import LockElection, ShuffleElection
from mld.fleet.leader.lock import LockRow
from mld.fleet.leader.lock_table import LockTable
from mld.fleet.migrate.legacy_tables import LegacyTable, LegacyTables
from mld.fleet.migrate.states_table import StatesTable
from mld.fleet.migrate.table_migration import TableMigration
from mld.fleet.migrate.version_machine import VersionMachine
from mld.fleet.migrate.versions import Leader
from mld.fleet.report.platform import LoadSource, detect
from mld.fleet.report.reporter import Reporter, ReporterRules
from mld.fleet.report.reports import ReportRules
from mld.fleet.report.reports_table import ReportsTable
from mld.fleet.values import COORDINATOR_TABLE_KEY, REPORTS_TABLE_KEY, LeaderDecider, Place
from mld.fleet.watch.lookout import Lookout, LookoutHooks
from mld.fleet.watch.takeover import TakeoverRules
from mld.leases.discovery import LeaseDiscovery
from mld.leases.keeper import LeaseKeeper
from mld.leases.table import LeaseTable
from mld.leases.taker import LeaseTaker
from properties.keys import BAKE_SECONDS_MAX, BAKE_SECONDS_MIN
from properties.settings import Settings
from properties.values import AssignmentStrategy, MetadataLayout
from properties.values import HeartbeatSetting as HeartbeatSetting

JAVA_DISCOVERY_SLACK_S = 1.0
"""A Java worker reads its leases every `leaseAssignmentIntervalMillis` / 2 and then renews them one after the other."""
HEARTBEATS_PER_LEASE = 3  # as often as leases are renewed one by one

DetectLoad = Callable[[], Awaitable[LoadSource | None]]


@dataclass(frozen=True, slots=True)
class FleetNeeds:
    """What a fleet is made of besides settings."""

    worker_id: str
    service: Service
    table: LeaseTable
    keeper: LeaseKeeper
    taker: LeaseTaker
    clock: Clock
    rng: Random
    detect_load: DetectLoad


def make_fleet(settings: Settings, needs: FleetNeeds) -> Fleet:
    """A fleet for one worker; nothing is asked of AWS yet."""
    lease_duration_s = settings.failover_time_millis / 1000
    states = StatesTable(needs.service)
    migration = TableMigration(
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
    )
    made: list[Fleet] = []

    def fleet() -> Fleet:
        return made[0]

    def lock_election() -> LeaderDecider:
        return LockElection(
            lambda: LockTable(needs.service, migration.lock_place()),
            needs.clock,
            worker_id=needs.worker_id,
            new_version=lambda: str(uuid.UUID(int=needs.rng.getrandbits(128), version=4)),
            on_check=migration.on_check,
            on_change=lambda leads: fleet().on_leading(leads),
        )

    def shuffle_election() -> LeaderDecider:
        return ShuffleElection(
            lambda: fleet().owners(),
            needs.clock,
            worker_id=needs.worker_id,
            on_change=lambda leads: fleet().on_leading(leads),
        )

    async def leader() -> str | None:
        seen = await LockTable(needs.service, migration.lock_place()).read()
        return seen.owner if isinstance(seen, LockRow) and not seen.is_released else None

    heartbeats = HeartbeatTable(
        needs.service,
        settings.table_name,
        needs.worker_id,
        request_timeout_s=min(lease_duration_s / HEARTBEATS_PER_LEASE, REQUEST_TIMEOUT_S_MAX),
    )
    report_rules = _report_rules(settings)
    strangers = JavaPeers(needs.table, heartbeats, needs.clock, lease_duration_s=lease_duration_s, rules=report_rules)
    parts = FleetParts(
        table=needs.table,
        keeper=needs.keeper,
        taker=needs.taker,
        discovery=LeaseDiscovery(needs.table, needs.keeper, needs.clock, worker_id=needs.worker_id),
        migration=migration,
        elections={Leader.LOCK: lock_election, Leader.SHUFFLE: shuffle_election},
        new_versions=lambda fleet: VersionMachine(
            states,
            migration,
            needs.clock,
            needs.rng,
            worker_id=needs.worker_id,
            configured=settings.client_version_config,
            on_state=fleet.enter,
            is_leader=fleet.is_leader,
            view=fleet.view,
        ),
        new_assigner=lambda fleet: _assigner(settings, needs, fleet, report_rules, heartbeats),
        new_lookout=lambda fleet: Lookout(
            needs.table,
            needs.clock,
            TakeoverRules(
                lease_duration_s=lease_duration_s,
                java_discovery_s=settings.lease_assignment_interval_millis / 2000 + JAVA_DISCOVERY_SLACK_S,
                report_period_s=report_rules.report_period_s,
                leases_max=settings.max_leases_for_worker,
            ),
            needs.worker_id,
            LookoutHooks(
                legacy_reports=fleet.legacy_reports,
                on_assigned=fleet.on_assigned,
                on_looked=fleet.on_looked,
                on_free=fleet.on_free,
                on_gone=fleet.on_gone,
                fence=heartbeats.fence,
            ),
        ),
        new_reporter=lambda fleet, place: _reporter(settings, needs, fleet, place),
        reports_at=lambda place: ReportsTable(needs.service, place),
        report_rules=report_rules,
        strangers=strangers,
        heartbeat=Heartbeat(
            heartbeats,
            needs.keeper,
            needs.clock,
            needs.rng,
            worker_id=needs.worker_id,
            lease_duration_s=lease_duration_s,
            interval_s=lease_duration_s / HEARTBEATS_PER_LEASE,
            is_wanted=settings.heartbeat is HeartbeatSetting.WORKER,
            leader=leader,
            strangers=strangers,
        ),
        clock=needs.clock,
    )
    made.append(
        Fleet(
            parts,
            worker_id=needs.worker_id,
            leases_max=settings.max_leases_for_worker,
            lease_duration_s=lease_duration_s,
        )
    )
    return made[0]


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


def _assigner(
    settings: Settings, needs: FleetNeeds, fleet: Fleet, report_rules: ReportRules, heartbeats: HeartbeatTable
) -> Assigner:
    return Assigner(
        needs.table,
        fleet,
        needs.worker_id,
        needs.clock,
        needs.rng,
        AssignerSettings(
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
            reports=report_rules,
        ),
        AssignerHooks(
            legacy_reports=fleet.legacy_reports,
            delete_stale=fleet.delete_stale,
            on_loaded=fleet.on_loaded,
            on_assigned=fleet.on_assigned,
            on_given=fleet.on_given,
            fence=heartbeats.fence,
        ),
    )


async def _reporter(settings: Settings, needs: FleetNeeds, fleet: Fleet, place: Place) -> Reporter:
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
        on_own_row=fleet.on_own_row,
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
