"""What a graceful handoff does to a consumer and its child, in whole workers in virtual time.

Rule: leases#handoff-on-the-owner-side.
"""

import asyncio

import pytest

from mld.leases import writes
from mld.leases.discovery import LeaseDiscovery
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.lease import Lease
from tests.support.fleet import TABLE, fleet, in_fleet
from tests.support.settings import defaults
from tests.twins.children import Recorder
from tests.twins.dynamo import throttled
from tests.virtual_time import virtual

HANDOFF_TIMEOUT_S = defaults().leases.handoff_timeout_s
SHARD_0 = "shardId-000000000000"
SHARD_1 = "shardId-000000000001"
RENEWAL_S = 10 / 3 - 0.025
GIVEN = ["initialize", "shutdownRequested", "leaseLost"]


async def begin(world, key=SHARD_0, to="w2"):
    """What a leader writes; returns when it was written."""
    leader = DynamoLeaseTable(world.dynamo.client("leader"), world.clock, table_name=TABLE)
    assert isinstance(await leader.apply(writes.begin_handoff(world.lease(key), to)), Lease)
    return world.clock.monotonic()


def owners(world, key=SHARD_0):
    return world.lease(key).owner, world.lease(key).checkpoint_owner


def transferred_at(world):
    """When the row stopped naming two workers."""
    return next(
        (a.at for a in world.dynamo.history if "checkpointOwner" in a.before and "checkpointOwner" not in a.after), None
    )


class Watching(Recorder):
    """Notes who owned the row when each action arrived, and when."""

    def __init__(self, world, hang_on=(), hang_s=0.0):
        super().__init__(world.clock)
        self.world = world
        self.seen = []
        self.hang_on = hang_on
        self.hang_s = hang_s

    async def act(self, child, message):
        self.seen.append((message["action"], *owners(self.world), self.clock.monotonic()))
        if message["action"] in self.hang_on:
            await self.clock.sleep(self.hang_s)
        await super().act(child, message)


@in_fleet(1)
async def test_the_child_may_checkpoint_and_hears_lease_lost_after_the_transfer(world):
    world.recorder = watching = Watching(world)
    watching.checkpoint_every_batch = False
    world.put(20)
    worker = world.start()
    await world.until(world.all_delivered)
    begun_at = await begin(world)
    await world.until(lambda: not worker.host.living(), 10)
    assert transferred_at(world) - begun_at <= RENEWAL_S + 0.1
    assert world.recorder.actions_of(SHARD_0) == GIVEN
    assert [(action, *row) for action, *row, _ in watching.seen if action in GIVEN[1:]] == [
        ("shutdownRequested", "w2", "w1"),
        ("leaseLost", "w2", None),
    ]
    assert world.lease(SHARD_0).checkpoint.sequence == world.recorder.deliveries[-1].sequence
    assert world.recorder.errors == []
    await world.advance(5)
    assert (worker.worker.held(), owners(world)) == (frozenset(), ("w2", None))


@in_fleet(1)
async def test_the_running_batch_is_finished_and_nothing_is_delivered_after_it(world):
    world.recorder = Watching(world, hang_on=("processRecords",), hang_s=8.0)
    world.put(5)
    world.start()
    await world.until(lambda: ("processRecords") in [action for _, action in world.recorder.actions])
    await begin(world)
    world.put(5)
    await world.advance(6)
    assert owners(world) == ("w2", "w1")
    await world.until(lambda: owners(world) == ("w2", None), 10)
    assert len(world.recorder.deliveries) == 5
    assert world.lease(SHARD_0).checkpoint.sequence == world.recorder.deliveries[-1].sequence
    assert world.recorder.errors == []


@virtual
async def test_a_consumer_that_waits_for_its_parent_transfers_at_once():
    class Slow(Recorder):
        async def act(self, child, message):
            if message["action"] == "shardEnded":
                await asyncio.sleep(3600)
            await super().act(child, message)

    async with fleet(1) as world:
        world.recorder = Slow(world.clock)
        world.put(5)
        world.start()
        await world.until(world.all_delivered)
        world.split(SHARD_0)
        await world.until(lambda: world.lease(SHARD_1) is not None and world.lease(SHARD_1).owner == "w1", 60)
        begun_at = await begin(world, SHARD_1)
        await world.until(lambda: owners(world, SHARD_1) == ("w2", None), RENEWAL_S + 0.2)
        assert transferred_at(world) - begun_at <= RENEWAL_S + 0.1
        assert world.recorder.actions_of(SHARD_1) == []
        assert owners(world) == ("w1", None)


