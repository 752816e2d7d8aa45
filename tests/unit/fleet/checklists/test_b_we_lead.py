"""Checklist (b): it is leader for Java workers (coordination#java-followers). One test per item, in its order."""

from __future__ import annotations

import pytest

from tests.twins.dynamo import lost_request
from tests.unit.fleet.checklists.java import HEARTBEAT_S, LAM_S, LOCK_S, JavaLeader, JavaWorker
from tests.unit.fleet.checklists.wire import INDEX, LEASES, REPORTS, STATES, TABLE, UUID, V3X, Stage, gaps, story

NEXT_RUN_S = LAM_S + 2.0
DAY_S = 86_400.0


async def led_by_us(stage: Stage, *owners: str | None, lock_at=LEASES) -> None:
    """A fleet that w1 leads. Without `owners` it makes table and leases itself."""
    if owners:
        if not stage.dynamo.has_table(TABLE):
            await stage.create(LEASES, index=True)
        stage.plant_leases(*owners)
    stage.start("w1")
    await stage.until(lambda: stage.leader(lock_at) == "w1")


def free(stage: Stage, key: str) -> None:
    """As if its owner had released the lease."""
    row = stage.row(key)
    row.pop("leaseOwner", None)
    counter = int(row["leaseCounter"]["N"]) + 1
    stage.put({**row, "leaseCounter": {"N": str(counter)}})


def plant_report(stage: Stage, worker: str, age_s: float, place=LEASES, figures: tuple[str, ...] = ()) -> None:
    at = {"N": str(int(stage.clock.wall() - age_s))}
    values = {"M": {"C": {"L": [{"N": figure} for figure in figures]}}} if figures else {"M": {}}
    ranges = {"M": {"C": {"L": [{"N": "100"}]}}} if figures else {"M": {}}
    row = {place.key: {"S": worker}, "lut": at, "sts": values, "opr": ranges}
    more = {"entityType": {"S": "WORKER_METRIC_STATS"}, "sup": {"N": "1"}, "slu": at}
    stage.put(row if place == REPORTS else row | more, place)


def ownership_writes(stage: Stage, sender: str, since: float = 0.0) -> list:
    """Requests that give a lease to somebody: the leader's work."""
    return [r for r in stage.requests.of(sender, "UpdateItem", since=since) if "SET leaseOwner = " in r.update]


def given_to_others(stage: Stage, sender: str, since: float = 0.0) -> list:
    """Those of them that do not give it to the sender itself, as anybody may who finds it free."""
    writes = ownership_writes(stage, sender, since)
    return [r for r in writes if {"S": sender} not in r.params["ExpressionAttributeValues"].values()]


# --- the lock


@pytest.mark.parametrize("place", [LEASES, STATES], ids=["single table", "legacy tables"])
@story(1, **V3X)
async def test_its_lock_is_written_read_and_deleted_as_java_does_it(stage, place):
    if place == STATES:
        await stage.legacy()
    worker = stage.start("w1")
    await stage.until(lambda: stage.leader(place) == "w1")
    java = JavaLeader(stage, "java-1", lock_at=place, reports_at=REPORTS if place == STATES else LEASES).start()
    row = stage.row("Leader", place)
    assert row == {
        place.key: {"S": "Leader"},
        "entityType": {"S": "LEADER"},
        "ownerName": {"S": "w1"},
        "leaseDuration": {"S": "120000"},
        "recordVersionNumber": row["recordVersionNumber"],
    }
    (claim,) = stage.requests.of("w1", "PutItem", key="Leader")
    assert claim.table == place.table
    assert claim.condition == f"attribute_not_exists({place.key})"
    assert claim.params["Item"] == row, "the whole item at once"

    await stage.advance(300)
    heartbeats = stage.requests.of("w1", "UpdateItem", key="Leader")
    assert len(heartbeats) >= 9
    assert max(gaps([claim, *heartbeats])) <= HEARTBEAT_S + 0.1
    versions = [write.after["recordVersionNumber"]["S"] for write in stage.history("Leader", place)]
    assert len(set(versions)) == len(versions), "a new one for each write"
    assert all(UUID.fullmatch(version) for version in versions)
    for before, heartbeat in zip(versions, heartbeats, strict=False):
        assert (
            heartbeat.condition
            == f"attribute_exists({place.key}) AND recordVersionNumber = {before} AND ownerName = w1"
        )
        assert heartbeat.update.startswith("SET leaseDuration = 120000, recordVersionNumber = ")
    assert not java.leads()

    await worker.stop()
    assert stage.row("Leader", place) is None
    (release,) = stage.requests.of("w1", "DeleteItem", key="Leader")
    assert release.condition == heartbeats[-1].condition.replace(versions[-2], versions[-1])
    await stage.until(lambda: java.leads(), 31, "the next challenger's check acquires at once")


