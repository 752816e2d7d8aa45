"""`refuse_living_others`: refuses the start of this worker if another application uses the lease table
(coordination#other-applications).

A worker that reads only one stream names that stream in its report. A report in our table that names another stream was
written by a worker of another application. A report alone does not prove that its worker lives. So that worker is
watched, and the start is refused only if it renews a lease or writes another report.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from mld.core.clock import Clock
from mld.core.errors import StartupError
from mld.core.periods import RENEWALS_PER_LEASE
from mld.fleet.membership import FleetMembership
from mld.fleet.report.reports import EXPIRED_AFTER_PERIODS, ReportRules, WorkerReport, newest_of_each, sort_out
from mld.fleet.report.reports_table import StoredReports
from mld.leases.lease import Lease
from mld.leases.table import TableScan
from mld.leases.table_view import Views
from mld.properties.settings import Settings

log = logging.getLogger(__name__)

PATIENCE_LEASES = 1.5
"""How long an owner of leases is watched, in lease durations; a living one renews three times in each."""


def other_application(worker: str, stream: str, settings: Settings) -> str:
    """Return the error and its remedy for a living worker of another application in our table."""
    return (
        f"applicationName: worker {worker} reads stream {stream} with the lease table {settings.lease_table.name} that "
        f"this file names for stream {settings.stream_name}; two applications cannot share a table. Set another "
        "applicationName (or tableName) for one of them, or stop that worker"
    )


def suspects(
    found: Iterable[WorkerReport], membership: FleetMembership, wall_s: float, rules: ReportRules
) -> tuple[WorkerReport, ...]:
    """Return the recent reports of other applications' workers. These workers may live."""
    by_state = sort_out(found, wall_s, rules)
    return tuple(report for report in (*by_state.active, *by_state.failing) if membership.is_stranger(report))


def shows_life(
    before: WorkerReport, leases_before: Sequence[Lease], now: WorkerReport, leases_now: Sequence[Lease]
) -> bool:
    """Return whether a worker has reported, or written one of its leases, between two reads of the table.

    `before` and `now` are its reports in the two reads, `leases_before` and `leases_now` all leases.
    """

    def renewed_parts(lease: Lease) -> object:
        """Return the parts of a row of which each renewal changes at least one."""
        return lease.counter, lease.heartbeat, lease.status

    owned = {lease.key: renewed_parts(lease) for lease in leases_before if lease.actual_owner == before.worker}
    still = [lease for lease in leases_now if lease.actual_owner == before.worker and lease.key in owned]
    return now.updated_at_s != before.updated_at_s or any(renewed_parts(lease) != owned[lease.key] for lease in still)


async def refuse_living_others(
    scan: TableScan,
    views: Views,
    stored: StoredReports,
    membership: FleetMembership,
    clock: Clock,
    settings: Settings,
) -> None:
    """Raise StartupError if a living worker of another application uses the table. Raises TableError if the table
    cannot be read.

    `scan` is the table as it was just read. If it has no recent report of another application, this returns at once,
    without reading the lease table again. Otherwise the table is read repeatedly, until a worker of another application
    shows life, or all of them have been watched for long enough (`_patience_s`).
    """
    rules = ReportRules.of(settings.fleet)
    first = suspects(await stored.all_reports(scan), membership, clock.wall(), rules)
    if not first:
        return
    names = ", ".join(f"{one.worker} ({one.mld['stream']})" for one in first)
    log.warning(
        "workers of other applications have reported in this table: %s; watching whether one lives",
        names,
        extra={"action": "other_application_suspected"},
    )
    before: Mapping[str, WorkerReport] = {one.worker: one for one in first}
    watch_until = {worker: clock.monotonic() + _patience_s(worker, scan.leases, settings) for worker in before}
    while before:
        await clock.sleep(settings.leases.duration_s / RENEWALS_PER_LEASE)
        later = (await views.newer_than(clock.monotonic())).scan
        found = newest_of_each(await stored.all_reports(later))
        now = {report.worker: report for report in found if report.worker in before}
        for worker, report in now.items():
            if shows_life(before[worker], scan.leases, report, later.leases):
                raise StartupError(other_application(worker, report.mld.get("stream", "?"), settings))
        recent = {report.worker for report in suspects(now.values(), membership, clock.wall(), rules)}
        unseen = before.keys() - now.keys()  # a report that is missing from one read does not prove a death
        before = {worker: before[worker] for worker in recent | unseen if clock.monotonic() < watch_until[worker]}


def _patience_s(worker: str, leases: Iterable[Lease], settings: Settings) -> float:
    """Return how long a worker is watched before it counts as dead: until a living owner would have renewed a lease,
    or if the worker has no leases, until it would have written a report.
    """
    if any(lease.actual_owner == worker for lease in leases):
        return PATIENCE_LEASES * settings.leases.duration_s
    return EXPIRED_AFTER_PERIODS * settings.fleet.report_period_s
