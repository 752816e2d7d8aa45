"""Checklist (d): it takes part in both migrations (coordination#both-migrations). One test per item, in its order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mld.core.errors import StartupError
from tests.support.fleet import TABLE
from tests.unit.fleet.checklists.java import HEARTBEAT_S, JavaLeader, JavaWorker, MigrationTool
from tests.unit.fleet.checklists.wire import (
    COMPATIBLE,
    INDEX,
    LEASES,
    PHASE1,
    REPORTS,
    STATES,
    V3X,
    Stage,
    gaps,
    story,
)

QUIET = {"idleTimeBetweenReadsInMillis": "30000"}
MIGRATE = {"migrateAllEntitiesToLeaseTable": "true"}
HOUR_S = 3600.0
FOLLOWED_S = 95.0  # a look every 60 s, the first up to 30 s later


def column(stage: Stage, worker: str, since: float) -> tuple[bool, bool, bool]:
    """What a worker did since then: (reported, took leases as in 2.x, looked for assigned leases as in 3.x)."""
    requests = stage.requests.of(worker, since=since)
    return (
        any("lut = " in r.update for r in requests),
        any(r.operation == "Scan" and r.table == TABLE for r in requests),
        any(r.operation == "Query" for r in requests),
    )


UPGRADE, V2X, IN_3X, PASSIVE = (True, True, False), (False, True, False), (True, True, True), (False, True, False)
"""Leaders of 3.x scan too."""


# --- client version: start


@pytest.mark.parametrize(
    ("stored", "config", "says", "does"),
    [
        (None, PHASE1, None, PASSIVE),
        (None, COMPATIBLE, "UPGRADE_FROM_2X", UPGRADE),
        (None, V3X, "3X", IN_3X),
        ("UPGRADE_FROM_2X", PHASE1, "UPGRADE_FROM_2X", UPGRADE),
        ("UPGRADE_FROM_2X", COMPATIBLE, "UPGRADE_FROM_2X", UPGRADE),
        ("UPGRADE_FROM_2X", V3X, "UPGRADE_FROM_2X", UPGRADE),
        ("2X", PHASE1, "2X", V2X),
        ("2X", COMPATIBLE, "2X", V2X),
        ("2X", V3X, "2X", V2X),
        ("3X_WITH_ROLLBACK", PHASE1, "3X_WITH_ROLLBACK", IN_3X),
        ("3X_WITH_ROLLBACK", COMPATIBLE, "3X_WITH_ROLLBACK", IN_3X),
        ("3X_WITH_ROLLBACK", V3X, "3X", IN_3X),
        ("3X", PHASE1, "3X", IN_3X),
        ("3X", COMPATIBLE, "3X", IN_3X),
        ("3X", V3X, "3X", IN_3X),
    ],
)
@story(2)
async def test_it_starts_as_the_table_says(stage, stored, config, says, does):
    await stage.create(LEASES, index=stored in ("3X", "3X_WITH_ROLLBACK"))
    stage.plant_leases(None, None)
    if stored is not None:
        stage.plant_version(stored)
    worker = stage.start("w1", **config)
    await stage.until(lambda: len(worker.worker.held()) == 2, 60)
    begun_at = stage.now
    await stage.advance(45)
    assert stage.version() == says
    assert column(stage, "w1", begun_at) == does
    assert stage.leader() == ("w1" if does == IN_3X else None)

    reads = stage.requests.of("w1", "GetItem", key="Migration3.0")
    assert reads[0].params["ConsistentRead"] is True
    writes = [r for r in stage.requests.of("w1", key="Migration3.0") if r.operation != "GetItem"]
    if says == stored:
        assert writes == []
    elif stored is None:
        assert [(r.operation, r.condition) for r in writes] == [("PutItem", "attribute_not_exists(leaseKey)")]
    else:
        assert [r.operation for r in writes] == ["UpdateItem"]
        assert f"cv = CLIENT_VERSION_{stored}" in writes[0].condition


@story(1, **V3X)
async def test_a_lost_race_for_the_row_is_decided_anew(stage):
    def somebody_is_quicker(sender, operation, params):
        item = params.get("Item", {})
        if sender == "w1" and item.get("leaseKey") == {"S": "Migration3.0"} and stage.version() is None:
            stage.plant_version("UPGRADE_FROM_2X")

    stage.requests.fault = somebody_is_quicker
    worker = stage.start("w1")
    await stage.until(lambda: len(worker.worker.held()) == 1, 60)
    begun_at = stage.now
    await stage.advance(45)
    assert stage.version() == "UPGRADE_FROM_2X"
    assert column(stage, "w1", begun_at) == UPGRADE
    assert stage.leader() is None, "the lock of the mode that was not to be has been given up"


@story(1, **V3X)
async def test_a_lost_race_for_a_change_is_decided_anew(stage):
    await stage.create(LEASES, index=True)
    stage.plant_version("3X_WITH_ROLLBACK")

    def a_rollback_is_quicker(sender, operation, params):
        if operation == "UpdateItem" and params["Key"].get("leaseKey") == {"S": "Migration3.0"}:
            stage.plant_version("2X")

    stage.requests.fault = a_rollback_is_quicker
    worker = stage.start("w1")
    await stage.until(lambda: len(worker.worker.held()) == 1, 60)
    begun_at = stage.now
    await stage.advance(45)
    assert stage.version() == "2X"
    assert column(stage, "w1", begun_at) == V2X


# --- client version: on the way


@pytest.mark.parametrize("state", ["UPGRADE_FROM_2X", "2X", "3X_WITH_ROLLBACK"])
@story(1, **COMPATIBLE)
async def test_it_looks_at_the_row_every_60_s(stage, state):
    await stage.create(LEASES, index=True)
    stage.plant_leases("dead")
    stage.plant_version(state)
    stage.start("w1")
    await stage.advance(400)
    at_start, *polls = stage.requests.of("w1", "GetItem", key="Migration3.0")
    assert all(r.params["ConsistentRead"] for r in polls)
    assert 60.0 <= polls[0].at - at_start.at <= 92.0
    assert len(polls) >= 5
    assert all(59.9 <= gap <= 60.1 for gap in gaps(polls)), gaps(polls)


async def works(stage: Stage, worker: Any) -> None:
    """It holds the stream's only lease and delivers."""
    await stage.until(lambda: len(worker.worker.held()) == 1, 60)
    stage.world.put(3)
    await stage.until(stage.world.all_delivered, 60)
    assert not worker.task.done()