@story(2, **V3X)
async def test_it_does_not_act_after_its_own_expiry_counted_from_before_the_write(stage):
    await stage.create(LEASES, index=True)
    java = JavaLeader(stage, "java-1", assigns=False)
    await led_by_us(stage, "w1", None)
    _kept, freed = stage.leases()
    java.start()
    await stage.until(lambda: stage.owners()[freed] is not None, NEXT_RUN_S)
    await stage.advance(35)

    def no_heartbeats(sender, operation, params):
        is_heartbeat = operation == "UpdateItem" and params["Key"].get("leaseKey") == {"S": "Leader"}
        return lost_request() if sender == "w1" and is_heartbeat else None

    stage.requests.fault = no_heartbeats
    last = stage.history("Leader")[-1].at
    await stage.advance(last + LOCK_S - 45 - stage.now)
    free(stage, freed)
    await stage.until(lambda: stage.owners()[freed] is not None, NEXT_RUN_S, "it still leads")
    await stage.advance(last + LOCK_S + 0.1 - stage.now)
    free(stage, freed)
    java.renewer.owned.pop(freed, None)
    await stage.advance(100)
    assert given_to_others(stage, "w1", since=last + LOCK_S) == []
    assert stage.owners()[freed] == "w1", "a free lease is anybody's, who leads or not"
    assert java.leads(), "taken over after 120 s of observation"
    won, *_ = [write.at for write in stage.history("Leader", since=last + 1) if write.sender == "java-1"]
    assert last + LOCK_S < won <= last + LOCK_S + 2 * HEARTBEAT_S
    await java.assign_once()
    assert stage.owners()[freed] is not None


@story(2, **V3X)
async def test_it_checks_leadership_before_each_run_sync_and_migration_step(stage):
    await stage.legacy()
    await led_by_us(stage, "w1", "w1", lock_at=STATES)
    kept, lost = stage.leases()
    await stage.until(lambda: stage.status() == "INIT", 60, "a migration step, while it leads")
    stage.dynamo.delete_row(TABLE, lost)
    await stage.until(lambda: lost in stage.leases(), 300, "a shard sync, while it leads")
    await stage.until(lambda: stage.owned_by("w1") == [kept, lost], 60, "an assignment, while it leads")

    java = JavaLeader(stage, "java-1", lock_at=STATES, reports_at=REPORTS, assigns=False)
    java.take_lock()  # it was away for so long that somebody else has the lock
    java.start()
    await stage.advance(HEARTBEAT_S + 1)
    begun_at = stage.now
    stage.dynamo.delete_row(TABLE, lost)
    stage.dynamo.delete_row(STATES.table, "TableMigration3.5")
    free(stage, kept)
    await stage.advance(400)
    assert stage.leader(STATES) == "java-1"
    assert given_to_others(stage, "w1", since=begun_at) == []
    assert lost not in stage.leases()
    assert stage.status() is None


# --- assignment


