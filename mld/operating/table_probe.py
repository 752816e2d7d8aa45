"""The part of `mld doctor` that examines the lease table: whether it exists, may be used, and has sound rows."""

from __future__ import annotations

import os
import uuid
from datetime import datetime
from typing import Any

from mld.aws.client import BotoService
from mld.core.errors import MldError, TableError
from mld.core.terminal import FILE_VARIABLE
from mld.fleet.report.reports import WorkerReport
from mld.fleet.report.reports_table import ReportsTable
from mld.leases.owner_index import INDEX_NAME
from mld.leases.rows import KEY, REPORTS_TABLE_KEY, Place
from mld.operating import findings
from mld.operating.examination import TIMEOUT_S, Examination, ProbeEnded
from mld.operating.findings import Diagnosis, fail, ok, refusal
from mld.operating.fleet_reader import fleet_reader, view_rules
from mld.operating.fleet_sight import FleetSight
from mld.operating.one_stream import OTHER_FORM
from mld.properties.values import ClientVersionConfig


class TableProbe:
    """Examines the lease table of an `Examination`, and the two other tables of fleets up to KCL 3.4."""

    def __init__(self, exam: Examination) -> None:
        self._exam = exam

    async def examine(self) -> None:
        """Examine DynamoDB itself, then the lease table, then the two other tables."""
        async with self._exam.reached("dynamodb") as service:
            await self._exam.run(self._table(service), self._legacy_tables(service))

    async def _table(self, service: BotoService) -> None:
        """Examine the lease table itself, then the permissions for its rows, then the rows."""
        settings = self._exam.settings
        name = settings.lease_table.name
        try:
            answer = await service.call("DescribeTable", {"TableName": name}, timeout_s=TIMEOUT_S)
        except MldError as error:
            if not findings.is_missing(error):
                raise ProbeEnded(refusal("lease table", "dynamodb:DescribeTable", error)) from error
            reports = await self._reports(service)
            now_s = self._exam.factory.service_time.now()
            raise ProbeEnded(findings.missing_table(name, reports, now_s, view_rules(settings))) from error
        index, table = INDEX_NAME if await self._is_3x() else None, answer["Table"]
        duration_s, shards = settings.leases.duration_s, self._exam.open_shards()
        self._exam.require(
            *findings.table_findings(table, key=KEY, index=index, open_shards=shards, lease_duration_s=duration_s)
        )
        has_index = any(one.get("IndexName") == INDEX_NAME for one in table.get("GlobalSecondaryIndexes", ()))
        await self._row_permissions(service, with_index=has_index)
        created = table.get("CreationDateTime")
        await self._rows(created.timestamp() if isinstance(created, datetime) else None)

    async def _is_3x(self) -> bool:
        """Return whether a worker with these settings would work by the rules of 3.x. If the settings leave that open,
        the table decides.
        """
        configured = self._exam.settings.fleet.client_version
        if configured is not None:
            return configured is ClientVersionConfig.VERSION_3X
        try:
            async with fleet_reader(self._exam.settings) as reader:
                return await reader.is_3x()
        except TableError:
            return True  # not known: examine what 3.x needs, which is more

    async def _reports(self, service: BotoService) -> tuple[WorkerReport, ...]:
        """Return the reports in the table where fleets up to KCL 3.4 keep them.

        It is called if the lease table does not exist, so that reports in the lease table are gone, too.
        """
        place = Place(self._exam.settings.worker_metrics_table.name, REPORTS_TABLE_KEY)
        try:
            return (await ReportsTable(service, place, request_timeout_s=TIMEOUT_S).scan()).reports
        except TableError:
            return ()

    async def _legacy_tables(self, service: BotoService) -> None:
        """Examine the tables in which fleets up to KCL 3.4 kept reports and the leader's lock. Every start reads
        them.
        """
        about, settings = "fleet tables", self._exam.settings
        present, found = [], []
        for name in (settings.worker_metrics_table.name, settings.coordinator_state_table.name):
            try:
                await service.call("Scan", {"TableName": name, "Limit": 1}, timeout_s=TIMEOUT_S)
                present.append(name)
            except MldError as error:
                if not findings.is_missing(error):
                    found.append(refusal(about, f"dynamodb:Scan of {name}", error))
        self._exam.found += found or [
            ok(about, f"{' and '.join(present)} are used" if present else "none of an older fleet")
        ]

    async def _row_permissions(self, service: BotoService, *, with_index: bool) -> None:
        """Try each call on rows. No write is ever applied, because its condition needs a row that does not exist."""
        about, name = "table permissions", self._exam.settings.lease_table.name
        key = {KEY: {"S": f"mld-doctor-{uuid.uuid4()}"}}
        refused = {"TableName": name, "ConditionExpression": f"attribute_exists({KEY})"}
        calls: dict[str, dict[str, Any]] = {
            "Scan": {"TableName": name, "Limit": 1},
            "GetItem": {"TableName": name, "Key": key},
            "BatchGetItem": {"RequestItems": {name: {"Keys": [key]}}},
            "PutItem": {**refused, "Item": key},
            "UpdateItem": {**refused, "Key": key, "UpdateExpression": "REMOVE mldDoctor"},
            "DeleteItem": {**refused, "Key": key},
        }
        if with_index:
            query = {
                "KeyConditionExpression": "leaseOwner = :me",
                "ExpressionAttributeValues": {":me": {"S": "mld-doctor"}},
            }
            calls["Query"] = {"TableName": name, "IndexName": INDEX_NAME, "Limit": 1, **query}
        found: list[Diagnosis] = []
        for operation, params in calls.items():
            try:
                await self._exam.call(service, about, f"dynamodb:{operation}", params)
            except ProbeEnded as ended:
                found += ended.args
        self._exam.require(*(found or [ok(about, f"{', '.join(calls)} are allowed")]))

    async def _rows(self, created_s: float | None) -> None:
        """Examine the lease rows, and the workers that share the table. Raises ProbeEnded if the table cannot be read,
        or if its rows are those of several streams while the properties file names one, or the other way round.

        `created_s` is when the table was created, in epoch seconds; None if unknown.
        """
        try:
            async with fleet_reader(self._exam.settings) as reader:
                status = await reader.look()
        except TableError as error:
            raise ProbeEnded(fail("lease rows", str(error), "see the message")) from error
        is_multi = self._exam.settings.is_multi_stream
        leases = [shard.lease for shard in status.shards]
        other = next((one for one in leases if (one.stream is not None) is not is_multi), None)
        if other is not None:
            form = "several streams" if other.stream is not None else "one stream"
            words = f"the table has the form of {form} (lease {other.key}), and the file has the other one"
            raise ProbeEnded(fail("lease rows", words, f"choose between streamName and mld.streams, or {OTHER_FORM}"))
        # The commands in remedies name the properties file, unless they find it by the environment variable.
        file = "" if self._exam.file == os.environ.get(FILE_VARIABLE) else self._exam.file
        self._exam.found += findings.rows_findings(
            FleetSight(fleet=status, listed=self._exam.listed, table_created_s=created_s, file=file),
            is_3x=await self._is_3x(),
        )
