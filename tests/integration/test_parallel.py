"""Whole daemons with several children for each shard: kills, a split, another number of children after a restart."""

from __future__ import annotations

import os
import signal
from collections import Counter

from tests.integration.world import ASSIGNED, SHORT_LEASE, MakeWorld

MODE = {**ASSIGNED, **SHORT_LEASE}


def test_records_of_a_key_stay_in_order_through_kills_a_split_and_other_numbers_of_children(
    make_world: MakeWorld,
) -> None:
    world = make_world(shards=2)
    daemon = world.daemon(mld__childrenPerShard=4, mld__childRestartBackoffMillis=50, **MODE)
    world.put(500)
    world.until_delivered()
    victims = [pid for pid in daemon.survivors() if pid != daemon.process.pid]
    assert len(victims) == 8
    os.kill(victims[0], signal.SIGKILL)
    world.put(500)
    world.until_delivered()
    world.split(sorted(shard["ShardId"] for shard in world.shards())[0])
    world.put(500)
    world.until_delivered()
    daemon.kill()
    world.put(300)
    again = world.daemon("w2", mld__childrenPerShard=3, **MODE)
    world.until_delivered()
    world.until_caught_up()
    assert again.stop() == 0
    world.check()
    lives = Counter(life.children for life in world.history.lives() if life.delivered)
    assert lives[4] >= 8
    assert lives[3] >= 3
