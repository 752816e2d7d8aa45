"""Java reads by enhanced fan-out, mld by polling; a shard ends under each."""

from __future__ import annotations

from tests.interop.conftest import MakeWorld
from tests.interop.world import JAVA_START_S


def test_java_reads_by_fan_out(make_world: MakeWorld) -> None:
    world = make_world()
    world.prepare()
    world.java("java-1", retrievalMode="FANOUT")
    world.until_all_with("java-1", within_s=JAVA_START_S)
    with world.phase("mld, polling, joins"):
        world.mld("mld-1")
        world.until_shared("java-1", "mld-1")
    of = {lease.owner: key for key, lease in world.leases().items()}
    with world.phase("a shard of each split"):
        world.split(of["java-1"])
        world.split(of["mld-1"])
        world.until_open_shards_are_read()
    assert world.aws.log()["kinesis.SubscribeToShard"] >= 1
    world.finish()
