"""Checkpoints that a child asks for outside of an action, in whole workers in virtual time.

Rule: protocol#checkpoints-at-any-time.
"""

import asyncio

import pytest

from mld.consumer.processor import Processor
from mld.core.clock import LoopClock
from mld.core.positions import Position
from mld.core.streams import PlainBatch
from mld.protocol.messages import Initialize
from tests.support.fleet import TABLE, fleet, in_fleet, settings_of
from tests.twins.children import ChildExit, MemoryChild, Recorder
from tests.twins.dynamo import Fault
from tests.virtual_time import virtual

SHARD_0 = "shardId-000000000000"


class Free(Recorder):
    """Does not wait for the replies to its requests: it notes them as they come."""

    def __init__(self, clock, ask):
        super().__init__(clock, checkpoint_every_batch=False)
        self.ask = ask  # for a checkpoint, given the child, the last record and what answers the batch
        self.replies = []

    async def __call__(self, child):
        while True:
            message = await child.receive()
            self.actions.append((child.shard_id, message["action"]))
            if message["action"] == "checkpoint":
                self.replies.append((message["sequenceNumber"], message["error"]))
            elif message["action"] == "processRecords":
                await self.process(child, message["records"])
                await self.ask(child, message["records"][-1], lambda: child.done(message))  # noqa: B023
            else:
                child.done(message)


def request(child, sequence=None):
    child.send({"action": "checkpoint", "sequenceNumber": sequence, "subSequenceNumber": None})


async def after(child, last, done):
    done()
    request(child, last["sequenceNumber"])


async def after_without_position(child, _, done):
    done()
    request(child)


async def before_without_waiting(child, last, done):
    request(child, last["sequenceNumber"])
    done()


async def a_minute_later(child, last, done):
    done()
    await asyncio.sleep(60)
    request(child, last["sequenceNumber"])


@pytest.mark.parametrize("ask", [after, after_without_position, before_without_waiting, a_minute_later])
@in_fleet(1)
async def test_a_request_outside_of_an_action_is_stored_and_answered_though_nothing_more_comes(world, ask):
    world.recorder = Free(world.clock, ask)
    worker = world.start()
    world.put(10)
    await world.until(lambda: len(world.recorder.replies) == 1)
    delivered = world.recorder.deliveries
    assert len(delivered) == 10
    assert world.lease(SHARD_0).checkpoint == Position(delivered[-1].sequence)
    assert world.recorder.replies == [(None if ask is after_without_position else delivered[-1].sequence, None)]
    assert len(worker.host.children) == 1


@virtual
async def test_what_is_asked_for_before_the_next_batch_does_not_cover_it():
    """The child that has answered for one record, and dies of the next, gets that one again."""

    async def ask(child, _, done):
        if len(world.recorder.deliveries) == 2:
            raise ChildExit
        done()
        request(child)

    async with fleet(1, maxRecords="1") as world:
        world.recorder = Free(world.clock, ask)
        world.put(2)
        world.start()
        await world.until(lambda: len(world.recorder.deliveries) == 2)
        first, second = world.recorder.deliveries
        assert world.lease(SHARD_0).checkpoint == Position(first.sequence)
        await world.until(lambda: len(world.recorder.deliveries) == 3)
        assert world.recorder.deliveries[2].sequence == second.sequence


class HalfRead(MemoryChild):
    """Of a batch it takes the first piece, and the others when `rest` is set."""

    async def write(self, pieces):
        for number, piece in enumerate(pieces):
            if number:
                self.begun.set()
                await self.rest.wait()
            await super().write([piece])