@story(4, **V3X)
async def test_only_workers_of_the_last_60_s_get_leases(stage):
    await stage.create(LEASES, index=True)
    for worker, age_s in (("recent", 30), ("silent", 61), ("ahead", -5)):
        plant_report(stage, worker, age_s)
    await led_by_us(stage, None, None, None, None)
    await stage.until(lambda: None not in stage.owners().values(), 30)
    assert set(stage.owners().values()) == {"w1", "recent", "ahead"}


@pytest.mark.parametrize(("newest", "gets"), [("1.0", True), ("-1.0", False)])
@story(4, **V3X)
async def test_a_worker_whose_metric_failed_last_gets_none(stage, newest, gets):
    await stage.create(LEASES, index=True)
    plant_report(stage, "idle", 1, figures=("1.0", newest))
    plant_report(stage, "busy", 1, figures=("90.0",))
    await led_by_us(stage, None, None, None, None)
    await stage.until(lambda: None not in stage.owners().values(), 30)
    assert ("idle" in stage.owners().values()) is gets


@story(4, **V3X)
async def test_its_writes_have_javas_conditions_and_leave_or_raise_the_counter(stage):
    await led_by_us(stage)
    await stage.until(lambda: len(stage.owned_by("w1")) == 4)
    for request in ownership_writes(stage, "w1"):
        key = request.key
        assert request.condition == (
            f"leaseKey = {key} AND attribute_not_exists(leaseOwner) AND attribute_not_exists(checkpointOwner)"
        )
        assert request.update == "SET leaseOwner = w1 REMOVE checkpointOwner ADD leaseCounter 1"
    begun_at = stage.now
    java = JavaWorker(stage, "java-1").start()
    await stage.until(lambda: len(java.held()) == 2, 200)

    graceful = [r for r in ownership_writes(stage, "w1", since=begun_at) if ", checkpointOwner = " in r.update]
    assert {r.condition for r in graceful} == {
        f"leaseKey = {key} AND leaseOwner = w1 AND attribute_not_exists(checkpointOwner)" for key in java.held()
    }
    assert {r.update for r in graceful} == {"SET leaseOwner = java-1, checkpointOwner = w1"}
    for key in java.held():
        (begun,) = [w for w in stage.history(key, since=begun_at) if w.after["leaseOwner"] != w.before["leaseOwner"]]
        assert begun.after["leaseCounter"] == begun.before["leaseCounter"]
        (ended,) = [
            w for w in stage.history(key, since=begun.at) if "checkpointOwner" in w.before.keys() - w.after.keys()
        ]
        assert int(ended.after["leaseCounter"]["N"]) == int(ended.before["leaseCounter"]["N"]) + 1

    begun_at = stage.now
    java.crash()
    await stage.until(lambda: len(stage.owned_by("w1")) == 4, 60)
    forced = [
        w for key in stage.leases() for w in stage.history(key, since=begun_at) if w.before["leaseOwner"]["S"] != "w1"
    ]
    assert len([w for w in forced if w.after["leaseOwner"]["S"] == "w1"]) == 2
    for write in forced:
        if write.after["leaseOwner"] != write.before["leaseOwner"]:
            assert int(write.after["leaseCounter"]["N"]) == int(write.before["leaseCounter"]["N"]) + 1
            assert int(write.after["ownerSwitchesSinceCheckpoint"]["N"]) == 1


