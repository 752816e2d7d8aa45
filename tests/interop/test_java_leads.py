"""mld workers under a Java leader: joining, leaving, dying and sleeping."""

from __future__ import annotations

from tests.interop.conftest import MakeWorld
from tests.interop.world import JAVA_START_S, STOP_S


def test_mld_joins_a_fresh_java_fleet(make_world: MakeWorld) -> None:
    """Tables, rows and leases are Java's; mld finds the legacy layout by itself and is given its share."""
    world = make_world(shards=4)
    with world.phase("Java alone, from nothing"):
        world.java("java-1")
        world.until_all_with("java-1", within_s=JAVA_START_S)
        world.until_delivered(within_s=JAVA_START_S)
    assert world.leader() == "java-1"
    with world.phase("mld joins"):
        mld = world.mld("mld-1", mld__metadataLayout="auto")
        world.until_owners(lambda owned: owned == {"java-1": 2, "mld-1": 2}, "two leases each")
    assert world.leader() == "java-1"
    with world.phase("mld stops"):
        assert mld.stop(timeout_s=STOP_S) == 0
        world.until_all_with("java-1")
    world.finish()
