"""Whole workers in virtual time: real leases, shards, retrieval and consumers over in-memory AWS and children."""

import asyncio
import logging

import pytest

from mld.core.errors import AwsError, StartupError, StreamThrottledError
from tests.support.fleet import TABLE, fleet, in_fleet
from tests.twins.children import Recorder
from tests.twins.dynamo import Fault, throttled
from tests.virtual_time import virtual

SHARD_0 = "shardId-000000000000"
SHARD_1 = "shardId-000000000001"
SHARD_2 = "shardId-000000000002"
SHARD_3 = "shardId-000000000003"


@in_fleet(2)
async def test_each_attempt_to_start_without_a_stream_is_one_warning(world, caplog):
    wrong = world.start(streamName="klicks")
    with pytest.raises(StartupError, match=r"klicks.* regionName"):
        await asyncio.wait_for(asyncio.shield(wrong.task), 600)
    said = [record.action for record in caplog.records if record.levelno == logging.WARNING]
    assert said == ["initialization_failed"] * 20


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (("GetItem", "UpdateItem"), "The provided key element does not match the schema"),
        (("PutItem",), "One or more parameter values were invalid: Missing the key id in the item"),
        (
            ("PutItem",),
            "One or more parameter values were invalid: Type mismatch for key leaseKey expected: N actual: S",
        ),
    ],
)
@virtual
async def test_a_table_of_something_else_ends_the_start_at_once_and_names_the_keys(refused, words):
    async with fleet(1) as world:
        wrong = AwsError("x", "ValidationException", words)
        world.dynamo.faults = lambda _, operation, __: Fault(fail_before=wrong) if operation in refused else None
        began = world.clock.monotonic()
        with pytest.raises(
            StartupError, match=rf"{TABLE} is no table of KCL.*set another applicationName, or tableName"
        ):
            await asyncio.wait_for(asyncio.shield(world.start().task), 600)
        assert world.clock.monotonic() - began < 5.0


@virtual
async def test_a_stop_while_waiting_on_parents_is_immediate():
    class Slow(Recorder):
        async def act(self, child, message):
            if message["action"] == "shardEnded":
                await asyncio.sleep(3600)
            await super().act(child, message)

    async with fleet(1) as world:
        world.recorder = Slow(world.clock)
        world.put(5)
        worker = world.start(shutdownGraceMillis="2000")
        await world.until(world.all_delivered)
        world.split(SHARD_0)
        await world.until(lambda: world.lease(SHARD_1) is not None and world.lease(SHARD_1).owner == "w1", 60)
        started = world.clock.monotonic()
        assert not await worker.stop()  # the hanging child uses up the grace
        assert world.clock.monotonic() - started < 15
        assert world.lease(SHARD_1).owner is None


@pytest.mark.parametrize("mode", ["CLIENT_VERSION_CONFIG_3X", "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1"])
@pytest.mark.parametrize(
    ("operation", "fault"),
    [
        ("CreateTable", throttled()),
        ("DescribeTable", throttled()),
        ("Scan", Fault(delay_before_s=600.0)),
        ("GetItem", Fault(delay_before_s=600.0)),
        ("PutItem", throttled()),
        ("PutItem", Fault(delay_before_s=600.0)),
        ("ListShards", Fault(fail_before=StreamThrottledError("throttled"))),
    ],
)
@virtual
async def test_a_start_that_waits_for_aws_ends_when_a_stop_is_asked_for(
    operation: str, fault: Fault, mode: str
) -> None:
    async with fleet(2, clientVersionConfig=mode, failoverTimeMillis="3000") as world:
        world.dynamo.faults = lambda _, asked, __: fault if asked == operation else None
        running = world.start()
        running.streams.faults = lambda asked: fault.fail_before if asked == operation else None
        await world.advance(9)
        assert not running.worker.is_ready
        asked_at = world.clock.monotonic()
        assert await running.stop()
        assert world.clock.monotonic() - asked_at < 5
