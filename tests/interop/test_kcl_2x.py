"""KCL 2.7.2 and mld on one table: one after the other and back, side by side, and by mistake.

2.7.2 takes every row of the lease table for a lease and fails to list a table that has another one
(coordination#bare-tables). So what is looked at is whether a worker of 2.7.2 can *start*, and take leases, after each
step.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.interop.conftest import MakeWorld
from tests.interop.world import JAVA_START_S, STOP_S, InteropWorld
from tests.support.daemon import Daemon

pytestmark = [pytest.mark.timeout(1200), pytest.mark.parametrize("java", ["2.7.2"], indirect=True)]
REFUSED_WITHIN_S = 60


def _beside_leases(world: InteropWorld) -> list[str]:
    found = world.dynamo.scan(TableName=world.table, ConsistentRead=True)["Items"]
    return sorted(row["leaseKey"]["S"] for row in found if "leaseCounter" not in row)


def _joins(world: InteropWorld, worker: str) -> Daemon:
    """A worker of 2.7.2 that starts now, lists the table, and takes leases from others."""
    daemon = world.java(worker)
    world.until_owners(lambda owned: owned[worker] >= 1, f"{worker} owns something", JAVA_START_S)
    return daemon


def _complaints(daemon: Daemon) -> list[str]:
    return [line for line in daemon.log().splitlines() if " ERROR " in line]


def _run(daemon: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    command: Sequence[str] = [sys.executable, "-m", "mld", *words, str(daemon.file)]
    return subprocess.run(command, env=daemon.environment, capture_output=True, text=True, timeout=180)


def test_forth_and_back(make_world: MakeWorld) -> None:
    """mld in its default mode takes over from 2.7.2, and 2.7.2 from mld, with nothing done in between."""
    world = make_world()
    before = world.java("java-1")
    world.until_all_with("java-1", within_s=JAVA_START_S)
    with world.phase("2.7.2 stopped, mld started"):
        before.stop(timeout_s=STOP_S)
        ours = world.mld("mld-1")
        world.until_all_with("mld-1")
    assert _beside_leases(world) == []
    with world.phase("mld stopped, 2.7.2 started"):
        assert ours.stop(timeout_s=STOP_S) == 0
        assert _beside_leases(world) == []
        java = _joins(world, "java-2")
        world.until_all_with("java-2")
    assert _complaints(java) == []
    world.finish()


def test_side_by_side_and_by_mistake(make_world: MakeWorld) -> None:
    """Whatever mld is set to, a living fleet of 2.7.2 goes on taking leases, and new workers of it start."""
    world = make_world()
    first = world.java("java-1")
    world.until_all_with("java-1", within_s=JAVA_START_S)
    with world.phase("mld joins in its default mode"):
        ours = world.mld("mld-1")
        world.until_shared("java-1", "mld-1")
    refused = world.mld("mld-3x", clientVersionConfig="CLIENT_VERSION_CONFIG_3X")
    world.daemons.remove(refused)
    assert refused.process.wait(REFUSED_WITHIN_S) == 1
    assert "by the rules of KCL 2.x: java-1, mld-1." in refused.log()
    with world.phase("mld goes on to the second step of a migration, too early"):
        early = world.mld("mld-2", clientVersionConfig="CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X")
        world.until_owners(lambda owned: owned["mld-2"] >= 1, "mld-2 owns something")
    assert _beside_leases(world) == []
    with world.phase("mld stopped, another 2.7.2 started"):
        assert (ours.stop(timeout_s=STOP_S), early.stop(timeout_s=STOP_S)) == (0, 0)
        second = _joins(world, "java-2")
        world.until_shared("java-1", "java-2")
    assert _complaints(first) + _complaints(second) == []
    world.finish()


def test_back_from_a_fleet_of_3x(make_world: MakeWorld) -> None:
    """An application that mld has begun: 2.7.2 cannot read its table, until `mld leave-3x`."""
    world = make_world()
    ours = world.mld("mld-1")
    world.until_all_with("mld-1")
    assert "Migration3.0" in _beside_leases(world)
    living = _run(ours, "leave-3x", "--execute")
    assert living.returncode == 1
    assert "workers are alive: mld-1" in living.stderr
    with world.phase("mld stopped, the table left, 2.7.2 started"):
        assert ours.stop(timeout_s=STOP_S) == 0
        left = _run(ours, "leave-3x", "--execute", "--backup", str(world.directory / "rows.jsonl"))
        assert left.returncode == 0, left.stdout + left.stderr
        assert _beside_leases(world) == []
        java = _joins(world, "java-1")
        world.until_all_with("java-1")
    with world.phase("mld joins"):
        world.mld("mld-2")
        world.until_shared("java-1", "mld-2")
    assert _beside_leases(world) == []
    assert _complaints(java) == []
    world.finish()
