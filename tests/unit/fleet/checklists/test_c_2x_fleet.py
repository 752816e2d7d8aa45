"""Checklist (c): it joins a 2.x-mode fleet (coordination#a-2x-fleet). One test per item, in its order."""

from __future__ import annotations

import logging

import pytest

from tests.support.fleet import TABLE
from tests.unit.fleet.checklists.java import Java2xWorker, JavaWorker
from tests.unit.fleet.checklists.wire import COMPATIBLE, INDEX, LEASES, PHASE1, REPORTS, STATES, V3X, Stage, story

OF_A_LEASE = {
    "leaseKey",
    "leaseOwner",
    "leaseCounter",
    "ownerSwitchesSinceCheckpoint",
    "checkpoint",
    "checkpointSubSequenceNumber",
    "startingHashKey",
    "endingHashKey",
    "parentShardId",
    "childShardIds",
    "throughputKBps",
    "entityType",
    "mldBehindAt",
    "mldBehindMs",
    "mldTrend",
    "mldDelivered",
    "mldState",
}
TAKE = "SET leaseCounter = "


async def has_index(stage: Stage) -> bool:
    table = (await stage.dynamo.call("DescribeTable", {"TableName": TABLE}))["Table"]
    return any(index["IndexName"] == INDEX for index in table.get("GlobalSecondaryIndexes", ()))


def takes(stage: Stage, sender: str) -> list:
    return [r for r in stage.requests.of(sender, "UpdateItem") if f", leaseOwner = {sender} REMOVE" in r.update]


@story(4, **PHASE1)
async def test_beside_real_2x_workers_it_writes_nothing_but_leases(stage):
    old = [Java2xWorker(stage, "java-2a").start(), Java2xWorker(stage, "java-2b").start()]
    worker = stage.start("w1")
    await stage.until(lambda: len(stage.leases()) == 4)
    await stage.until(lambda: len(stage.owned_by("w1")) >= 1 and all(one.held() for one in old), 120)
    stage.world.put(40)
    await stage.advance(600)
    parent = stage.owned_by("w1")[0]
    stage.world.split(parent)
    await stage.until(lambda: len(stage.leases()) == 6, 60)
    await stage.advance(60)
    await worker.stop()
    await stage.advance(30)
    assert [one.broken for one in old] == [None, None]
    assert all(row.keys() <= OF_A_LEASE for row in stage.dynamo.rows(TABLE).values())
    assert all(row["entityType"] == {"S": "LEASE"} for row in stage.dynamo.rows(TABLE).values())
    assert not stage.dynamo.has_table(STATES.table)
    assert not stage.dynamo.has_table(REPORTS.table)
    assert not await has_index(stage)
    assert stage.requests.of("w1", "Query") == []
    assert [r for r in stage.requests.of("w1") if "checkpointOwner = " in r.update] == [], "never sets it"


@story(6, **PHASE1)
async def test_it_takes_by_count_and_by_scans(stage):
    old = [Java2xWorker(stage, "java-2a").start(), Java2xWorker(stage, "java-2b").start()]
    stage.start("w1")
    shares = lambda: [len(stage.owned_by(w)) for w in ("java-2a", "java-2b", "w1")]  # noqa: E731
    await stage.until(lambda: shares() == [2, 2, 2], 300)
    await stage.advance(120)
    assert shares() == [2, 2, 2], "and stays so"
    assert len(takes(stage, "w1")) >= 2
    for request in takes(stage, "w1"):
        assert request.condition.startswith("leaseCounter = "), "the counter as scanned, nothing else"
        counter = int(request.condition.removeprefix("leaseCounter = "))
        assert request.update.startswith(f"{TAKE}{counter + 1}, leaseOwner = w1 REMOVE checkpointOwner")
    old[0].crash()
    await stage.until(lambda: sorted(shares()) == [0, 3, 3], 120)


@story(6, **PHASE1)
async def test_the_shuffle_elects_one_leader_for_shard_syncs_only(stage):
    for number, worker in enumerate(("wa", "wb", "wc")):
        stage.start(worker, seed=number)
    await stage.until(lambda: {len(stage.owned_by(w)) for w in ("wa", "wb", "wc")} == {2}, 300)
    await stage.advance(400)  # all have elected since the owners are these; wc leads (coordination#shuffled-leader)
    for _ in range(2):
        lost = stage.owned_by("wa")[0]
        stage.dynamo.delete_row(TABLE, lost)
        gone_at = stage.now
        await stage.until(lambda lost=lost: lost in stage.leases(), 300)
        assert {r.sender for r in stage.requests.of(operation="PutItem", key=lost, since=gone_at)} == {"wc"}
        await stage.until(lambda lost=lost: stage.owners().get(lost) is not None, 60)
        await stage.advance(60)
    assert all("entityType" in row and row["entityType"] == {"S": "LEASE"} for row in stage.dynamo.rows(TABLE).values())


