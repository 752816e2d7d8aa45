"""What operators ask of the holder of a shard by a mark on its row: records to leave out, a new child."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mld.operating.fleet_status import FleetStatus
from mld.operating.plan import ActPlan, Fate
from mld.operating.steering import plan_leave_out, plan_restart
from tests.support.fleet import TABLE, Fleet, in_fleet
from tests.support.kpl import User, aggregate
from tests.support.operators import act
from tests.twins.children import Recorder
from tests.unit.consumer.test_failing import POISON, Poisoned, lives, note, poison

SHARD_0 = "shardId-000000000000"
SEEN_WITHIN_S = 15.0
"""A renewal."""


async def ask(world: Fleet, plan: Callable[[FleetStatus], ActPlan]) -> None:
    assert await act(world, plan) == [Fate.DONE]


@in_fleet(1, clientVersionConfig="CLIENT_VERSION_CONFIG_3X")
async def test_a_record_is_left_out_and_those_around_it_are_not(world: Fleet) -> None:
    world.recorder = Poisoned(world.clock)
    world.put(5)
    place = poison(world)
    world.put(5)
    worker = world.start()
    await world.advance(700)
    assert not world.recorder.deliveries, "the child dies of the batch, every five minutes by now"
    counter = world.lease(SHARD_0).owner_switches

    await ask(world, lambda seen: plan_leave_out(seen, "0", place.sequence))

    await world.until(world.all_delivered, SEEN_WITHIN_S)
    assert POISON not in world.recorder.data()
    world.check_order()
    assert (world.lease(SHARD_0).owner, world.lease(SHARD_0).owner_switches) == ("w1", counter)
    world.put(5)
    await world.until(world.all_delivered)
    assert note(world) is None
    assert await worker.stop()


@in_fleet(1, clientVersionConfig="CLIENT_VERSION_CONFIG_3X")
async def test_several_records_of_a_batch_are_left_out_one_after_the_other(world: Fleet) -> None:
    world.recorder = Poisoned(world.clock)
    places = []
    for _ in range(3):
        world.put(2)
        places.append(poison(world))
    world.start()
    await world.advance(300)
    for place in places:
        assert not world.recorder.deliveries
        await ask(world, lambda seen, place=place: plan_leave_out(seen, "0", place.sequence))
        await world.advance(SEEN_WITHIN_S)
    assert world.all_delivered()
    later = poison(world)
    await world.advance(60)
    await ask(world, lambda seen: plan_leave_out(seen, "0", later.sequence))
    assert world.lease(SHARD_0).left_out == {places[-1].sequence, later.sequence}, "the checkpoint is past the others"
    world.put(2)
    await world.until(world.all_delivered)


@in_fleet(1, clientVersionConfig="CLIENT_VERSION_CONFIG_3X")
async def test_a_record_is_left_out_by_the_next_owner_too(world: Fleet) -> None:
    world.recorder = Poisoned(world.clock)
    world.put(3)
    place = poison(world)
    first = world.start()
    await world.advance(60)
    await ask(world, lambda seen: plan_leave_out(seen, "0", place.sequence))
    await world.until(world.all_delivered, SEEN_WITHIN_S)
    assert await first.stop()
    second = world.start("w2")
    await world.until(lambda: second.host.children)
    world.put(3)
    await world.until(world.all_delivered)
    assert len(second.host.children) == 1, "the checkpoint was before the record"


@in_fleet(1, clientVersionConfig="CLIENT_VERSION_CONFIG_3X")
async def test_one_user_record_of_an_aggregate_is_left_out(world: Fleet) -> None:
    place = poison(world, text=aggregate([User("key", f"user-{number}".encode()) for number in range(3)]))
    world.recorder.checkpoint_every_batch = False
    first = world.start()
    await world.advance(20)
    assert await first.stop()
    world.recorder.deliveries.clear()
    row = world.dynamo.row(TABLE, SHARD_0)
    world.dynamo.put_row(TABLE, {**row, "checkpoint": {"S": "TRIM_HORIZON"}, "checkpointSubSequenceNumber": {"N": "0"}})
    await ask(world, lambda seen: plan_leave_out(seen, "0", f"{place.sequence}/1"))
    world.start("w2")
    await world.until(lambda: world.recorder.data() == [b"user-0", b"user-2"])


class Hanging(Recorder):
    """Hangs in its first batch for ever."""

    is_hanging = True

    async def process(self, child: Any, records: list[dict[str, Any]]) -> None:
        if self.is_hanging:
            self.is_hanging = False
            await self.clock.sleep(1e9)
        await super().process(child, records)


@in_fleet(1, clientVersionConfig="CLIENT_VERSION_CONFIG_3X")
async def test_a_child_that_hangs_is_started_again_and_that_is_no_failure(world: Fleet) -> None:
    world.recorder = Hanging(world.clock)
    world.put(5)
    worker = world.start()
    await world.advance(600)
    assert not world.recorder.deliveries

    await ask(world, lambda seen: plan_restart(seen, "0", "by somebody"))

    await world.until(world.all_delivered, SEEN_WITHIN_S)
    assert (lives(worker), note(world)) == (2, None)
    await world.advance(600)
    assert lives(worker) == 2, "it was asked for once"
    assert await worker.stop()
    second = world.start("w2")
    await world.until(lambda: second.host.living())
    await world.advance(60)
    assert lives(second) == 1


@in_fleet(1, clientVersionConfig="CLIENT_VERSION_CONFIG_3X")
async def test_an_idle_child_is_started_again_and_loses_nothing(world: Fleet) -> None:
    world.put(5)
    worker = world.start()
    await world.until(world.all_delivered)
    for number in range(3):
        await ask(world, lambda seen, number=number: plan_restart(seen, "0", f"by somebody, {number}"))
        await world.until(lambda number=number: lives(worker) == number + 2, SEEN_WITHIN_S)
    world.put(5)
    await world.until(world.all_delivered)
    world.check_order()
    assert note(world) is None


@in_fleet(1, clientVersionConfig="CLIENT_VERSION_CONFIG_3X")
async def test_a_pause_after_failures_ends_when_a_new_child_is_asked_for(world: Fleet) -> None:
    world.recorder = Poisoned(world.clock)
    poison(world)
    worker = world.start()
    await world.advance(700)
    world.recorder.cured = True
    before = lives(worker)
    await ask(world, lambda seen: plan_restart(seen, "0", "by somebody"))
    await world.until(lambda: POISON in world.recorder.data(), SEEN_WITHIN_S)
    assert lives(worker) == before + 1
