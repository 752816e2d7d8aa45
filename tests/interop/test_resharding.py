"""Shards of mixed owners are split and merged, under a leader of either kind."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.interop.conftest import MakeWorld


@pytest.mark.parametrize("leader", ["java", "mld"])
def test_split_and_merge(make_world: MakeWorld, leader: str) -> None:
    world = make_world()
    world.fleet(leader)
    of = {lease.owner: key for key, lease in world.leases().items()}
    with world.phase("a shard of each split"):
        world.split(of["java-1"])
        world.split(of["mld-1"])
        world.until_open_shards_are_read()
    by_range = sorted(world.shards(), key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))
    in_order = [shard["ShardId"] for shard in by_range if shard["ShardId"] in world.open_shards()]
    owner = {key: lease.owner for key, lease in world.leases().items()}
    mixed = next(pair for pair in pairwise(in_order) if owner[pair[0]] != owner[pair[1]])
    with world.phase(f"a shard of {owner[mixed[0]]} merged with one of {owner[mixed[1]]}"):
        world.merge(*mixed)
        world.until_open_shards_are_read()
    world.finish()