@virtual
async def test_a_batch_that_is_not_wholly_in_the_pipe_cannot_be_checkpointed_yet():
    async def script(child):
        child.done(await child.receive())
        await child.begun.wait()
        request(child)
        heard.append((await child.receive())["action"])
        heard.append((await child.receive())["action"])
        request(child)
        heard.append((await child.receive())["action"])
        child.send({"action": "status", "responseFor": "processRecords"})

    async def on_checkpoint(_):
        covered.append(is_written)
        child.rest.set()

    def written():
        nonlocal is_written
        is_written = True

    heard, covered, is_written = [], [], False
    child = HalfRead(SHARD_0, script, 0)
    child.begun, child.rest = asyncio.Event(), asyncio.Event()
    processor = Processor(child, SHARD_0, LoopClock(), settings_of().child, on_checkpoint)
    await processor.initialize(Initialize(SHARD_0, "LATEST", 0))
    await processor.process_records(InTwoPieces(), written=written)
    await processor.end()
    assert covered == [False, True]
    assert heard == ["processRecords", "checkpoint", "checkpoint"]


class InTwoPieces(PlainBatch):
    largest = millis_behind_latest = None
    count = data_bytes = 0

    def line(self):
        yield b'{"action":"processRecords",'
        yield b'"records":[],"millisBehindLatest":0}\n'


@in_fleet(1, maxRecords="1")
async def test_a_batch_that_waits_for_a_checkpoint_is_not_sent_after_a_stop(world):
    """The table answers slowly; what was wanted when the wait began may not be any more."""
    world.recorder = Free(world.clock, after)
    worker = world.start()
    await world.until(lambda: worker.host.living() != [])
    world.dynamo.faults = lambda sender, operation, params: (
        Fault(delay_before_s=3.0) if "checkpoint" in str(params.get("UpdateExpression")) else None
    )
    world.put(2)
    await world.until(lambda: world.recorder.deliveries)
    await world.advance(1)
    assert await asyncio.wait_for(worker.stop(), 20)
    actions = [action for _, action in world.recorder.actions]
    assert actions == ["initialize", "processRecords", "checkpoint", "shutdownRequested", "leaseLost"]


@in_fleet(1)
async def test_a_child_that_asks_without_end_is_stopped_all_the_same(world):
    async def flood(child, sequence):
        while not child.ended:
            request(child, sequence)
            await asyncio.sleep(0.001)

    async def ask(child, last, done):
        done()
        floods.append(asyncio.ensure_future(flood(child, last["sequenceNumber"])))

    floods = []
    world.recorder = Free(world.clock, ask)
    worker = world.start()
    world.put(1)
    await world.until(lambda: len(world.recorder.replies) > 100)
    assert await asyncio.wait_for(worker.stop(), 20)
    actions = [action for _, action in world.recorder.actions if action != "checkpoint"]
    assert actions == ["initialize", "processRecords", "shutdownRequested", "leaseLost"]
    await asyncio.gather(*floods)


@in_fleet(1)
async def test_a_request_after_the_lease_has_gone_to_another_is_told_so_and_ends_the_child(world):
    async def ask(child, last, done):
        done()
        row = world.dynamo.row(TABLE, SHARD_0)
        world.dynamo.put_row(TABLE, row | {"leaseOwner": {"S": "thief"}, "leaseCounter": {"N": "1000"}})
        request(child, last["sequenceNumber"])

    world.recorder = Free(world.clock, ask)
    world.start()
    world.put(1)
    await world.until(lambda: world.recorder.replies)
    assert world.recorder.replies[0][1] == "ShutdownException"
    await world.until(lambda: world.recorder.actions[-1] == (SHARD_0, "leaseLost"), 1.0)


@in_fleet(1)
async def test_the_end_of_the_shard_is_not_stored_by_a_request_from_before(world):
    """It names no position, and comes while the rows of the child shards are made."""
    world.recorder = Free(world.clock, after_without_position)
    world.put(3)
    world.start()
    await world.until(lambda: world.recorder.replies)
    world.split(SHARD_0)
    await world.until(lambda: (SHARD_0, "shardEnded") in world.recorder.actions)
    assert world.lease(SHARD_0).checkpoint == Position(world.recorder.deliveries[-1].sequence)
