"""`StoredReports`: the worker reports of a fleet, in whichever tables it keeps them now (coordination#table-layout)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from mld.aws.service import Service
from mld.core.errors import TableError, TableMissingError
from mld.core.surviving import ours
from mld.fleet.report import reports
from mld.fleet.report.reports_table import ReportsTable
from mld.fleet.values import LEASE_TABLE_KEY, Place, WorkerReport
from mld.leases.table import TableScan

log = logging.getLogger(__name__)


class ReportPlaces(Protocol):
    """Where reports are to be read now; `TableMigration` knows."""

    def report_read_places(self) -> tuple[Place, ...]: ...


class StoredReports:
    """Those beside the leases come with every scan of the lease table; those of the legacy table are read here."""

    def __init__(self, service: Service, places: ReportPlaces) -> None:
        self._service = service
        self._places = places

    async def legacy(self) -> tuple[WorkerReport, ...]:
        """The reports of the legacy worker-metrics table, if the fleet still has one. Raises TableError."""
        found: list[WorkerReport] = []
        for place in self._places.report_read_places():
            if place.key != LEASE_TABLE_KEY:
                try:
                    found += (await ReportsTable(self._service, place).scan()).reports
                except TableMissingError as error:  # a migration tool deletes it; nobody reports there then
                    log.info("no legacy reports: %s", error, extra={"action": "reports_table_missing"})
        return tuple(found)

    async def beside(self, scan: TableScan) -> tuple[WorkerReport, ...]:
        """All reports, those of `scan` and those of the legacy table. Raises TableError."""
        return (*reports.parse_rows(scan.others, LEASE_TABLE_KEY).reports, *await self.legacy())

    async def may_receive(self, worker: str) -> bool:
        """Whether the worker has a report now and does not leave. Raises TableError."""
        found = [await ReportsTable(self._service, place).get(worker) for place in self._places.report_read_places()]
        there = reports.newest_of_each(report for report in found if report is not None)
        return any(not reports.is_leaving(report) for report in there)

    async def delete_stale(self, stale: Iterable[WorkerReport]) -> None:
        """Delete left-over reports where they were read. Errors are logged."""
        places = {place.key != LEASE_TABLE_KEY: place for place in self._places.report_read_places()}
        for report in stale:
            if (place := places.get(report.legacy)) is not None:
                try:
                    await ours(ReportsTable(self._service, place).delete_stale(report), "deleting reports")
                except TableError as error:
                    log.info("report %s not deleted: %s", report.worker, error, extra={"action": "stale_not_deleted"})
