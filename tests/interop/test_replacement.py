"""Three Java workers are replaced by three of mld, one after the other, and those by Java again."""

from __future__ import annotations

from collections.abc import Callable

from tests.interop.conftest import MakeWorld
from tests.interop.world import LEADER_LOST_S, STOP_S, InteropWorld
from tests.support.daemon import Daemon

WORKERS = 3


def _replace(world: InteropWorld, running: dict[str, Daemon], start: Callable[[str], Daemon], kind: str) -> None:
    for old in list(running):
        new = f"{kind}-{len(world.daemons)}"
        with world.phase(f"{old} replaced by {new}"):
            running[new] = start(new)
            world.until_owners(lambda owned, new=new: owned[new] >= 1, f"{new} owns something")  # type: ignore[misc]
            running.pop(old).stop(timeout_s=STOP_S)
            world.until_all_with(*running)
    world.until(lambda: world.leader() in running, LEADER_LOST_S, "one of the new workers leads")


def test_three_java_workers_become_three_of_mld_and_back(make_world: MakeWorld) -> None:
    world = make_world(shards=6)
    world.prepare()
    running: dict[str, Daemon] = {}
    for number in range(1, WORKERS + 1):
        running[f"java-{number}"] = world.java(f"java-{number}")
    world.until_all_with(*running)
    _replace(world, running, world.mld, "mld")
    _replace(world, running, world.java, "java")
    world.finish()
