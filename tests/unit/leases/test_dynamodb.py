"""The DynamoDB adapter: creating the table, scanning, and the kinds of errors (leases#lease-table and on)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from mld.core.clock import LoopClock
from mld.core.errors import (
    AwsError,
    AwsUnreachableError,
    TableError,
    TableMissingError,
    TableThrottledError,
    TableUnavailableError,
)
from mld.core.positions import TRIM_HORIZON
from mld.leases import writes
from mld.leases.dynamodb import DynamoLeaseTable, segments_for
from mld.leases.lease import Lease
from mld.leases.table_maker import LegacyTable, on_demand
from tests.twins.dynamo import Fault, MemoryDynamo
from tests.virtual_time import virtual

TABLE = "app"


def operations(dynamo: MemoryDynamo) -> list[str]:
    return [operation for _, operation in dynamo.calls]


async def made(scan_segments: int = 0, **options: Any) -> tuple[MemoryDynamo, DynamoLeaseTable]:
    """The table is there."""
    dynamo = MemoryDynamo(LoopClock(), **options)
    table = DynamoLeaseTable(dynamo, LoopClock(), table_name=TABLE, scan_segments=scan_segments)
    assert await table.ensure()
    return dynamo, table


@virtual
async def test_an_existing_table_costs_one_request() -> None:
    dynamo, table = await made()
    dynamo.calls.clear()
    assert not await table.ensure()
    assert operations(dynamo) == ["DescribeTable"]


@virtual
async def test_a_new_table_is_waited_for_and_created_as_asked() -> None:
    sent: list[Mapping[str, Any]] = []
    dynamo = MemoryDynamo(
        LoopClock(),
        creation_s=7.0,
        faults=lambda _, op, params: sent.append(params) if op == "CreateTable" else None,
    )
    table = DynamoLeaseTable(
        dynamo,
        LoopClock(),
        table_name=TABLE,
        settings=replace(on_demand(TABLE), deletion_protection=True, tags=(("team", "a"),)),
        request_timeout_s=1.0,
    )
    assert await table.ensure()
    assert 7.0 <= LoopClock().monotonic() < 12.0
    (params,) = sent
    assert params["BillingMode"] == "PAY_PER_REQUEST"
    assert "ProvisionedThroughput" not in params
    assert params["DeletionProtectionEnabled"] is True
    assert params["Tags"] == [{"Key": "team", "Value": "a"}]
    assert params["KeySchema"] == [{"AttributeName": "leaseKey", "KeyType": "HASH"}]


@virtual
async def test_a_table_created_by_somebody_else_at_the_same_time_is_fine() -> None:
    dynamo = MemoryDynamo(LoopClock(), creation_s=3.0)
    rival = DynamoLeaseTable(dynamo, LoopClock(), table_name=TABLE)

    def faults(_: str, operation: str, params: Mapping[str, Any]) -> Fault | None:
        if operation == "CreateTable":
            return Fault(fail_before=AwsError("CreateTable", "ResourceInUseException"))
        return None

    dynamo.faults = faults
    ours = DynamoLeaseTable(dynamo, LoopClock(), table_name=TABLE)
    waiting = asyncio.create_task(ours.ensure())
    await asyncio.sleep(1.0)
    dynamo.faults = None
    assert await rival.ensure()
    assert not await waiting


@virtual
async def test_the_lease_table_waits_where_no_more_tables_are_made_now_and_a_legacy_table_does_not() -> None:
    """A fleet that changes its form waits for a legacy table, and goes on without it."""

    def faults(_: str, operation: str, params: Mapping[str, Any]) -> Fault | None:
        error = AwsError("CreateTable", "LimitExceededException", "too many tables")
        return Fault(fail_before=error) if operation == "CreateTable" else None

    dynamo = MemoryDynamo(LoopClock(), faults=faults)
    began = LoopClock().monotonic()
    with pytest.raises(TableThrottledError, match="LimitExceeded"):
        await LegacyTable(dynamo, LoopClock(), on_demand("legacy"), "key").ensure()
    assert LoopClock().monotonic() - began < 1.0
    with pytest.raises(TableUnavailableError, match=r"missing after 600 s: .*LimitExceeded"):
        await DynamoLeaseTable(dynamo, LoopClock(), table_name=TABLE).ensure()


@virtual
async def test_a_table_that_never_gets_ready_is_an_error_after_ten_minutes() -> None:
    dynamo = MemoryDynamo(LoopClock(), creation_s=10_000.0)
    with pytest.raises(TableUnavailableError, match="CREATING after 600 s"):
        await DynamoLeaseTable(dynamo, LoopClock(), table_name=TABLE).ensure()
    assert 580.0 < LoopClock().monotonic() <= 600.0


@virtual
async def test_point_in_time_recovery_is_switched_on_once_the_table_is_active() -> None:
    dynamo = MemoryDynamo(LoopClock(), creation_s=5.0)
    table = DynamoLeaseTable(
        dynamo, LoopClock(), table_name=TABLE, settings=replace(on_demand(TABLE), point_in_time_recovery=True)
    )
    await table.ensure()
    assert operations(dynamo)[-2:] == ["DescribeContinuousBackups", "UpdateContinuousBackups"]
    assert operations(dynamo).count("UpdateContinuousBackups") == 1
    await table.ensure()
    assert operations(dynamo).count("UpdateContinuousBackups") == 1


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (AwsError("GetItem", "ProvisionedThroughputExceededException"), TableThrottledError),
        (AwsError("GetItem", "ThrottlingException"), TableThrottledError),
        (AwsError("GetItem", "RequestLimitExceeded"), TableThrottledError),
        (AwsError("GetItem", "Whatever", status=429), TableThrottledError),
        (AwsError("GetItem", "ResourceNotFoundException"), TableMissingError),
        (AwsError("GetItem", "AccessDeniedException"), TableUnavailableError),
        (AwsError("GetItem", "InternalServerError", status=500), TableUnavailableError),
        (AwsUnreachableError("GetItem", "connection reset"), TableUnavailableError),
    ],
)
@virtual
async def test_failures_have_a_kind(failure: Exception, kind: type[TableError]) -> None:
    dynamo = MemoryDynamo(LoopClock(), faults=lambda *_: Fault(fail_before=failure))
    with pytest.raises(kind):
        await DynamoLeaseTable(dynamo, LoopClock(), table_name=TABLE).get("shard")


@virtual
async def test_a_request_without_answer_is_given_up_in_time() -> None:
    dynamo = MemoryDynamo(LoopClock(), faults=lambda *_: Fault(delay_before_s=60.0))
    with pytest.raises(TableUnavailableError):
        await DynamoLeaseTable(dynamo, LoopClock(), table_name=TABLE, request_timeout_s=2.0).get("shard")
    assert LoopClock().monotonic() == pytest.approx(2.0)


@pytest.mark.parametrize("segments", [0, 1, 5])
@virtual
async def test_every_row_is_scanned_once_whatever_the_segments(segments: int) -> None:
    _, table = await made(segments, page_rows_max=3)
    for number in range(40):
        await table.apply(writes.create(Lease(f"s{number}", TRIM_HORIZON)))
    scan = await table.scan()
    assert sorted(lease.key for lease in scan.leases) == sorted(f"s{number}" for number in range(40))


@virtual
async def test_only_a_table_of_several_pages_is_asked_for_its_size_and_then_rarely() -> None:
    dynamo, table = await made(page_rows_max=3)
    await table.apply(writes.create(Lease("s0", TRIM_HORIZON)))
    dynamo.calls.clear()
    await table.scan()
    await table.scan()
    assert operations(dynamo) == ["Scan", "Scan"]

    for number in range(1, 5):
        await table.apply(writes.create(Lease(f"s{number}", TRIM_HORIZON)))
    dynamo.set_table_bytes(TABLE, 2**30)
    dynamo.calls.clear()
    for _ in range(3):
        await table.scan()
    assert operations(dynamo).count("DescribeTable") == 1
    assert operations(dynamo).count("Scan") >= 2 + 5 + 5


@virtual
async def test_the_first_failing_segment_fails_the_scan_by_its_own_kind() -> None:
    dynamo, table = await made(4)

    def faults(_: str, operation: str, params: Mapping[str, Any]) -> Fault | None:
        failure = AwsError("Scan", "ThrottlingException")
        return Fault(fail_before=failure) if params.get("Segment") == 2 else None

    dynamo.faults = faults
    with pytest.raises(TableThrottledError):
        await table.scan()


@pytest.mark.parametrize(
    ("table_bytes", "segments"), [(0, 1), (1, 1), (2**30 // 5, 1), (2**30 // 5 + 2, 2), (2**30, 5), (2**40, 32)]
)
def test_segments_grow_with_the_table(table_bytes: int, segments: int) -> None:
    assert segments_for(table_bytes) == segments


@virtual
async def test_a_row_that_turned_corrupt_is_an_error_not_a_loss() -> None:
    dynamo, table = await made()
    dynamo.put_row(TABLE, {"leaseKey": {"S": "s"}, "leaseOwner": {"S": "me"}, "checkpoint": {"S": "TRIM_HORIZON"}})
    with pytest.raises(TableError, match="leaseCounter is missing"):
        await table.apply(writes.renew(Lease("s", TRIM_HORIZON, 1, "me")))


@virtual
async def test_a_thousand_unreadable_rows_with_new_names_at_each_read_cost_twenty_lines_a_minute(caplog) -> None:
    dynamo, table = await made()
    for read in range(20):
        for number in range(50):
            dynamo.put_row(TABLE, {"leaseKey": {"S": f"forged-{read}-{number}"}, "checkpoint": {"S": "x"}})
        assert len((await table.scan()).corrupt) == 50 * (read + 1)
        await asyncio.sleep(3)
    lines = [record for record in caplog.records if record.action == "lease_corrupt"]
    assert 20 <= len(lines) <= 2 * 20, "as many as there are at once, and as many again in the minute"
    assert [record.kind for record in caplog.records if record.action == "row_lines_left_out"] == [
        "lease rows that cannot be read"
    ]


@virtual
async def test_an_unreadable_row_is_logged_once_then_hourly_and_again_for_another_reason(caplog) -> None:
    dynamo, table = await made()
    row = {"leaseKey": {"S": "s"}, "leaseOwner": {"S": "me"}, "checkpoint": {"S": "TRIM_HORIZON"}}
    dynamo.put_row(TABLE, row)

    async def reports(seconds: int) -> int:
        """How often it is logged while the table is read every half minute."""
        caplog.clear()
        for _ in range(seconds // 30):
            await table.scan()
            await asyncio.sleep(30)
        return len([record for record in caplog.records if record.action == "lease_corrupt"])

    assert [await reports(3600) for _ in range(3)] == [1, 1, 1]
    dynamo.put_row(TABLE, row | {"leaseCounter": {"S": "x"}})
    assert await reports(60) == 1, "another reason"
    dynamo.delete_row(TABLE, "s")
    await table.scan()
    dynamo.put_row(TABLE, row)
    assert await reports(60) == 1, "it was well in between"
