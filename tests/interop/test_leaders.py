"""The leader of either kind is killed, frozen or stopped, and the other kind leads on; twice, so that both do."""

from __future__ import annotations

import signal

import pytest

from tests.interop.conftest import EVERY_LAYOUT, MakeWorld
from tests.interop.world import LEADER_LOST_S, STOP_S, InteropWorld
from tests.support.daemon import Daemon


def _end(how: str, daemon: Daemon) -> None:
    match how:
        case "killed":
            daemon.kill()
        case "frozen":
            daemon.freeze()
        case _:
            daemon.stop(signal.SIGTERM, STOP_S)


def _lose(world: InteropWorld, how: str, leading: Daemon, leader: str, other: str) -> None:
    with world.phase(f"leader {leader} {how}"):
        _end(how, leading)
        led_s = world.until_leader(other, LEADER_LOST_S)
        owned_s = world.until_all_with(other)
    world.note(f"{other} led after {led_s:.1f} s and owned everything {owned_s:.1f} s later")


@pytest.mark.parametrize("java", EVERY_LAYOUT, indirect=True)
@pytest.mark.parametrize("how", ["killed", "frozen", "stopped"])
def test_leadership_moves_from_java_to_mld_and_back(make_world: MakeWorld, how: str) -> None:
    world = make_world()
    java, mld = world.fleet("java")
    _lose(world, how, java, "java-1", "mld-1")
    with world.phase("Java back as a follower"):
        if how == "frozen":
            java.thaw()
            back = "java-1"
        else:
            world.java(back := "java-2")
        world.until_shared("mld-1", back)
    assert world.leader() == "mld-1"
    _lose(world, how, mld, "mld-1", back)
    with world.phase("mld back as a follower"):
        if how == "frozen":
            mld.thaw()
        else:
            world.mld("mld-2")
        world.until_shared(back, "mld-1" if how == "frozen" else "mld-2")
    assert world.leader() == back
    world.finish()