async def follows(stage: Stage, worker: Any, does: tuple[bool, bool, bool], leader: str | None) -> None:
    await stage.advance(FOLLOWED_S)
    begun_at = stage.now
    await stage.advance(45)
    assert column(stage, "w1", begun_at) == does
    assert (
        stage.leader() or stage.leader(STATES) if stage.dynamo.has_table(STATES.table) else stage.leader()
    ) == leader
    await works(stage, worker)


@pytest.mark.parametrize("legacy", [False, True], ids=["single table", "legacy tables"])
@story(1, **COMPATIBLE)
async def test_it_follows_every_transition_and_survives_what_the_tool_deletes(stage, legacy):
    await (stage.legacy() if legacy else stage.create(LEASES, index=True))
    place = STATES if legacy else LEASES
    tool = MigrationTool(stage, "tool")
    stage.plant_version("UPGRADE_FROM_2X", place)
    worker = stage.start("w1")
    await follows(stage, worker, UPGRADE, None)

    assert await tool.rollback(place)
    await tool.delete_index()
    if legacy:
        await tool.delete_table(REPORTS)
    await follows(stage, worker, V2X, None)

    assert await tool.roll_forward(place)
    await follows(stage, worker, UPGRADE, None)
    described = (await stage.dynamo.call("DescribeTable", {"TableName": TABLE}))["Table"]
    assert [index["IndexName"] for index in described["GlobalSecondaryIndexes"]] == [INDEX], "made again"
    assert stage.row("w1", REPORTS if legacy else LEASES) is not None, "and so is the table of the reports"

    stage.plant_version("3X_WITH_ROLLBACK", place)  # a leader of another version has flipped the fleet
    await follows(stage, worker, IN_3X, "w1")
    assert await tool.rollback(place)
    await follows(stage, worker, V2X, None)
    stage.plant_version("3X", place)
    await follows(stage, worker, IN_3X, "w1")


