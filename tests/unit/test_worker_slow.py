"""Whole workers in virtual time whose lease table answers late from one moment on: a lapse is no death of the child."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.support.fleet import TABLE, Fleet, in_fleet
from tests.twins.dynamo import Fault, lost_request

DURATION_S = 10.0
V3X = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_3X"}
MODES = pytest.mark.parametrize("keys", [{}, V3X], ids=["2.x", "3.x"])


async def settled(world: Fleet, keys: dict[str, str]) -> int:
    """Three shards read by one worker for a minute; how many children there are."""
    world.keys |= keys
    world.start()
    world.put(30)
    await world.until(world.all_delivered)
    await world.advance(60)
    return len({one.child for one in world.recorder.deliveries})


@pytest.mark.parametrize("before", [0.0, 0.5, 1.0], ids=["answers late", "both late", "requests late"])
@MODES
@in_fleet(3)
async def test_a_round_trip_that_jumps_to_most_of_the_lease_ends_no_child_and_repeats_nothing(
    world: Fleet, keys: dict[str, str], before: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="mld")
    children = await settled(world, keys)
    took_s = 0.79 * DURATION_S
    world.dynamo.faults = lambda *_: Fault(delay_before_s=before * took_s, delay_after_s=(1 - before) * took_s)
    for _ in range(12):
        world.put(10)
        await world.advance(DURATION_S / 2)
    world.dynamo.faults = None
    await world.until(world.all_delivered)
    said = Counter(getattr(record, "action", "") for record in caplog.records)
    assert (said["lease_expired"], said["worker_id_twin"], said["child_ended"]) == (0, 0, 0)
    assert len({one.child for one in world.recorder.deliveries}) == children
    assert len(world.recorder.data()) == len(world.put_data), "delivered again"
    assert said["lease_suspended"], "without a lapse this proves nothing"


@MODES
@in_fleet(3)
async def test_nothing_is_delivered_while_nobody_knows_whose_the_lease_is(world: Fleet, keys: dict[str, str]) -> None:
    children = await settled(world, keys)
    world.dynamo.faults = lambda *_: lost_request()
    await world.advance(DURATION_S + 0.1)
    known = len(world.recorder.data())
    world.put(10)
    await world.advance(DURATION_S)
    assert len(world.recorder.data()) == known
    world.dynamo.faults = None
    await world.until(world.all_delivered)
    assert len({one.child for one in world.recorder.deliveries}) == children
    assert len(world.recorder.data()) == len(world.put_data), "delivered again"


@in_fleet(1)
async def test_a_lease_taken_during_its_suspension_ends_the_child_at_the_first_answer(world: Fleet) -> None:
    await settled(world, {})
    (running,) = world.running
    world.dynamo.faults = lambda sender, *_: lost_request() if sender == "w1" else None
    await world.advance(DURATION_S + 1)
    assert not running.worker.held()
    (key,) = (shard.shard_id for shard in world.shards())
    row = dict(world.dynamo.rows(TABLE)[key])
    counter = int(row["leaseCounter"]["N"]) + 1
    world.dynamo.put_row(TABLE, {**row, "leaseOwner": {"S": "other"}, "leaseCounter": {"N": str(counter)}})
    world.dynamo.faults = None
    await world.until(lambda: not running.host.living(), DURATION_S / 2)


@in_fleet(1)
async def test_a_stop_during_a_suspension_ends_in_time(world: Fleet) -> None:
    await settled(world, {})
    (running,) = world.running
    world.dynamo.faults = lambda *_: lost_request()
    await world.advance(DURATION_S + 1)
    stopping = asyncio.create_task(running.stop())
    await world.until(stopping.done, 37)
    assert not running.host.living()
