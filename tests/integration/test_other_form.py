"""Leases of a table of one stream in a table of several, and back: daemons of both forms before and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.acceptance.commands import mld
from tests.integration.world import ENVIRONMENT, SHORT_LEASE, MakeWorld, World
from tests.support.patience import PATIENCE_S

FAST = {**SHORT_LEASE, "workerMetricsReporterFreqInMillis": 1000}


def done(world: World, name: str, *rest: object, **keys: object) -> str:
    file = world.directory / "operator.properties"
    values = world.keys("operator", "true", {**FAST, **keys})
    file.write_text("".join(f"{key} = {value}\n" for key, value in values.items()))
    directory = world.directory / "operator"
    directory.mkdir(exist_ok=True)
    result = mld(name, "-p", file, *rest, environment=ENVIRONMENT, cwd=directory)
    assert result.returncode == 0, result.stderr
    return result.stdout


def rows_of(world: World, table: str) -> dict[str, Any]:
    items = world.dynamo.scan(TableName=table, ConsistentRead=True)["Items"]
    return {row["leaseKey"]["S"]: row for row in items if row.get("entityType", {}).get("S", "LEASE") == "LEASE"}


def places(rows: Mapping[str, Any]) -> dict[str, str]:
    return {key.rpartition(":")[2]: row["checkpoint"]["S"] for key, row in rows.items()}


def run_through(world: World, table: str, **keys: object) -> set[tuple[str, int]]:
    """A worker until everything is checkpointed, then a clean stop; what it delivered."""
    worker = f"w{len(world.daemons)}"
    daemon = world.daemon(worker, **{**FAST, **keys})
    last = {put.shard: str(put.sequence) for put in world.puts}
    world.until(lambda: _are_at(world, table, last), what="checkpoints at the last records")
    assert daemon.stop() == 0
    return {(life.shard, record.sequence) for life in world.history.lives(worker=worker) for record in life.delivered}


def _are_at(world: World, table: str, last: Mapping[str, str]) -> bool:
    if table not in world.dynamo.list_tables()["TableNames"]:
        return False
    return last.items() <= places(rows_of(world, table)).items()


@pytest.mark.full
def test_daemons_of_both_forms_go_on_from_one_anothers_checkpoints(make_world: MakeWorld) -> None:
    world = make_world(2)
    forth, back = f"{world.table}-several", f"{world.table}-one"
    several = {"streamName": "", "mld.streams": world.stream}
    world.put(20)
    run_through(world, world.table)

    refused = world.daemon("refused", **FAST, **several)
    assert refused.wait(PATIENCE_S) == 1
    assert "another tableName, into which mld restore brings its leases" in refused.log()

    done(world, "export", "--file", "one.jsonl")
    there = {**several, "tableName": forth}
    planned = done(world, "restore", "one.jsonl", "--from-another", **there)
    assert "nothing was done; --execute does it" in planned
    assert forth not in world.dynamo.list_tables()["TableNames"]
    done(world, "restore", "one.jsonl", "--from-another", "--execute", **there)
    rows = rows_of(world, forth)
    assert places(rows) == places(rows_of(world, world.table))
    assert all(key == f"{row['streamName']['S']}:{row['shardId']['S']}" for key, row in rows.items())
    new = {(put.shard, put.sequence) for put in world.put(20)}
    assert run_through(world, forth, **there) == new

    done(world, "export", "--file", "several.jsonl", **there)
    done(world, "restore", "several.jsonl", "--from-another", "--execute", tableName=back)
    assert set(rows_of(world, back)) == set(rows_of(world, world.table))
    new = {(put.shard, put.sequence) for put in world.put(20)}
    assert run_through(world, back, tableName=back) == new
