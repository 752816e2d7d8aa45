"""A stream that becomes many times as wide at once, in virtual time: how long until all is read, and that all is."""

from __future__ import annotations

import pytest

from tests.support.fleet import STREAM, in_fleet

V3X = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_3X"}
COMPLETE_WITHIN_S = 60.0
TARGET = 128


@pytest.mark.parametrize("keys", [{}, V3X, {**V3X, "mld__heartbeat": "worker"}], ids=["2.x", "3.x", "heartbeat"])
@in_fleet(4)
async def test_four_shards_become_128_at_once_and_nothing_is_lost(world, keys):
    world.put(100)
    for number in range(2):
        world.start(f"w{number}", seed=number, **keys)
    await world.until(world.all_delivered)
    began = world.clock.monotonic()
    target = 8
    while target <= TARGET:
        world.kinesis.update_shard_count(STREAM, target, now=world.clock.wall())
        world.put(200)
        target *= 2

    def is_complete() -> bool:
        is_open = {shard.shard_id for shard in world.shards() if shard.is_open}
        begun = {shard for shard in is_open if world.recorder.actions_of(shard)}
        return len(begun) == TARGET and world.all_delivered()

    await world.until(is_complete, 10 * COMPLETE_WITHIN_S)
    took_s = world.clock.monotonic() - began
    assert took_s < COMPLETE_WITHIN_S
    world.check_order()