@story(1, **V3X)
async def test_a_leader_goes_on_leading_without_the_metrics_table(stage):
    await stage.legacy()
    worker = stage.start("w1")
    await stage.until(lambda: stage.leader(STATES) == "w1" and len(worker.worker.held()) == 1)
    await MigrationTool(stage, "tool").delete_table(REPORTS)
    await stage.advance(60)
    stage.world.split(stage.owned_by("w1")[0])
    stage.world.put(5)
    await stage.until(lambda: len(stage.leases()) == 3 and stage.world.all_delivered(), 60)
    await stage.advance(120)
    assert stage.leader(STATES) == "w1"
    assert stage.requests.of("w1", "DeleteItem", key="Leader") == [], "no run has failed"


@story(1, **V3X)
async def test_a_metrics_table_that_was_never_there_is_not_made(stage):
    await stage.create(LEASES, STATES)
    tool = MigrationTool(stage, "tool")
    stage.plant_version("3X_WITH_ROLLBACK", STATES)
    stage.start("w1", **COMPATIBLE)
    await stage.advance(10)
    assert await tool.rollback(STATES)
    await stage.advance(FOLLOWED_S)
    assert await tool.roll_forward(STATES)
    await stage.advance(FOLLOWED_S)
    assert not stage.dynamo.has_table(REPORTS.table)


@story(2, **COMPATIBLE)
async def test_in_upgrade_it_reports_makes_the_index_and_flips_after_ten_minutes(stage):
    stage.start("w1")
    other = stage.start("w2", seed=2)
    await stage.until(lambda: stage.version() == "UPGRADE_FROM_2X")
    await stage.until(lambda: len(stage.owned_by("w1")) == len(stage.owned_by("w2")) == 1, 60)
    ready_at = stage.now
    assert stage.row("w1") and stage.row("w2")
    described = (await stage.dynamo.call("DescribeTable", {"TableName": TABLE}))["Table"]
    assert [index["IndexName"] for index in described["GlobalSecondaryIndexes"]] == [INDEX]

    await stage.until(lambda: stage.version() == "3X_WITH_ROLLBACK", 900)
    assert 600 <= stage.now - ready_at <= 600 + 150
    flips = stage.requests.of(operation="UpdateItem", key="Migration3.0")
    assert {r.sender for r in flips} == {"w1"}, "the leader by shuffle"
    assert "cv = CLIENT_VERSION_UPGRADE_FROM_2X" in flips[0].condition
    await stage.until(lambda: stage.leader() is not None, FOLLOWED_S)
    await stage.advance(FOLLOWED_S)
    await other.crash()
    await stage.until(lambda: len(stage.owned_by("w1")) == 2, 60, "leases are assigned now")