@story(4, **V3X)
async def test_it_respects_pending_handoffs_until_their_deadline(stage):
    await stage.create(LEASES, index=True)
    stage.plant_leases(*["java-1"] * 4)
    java = JavaWorker(stage, "java-1", finish_s=1000.0).start()
    await stage.until(lambda: len(java.held()) == 4, 20)
    stage.start("w1")
    await stage.until(lambda: any("checkpointOwner" in row for row in stage.leases().values()), 120)
    pending = [key for key, row in stage.leases().items() if "checkpointOwner" in row]
    begun_at = {key: stage.history(key)[-1].at for key in pending}
    await stage.until(lambda: set(pending) <= set(stage.owned_by("w1")), 120)
    for key in pending:
        (forced,) = [w for w in stage.history(key) if "checkpointOwner" in w.before.keys() - w.after.keys()]
        assert forced.sender == "w1"
        assert 40.0 <= forced.at - begun_at[key] <= 40.0 + 2 * NEXT_RUN_S, "timeout and lease duration, then a run"
        between = ownership_writes(stage, "w1", since=begun_at[key] + 0.01)
        assert [r for r in between if r.key == key and r.at < forced.at] == []


@story(4, **V3X)
async def test_it_assigns_to_workers_of_3_0_to_3_4_in_the_legacy_table(stage):
    await stage.legacy()
    await led_by_us(stage, lock_at=STATES)
    java = JavaWorker(stage, "java-34", reports_at=REPORTS, supports_single_table=False).start()
    await stage.until(lambda: len(java.held()) == 2, 200)
    assert set(stage.row("java-34", REPORTS)) == {"wid", "lut", "sts", "opr"}
    assert stage.row("java-34") is None
    await stage.advance(30)
    assert len(stage.owned_by("w1")) == len(stage.owned_by("java-34")) == 2


# --- shards, index, left-overs


@story(2, **V3X)
async def test_it_syncs_shards_at_the_start_and_later_and_makes_the_index(stage):
    await led_by_us(stage)
    await stage.until(lambda: len(stage.leases()) == 2)
    begun_at = stage.now
    indexes = stage.requests.of("w1", "UpdateTable", table=TABLE)
    (creation,) = indexes[0].params["GlobalSecondaryIndexUpdates"]
    assert creation["Create"]["IndexName"] == INDEX
    assert creation["Create"]["Projection"] == {"ProjectionType": "KEYS_ONLY"}
    assert [part["AttributeName"] for part in creation["Create"]["KeySchema"]] == ["leaseOwner", "leaseKey"]
    first = next(iter(stage.leases()))
    stage.dynamo.delete_row(TABLE, first)
    await stage.until(lambda: first in stage.leases(), 300, "the audit brings it back")
    assert stage.now - begun_at <= 260.0


@story(1, **V3X)
async def test_it_cleans_up_leases_of_finished_shards(stage):
    await led_by_us(stage)
    await stage.until(lambda: len(stage.owned_by("w1")) == 1)
    parent = next(iter(stage.leases()))
    stage.world.split(parent)
    stage.world.put(20)
    await stage.until(lambda: stage.text(parent, "checkpoint") == "SHARD_END", 60)
    stage.world.put(20)
    await stage.until(lambda: parent not in stage.leases(), 900)
    assert len(stage.leases()) == 2


@pytest.mark.parametrize("place", [LEASES, REPORTS], ids=["single table", "legacy tables"])
@story(1, **V3X)
async def test_it_deletes_stale_reports_under_a_condition(stage, place):
    await (stage.legacy() if place == REPORTS else stage.create(LEASES, index=True))
    plant_report(stage, "old", DAY_S + 60, place)
    plant_report(stage, "expired", DAY_S - 600, place)
    seen = stage.text("old", "lut", place)
    await led_by_us(stage, lock_at=STATES if place == REPORTS else LEASES)
    await stage.until(lambda: stage.row("old", place) is None, 60)
    (deletion,) = stage.requests.of("w1", "DeleteItem", key="old")
    assert deletion.table == place.table
    assert f"lut = {seen}" in deletion.condition
    assert stage.row("expired", place) is not None


# --- migrations


