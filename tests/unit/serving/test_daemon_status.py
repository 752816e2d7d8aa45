"""What a daemon's status costs and shows: a fleet in virtual time, looked at by somebody who is not in it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import click

from mld.cli import commands
from mld.core.errors import TableError
from mld.leases.dynamodb import DynamoLeaseTable
from mld.metrics.identity import Identity
from mld.metrics.reach import THROTTLED_S, TableReach
from mld.metrics.registry import Metrics
from mld.operating.fleet_reader import FleetReader, view_rules
from mld.operating.verdicts import general_faults
from mld.properties.scrubber import Scrubber
from mld.serving.daemon_status import LOOK_PERIOD_S, DaemonStatus
from mld.serving.http_answers import Question
from mld.serving.web_pages import WebPages, page_and_policy
from tests.support.fleet import BASIC, STREAM, TABLE, Fleet, in_fleet, settings_of
from tests.twins.dynamo import Fault

WATCHER = "watcher"


def watcher_at(world: Fleet, reach: TableReach | None = None) -> DaemonStatus:
    """The status of a daemon without leases on the fleet's table; its requests are those of `WATCHER`."""
    settings = settings_of(**{name: value for name, value in BASIC.items() if "." not in name})
    service = world.dynamo.client(WATCHER)
    table = DynamoLeaseTable(service, world.clock, table_name=TABLE)
    return DaemonStatus(
        identity=Identity(TABLE, STREAM, WATCHER, "0.2.0"),
        metrics=Metrics(),
        reader=FleetReader(settings, service, table, world.clock, view_rules(settings)),
        clock=world.clock,
        reach=reach or TableReach(TABLE, 10.0, world.clock.monotonic()),
        mode=lambda: "mode",
        is_ready=lambda: True,
    )


def scans(world: Fleet) -> int:
    return world.dynamo.usage(operation="Scan", table=TABLE, sender=WATCHER).requests


async def data(status: DaemonStatus) -> Any:
    return json.loads(b"".join(await status.body(zipped=False)))


@in_fleet(shard_count=3)
async def test_however_many_look_the_table_is_read_once_in_five_seconds(world: Fleet) -> None:
    world.start("w1")
    await world.until(lambda: world.dynamo.has_table(TABLE) and len(world.dynamo.rows(TABLE)) >= 3)
    await world.advance(30)
    status = watcher_at(world)
    assert scans(world) == 0, "nobody has looked"
    for _ in range(100):
        await status.body(zipped=True)
        await data(status)
        await world.advance(0.5)
    assert 50 / LOOK_PERIOD_S - 1 <= scans(world) <= 50 / LOOK_PERIOD_S + 1
    await world.advance(600)
    assert scans(world) <= 50 / LOOK_PERIOD_S + 1, "nobody looks any more"
    shards = (await data(status))["shards"]
    assert [(one["owner"], one["state"], one["isHere"]) for one in shards] == [("w1", "idle", False)] * 3


@in_fleet(shard_count=2)
async def test_what_was_seen_stays_and_the_reason_is_told_while_the_table_cannot_be_read(world: Fleet) -> None:
    world.start("w1")
    await world.until(lambda: world.dynamo.has_table(TABLE) and len(world.dynamo.rows(TABLE)) >= 2)
    status = watcher_at(world)
    assert (await data(status))["trouble"] is None
    world.dynamo.forbidden.add("Scan")
    await world.advance(LOOK_PERIOD_S + 1)
    value = await data(status)
    assert "the tables cannot be read" in value["trouble"]
    assert len(value["shards"]) == 2
    world.dynamo.forbidden.clear()
    await world.advance(LOOK_PERIOD_S + 1)
    assert (await data(status))["trouble"] is None


