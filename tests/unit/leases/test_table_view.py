"""One view of the table for all parts of a worker (leases#one-view-of-the-table), in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from mld.core.clock import LoopClock
from mld.core.errors import AwsError, TableError
from mld.core.positions import TRIM_HORIZON
from mld.leases import writes
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.lease import Lease
from mld.leases.table_view import SeenTable, TableView
from tests.twins.dynamo import NO_FAULT, Fault, MemoryDynamo
from tests.unit.leases.support import TABLE, new_dynamo
from tests.virtual_time import virtual

CLOCK = LoopClock()
SCAN_S = 2.0


class Bed:
    """A view of a table, each scan of which takes `SCAN_S`."""

    def __init__(self, dynamo: MemoryDynamo) -> None:
        self.dynamo = dynamo
        self.table = DynamoLeaseTable(dynamo.client("me"), CLOCK, table_name=TABLE)
        self.views = TableView(self.table, CLOCK)
        self.fault = Fault(delay_before_s=SCAN_S)
        dynamo.faults = lambda _, operation, __: self.fault if operation == "Scan" else NO_FAULT

    @property
    def scans(self) -> int:
        return self.dynamo.calls.count(("me", "Scan"))

    async def create(self, key: str) -> None:
        await self.table.apply(writes.create(Lease(key, TRIM_HORIZON)))


def keys(view: SeenTable) -> list[str]:
    return [lease.key for lease in view.scan.leases]


async def bed() -> Bed:
    return Bed(await new_dynamo())


@virtual
async def test_those_who_ask_while_a_read_is_new_enough_share_it() -> None:
    it = await bed()
    at = CLOCK.monotonic() - 1.0
    first = asyncio.create_task(it.views.newer_than(at))
    await CLOCK.sleep(1.0)
    assert await it.views.newer_than(at) is await first
    assert await it.views.newer_than(at) is it.views.newest
    assert it.scans == 1
    assert (await first).ended_at - (await first).began_at == SCAN_S


@virtual
async def test_who_needs_a_newer_view_does_not_wait_for_an_older_read() -> None:
    it = await bed()
    older = asyncio.create_task(it.views.newer_than(CLOCK.monotonic() - 1.0))
    await CLOCK.sleep(1.0)
    it.fault = NO_FAULT
    await it.create("s1")
    newer = await it.views.newer_than(CLOCK.monotonic())
    assert keys(newer) == ["s1"]
    assert not older.done()
    await older
    assert it.views.newest is newer, "a read that began earlier and ends later takes no news away"


@virtual
async def test_a_view_that_began_at_that_very_moment_is_not_newer() -> None:
    it = await bed()
    it.fault = NO_FAULT
    view = await it.views.newer_than(-1.0)
    await it.create("s1")  # virtual time stands still
    assert keys(await it.views.newer_than(view.began_at)) == ["s1"]


@virtual
async def test_a_failed_read_is_an_error_for_all_who_wait_and_the_next_one_is_new() -> None:
    it = await bed()
    it.fault = Fault(delay_before_s=SCAN_S, fail_before=AwsError("Scan", "ProvisionedThroughputExceededException", ""))
    asking = [asyncio.create_task(it.views.newer_than(-1.0)) for _ in range(2)]
    await asyncio.wait(asking)
    for task in asking:
        with pytest.raises(TableError):
            await task
    assert it.views.newest is None
    it.fault = NO_FAULT
    assert await it.views.newer_than(-1.0) is it.views.newest


@virtual
async def test_a_read_goes_on_if_who_asked_first_is_cancelled() -> None:
    it = await bed()
    first = asyncio.create_task(it.views.newer_than(-1.0))
    await CLOCK.sleep(1.0)
    second = asyncio.create_task(it.views.newer_than(-1.0))
    await CLOCK.sleep(0.5)
    first.cancel()
    assert await second is it.views.newest
    assert it.scans == 1


@virtual
async def test_events_are_set_by_each_newer_view() -> None:
    it = await bed()
    event = asyncio.Event()
    it.views.wake(event)
    for _ in range(2):
        await it.views.newer_than(CLOCK.monotonic())
        assert event.is_set()
        event.clear()


@virtual
async def test_what_was_read_of_a_table_that_is_gone_is_forgotten() -> None:
    it = await bed()
    await it.views.newer_than(-1.0)
    reading = asyncio.create_task(it.views.newer_than(CLOCK.monotonic()))
    await CLOCK.sleep(1.0)
    it.views.forget()
    assert it.views.newest is None
    await reading
    assert it.views.newest is None, "that read began before the table was known to be gone"
    await it.views.newer_than(-1.0)
    assert it.scans == 3