@pytest.mark.parametrize("spoil", ["nothing", "report", "index", "lease"])
@story(2, **COMPATIBLE, maxLeasesForWorker="1")
async def test_in_upgrade_it_flips_only_a_fleet_that_is_ready(stage, spoil):
    """Not one with an owner that does not report, or without index, or with a lease that nobody takes."""
    await stage.create(LEASES)
    _, other = stage.plant_leases(None, "x-java")  # sorts behind w1, which the shuffle of two therefore elects
    if spoil == "index":
        stage.dynamo.forbidden.add("UpdateTable")

    async def live() -> None:
        for count in range(1, 10_000):
            row = {name: value for name, value in stage.row(other).items() if name != "leaseOwner"}
            owner = {} if spoil == "lease" else {"leaseOwner": {"S": "x-java"}}
            stage.put({**row, **owner, "leaseCounter": {"N": str(count)}})
            if spoil != "report":
                at = {"N": str(int(stage.clock.wall()))}
                more = {"sts": {"M": {}}, "opr": {"M": {}}, "sup": {"N": "1"}, "slu": at}
                stage.put({"leaseKey": {"S": "x-java"}, "entityType": {"S": "WORKER_METRIC_STATS"}, "lut": at, **more})
            await asyncio.sleep(3)

    living = asyncio.create_task(live())
    stage.start("w1")
    await stage.advance(900)
    living.cancel()
    assert stage.version() == ("3X_WITH_ROLLBACK" if spoil == "nothing" else "UPGRADE_FROM_2X")


@story(1, **V3X)
async def test_it_keeps_what_it_does_not_know_and_ten_entries_of_history(stage):
    await stage.create(LEASES, index=True)
    entries = [
        {"M": {"cv": {"S": "CLIENT_VERSION_2X"}, "mb": {"S": f"w{n}"}, "mts": {"N": str(n)}, "why": {"S": "x"}}}
        for n in range(10, 0, -1)
    ]
    stage.plant_version("3X_WITH_ROLLBACK", LEASES, h={"L": entries}, ofKcl4={"M": {"a": {"N": "1"}}})
    stage.start("w1")
    await stage.until(lambda: stage.version() == "3X", 10)
    row = stage.row("Migration3.0")
    assert row["ofKcl4"] == {"M": {"a": {"N": "1"}}}
    assert row["mb"] == {"S": "w1"}
    assert abs(int(row["mts"]["N"]) - stage.wall_ms()) < 10_000, "milliseconds"
    newest = {"cv": {"S": "CLIENT_VERSION_3X_WITH_ROLLBACK"}, "mb": {"S": "java"}, "mts": {"N": "1784640000123"}}
    assert row["h"] == {"L": [{"M": newest}, *entries[:9]]}
    assert row["entityType"] == {"S": "CLIENT_VERSION_MIGRATION"}


# --- table migration


@pytest.mark.parametrize("keys", [{}, MIGRATE], ids=["c=false", "c=true"])
@story(1, **V3X)
async def test_every_report_says_that_a_single_table_is_supported(stage, keys):
    await stage.legacy()
    stage.plant_status("DEPLOYED")
    stage.start("w1", **keys)
    await stage.advance(200)
    place = LEASES if keys else REPORTS
    written = [w for w in stage.history("w1", place) if "lut" in w.after]
    assert len(written) >= 6
    for write in written:
        assert write.after["sup"] == {"N": "1"}
        assert write.after["slu"] == write.after["lut"]
        assert write.after["entityType"] == {"S": "WORKER_METRIC_STATS"}


@pytest.mark.parametrize("stored", [None, "INIT"])
@story(1, **V3X, **MIGRATE)
async def test_it_refuses_to_start_where_migrating_is_too_early(stage, stored):
    await stage.legacy()
    if stored:
        stage.plant_status(stored)
    with pytest.raises(StartupError, match="migrateAllEntitiesToLeaseTable=true is too early"):
        await stage.start("w1").task
    assert set(stage.dynamo.rows(TABLE)) == set()