@story(4, **PHASE1)
async def test_it_elects_again_after_60_s_and_then_every_300_s(stage):
    wa, wb = stage.start("wa"), stage.start("wb", seed=2)
    await stage.until(lambda: [len(stage.owned_by(w)) for w in ("wa", "wb")] == [2, 2], 60)
    wc = stage.start("wc", seed=3)
    await stage.until(lambda: stage.owned_by("wc"), 60)
    await stage.advance(65 - stage.now)  # wa led from the start; since 60 s it knows of three owners
    lost = stage.owned_by("wa")[0]
    stage.dynamo.delete_row(TABLE, lost)
    deleted_at = stage.now
    await stage.until(lambda: lost in stage.leases(), 200)
    creators = {r.sender for r in stage.requests.of(operation="PutItem", key=lost, since=deleted_at)}
    assert creators == {"wc"}, "although wa's audit would have come first, at 120 s"
    assert stage.now > 120

    await stage.until(lambda: len(stage.owned_by("wa")) >= 1 and len(stage.owned_by("wb")) >= 1, 60)
    await wc.crash()
    crashed_at = stage.now
    await stage.until(lambda: {*stage.owners().values()} == {"wa", "wb"}, 60)
    lost = stage.owned_by("wb")[0]
    stage.dynamo.delete_row(TABLE, lost)
    await stage.until(lambda: lost in stage.leases(), 400)
    assert stage.now - crashed_at <= 310
    creators = {r.sender for r in stage.requests.of(operation="PutItem", key=lost, since=crashed_at)}
    assert creators == {"wa"}, "of two the first leads"
    assert not wa.task.done()
    assert not wb.task.done()


@pytest.mark.parametrize("config", [PHASE1, COMPATIBLE, V3X], ids=["phase 1", "compatible", "3x"])
@pytest.mark.parametrize("legacy", [False, True], ids=["single table", "legacy tables"])
@pytest.mark.parametrize("state", ["UPGRADE_FROM_2X", "2X"])
@story(2)
async def test_it_runs_the_column_of_the_stored_state_whatever_its_configuration(stage, state, legacy, config):
    await stage.create(LEASES, *([STATES, REPORTS] if legacy else []))
    keys = stage.plant_leases(None, None, typed=not legacy)
    place = STATES if legacy else LEASES
    stage.plant_version(state, place)
    before = stage.row("Migration3.0", place)
    worker = stage.start("w1", **config)
    await stage.until(lambda: worker.worker.held() == set(keys), 60)
    await stage.advance(200)

    assert len(takes(stage, "w1")) == 2, "the taker of 2.x"
    assert stage.leader(LEASES) is None
    assert not legacy or stage.leader(STATES) is None
    assert stage.row("Migration3.0", place) == before, "it follows and does not write"
    assert await has_index(stage) is (state == "UPGRADE_FROM_2X")
    assert stage.requests.of("w1", "Query") == [], "no discovery"
    reports = REPORTS if legacy else LEASES
    assert (stage.row("w1", reports) is not None) is (state == "UPGRADE_FROM_2X")
    assert [r for r in stage.requests.of("w1") if "checkpointOwner = w1" in r.update] == []
    if legacy:
        assert set(stage.dynamo.rows(TABLE)) == set(keys), "leases only"


@story(1, **COMPATIBLE)
async def test_compatible_with_2x_it_creates_its_row_in_the_legacy_table_if_there_is_one(stage):
    """As workers of 3.0 to 3.4 do beside real 2.x workers, which must never meet such a row."""
    await stage.create(LEASES, STATES, REPORTS)
    keys = stage.plant_leases(None, typed=False)
    old = Java2xWorker(stage, "java-2").start()
    java = JavaWorker(stage, "java-34", reports_at=REPORTS, supports_single_table=False).start()
    stage.start("w1")
    await stage.until(lambda: stage.version(STATES) == "UPGRADE_FROM_2X", 10)
    await stage.advance(120)
    assert set(stage.dynamo.rows(TABLE)) == set(keys)
    assert stage.row("w1", REPORTS) is not None
    assert old.broken is None
    java.check()
    (creation,) = stage.requests.of("w1", "PutItem", key="Migration3.0")
    assert creation.condition == "attribute_not_exists(key)"


@pytest.mark.parametrize("typed", [True, False], ids=["all rows by 3.5", "rows by older workers"])
@story(1, **COMPATIBLE)
async def test_compatible_with_2x_in_a_single_table_it_warns_before_its_row_if_older_peers_made_leases(
    stage, typed, caplog
):
    await stage.create(LEASES)
    stage.plant_leases(None, typed=typed)
    with caplog.at_level(logging.WARNING):
        stage.start("w1")
        await stage.until(lambda: stage.version() == "UPGRADE_FROM_2X", 10)
    suspected = [r for r in caplog.records if getattr(r, "action", "") == "older_peers_suspected"]
    assert len(suspected) == (0 if typed else 1)
    if suspected:
        assert "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1" in suspected[0].getMessage()
        assert "mld.metadataLayout=legacy" in suspected[0].getMessage()


@story(1, **COMPATIBLE, mld__metadataLayout="legacy")
async def test_told_so_it_makes_the_legacy_tables_and_writes_nothing_else_into_the_lease_table(stage):
    old = Java2xWorker(stage, "java-2").start()
    stage.start("w1")
    await stage.until(lambda: stage.dynamo.has_table(STATES.table) and stage.version(STATES) == "UPGRADE_FROM_2X", 60)
    await stage.advance(90)
    assert set(stage.dynamo.rows(TABLE)) == set(stage.leases())
    assert stage.row("w1", REPORTS) is not None
    assert old.broken is None
