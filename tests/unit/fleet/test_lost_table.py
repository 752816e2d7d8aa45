"""The lease table is deleted under a living fleet (leases#lost-table): nothing that was put is lost by that."""

from __future__ import annotations

import gc
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from mld.core.errors import TableMissingError, TableUnavailableError
from mld.core.positions import LATEST, TRIM_HORIZON
from mld.core.stillness import Stillness
from mld.fleet.leader.lock import LOCK_KEY
from mld.leases import writes
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.lease import Lease
from mld.metrics.events import EventKind
from mld.properties.settings import FORMER_WAIT_S
from mld.tracking.list_follower import WantedStream
from tests.support.fleet import TABLE, fleet, in_fleet
from tests.support.many import ManyFleet, in_many_fleet
from tests.twins.dynamo import Fault, lost_request
from tests.virtual_time import run_virtual

MODES = {
    "2.x": {"clientVersionConfig": "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1"},
    "3.x": {"clientVersionConfig": "CLIENT_VERSION_CONFIG_3X"},
}


@pytest.mark.parametrize("position", ["TRIM_HORIZON", "LATEST"])
@pytest.mark.parametrize("latency_s", [0.0, 0.05])
@pytest.mark.parametrize("mode", MODES)
def test_a_fleet_makes_its_table_again_from_what_it_knows_and_reads_on(
    mode: str, latency_s: float, position: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with fleet(4, initialPositionInStream=position, **MODES[mode]) as world:
            workers = [world.start(f"w{number}", seed=number) for number in range(3)]
            await world.until(lambda: sum(len(one.worker.held()) for one in workers) == 4, 400)
            world.put(40)
            await world.until(world.all_delivered)
            world.split(world.shards()[0].shard_id)
            world.put(40)
            await world.until(world.all_delivered)
            world.dynamo.faults = lambda *_: Fault(delay_before_s=latency_s)
            await world.dynamo.call("DeleteTable", {"TableName": TABLE})
            world.put(40)
            await world.until(lambda: world.dynamo.has_table(TABLE), 25)
            await world.until(world.all_delivered, 120)
            assert len(world.recorder.deliveries) < 120 + 60, "from their checkpoints, not from the beginning"
            await world.until(lambda: sum(len(one.worker.held()) for one in workers) >= 5, 400)
            world.put(40)
            await world.until(world.all_delivered, 60)
            assert all([await one.stop() for one in workers])

    with caplog.at_level(logging.ERROR):
        run_virtual(story())
    assert {"table_lost", "table_restored"} <= {getattr(record, "action", "") for record in caplog.records}


@in_fleet(2, **MODES["3.x"])
async def test_a_table_that_may_not_be_created_is_tried_again_and_said_each_time(
    world,
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = world.start()
    await world.until(lambda: len(worker.worker.held()) == 2)
    world.dynamo.forbidden.add("CreateTable")
    await world.dynamo.call("DeleteTable", {"TableName": TABLE})
    await world.advance(60)
    assert not worker.task.done()
    assert worker.worker.held() == frozenset()
    assert sum("cannot be made again" in record.getMessage() for record in caplog.records) >= 3
    world.dynamo.forbidden.clear()
    await world.until(lambda: len(worker.worker.held()) == 2, 60)


@in_fleet(2, **MODES["3.x"])
async def test_a_worker_that_stops_does_not_make_the_table_again(world) -> None:
    worker = world.start()
    await world.until(lambda: len(worker.worker.held()) == 2)
    await world.dynamo.call("DeleteTable", {"TableName": TABLE})
    await world.advance(5)
    await worker.stop()
    assert not world.dynamo.has_table(TABLE)


@in_fleet(1)
async def test_no_row_is_made_from_the_stream_before_those_of_a_lost_table_are_back(world) -> None:
    table = DynamoLeaseTable(world.dynamo.client("w1"), world.clock, table_name=TABLE)
    await table.ensure()
    assert await table.apply(writes.create(Lease("s0", LATEST, owner="w1", paused="by me")))
    assert await table.apply(writes.create(Lease("s1", LATEST, owner="w2")))
    assert await table.apply(writes.create(Lease("s2", TRIM_HORIZON, owner="w2")))
    await world.dynamo.call("DeleteTable", {"TableName": TABLE})
    with pytest.raises(TableMissingError):
        await table.get("s0")
    other = DynamoLeaseTable(world.dynamo.client("w2"), world.clock, table_name=TABLE)
    await other.ensure()
    await table.scan()
    await world.advance(10)
    with pytest.raises(TableMissingError, match="made again"):
        await table.apply(writes.create(Lease("s3", LATEST)))
    world.dynamo.faults = lambda _, operation, __: lost_request() if operation == "PutItem" else None
    with pytest.raises(TableUnavailableError):
        await table.restore("w1")
    world.dynamo.faults = None
    assert await table.restore("w1") == 2
    assert await table.restore("w1") == 0
    rows = (await table.scan()).leases
    assert set(rows) == {Lease("s0", LATEST, paused="by me"), Lease("s2", TRIM_HORIZON)}, "s1 is its owner's"
    with pytest.raises(TableMissingError, match="made again"):
        await table.apply(writes.create(Lease("s3", LATEST)))
    await world.advance(10)
    assert await table.apply(writes.create(Lease("s3", LATEST)))


def _watched() -> Sequence[Stillness[Any, Any]]:
    """All that anybody in this process watches, but for the lock, whose versions are never used again."""
    gc.collect()
    return [one for one in gc.get_objects() if isinstance(one, Stillness) and len(one) and LOCK_KEY not in one]


@pytest.mark.parametrize("mode", MODES)
def test_whoever_watches_rows_forgets_them(mode: str) -> None:
    async def story() -> None:
        async with fleet(4, **MODES[mode]) as world:
            of_other_tests = _watched()
            workers = [world.start(f"w{number}", seed=number) for number in range(2)]
            await world.until(lambda: sum(len(one.worker.held()) for one in workers) == 4, 400)
            await world.advance(60)
            assert len(_watched()) > len(of_other_tests)
            await world.dynamo.call("DeleteTable", {"TableName": TABLE})
            await world.until(lambda: all(one.metrics.worker.tables_lost for one in workers), 20)
            assert not [[*one] for one in _watched() if not any(one is other for other in of_other_tests)]

    run_virtual(story())


@in_many_fleet("orders", "clicks", mld__formerStreams="delete")
async def test_whoever_deletes_rows_of_former_streams_forgets_them(world: ManyFleet) -> None:
    worker = world.start("w1")
    await world.until(lambda: len(world.rows()) == 2)
    clicks = world.stream_id("clicks")
    world.wanted = [WantedStream("orders")]
    await world.until(lambda: len(world.rows()) == 1, FORMER_WAIT_S + 200.0)
    assert [one for one in _watched() if any(key.startswith(clicks) for key in one)]
    await world.dynamo.call("DeleteTable", {"TableName": TABLE})
    await world.until(lambda: worker.metrics.worker.tables_lost > 0, 20)
    assert not [one for one in _watched() if any(key.startswith(clicks) for key in one)]


FAILOVER_S = 10.0
RENEWALS = 15
WATCHED_S = 60
MOMENT_S = 0.5


@pytest.mark.parametrize("mode", MODES)
def test_nobody_is_taken_for_dead_by_counters_that_begin_again(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with fleet(6, mld__leaseAssignmentStrategy="count", **MODES[mode]) as world:
            there = [world.start(f"w{number}", seed=number) for number in range(3)]

            def loads() -> list[int]:
                return sorted(len(one.worker.held()) for one in there)

            await world.until(lambda: sum(loads()) == 6, 400)
            await world.advance(RENEWALS * FAILOVER_S / 3)
            even = loads()
            await world.dynamo.call("DeleteTable", {"TableName": TABLE})
            await world.until(lambda: world.dynamo.has_table(TABLE), 25)
            caplog.clear()
            await world.until(lambda: sum(loads()) == 6, 2 * FAILOVER_S + 15)
            unread_s = 0.0
            for _ in range(int(WATCHED_S / MOMENT_S)):
                await world.advance(MOMENT_S)
                unread_s = 0.0 if sum(loads()) == 6 else unread_s + MOMENT_S
                assert unread_s <= FAILOVER_S / 3, "leases move between workers that live"
            assert loads() == even == [2, 2, 2]
            assert all(one.metrics.worker.tables_lost == 1 for one in there)
            told = [event.text for one in there for event in one.metrics.events.take() if event.kind is EventKind.TABLE]
            assert told[0] == "the lease table is gone"
            assert "made again" in told[1]

    with caplog.at_level(logging.INFO):
        run_virtual(story())
    said = [getattr(record, "action", "") for record in caplog.records]
    assert not {"worker_silent", "worker_id_twin", "lease_expired"} & {*said}, said
