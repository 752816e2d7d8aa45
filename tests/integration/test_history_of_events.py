"""The history of a fleet, as real daemons write it and as commands read it: `mld events` and the row behind it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mld.cli import commands
from mld.operating.events import KEY
from tests.integration.world import ASSIGNED, ENVIRONMENT, SHORT_LEASE, TAKEN, MakeWorld, World

DYING = """
import json, sys
for line in sys.stdin:
    action = json.loads(line)["action"]
    if action == "processRecords":
        {}["no such key, password=hunter2-of-a-child"]
    print(json.dumps({"action": "status", "responseFor": action}), flush=True)
"""


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world(shards=2)


def run(world: World, *arguments: object) -> Any:
    file = world.directory / "looking.properties"
    file.write_text("".join(f"{key} = {value}\n" for key, value in world.keys("w1", world.recorder(), {}).items()))
    words = [str(word) for word in (arguments[0], file, *arguments[1:])]
    return CliRunner().invoke(commands, words, env={**ENVIRONMENT, "MLD_PROPERTIES": ""}, prog_name="mld")


def events(world: World, *arguments: object) -> list[dict[str, Any]]:
    result = run(world, "events", *arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def happened(world: World, *kinds: str) -> bool:
    return set(kinds) <= {one["event"] for one in events(world)}


def test_a_life_with_failures_acts_and_an_end_is_told_with_the_trace_and_without_secrets(world: World) -> None:
    child = Path(world.directory, "dying.py")
    child.write_text(DYING)
    daemon = world.daemon("w1", f"{sys.executable} {child}", **ASSIGNED)
    world.put(4)
    daemon.wait_for_event("child_failed")
    world.until(lambda: happened(world, "started", "moved", "failed"), what="events")
    act = run(world, "pause", "0", "--why", "a test", "--execute", "--backup", world.directory / "rows")
    assert act.exit_code == 0, act.output
    daemon.stop()
    told = events(world)
    assert {one["event"] for one in told} == {"started", "moved", "failed", "act", "ended"}
    assert [one["event"] for one in told][-1] == "ended"
    assert [one["at"] for one in told] == sorted(one["at"] for one in told)
    failed = next(one for one in told if one["event"] == "failed")
    assert failed["worker"] == "w1" and failed["shard"].startswith("shardId-")
    assert failed["lines"][0].startswith("Traceback") and "KeyError" in failed["lines"][-1]
    assert "KeyError" in failed["text"]
    [act] = [one for one in told if one["event"] == "act"]
    assert "pause" in act["text"] and "@" in act["worker"]
    assert "hunter2" not in json.dumps(told)

    assert events(world, "--worker", "nobody else") == []
    assert events(world, "--since", "0s") == []
    table = run(world, "events", "--since", "1h").stdout
    assert table.splitlines()[0].split() == ["time", "event", "worker", "shard", "text"]
    assert f"{len(told)} events" in table


def test_who_takes_the_leases_of_a_killed_worker_tells_of_its_death(world: World) -> None:
    first = world.daemon("w1", **ASSIGNED, **SHORT_LEASE)
    first.wait_for_event("lease_held")
    second = world.daemon("w2", **ASSIGNED, **SHORT_LEASE)
    second.wait_for_event("lease_held")
    first.kill()
    world.until(lambda: happened(world, "died"), what="the death of w1")
    [died] = [one for one in events(world) if one["event"] == "died"]
    assert died["worker"] == "w1" and "w2" in died["text"]
    world.until(lambda: [one for one in events(world, "--worker", "w2") if "from w1" in one["text"]], what="its moves")


def test_a_fleet_where_workers_of_kcl_2_may_be_gets_no_row(world: World) -> None:
    daemon = world.daemon("w1", **TAKEN)
    daemon.wait_for_event("lease_held")
    result = run(world, "events")
    assert result.exit_code == 0
    assert "has no history" in result.output
    daemon.stop()
    assert "Item" not in world.dynamo.get_item(TableName=world.table, Key={"leaseKey": {"S": KEY}})