@story(2, **V3X)
async def test_its_lock_and_reads_follow_the_row_and_its_report_stays_where_it_was(stage):
    await stage.legacy()
    stage.plant_status("DEPLOYED")
    stage.start("w1")
    await stage.until(lambda: stage.leader(STATES) == "w1")
    await stage.until(lambda: stage.row("w1", REPORTS) is not None)
    for status in ("PENDING", "DEPLOYED"):
        stage.plant_status(status)
        await stage.advance(40)
        assert stage.leader(STATES) == "w1", "any status but COMPLETE"
        assert stage.status() == "DEPLOYED", "c=false rolls PENDING back"
    stage.plant_status("COMPLETE")  # a leader with c=true has finished
    await stage.until(lambda: stage.leader() == "w1", 60)
    assert stage.row("Leader", STATES) is None
    begun_at = stage.now
    await stage.advance(100)
    assert stage.requests.of("w1", table=STATES.table, since=begun_at) == []
    assert {r.table for r in stage.requests.of("w1", since=begun_at) if "lut = " in r.update} == {REPORTS.table}


@story(1, **V3X)
async def test_an_old_report_is_gone_before_a_migrating_worker_starts(stage):
    await stage.legacy()
    stage.plant_status("DEPLOYED")
    before = stage.start("host:1")
    await stage.until(lambda: stage.row("host:1", REPORTS) is not None)
    await before.stop()
    assert stage.dynamo.rows(REPORTS.table) == {}
    stage.start("host:2", **MIGRATE)
    await stage.until(lambda: stage.row("host:2") is not None, 10)
    await stage.advance(60)
    assert stage.dynamo.rows(REPORTS.table) == {}


def plant_client_version(stage: Stage) -> None:
    stage.plant_version("3X", STATES)
    stage.put({"key": {"S": "clicks"}, "entityType": {"S": "STREAM"}, "streamId": {"S": "clicks"}}, STATES)


@story(1, **V3X, **MIGRATE, **QUIET)
async def test_as_leader_it_moves_bakes_and_finishes_in_fenced_transactions(stage):
    await stage.legacy()
    plant_client_version(stage)
    version, stream = (stage.row(key, STATES) for key in ("Migration3.0", "clicks"))
    stage.plant_status("DEPLOYED")
    at = {"N": str(int(stage.clock.wall()))}
    stage.put({"wid": {"S": "crashed"}, "lut": at, "sts": {"M": {}}, "opr": {"M": {}}}, REPORTS)
    stage.start("w1")
    follower = stage.start("w2", seed=2)
    await stage.until(lambda: stage.leader(STATES) in ("w1", "w2"))
    leader = stage.leader(STATES)
    java = JavaLeader(stage, "java-1", lock_at=STATES).start()

    await stage.until(lambda: stage.row("Migration3.0") is not None, 200)
    assert stage.now >= 60, "a live report in the legacy table forbids it"
    old_key, new_key = {"key": {"S": "Migration3.0"}}, {"leaseKey": {"S": "Migration3.0"}}
    typed = {"entityType": {"S": "CLIENT_VERSION_MIGRATION"}}
    assert stage.row("Migration3.0") == {**{k: v for k, v in version.items() if k not in old_key}, **new_key, **typed}
    assert stage.row("clicks") == {"leaseKey": {"S": "clicks"}, **{k: v for k, v in stream.items() if k != "key"}}
    await stage.until(lambda: stage.status() == "PENDING", 90)
    assert set(stage.dynamo.rows(STATES.table)) == {"Leader", "TableMigration3.5"}
    (bake,) = stage.requests.of(leader, "UpdateItem", key="TableMigration3.5")
    assert "tm = TABLE_MIGRATION_STATUS_DEPLOYED" in bake.condition
    await stage.advance(120)
    assert stage.status() == "PENDING"

    row = stage.row("TableMigration3.5", STATES)  # as it is when the bake of a day is nearly over
    stage.put({**row, "mts": {"N": str(stage.wall_ms(86_400 - 60))}}, STATES)
    await stage.until(lambda: stage.status() == "COMPLETE", 90)
    assert stage.row("TableMigration3.5")["tm"] == {"S": "TABLE_MIGRATION_STATUS_COMPLETE"}
    transactions = stage.requests.of(operation="TransactWriteItems")
    assert {r.sender for r in transactions} == {leader}
    for request in transactions:
        fence = request.params["TransactItems"][0]["ConditionCheck"]
        assert (fence["TableName"], fence["Key"]) == (STATES.table, {"key": {"S": "Leader"}})
        assert set(fence["ExpressionAttributeNames"].values()) == {"ownerName"}
        assert {"S": leader} in fence["ExpressionAttributeValues"].values()

    completed_at = stage.now
    await stage.until(lambda: stage.leader() is not None, 40, "elected again, in the lease table")
    assert stage.row("Leader", STATES) is None or stage.leader(STATES) == "java-1"
    java.crash()
    await stage.advance(HEARTBEAT_S + 5)
    begun_at = stage.now
    await stage.advance(60)
    for worker in ("w1", "w2"):
        looked_at = {r.table for r in stage.requests.of(worker, since=begun_at)}
        assert STATES.table not in looked_at
        assert REPORTS.table not in looked_at
    assert begun_at - completed_at <= 80
    assert not follower.task.done()