@story(1, **V3X, idleTimeBetweenReadsInMillis="30000")
async def test_it_drives_the_table_migration_for_java_followers(stage):
    await stage.legacy()
    java = JavaWorker(stage, "java-1", reports_at=REPORTS).start()
    await led_by_us(stage, "java-1", lock_at=STATES)
    await stage.until(lambda: stage.status() == "INIT", 60)
    row = stage.row("TableMigration3.5", STATES)
    assert row["entityType"] == {"S": "TABLE_MIGRATION"}
    assert row["mb"] == {"S": "w1"}
    assert row["h"] == {"L": [{"M": {"tm": {"S": "TABLE_MIGRATION_STATUS_INIT"}, "mb": row["mb"], "mts": row["mts"]}}]}
    stage.plant_status("INIT", ago_s=3500)  # as it is nearly an hour later
    begun_at = stage.now
    await stage.until(lambda: stage.status() == "DEPLOYED", 200)
    assert 100 <= stage.now - begun_at <= 110
    (step,) = stage.requests.of("w1", "UpdateItem", key="TableMigration3.5")
    assert "tm = TABLE_MIGRATION_STATUS_INIT" in step.condition
    assert java.renewals > 20, "meanwhile the follower worked"


@story(2, **V3X)
async def test_it_flips_a_2x_compatible_fleet_for_java_followers(stage):
    await stage.create(LEASES)
    stage.plant_leases("w1", "x-java")
    stage.plant_version("UPGRADE_FROM_2X")
    stage.start("w1")
    java = JavaWorker(stage, "x-java").start()  # sorts behind w1, which the shuffle of two therefore elects
    await stage.until(lambda: len(java.held()) == 1, 30, "by the index that w1 has made")
    await stage.until(lambda: stage.version() == "3X_WITH_ROLLBACK", 800)
    assert 600 <= stage.now <= 600 + 180
    flip = stage.requests.of("w1", "UpdateItem", key="Migration3.0")[0]
    assert "cv = CLIENT_VERSION_UPGRADE_FROM_2X" in flip.condition


@story(1, **V3X)
async def test_it_releases_the_lock_after_three_failed_runs_and_stays_away(stage):
    await led_by_us(stage)
    await stage.advance(25)
    java = JavaLeader(stage, "java-1", assigns=False).start()
    await stage.advance(1)
    begun_at = stage.now
    stage.requests.fault = lambda sender, operation, params: (
        lost_request() if sender == "w1" and operation == "Scan" else None
    )
    await stage.until(lambda: stage.leader() != "w1", 120)
    released_at = stage.now
    assert 2 * LAM_S <= released_at - begun_at <= 3 * NEXT_RUN_S
    assert stage.requests.of("w1", "DeleteItem", key="Leader", since=begun_at)
    await stage.until(lambda: java.leads(), 31)
    assert stage.requests.of("w1", "PutItem", key="Leader", since=released_at) == []


@story(1, **V3X)
async def test_a_leader_that_stepped_down_comes_back_if_nobody_else_leads(stage):
    await led_by_us(stage)
    await stage.advance(25)
    stage.requests.fault = lambda sender, operation, params: lost_request() if operation == "Scan" else None
    await stage.until(lambda: stage.leader() is None, 120)
    released_at = stage.now
    stage.requests.fault = None
    await stage.until(lambda: stage.leader() == "w1", 120)
    assert stage.now - released_at > HEARTBEAT_S


@story(6, **V3X)
async def test_all_of_it_java_followers_get_their_share_and_are_replaced_when_they_die(stage):
    await led_by_us(stage)
    one, other = JavaWorker(stage, "java-1").start(), JavaWorker(stage, "java-2").start()
    await stage.until(lambda: [len(stage.owned_by(w)) for w in ("w1", "java-1", "java-2")] == [2, 2, 2], 300)
    await stage.until(lambda: len(one.held()) == len(other.held()) == 2, 20)
    one.crash()
    await stage.until(lambda: len(stage.owned_by("w1")) + len(stage.owned_by("java-2")) == 6, 60)
    await stage.until(lambda: len(stage.owned_by("java-2")) == 3, 200)
    assert stage.leader() == "w1"
