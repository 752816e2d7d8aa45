"""`mld leave-3x` on real fleets in virtual time: what is left is a table that KCL 2.x can read."""

from __future__ import annotations

from pathlib import Path

import pytest

from mld.fleet.migrate.bare_table import outline
from mld.fleet.migrate.states import ClientVersion
from mld.operating.leaving import make_room_for_2x, plan_leaving
from mld.operating.options import Invocation
from mld.operating.plan import ActRefusedError, raw_table
from tests.simulation.world.java2_table import read_row
from tests.support.changes import operator_on
from tests.support.fleet import TABLE, Fleet, in_fleet

BY_TABLE, V3X = "", "CLIENT_VERSION_CONFIG_3X"


async def leave(world: Fleet, folder: Path) -> int:
    asked = Invocation("app.properties", execute=True, backup_file=str(folder / "rows.jsonl"))
    return await make_room_for_2x(operator_on(world, clientVersionConfig=BY_TABLE), asked)


def rows_of(world: Fleet) -> list[dict]:
    return list(world.dynamo.rows(TABLE).values())


async def processed(world: Fleet) -> None:
    world.put(20)
    await world.until(world.all_delivered)
    await world.advance(15)


@in_fleet(2)
async def test_the_table_of_a_fleet_of_3x_becomes_one_of_2x(world: Fleet, tmp_path: Path) -> None:
    running = world.start("w1", clientVersionConfig=BY_TABLE)
    await processed(world)
    assert running.worker.fleet.version is ClientVersion.V3X
    counts = running.metrics.worker.operations.leadership
    assert counts.is_leader.count and not counts.by_lock.count, (
        "only a fleet that may change its mode says how it elects"
    )
    with pytest.raises(ActRefusedError, match=r"workers are alive: w1 \(2 leases\); stop them first"):
        await leave(world, tmp_path)
    await running.stop()
    checkpoints = {row["leaseKey"]["S"]: row["checkpoint"] for row in rows_of(world) if "checkpoint" in row}
    assert await leave(world, tmp_path) == 0
    assert outline(rows_of(world)).is_of_2x
    assert {row["leaseKey"]["S"]: row["checkpoint"] for row in rows_of(world)} == checkpoints
    assert [read_row(row) for row in rows_of(world)], "as KCL 2.x reads them"
    again = world.start("w2", clientVersionConfig=BY_TABLE)
    await processed(world)
    assert again.worker.fleet.version is ClientVersion.INIT
    assert outline(rows_of(world)).is_of_2x


@in_fleet(2)
async def test_workers_that_do_not_report_may_run_meanwhile(world: Fleet, tmp_path: Path) -> None:
    """As those of 2.x, which an earlier version of mld has cut off from their table."""
    world.start("w1")
    await processed(world)
    world.dynamo.put_row(TABLE, {"leaseKey": {"S": "Migration3.0"}, "entityType": {"S": "CLIENT_VERSION_MIGRATION"}})
    assert await leave(world, tmp_path) == 0
    assert outline(rows_of(world)).is_of_2x


@in_fleet(1)
async def test_children_of_shards_bear_no_type_in_a_table_of_2x(world: Fleet) -> None:
    world.start("w1")
    await processed(world)
    world.split("shardId-000000000000")
    await processed(world)
    assert len(rows_of(world)) == 3
    assert not any("entityType" in row for row in rows_of(world))


def test_the_row_that_says_3x_goes_last() -> None:
    kinds = {"Leader": "LEADER", "Migration3.0": "CLIENT_VERSION_MIGRATION", "w-1": "WORKER_METRIC_STATS"}
    found = [{"leaseKey": {"S": key}, "entityType": {"S": kind}} for key, kind in kinds.items()]
    lease = {"leaseKey": {"S": "shardId-0"}, "entityType": {"S": "LEASE"}, "leaseCounter": {"N": "1"}}
    lease |= {"checkpoint": {"S": "LATEST"}, "ownerSwitchesSinceCheckpoint": {"N": "0"}}
    plan = plan_leaving(raw_table([*found, lease]))
    assert [change.key for change in plan.changes] == ["shardId-0", "Leader", "w-1", "Migration3.0"]
    assert [change.write.deletes for change in plan.changes] == [False, True, True, True]
