"""A worker of one kind under a leader of the other: killed, frozen, stopped, and back each time."""

from __future__ import annotations

import pytest

from tests.interop.conftest import EVERY_LAYOUT, MakeWorld
from tests.interop.world import JAVA_START_S, STOP_S


def test_mld_joins_a_fresh_java_fleet(make_world: MakeWorld) -> None:
    """Tables, rows and leases are Java's; mld finds their layout by itself and is given its share."""
    world = make_world()
    with world.phase("Java alone, from nothing"):
        world.java("java-1")
        world.until_all_with("java-1", within_s=JAVA_START_S)
        world.until_delivered(within_s=JAVA_START_S)
    assert world.leader() == "java-1"
    with world.phase("mld joins"):
        mld = world.mld("mld-1", mld__metadataLayout="auto")
        world.until_shared("java-1", "mld-1")
    assert world.leader() == "java-1"
    with world.phase("mld stops"):
        assert mld.stop(timeout_s=STOP_S) == 0
        world.until_all_with("java-1")
    world.finish()


@pytest.mark.parametrize("java", EVERY_LAYOUT, indirect=True)
@pytest.mark.parametrize("leader", ["java", "mld"])
def test_a_follower_comes_and_goes(make_world: MakeWorld, leader: str) -> None:
    world = make_world()
    _, follower = world.fleet(leader)
    stays, goes = ("java-1", "mld-1") if leader == "java" else ("mld-1", "java-1")
    start = world.mld if leader == "java" else world.java
    with world.phase(f"{goes} killed"):
        follower.kill()
        world.until_all_with(stays)
    with world.phase(f"{goes} back with a new id"):
        goes = goes.replace("1", "2")
        follower = start(goes)
        world.until_shared(stays, goes)
    with world.phase(f"{goes} frozen"):
        follower.freeze()
        world.until_all_with(stays)
    with world.phase(f"{goes} thawed"):
        follower.thaw()
        world.until_shared(stays, goes)
    with world.phase(f"{goes} stopped"):
        follower.stop(timeout_s=STOP_S)
        world.until_all_with(stays)
    assert world.leader() == stays
    world.finish()
