"""What a `ReportsTable` must do on any DynamoDB (coordination#worker-report-row). Subclasses supply `service`.

`reports_table` is over an existing table with the hash key `key`; `rows` plants and reads raw rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mld.aws.service import Service
from mld.core.errors import TableMissingError
from mld.fleet.report.reports import WorkerReport, own_report, parse_row
from mld.fleet.report.reports_table import ReportsTable
from mld.leases.rows import Place
from tests.contract.lease_table import REQUEST_TIMEOUT_S
from tests.support.tables import RawRows, make_table, unique_table

ME = "host-1:9f3c"
NOW = 1_784_640_030
MANY = 40


def report(*figures: float, now_s: float = NOW, worker: str = ME) -> WorkerReport:
    return own_report(worker, {"C": figures} if figures else {}, now_s, "0.2")


class ReportsTableContract:
    @pytest.fixture(params=["leaseKey", "wid"])
    def key(self, request: pytest.FixtureRequest) -> str:
        """The hash key of the lease table and of the legacy table."""
        return str(request.param)

    @pytest.fixture
    async def place(self, service: Service, key: str) -> Place:
        place = Place(unique_table(), key)
        await make_table(service, place.table, key)
        return place

    @pytest.fixture
    def reports_table(self, service: Service, place: Place) -> ReportsTable:
        return ReportsTable(service, place, request_timeout_s=REQUEST_TIMEOUT_S)

    @pytest.fixture
    def rows(self, service: Service, place: Place) -> RawRows:
        return RawRows(service, place.table, place.key)

    @staticmethod
    def java_row(key: str, worker: str = "java", **changes: Any) -> dict[str, dict[str, Any]]:
        """A row as 3.5 writes it in either table; an attribute given as None is left out."""
        row: dict[str, Any] = {
            key: {"S": worker},
            "entityType": {"S": "WORKER_METRIC_STATS"},
            "lut": {"N": str(NOW)},
            "sup": {"N": "1"},
            "slu": {"N": str(NOW)},
            "sts": {"M": {"C": {"L": [{"N": "41.2"}, {"N": "-1"}]}}},
            "opr": {"M": {"C": {"L": [{"N": "100"}]}}},
        } | changes
        return {name: value for name, value in row.items() if value is not None}

    @staticmethod
    def lease_row(key: str, name: str) -> dict[str, dict[str, Any]]:
        return {key: {"S": name}, "leaseCounter": {"N": "3"}, "checkpoint": {"S": "TRIM_HORIZON"}}

    # --- own row

    async def test_a_report_is_written_and_comes_back(
        self, reports_table: ReportsTable, rows: RawRows, key: str
    ) -> None:
        answer = await reports_table.write(report(41.2, 39.870001, 44.5))
        assert answer == replace(report(41.2, 39.870001, 44.5), legacy=key == "wid")
        row = await rows.there(ME)
        assert parse_row(row, key) == answer
        assert row["entityType"] == {"S": "WORKER_METRIC_STATS"}

    async def test_a_report_without_figures_has_two_empty_maps(
        self, reports_table: ReportsTable, rows: RawRows
    ) -> None:
        await reports_table.write(report())
        row = await rows.there(ME)
        assert (row["sts"], row["opr"]) == ({"M": {}}, {"M": {}})

    async def test_a_report_replaces_its_own_attributes_and_no_others(
        self, reports_table: ReportsTable, rows: RawRows, key: str
    ) -> None:
        planted: dict[str, dict[str, Any]] = {"properties": {"M": {"a": {"S": "b"}}}, "mldDrain": {"S": "by ops"}}
        await rows.put(self.java_row(key, ME, sts={"M": {"M": {"L": [{"N": "1"}]}}}) | planted)
        answer = await reports_table.write(report(50.0, now_s=NOW + 30))
        assert answer.mld == {"version": "0.2", "drain": "by ops"}
        assert (answer.samples, answer.updated_at_s) == ({"C": (50.0,)}, NOW + 30)
        row = await rows.there(ME)
        assert row["properties"] == planted["properties"]

    async def test_who_leaves_says_so_until_its_next_report(self, reports_table: ReportsTable) -> None:
        assert await reports_table.get(ME) is None
        await reports_table.write(own_report(ME, {}, NOW, "0.2", leaving=True))
        leaving = await reports_table.get(ME)
        assert leaving is not None
        assert leaving.mld == {"version": "0.2", "leaving": str(int(NOW))}
        assert (await reports_table.write(report(1.0, now_s=NOW + 30))).mld == {"version": "0.2"}

    async def test_own_row_is_deleted(self, reports_table: ReportsTable, rows: RawRows) -> None:
        await reports_table.write(report(1.0))
        assert await reports_table.delete_own(ME, NOW)
        assert await rows.get(ME) is None
        assert not await reports_table.delete_own(ME, NOW)

    async def test_own_row_is_deleted_if_only_an_earlier_report_arrived(self, reports_table: ReportsTable) -> None:
        await reports_table.write(report(1.0))
        assert await reports_table.delete_own(ME, NOW + 30)

    async def test_the_later_report_of_another_process_of_our_name_stays(
        self, reports_table: ReportsTable, rows: RawRows
    ) -> None:
        await reports_table.write(report(1.0, now_s=NOW + 1))
        assert not await reports_table.delete_own(ME, NOW)
        assert await rows.get(ME) is not None

    # --- stale rows

    async def test_a_stale_row_is_deleted_once(self, reports_table: ReportsTable, rows: RawRows, key: str) -> None:
        row = self.java_row(key)
        await rows.put(row)
        assert await reports_table.delete_stale(parse_row(row, key))
        assert await rows.get("java") is None
        assert not await reports_table.delete_stale(parse_row(row, key))

    async def test_a_row_written_since_is_not_stale(self, reports_table: ReportsTable, rows: RawRows, key: str) -> None:
        await rows.put(self.java_row(key, lut={"N": str(NOW + 1)}))
        assert not await reports_table.delete_stale(parse_row(self.java_row(key), key))
        assert await rows.get("java") is not None

    async def test_a_worker_that_was_drained_since_keeps_its_row(
        self, reports_table: ReportsTable, rows: RawRows, key: str
    ) -> None:
        seen, drained = self.java_row(key), self.java_row(key, mldDrain={"S": "by me"})
        await rows.put(drained)
        assert not await reports_table.delete_stale(parse_row(seen, key))
        assert await rows.get("java") == drained
        assert await reports_table.delete_stale(parse_row(drained, key)), "left over for a day, it goes"

    async def test_a_row_without_time_is_deleted_unless_it_has_got_one(
        self, reports_table: ReportsTable, rows: RawRows, key: str
    ) -> None:
        timeless = self.java_row(key, lut=None)
        await rows.put(self.java_row(key))
        assert not await reports_table.delete_stale(parse_row(timeless, key))
        await rows.put(timeless)
        assert await reports_table.delete_stale(parse_row(timeless, key))
        assert await rows.get("java") is None
        assert not await reports_table.delete_stale(parse_row(timeless, key))

    async def test_a_lease_is_never_deleted_as_a_report(
        self, reports_table: ReportsTable, rows: RawRows, key: str
    ) -> None:
        lease = self.lease_row(key, "w") | {"entityType": {"S": "LEASE"}, "lut": {"N": str(NOW)}}
        await rows.put(lease)
        await reports_table.delete_own("w", NOW)
        await reports_table.delete_stale(WorkerReport("w", NOW, legacy=key == "wid"))
        await reports_table.delete_stale(WorkerReport("w", None, legacy=key == "wid"))
        assert await rows.get("w") == lease

    async def test_a_row_of_3_4_is_deleted_from_the_legacy_table_only(
        self, reports_table: ReportsTable, rows: RawRows, key: str
    ) -> None:
        row = self.java_row(key, entityType=None)
        await rows.put(row)
        assert await reports_table.delete_stale(parse_row(row, key)) is (key == "wid")

    # --- scan

    async def test_a_scan_finds_every_report_and_names_damaged_rows(
        self, reports_table: ReportsTable, rows: RawRows, key: str
    ) -> None:
        workers = {f"w-{number}" for number in range(MANY)}
        for worker in workers:
            await reports_table.write(report(1.0, worker=worker))
        await rows.put(self.java_row(key, "damaged", lut={"S": "soon"}))
        if key == "leaseKey":
            await rows.put(self.lease_row(key, "shardId-1"))
        scan = await reports_table.scan()
        assert {each.worker for each in scan.reports} == workers
        assert len(scan.reports) == MANY
        assert [worker for worker, _ in scan.corrupt] == ["damaged"]

    async def test_every_row_of_the_legacy_table_is_a_report(
        self, reports_table: ReportsTable, rows: RawRows, key: str
    ) -> None:
        await rows.put(self.java_row(key, entityType=None, sup=None, slu=None))
        found = (await reports_table.scan()).reports
        assert [each.worker for each in found] == (["java"] if key == "wid" else [])

    async def test_a_missing_table_is_told_from_an_unavailable_one(
        self, service: Service, reports_table: ReportsTable, key: str
    ) -> None:
        missing = ReportsTable(service, Place("no-such-table", key), request_timeout_s=REQUEST_TIMEOUT_S)
        assert (await reports_table.scan()).reports == ()
        for call in (missing.scan(), missing.write(report(1.0)), missing.delete_own(ME, NOW)):
            with pytest.raises(TableMissingError):
                await call
