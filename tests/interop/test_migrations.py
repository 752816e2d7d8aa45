"""Fleets of both kinds go through Amazon's two migrations: from 2.x to 3.x, and from three tables to one.

Both wait for long times by design. Readiness for 3.x has to last ten minutes, which are waited here. The bakes of the
single table take an hour and a day: the test sets back the time of the last change in the row, as if they were over.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.interop.conftest import MakeWorld
from tests.interop.world import JAVA_START_S, MOVE_S, STOP_S, InteropWorld
from tests.support.daemon import Daemon

BAKE_S = 3600  # the least for either step
READY_S = 600 + 4 * 60  # steady for so long; looked at once a minute, and followed once a minute
AS_2X = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1"}
LIKE_2X = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X"}
AS_3X = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_3X"}


def _status(world: InteropWorld) -> str | None:
    row = world.migration("TableMigration3.5")
    return None if row is None else str(row["tm"]["S"]).removeprefix("TABLE_MIGRATION_STATUS_")


def _until_status(world: InteropWorld, status: str) -> None:
    world.until(lambda: _status(world) == status, MOVE_S * 2, f"table migration {status}, now {_status(world)}")


def _bake(world: InteropWorld) -> None:
    """As if the row had been written so long ago."""
    world.dynamo.update_item(
        TableName=f"{world.table}-CoordinatorState",
        Key={"key": {"S": "TableMigration3.5"}},
        UpdateExpression="ADD mts :earlier",
        ExpressionAttributeValues={":earlier": {"N": str(-1000 * (BAKE_S + 60))}},
    )


def _start(world: InteropWorld, worker: str, keys: Mapping[str, object]) -> Daemon:
    """By the name's beginning; mld finds out by itself where the rows are."""
    if worker.startswith("java"):
        return world.java(worker, **keys)
    return world.mld(worker, **{"mld__metadataLayout": "auto", **keys})


def _replace(world: InteropWorld, running: dict[str, Daemon], old: str, new: str, keys: Mapping[str, object]) -> None:
    with world.phase(f"{old} replaced by {new}"):
        running[new] = _start(world, new, keys)
        world.until_owners(lambda owned: owned[new] >= 1, f"{new} owns something", JAVA_START_S)
        running.pop(old).stop(timeout_s=STOP_S)
        world.until_all_with(*running)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("java", ["3.5.1-legacy"], indirect=True)
def test_three_tables_become_one(make_world: MakeWorld) -> None:
    """Java leads into DEPLOYED, the move rests under a leader of mld, and Java leads it to the end."""
    world = make_world()
    leading, following = world.fleet("java")
    running = {"java-1": leading, "mld-1": following}
    with world.phase("ready: INIT, an hour, DEPLOYED"):
        _until_status(world, "INIT")
        _bake(world)
        _until_status(world, "DEPLOYED")

    keys = {"migrateAllEntitiesToLeaseTable": "true", "tableMigrationCompleteBakeTimeSeconds": BAKE_S}
    _replace(world, running, "mld-1", "mld-2", keys)
    with world.phase("the leader java-1 stopped, java-2 started: mld leads, and the move rests"):
        running.pop("java-1").stop(timeout_s=STOP_S)
        world.until_leader("mld-2")
        running["java-2"] = _start(world, "java-2", keys)
        world.until_shared(*running, within_s=JAVA_START_S)
    assert _status(world) == "DEPLOYED"
    assert world.legacy("Migration3.0") is not None

    with world.phase("the leader mld-2 stopped, mld-3 started: java-2 moves the rows, PENDING"):
        running.pop("mld-2").stop(timeout_s=STOP_S)
        world.until_leader("java-2")
        running["mld-3"] = _start(world, "mld-3", keys)
        _until_status(world, "PENDING")
    assert world.beside_leases("Migration3.0") is not None
    assert world.legacy("Migration3.0") is None
    with world.phase("an hour, COMPLETE, and a leader beside the leases"):
        world.until_shared(*running)
        _bake(world)
        _until_status(world, "COMPLETE")
        world.until(lambda: world.leader() in running, MOVE_S * 2, "somebody leads beside the leases")
        world.until_shared(*running)
    world.note(f"leader: {world.leader()}")

    _replace(world, running, "java-2", "java-3", {})
    _replace(world, running, "mld-3", "mld-4", {})
    world.finish()


def _version(world: InteropWorld) -> str | None:
    row = world.migration("Migration3.0")
    return None if row is None else str(row["cv"]["S"]).removeprefix("CLIENT_VERSION_")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("java", ["3.1.3", "3.5.1"], indirect=True)
def test_a_fleet_of_2x_becomes_one_of_3x(make_world: MakeWorld) -> None:
    """Phase 1, which 3.1.3 does not have, is a fleet of 2.x to all that can be seen of it."""
    world = make_world()
    is_first_phase = world.release.is_single_table
    before = AS_2X if is_first_phase else LIKE_2X
    running = {"java-1": world.java("java-1", **before)}
    world.until_all_with("java-1", within_s=JAVA_START_S)
    with world.phase("mld joins a fleet that takes its leases itself"):
        running["mld-1"] = _start(world, "mld-1", before)
        world.until_shared(*running)
    if is_first_phase:
        assert _version(world) is None
        _replace(world, running, "java-1", "java-2", LIKE_2X)
        _replace(world, running, "mld-1", "mld-2", LIKE_2X)
    assert _version(world) == "UPGRADE_FROM_2X"
    with world.phase("ten minutes ready, then assigned by a leader"):
        world.until(lambda: _version(world) == "3X_WITH_ROLLBACK", READY_S, "3X_WITH_ROLLBACK")
        world.until(lambda: world.leader() in running, MOVE_S * 2, "somebody holds the lock")
        world.until_shared(*running)
    world.note(f"leader: {world.leader()}")
    for old in list(running):
        kind, _, number = old.partition("-")
        _replace(world, running, old, f"{kind}-{int(number) + 1}", AS_3X)
        assert _version(world) == "3X"
    world.finish()
