"""Shards of mixed owners are split and merged, under a leader of either kind."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.interop.conftest import MakeWorld
from tests.interop.world import MOVE_S, InteropWorld


def _until_open_shards_are_read(world: InteropWorld) -> None:
    """Every open shard has an owner, and has given records to a child."""
    closed = {parent for parents in world.parents.values() for parent in parents}
    is_open = {shard["ShardId"] for shard in world.shards()} - closed

    def is_read() -> bool:
        leases = world.leases()
        ended = all(leases[key].is_complete for key in closed if key in leases)
        owned = all(key in leases and leases[key].owner is not None for key in is_open)
        return ended and owned and is_open <= {shard for shard, _ in world.history.delivered()}

    world.until(is_read, MOVE_S, f"all of {sorted(is_open)} read, all of {sorted(closed)} finished")


@pytest.mark.parametrize("leader", ["java", "mld"])
def test_split_and_merge(make_world: MakeWorld, leader: str) -> None:
    world = make_world()
    world.fleet(leader)
    of = {lease.owner: key for key, lease in world.leases().items()}
    with world.phase("a shard of each split"):
        world.split(of["java-1"])
        world.split(of["mld-1"])
        _until_open_shards_are_read(world)
    ranges = sorted(
        ((int(s["HashKeyRange"]["StartingHashKey"]), s["ShardId"]) for s in world.shards()
         if s["ShardId"] not in set().union(*world.parents.values())),
    )  # fmt: skip
    owner = {key: lease.owner for key, lease in world.leases().items()}
    neighbours = [(one, other) for (_, one), (_, other) in pairwise(ranges)]
    mixed = next(pair for pair in neighbours if owner[pair[0]] != owner[pair[1]])
    with world.phase(f"a shard of {owner[mixed[0]]} merged with one of {owner[mixed[1]]}"):
        world.merge(*mixed)
        _until_open_shards_are_read(world)
    world.finish()