@in_fleet(2)
async def test_a_throttled_table_is_said_to_be_so_and_kills_nobody(world: Fleet) -> None:
    running = world.start("w1", clientVersionConfig="CLIENT_VERSION_CONFIG_3X")
    await world.until(lambda: world.dynamo.has_table(TABLE) and len(world.dynamo.rows(TABLE)) >= 2)
    await world.advance(60.0)
    reach = TableReach(TABLE, 10.0, world.clock.monotonic())
    status = watcher_at(world, reach=reach)
    await running.crash()
    await world.advance(90.0)
    assert {(one["isAlive"], one["why"]) for one in (await data(status))["workers"]} == {(False, None)}
    reach.failed("UpdateItem: too fast", world.clock.monotonic(), is_throttled=True)
    await world.advance(LOOK_PERIOD_S + 1)
    value = await data(status)
    assert value["trouble"].startswith("the lease table is throttled")
    assert {(one["isAlive"], one["why"]) for one in value["workers"]} == {
        (None, "silent: the lease table is throttled")
    }
    assert {one["state"] for one in value["shards"]} == {"unknown"}
    await world.advance(THROTTLED_S + LOOK_PERIOD_S)
    assert {one["state"] for one in (await data(status))["shards"]} == {"stopped"}


@in_fleet(shard_count=2)
async def test_a_table_that_answers_late_is_a_fault_of_the_worker_within_a_minute_until_it_is_over(
    world: Fleet,
) -> None:
    running = world.start("w1", clientVersionConfig="CLIENT_VERSION_CONFIG_3X")
    await world.until(lambda: len(running.worker.held()) == 2)
    status = replace(watcher_at(world), metrics=running.metrics)
    assert late(status) == []
    world.dynamo.faults = lambda _, operation, __: Fault(delay_after_s=9.0) if operation == "UpdateItem" else None
    await world.advance(60.0)
    assert late(status) == ["DynamoDB"]
    world.dynamo.faults = None
    await world.advance(120.0)
    assert late(status) == []


def late(status: DaemonStatus) -> list[str]:
    faults = status.own(0.0)["faults"]
    return [one["subject"] for one in faults if one["kind"] == "answers-late" and "leases last 10 s" in one["words"]]


@in_fleet(shard_count=1)
async def test_what_metrics_tell_of_a_worker_reaches_the_verdicts(world: Fleet) -> None:
    running = world.start("w1")
    await world.until(lambda: len(running.worker.held()) == 1)
    status, (part,) = replace(watcher_at(world), metrics=running.metrics), running.metrics.shards.values()
    part.contested("somebody else takes it", world.clock.wall(), 900.0)
    part.spent("decoding", "its budget is used up", world.clock.wall(), 900.0)
    running.metrics.worker.left_behind = "3X"
    found = {fault.kind: fault.subject for fault in general_faults(status.own_sight())}
    assert found == {"subscription-contested": part.key, "budget-spent": part.key, "left-behind": WATCHER}
    assert running.metrics.contested(world.clock.wall() + 901.0) == {}
    assert running.metrics.spent_budgets(world.clock.wall() + 901.0) == {}


@in_fleet(shard_count=1)
async def test_the_account_is_asked_by_few_and_its_refusal_is_an_answer(world: Fleet) -> None:
    status, asked = watcher_at(world), 0

    async def account() -> dict[str, Any]:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise TableError("the tables: not seen, allow dynamodb:ListTables")
        note = "1 of 1 shards do not tell: s3cret"
        return {"applications": [{"table": TABLE, "note": note}, {"table": "b", "note": None}], "unseen": ["s3cret"]}

    status.account, status.scrub = account, Scrubber(["s3cret"])
    for expected in (
        {
            "applications": [
                {"table": TABLE, "note": "1 of 1 shards do not tell: ***"},
                {"table": "b", "note": None},
            ],
            "unseen": ["***"],
        },
        {"applications": [], "unseen": ["the tables: not seen, allow dynamodb:ListTables"]},
    ):
        apps = WebPages(status).routes()["/apps.json"]
        for _ in range(3):
            answer = await apps(Question("/apps.json", {}))
            assert isinstance(answer.body, bytes)
            assert (answer.status, json.loads(answer.body)) == (200, expected)
    assert asked == 2


@in_fleet(shard_count=1)
async def test_a_browser_without_javascript_is_told_what_to_use_instead(world: Fleet) -> None:
    page, _ = page_and_policy()
    (sentence,) = re.findall(r"<noscript>(.*?)</noscript>", page.decode(), re.DOTALL)
    command, *paths = re.findall("<code>(.*?)</code>", sentence)
    assert command.split()[0] == "mld" and command.split()[1] in commands.list_commands(click.Context(commands))
    assert paths == ["/metrics", "/status.json"]
    assert set(paths) <= set(WebPages(watcher_at(world)).routes())