@story(1, **V3X, **MIGRATE)
async def test_as_follower_it_switches_reads_and_lock_when_the_row_says_complete(stage):
    await stage.legacy()
    stage.plant_leases("java-1")
    stage.plant_version("3X")
    stage.plant_status("PENDING")
    java = JavaLeader(stage, "java-1", lock_at=STATES, assigns=False).start()
    await stage.until(lambda: stage.leader(STATES) == "java-1")
    stage.start("w1")
    await stage.advance(70)
    locks = stage.requests.of("w1", "GetItem", key="Leader")
    assert {r.table for r in locks} == {STATES.table}
    assert max(gaps(locks)) <= HEARTBEAT_S + 1
    assert stage.requests.of("w1", "TransactWriteItems") == []

    java.crash()  # it has finished the migration and competes for the lock of the lease table
    stage.plant_status("COMPLETE")
    java.take_lock()
    leases_lock = JavaLeader(stage, "java-2", assigns=False).start()
    await stage.until(lambda: leases_lock.leads())
    completed_at = stage.now
    await stage.advance(HEARTBEAT_S + 1)
    begun_at = stage.now
    await stage.advance(60)
    assert {r.table for r in stage.requests.of("w1", "GetItem", key="Leader", since=begun_at)} == {TABLE}
    assert stage.requests.of("w1", table=STATES.table, since=begun_at) == []
    assert stage.requests.of("w1", "Scan", table=REPORTS.table, since=begun_at) == []
    leases_lock.crash()
    await stage.until(lambda: stage.leader() == "w1", 200)
    assert stage.now > completed_at


@story(1, **V3X, **QUIET)
async def test_nothing_else_ever_stands_in_the_legacy_coordinator_table(stage):
    await stage.legacy()
    worker = stage.start("w1")
    java = JavaWorker(stage, "java-1", reports_at=REPORTS).start()
    await stage.until(lambda: stage.status() == "INIT", 90)
    stage.world.put(5)
    await stage.advance(300)
    await worker.stop()
    keys = {(w.after or w.before)["key"]["S"] for w in stage.dynamo.history if w.table == STATES.table}
    assert keys == {"Leader", "Migration3.0", "TableMigration3.5"}
    java.check()


@story(1, **V3X, **QUIET)
async def test_one_owner_without_support_keeps_the_fleet_from_deploying(stage):
    await stage.legacy()
    old = JavaWorker(stage, "java-34", reports_at=REPORTS, supports_single_table=False).start()
    stage.plant_leases("java-34")
    stage.plant_status("INIT", ago_s=HOUR_S - 100)
    stage.start("w1")
    await stage.until(lambda: stage.status() is None, 120, "the bake row is deleted")
    await stage.advance(200)
    assert stage.status() is None
    assert old.renewals > 10
