"""What operators do to a fleet on its way to 3.x: the migration tool, and restarts with another configuration."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mld.daemon.worker import Worker
from tests.simulation.checkers import Violation
from tests.simulation.world.fleet3x import COORDINATOR, delete_index
from tests.support.fleet import TABLE

if TYPE_CHECKING:
    from tests.simulation.world.world import Machine, World

BY_TABLE = "BY_TABLE"
"""For clientVersionConfig: not set."""
BACK_FROM = ("CLIENT_VERSION_UPGRADE_FROM_2X", "CLIENT_VERSION_3X_WITH_ROLLBACK")
UPGRADE, V2X = "CLIENT_VERSION_UPGRADE_FROM_2X", "CLIENT_VERSION_2X"
AS_2X = "CLIENT_VERSION_INIT"
INDEX_STAYS_S = 120.0
POLL_S = 20.0
STOPPED_S = 60.0
"""How long a leader of ours stays stopped so that one of Java leads: these ask for the lock every 30 s."""
STEP_S_MAX = 4 * 3600.0
"""A step of the table migration: its bake is an hour and begins anew when a leader changes."""
DEPLOYED, COMPLETE = "TABLE_MIGRATION_STATUS_DEPLOYED", "TABLE_MIGRATION_STATUS_COMPLETE"
SETTLED_S = 200.0
FOLLOWED_WITHIN_S = 100.0
"""Everybody looks at the row once a minute or more often; Java adds up to half a minute."""


def _row(world: World, key: str) -> tuple[str, dict[str, Any]] | None:
    for table in (COORDINATOR, TABLE):
        if world.dynamo.has_table(table):
            row = world.dynamo.row(table, key)
            if row is not None:
                return table, row
    return None


def client_version(world: World) -> str | None:
    found = _row(world, "Migration3.0")
    return None if found is None else str(found[1]["cv"]["S"])


async def tool(world: World, *, back: bool) -> None:
    """The migration tool, which changes the row if it is as it expects, and at a roll-back deletes the index later."""
    found = _row(world, "Migration3.0")
    if found is None or found[1]["cv"]["S"] not in (BACK_FROM if back else (V2X,)):
        return
    table, row = found
    now = {"N": str(int(world.clock.wall() * 1000))}
    before = {"M": {name: row[name] for name in ("cv", "mb", "mts")}}
    name = "KclMigrationTool-" + ("rollback" if back else "rollforward")
    changed = {
        **row,
        "cv": {"S": V2X if back else UPGRADE},
        "mb": {"S": name},
        "mts": now,
        "h": {"L": [before, *row.get("h", {"L": []})["L"]][:10]},
    }
    world.dynamo.put_row(table, changed)
    world.trace(f"{name}: {changed['cv']['S']}")
    if back:
        await asyncio.sleep(INDEX_STAYS_S)
        if client_version(world) == V2X:
            delete_index(world.dynamo)


def redeploy_as(machine: Machine, restart_s: float, text: str) -> None:
    """Stop it, and start another kind of worker with another configuration in its place."""
    kind, config = text.split()
    machine.next_spec = replace(machine.spec, kind=kind)
    machine.next_config = config
    if machine.process is not None and machine.worker is not None:
        machine.deploy(restart_s, new_id=True)


async def to_single_table(world: World) -> None:
    """When the fleet is deployed, restart every worker with migrateAllEntitiesToLeaseTable, and wait for the end.

    An mld worker that leads meanwhile is stopped until one of Java leads: only Java moves the rows.
    """
    await _until(world, DEPLOYED)
    for machine in [m for m in world.machines if m.wanted]:
        machine.migrates = True
        machine.deploy(2.0, new_id=True)
        await asyncio.sleep(2 * POLL_S)
    await _until(world, COMPLETE)
    await asyncio.sleep(SETTLED_S)
    left = {row for row in world.dynamo.rows(COORDINATOR) if row != "TableMigration3.5"}
    if left or world.dynamo.row(TABLE, "Leader") is None or world.dynamo.row(TABLE, "Migration3.0") is None:
        raise Violation(f"checker 12: the migration is complete, yet the legacy table has {sorted(left)}")


async def _until(world: World, status: str) -> None:
    deadline = world.now() + STEP_S_MAX
    while _table_status(world) != status:
        if world.now() > deadline:
            raise Violation(f"checker 12: the table migration does not become {status} in {STEP_S_MAX:.0f} s")
        for machine in world.machines:
            leads = isinstance(machine.worker, Worker) and machine.worker.fleet.leader.leads and machine.wanted
            if leads and client_version(world) != UPGRADE:  # the leader has to stay until the fleet is one of 3.x
                machine.deploy(STOPPED_S, new_id=True)
        await asyncio.sleep(POLL_S)
    world.trace(f"table migration: {status}")


def _table_status(world: World) -> str | None:
    found = world.dynamo.row(COORDINATOR, "TableMigration3.5")
    return None if found is None else str(found["tm"]["S"])


async def check_versions(world: World) -> None:
    """Everybody is in the mode that the row names, or has just heard of it."""
    until = world.now() + FOLLOWED_WITHIN_S
    while (violation := _out_of_step(world)) is not None:
        if world.now() > until:
            raise violation
        await asyncio.sleep(1.0)


def _out_of_step(world: World) -> Violation | None:
    stored = client_version(world)
    for machine in world.machines:
        if machine.process is None or not machine.wanted or machine.worker is None:
            continue
        if isinstance(machine.worker, Worker):
            state = machine.worker.fleet.version.value
            if state == AS_2X and stored is None:
                continue
        elif machine.spec.kind == "java2":  # which cannot see the row, and could not start if it were in its table
            continue
        else:
            state = machine.worker.versions.state
        if state != stored:
            return Violation(f"checker 12: {machine.worker_id} is in {state}, the row says {stored}")
    return None