@in_fleet(1)
async def test_a_child_that_is_initializing_is_told_before_the_transfer(world):
    world.recorder = Watching(world, hang_on=("initialize",), hang_s=10.0)
    worker = world.start()
    await world.until(lambda: world.recorder.actions != [])
    await begin(world)
    await world.until(lambda: not worker.host.living(), 20)
    assert world.recorder.actions_of(SHARD_0) == GIVEN
    assert owners(world) == ("w2", None)


@in_fleet(1, mld__childRestartBackoffMillis="60000")
async def test_a_child_in_its_restart_pause_costs_the_next_owner_nothing(world):
    worker = world.start()
    await world.until(lambda: world.recorder.actions != [])
    await worker.host.children[0].kill()
    await world.advance(1)
    await begin(world)
    await world.until(lambda: owners(world) == ("w2", None), RENEWAL_S + 0.2)
    assert len(worker.host.children) == 1


@pytest.mark.parametrize("action", ["processRecords", "shutdownRequested"])
@in_fleet(1)
async def test_at_the_deadline_the_lease_goes_and_the_child_cannot_checkpoint_any_more(world, action):
    world.recorder = Watching(world, hang_on=(action,), hang_s=HANDOFF_TIMEOUT_S + 10)
    world.recorder.checkpoint_every_batch = action == "processRecords"
    world.put(5)
    worker = world.start()
    await world.until(lambda: world.recorder.actions != [])
    begun_at = await begin(world)
    await world.until(lambda: owners(world) == ("w2", None), HANDOFF_TIMEOUT_S + RENEWAL_S + 0.2)
    assert transferred_at(world) - begun_at >= HANDOFF_TIMEOUT_S
    checkpoint = world.lease(SHARD_0).checkpoint
    await world.until(lambda: not worker.host.living(), 60)
    assert world.recorder.actions_of(SHARD_0)[-1] == "leaseLost"
    assert (SHARD_0, "ShutdownException") in world.recorder.errors
    assert world.lease(SHARD_0).checkpoint == checkpoint


@in_fleet(1)
async def test_a_transfer_that_is_throttled_is_repeated_before_the_child_hears_lease_lost(world):
    world.recorder = watching = Watching(world)
    world.put(5)
    worker = world.start()
    await world.until(world.all_delivered)
    world.dynamo.faults = lambda sender, operation, params: (
        throttled()
        if sender == "w1" and ":newOwner" in params.get("ExpressionAttributeValues", {}) and is_early()
        else None
    )
    begun_at = await begin(world)
    until_s = begun_at + RENEWAL_S + 3

    def is_early():
        return world.clock.monotonic() < until_s

    await world.until(lambda: not worker.host.living(), 20)
    assert transferred_at(world) >= until_s
    assert watching.seen[-1][:3] == ("leaseLost", "w2", None)


@in_fleet(1)
async def test_a_stop_of_the_worker_during_a_handoff_completes_it(world):
    world.recorder = Watching(world, hang_on=("shutdownRequested",), hang_s=5.0)
    world.put(5)
    worker = world.start()
    await world.until(world.all_delivered)
    await begin(world)
    await world.until(lambda: "shutdownRequested" in world.recorder.actions_of(SHARD_0), 10)
    assert await worker.stop()
    assert owners(world) == ("w2", None)
    assert world.recorder.actions_of(SHARD_0) == GIVEN


@in_fleet(1)
async def test_a_handoff_that_begins_during_the_stop_is_completed_too(world):
    world.recorder = Watching(world, hang_on=("shutdownRequested",), hang_s=5.0)
    world.put(5)
    worker = world.start()
    await world.until(world.all_delivered)
    stopping = asyncio.create_task(worker.stop())
    await world.until(lambda: "shutdownRequested" in world.recorder.actions_of(SHARD_0))
    await begin(world)
    assert await stopping
    assert owners(world) == ("w2", None)


@in_fleet(1)
async def test_the_next_worker_goes_on_within_a_second_and_no_record_is_lost_or_repeated(world):
    first = world.start("w2")
    await world.until(lambda: len(world.recorder.actions) == 1)
    second = world.start("w1", seed=2)
    await world.advance(1)
    keeper = second.worker.parts.keeper
    table = DynamoLeaseTable(world.dynamo.client("w1"), world.clock, table_name=TABLE)
    await table.index.ensure()
    discovering = asyncio.create_task(LeaseDiscovery(table, table.index, keeper, world.clock, worker_id="w1").run())
    try:
        world.put(50)
        await world.until(world.all_delivered)
        await begin(world, to="w1")
        world.put(50)
        await world.until(lambda: second.worker.held() == {SHARD_0}, 10)
        assert world.clock.monotonic() - transferred_at(world) < 1.0
        world.put(50)
        await world.until(world.all_delivered)
    finally:
        discovering.cancel()
    assert sorted(world.recorder.data()) == sorted(world.put_data)
    world.check_order()
    assert first.host.living() == []
