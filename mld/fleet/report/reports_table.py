"""Worker reports in DynamoDB: `ReportsTable` has the reports of one table, `StoredReports` those of a whole fleet.

Rules: coordination#table-layout, coordination#worker-report-row, coordination#report-judgement,
coordination#leaving-workers. Each call of `ReportsTable` is one request (a scan: one for each page), without retries. A
report is written by an unconditional UpdateItem, because a leader may have deleted the row; every other write is
conditional. If it is not certain whether a write was applied, a `TableError` is raised.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from mld.aws.boundary import raises_only
from mld.aws.service import Service
from mld.aws.table_calls import ANSWER_S_MAX, TableCalls
from mld.core.error_boundary import contained
from mld.core.errors import TableError, TableMissingError, TableUnavailableError
from mld.fleet.report import reports
from mld.fleet.report.reports import CorruptReportError, ReportScan, WorkerReport
from mld.leases.rows import LEASE_TABLE_KEY, REPORTS_TABLE_KEY, EntityType, Place, names_in
from mld.leases.table import TableScan

log = logging.getLogger(__name__)

Request: TypeAlias = dict[str, Any]

ROWS_PER_SLICE = 32  # rows parsed before other tasks run; this takes well below 2 ms

_IS_REPORT = "#entityType = :report"
_IS_LEGACY_REPORT = "(attribute_not_exists(#entityType) OR #entityType = :report)"
_REPORT_VALUE = {":report": {"S": EntityType.WORKER_METRIC_STATS.value}}


@raises_only(TableUnavailableError)
class ReportsTable:
    """The reports in one table. In the lease table, only rows that are marked as reports are written or deleted."""

    def __init__(self, service: Service, place: Place, *, request_timeout_s: float = ANSWER_S_MAX) -> None:
        self._calls = TableCalls(service, place.table, request_timeout_s)
        self._place = place
        self._is_report = _IS_LEGACY_REPORT if place.key == REPORTS_TABLE_KEY else _IS_REPORT

    @property
    def place(self) -> Place:
        return self._place

    async def write(self, report: WorkerReport) -> WorkerReport:
        """Write this worker's own report into its row, and create the row if necessary; return the new row. There is
        no condition (None), because a leader may have deleted the row. While the answer is late, the same write is
        sent again (`repeatable`), which does no harm. Raises TableError.
        """
        written = reports.attributes(report)
        update = "SET " + ", ".join(f"#{name} = :{name}" for name in written)
        update += "" if reports.is_leaving(report) else f" REMOVE #{reports.LEAVING}"
        request = self._request(report.worker, None, {f":{name}": value for name, value in written.items()}, update)
        answer = await self._calls.send("UpdateItem", request | {"ReturnValues": "ALL_NEW"}, repeatable=True)
        try:
            return reports.parse_row(answer["Attributes"], self._place.key)
        except CorruptReportError as error:
            raise TableUnavailableError(f"own report {report.worker} cannot be read back: {error}") from error

    async def get(self, worker: str) -> WorkerReport | None:
        """Return the present report of a worker; None if there is none, or if it cannot be read. Raises TableError."""
        row = await self._calls.get({self._place.key: {"S": worker}})
        found = reports.parse_rows([row or {}], self._place.key).reports
        return found[0] if found else None

    async def delete_own(self, worker: str, written_until_s: int) -> bool:
        """Delete this worker's row, unless it has a time after `written_until_s`: then another process has written it
        under the same name. Return whether the row was deleted. Raises TableError.
        """
        condition = f"#{reports.UPDATED_AT} <= :until AND {self._is_report}"
        values = _REPORT_VALUE | {":until": {"N": str(written_until_s)}}
        return await self._calls.accepts("DeleteItem", self._request(worker, condition, values))

    async def delete_stale(self, report: WorkerReport) -> bool:
        """Delete the row from which `report` was read, unless the row was written, or the worker was drained, after
        that read. Return whether the row was deleted.

        Raises TableError.
        """
        assert report.legacy is (self._place.key == REPORTS_TABLE_KEY), "delete where it was read"
        values = dict(_REPORT_VALUE)
        if report.updated_at_s is None:
            unchanged = f"attribute_exists(#{self._place.key}) AND attribute_not_exists(#{reports.UPDATED_AT})"
        else:
            unchanged = f"#{reports.UPDATED_AT} = :seen"
            values[":seen"] = {"N": str(report.updated_at_s)}
        if not reports.is_drained(report):
            unchanged += f" AND attribute_not_exists(#{reports.DRAIN})"
        return await self._calls.accepts(
            "DeleteItem", self._request(report.worker, f"{unchanged} AND {self._is_report}", values)
        )

    async def scan(self) -> ReportScan:
        """Return all reports in the table, eventually consistent, and the keys of damaged rows. Raises TableError."""
        params: Request = {}
        if self._place.key != REPORTS_TABLE_KEY:
            params = {
                "FilterExpression": _IS_REPORT,
                "ExpressionAttributeNames": names_in(_IS_REPORT),
                "ExpressionAttributeValues": _REPORT_VALUE,
            }
        found: list[WorkerReport] = []
        corrupt: list[tuple[str, str]] = []
        async for page in self._calls.pages("Scan", params):
            for start in range(0, len(page), ROWS_PER_SLICE):
                part = reports.parse_rows(page[start : start + ROWS_PER_SLICE], self._place.key)
                found += part.reports
                corrupt += part.corrupt
                await asyncio.sleep(0)
        return ReportScan(tuple(found), tuple(corrupt))

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _request(
        self, worker: str, condition: str | None, values: Mapping[str, Any], update: str | None = None
    ) -> Request:
        """Return a request about the row of `worker`. `condition` and `update` are expressions of DynamoDB, in which
        `#name` stands for the attribute `name`.
        """
        request: Request = {"Key": {self._place.key: {"S": worker}}, "ExpressionAttributeValues": dict(values)}
        if update is not None:
            request["UpdateExpression"] = update
        if condition is not None:
            request["ConditionExpression"] = condition
        return request | {"ExpressionAttributeNames": names_in(f"{condition} {update}")}


class StoredReports:
    """All reports of a fleet. Those in the lease table come with a scan of that table, which the caller makes; this
    class adds those in the legacy worker-metrics table.

    `places` returns the tables in which reports may be now.
    """

    def __init__(self, service: Service, places: Callable[[], tuple[Place, ...]]) -> None:
        self._service = service
        self._places = places

    async def legacy(self) -> tuple[WorkerReport, ...]:
        """Return the reports of the legacy worker-metrics table, if the fleet still has one. Raises TableError."""
        found: list[WorkerReport] = []
        for place in self._places():
            if place.key != LEASE_TABLE_KEY:
                try:
                    found += (await ReportsTable(self._service, place).scan()).reports
                except TableMissingError as error:  # a migration tool has deleted it, so nobody reports there
                    log.info("no legacy reports: %s", error, extra={"action": "reports_table_missing"})
        return tuple(found)

    async def all_reports(self, scan: TableScan) -> tuple[WorkerReport, ...]:
        """Return all reports: those in `scan`, and those of the legacy table. Raises TableError."""
        return (*reports.parse_rows(scan.others, LEASE_TABLE_KEY).reports, *await self.legacy())

    async def may_receive(self, worker: str) -> bool:
        """Return whether the worker has a report now, and its newest report does not say that it is leaving. Raises
        TableError.
        """
        found = [await ReportsTable(self._service, place).get(worker) for place in self._places()]
        newest = reports.newest_of_each(report for report in found if report is not None)
        return any(not reports.is_leaving(report) for report in newest)

    async def delete_stale(self, stale: Iterable[WorkerReport]) -> None:
        """Delete stale reports from the tables in which they were read. Errors are logged."""
        places = {place.key != LEASE_TABLE_KEY: place for place in self._places()}  # the key is `WorkerReport.legacy`
        for report in stale:
            if (place := places.get(report.legacy)) is not None:
                try:
                    await contained(ReportsTable(self._service, place).delete_stale(report), "deleting reports")
                except TableError as error:
                    log.info("report %s not deleted: %s", report.worker, error, extra={"action": "stale_not_deleted"})
