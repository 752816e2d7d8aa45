"""Checklist (a): a Java leader assigns leases to it (coordination#a-java-leader). One test per item, in order."""

from __future__ import annotations

import asyncio

import pytest

from mld.fleet.report.platform import CPU, LoadUnreadableError
from tests.twins.children import ChildExit
from tests.unit.fleet.checklists.java import DISCOVERY_S, HANDOFF_TIMEOUT_S, JavaLeader, JavaWorker
from tests.unit.fleet.checklists.wire import INDEX, LEASES, REPORTS, TABLE, V3X, Stage, gaps, story

FAILOVER_S = 10.0
OF_A_REPORT = {"leaseKey", "entityType", "lut", "sts", "opr", "sup", "slu"}


class Load:
    """A source of CPU figures: 40 percent, or nothing while `broken`."""

    name, metric = "a test", CPU

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken

    async def read(self) -> float:
        if self.broken:
            raise LoadUnreadableError("no figure")
        return 40.0

    async def detect(self) -> Load:
        return self


async def led_by_java(stage: Stage, *owners: str | None, assigns: bool = False) -> JavaLeader:
    """A fleet of one Java worker, which leads a fresh application of 3.5."""
    await stage.create(LEASES, index=True)
    stage.plant_leases(*owners)
    stage.plant_version("3X")
    leader = JavaLeader(stage, "java-1", assigns=assigns).start()
    await stage.until(lambda: stage.leader() == "java-1" and stage.row("java-1") is not None)
    return leader


async def give(stage: Stage, leader: JavaLeader, key: str, to: str) -> None:
    """The leader's regular update of a lease that is nobody's."""
    assert await leader.assign(stage.row(key), to) is not None


@pytest.mark.parametrize("measures", [True, False], ids=["with figures", "without figures"])
@pytest.mark.parametrize("place", [LEASES, REPORTS], ids=["single table", "legacy tables"])
@story(1, **V3X)
async def test_it_writes_its_report_at_the_right_place_soon_and_every_30_s(stage, place, measures):
    if place == REPORTS:
        await stage.legacy()
    load = Load()
    stage.start("w1", detect_load=load.detect) if measures else stage.start("w1")
    took = await stage.until(lambda: stage.row("w1", place) is not None, 10)
    assert took <= 5.0
    await stage.advance(400)

    row = stage.row("w1", place)
    names = {place.key if name == "leaseKey" else name for name in OF_A_REPORT}
    assert names <= row.keys()
    assert row["entityType"] == {"S": "WORKER_METRIC_STATS"}
    assert row["sup"] == {"N": "1"}
    assert row["slu"] == row["lut"]
    assert row["lut"]["N"].isdigit(), "an integer"
    assert stage.clock.wall() - int(row["lut"]["N"]) <= 31
    if measures:
        assert row["sts"] == {"M": {"C": {"L": [{"N": "40"}] * 10}}}
        assert row["opr"] == {"M": {"C": {"L": [{"N": "100"}]}}}
    else:
        assert (row["sts"], row["opr"]) == ({"M": {}}, {"M": {}})

    writes = [r for r in stage.requests.of("w1", "UpdateItem", table=place.table, key="w1") if "lut = " in r.update]
    assert all(29.0 <= gap <= 31.0 for gap in gaps(writes)), gaps(writes)
    assert all(not request.condition for request in writes), "an upsert: the leader may have deleted the row"
    assert {name for request in writes for name in ("opr", "sts", "entityType", "sup", "slu")} <= {
        name for request in writes for name in request.params["ExpressionAttributeNames"].values()
    }
    other = LEASES if place == REPORTS else REPORTS
    assert stage.row("w1", other) is None


@story(1, **V3X)
async def test_its_newest_figure_is_minus_one_only_if_the_metric_failed(stage):
    load = Load()
    stage.start("w1", detect_load=load.detect)
    await stage.advance(65)
    assert "-1" not in str(stage.row("w1")["sts"])
    load.broken = True
    await stage.advance(62)
    assert stage.row("w1")["sts"]["M"]["C"]["L"][-1] == {"N": "-1"}
    load.broken = False
    await stage.advance(60)
    figures = [figure["N"] for figure in stage.row("w1")["sts"]["M"]["C"]["L"]]
    assert figures[-1] == "40"
    assert "-1" in figures


@story(1, **V3X)
async def test_it_reports_empty_maps_if_nothing_can_be_measured(stage):
    stage.start("w1", detect_load=Load(broken=True).detect)
    for _ in range(20):
        await stage.advance(10)
        row = stage.row("w1")
        assert (row["sts"], row["opr"]) == ({"M": {}}, {"M": {}})


@story(3, **V3X)
async def test_it_discovers_assignments_by_the_index_and_consistent_reads(stage):
    leader = await led_by_java(stage, None, None, None)
    free, pending, foreign = stage.leases()
    worker = stage.start("w1")
    await stage.until(lambda: stage.row("w1") is not None)
    begun_at = stage.now

    await give(stage, leader, free, "w1")
    took = await stage.until(lambda: free in worker.worker.held(), 20)
    assert took <= DISCOVERY_S
    reads = stage.requests.of("w1", "GetItem", table=TABLE, key=free, since=begun_at)
    assert any(request.params.get("ConsistentRead") for request in reads)

    await give(stage, leader, pending, "java-9")  # a dead worker: nobody finishes
    assert await leader.begin_handoff(stage.row(pending), "w1") is not None
    await give(stage, leader, foreign, "java-9")
    before = stage.row(pending)
    await stage.advance(8)  # less than a lease duration: a worker that renews nothing is not dead yet
    assert worker.worker.held() == {free}, "only rows that are ours, and that nobody is finishing"
    assert stage.row(pending) == before

    queries = stage.requests.of("w1", "Query", since=begun_at)
    assert {request.params["IndexName"] for request in queries} == {INDEX}
    assert {request.key_condition for request in queries} == {"leaseOwner = w1"}
    assert max(gaps(queries)) <= DISCOVERY_S

    assert await leader.assign(stage.row(pending), "w1") is not None
    await stage.until(lambda: pending in worker.worker.held(), 20)


@story(1, **V3X)
async def test_it_renews_by_one_under_the_counter_and_tells_its_throughput(stage):
    leader = await led_by_java(stage, None)
    (key,) = stage.leases()
    worker = stage.start("w1")
    await give(stage, leader, key, "w1")
    await stage.until(lambda: worker.worker.held() == {key}, 30)
    assert "throughputKBps" not in stage.row(key), "not known yet"
    begun_at = stage.now
    for _ in range(20):
        stage.world.put(20)
        await stage.advance(1.5)

    writes = [write for write in stage.history(key, since=begun_at) if write.sender == "w1"]
    steps = [int(w.after["leaseCounter"]["N"]) - int(w.before["leaseCounter"]["N"]) for w in writes]
    assert set(steps) == {1}
    renewals = [
        request
        for request in stage.requests.of("w1", "UpdateItem", key=key, since=begun_at)
        if "checkpoint = " not in request.update
    ]
    assert max(gaps(renewals)) <= FAILOVER_S / 3
    for request in renewals:
        assert "leaseCounter = " in request.condition
        assert "attribute_not_exists(checkpointOwner)" in request.condition
    assert float(stage.text(key, "throughputKBps")) > 0


class Stubborn:
    """A processor that takes `busy_s` over `shutdownRequested`."""

    def __init__(self, stage: Stage, busy_s: float) -> None:
        self.stage = stage
        self.busy_s = busy_s

    async def __call__(self, child) -> None:
        while True:
            message = await child.receive()
            if message["action"] == "shutdownRequested":
                await asyncio.sleep(self.busy_s)
                await child.checkpoint()
            child.done(message)
            if message["action"] in ("leaseLost", "shardEnded"):
                raise ChildExit


async def held_by_w1(stage: Stage, busy_s: float) -> tuple[JavaLeader, str]:
    leader = await led_by_java(stage, None)
    (key,) = stage.leases()
    worker = stage.start("w1", script=Stubborn(stage, busy_s))
    await give(stage, leader, key, "w1")
    await stage.until(lambda: worker.worker.held() == {key}, 30)
    await stage.advance(5)
    return leader, key


@story(1, **V3X)
async def test_it_honours_a_handoff_by_renewing_until_its_processor_has_stopped(stage):
    leader, key = await held_by_w1(stage, busy_s=12.0)
    next_owner = JavaWorker(stage, "java-2").start()
    begun_at = stage.now
    assert await leader.begin_handoff(stage.row(key), "java-2") is not None
    await stage.until(lambda: "checkpointOwner" not in stage.row(key), 40)
    took = stage.now - begun_at
    assert 12.0 <= took <= 12.0 + FAILOVER_S / 3 + 1.0

    during = [write for write in stage.history(key, since=begun_at) if write.sender == "w1"]
    *kept, transfer = during
    assert len(kept) >= 4, "renewed about every 3.3 s, and a checkpoint"
    assert {write.after.get("checkpointOwner", {}).get("S") for write in kept} == {"w1"}
    assert {write.after["leaseOwner"]["S"] for write in kept} == {"java-2"}
    assert transfer.after["leaseOwner"] == {"S": "java-2"}
    assert int(transfer.after["leaseCounter"]["N"]) == int(transfer.before["leaseCounter"]["N"]) + 1
    assert transfer.after["ownerSwitchesSinceCheckpoint"] == transfer.before["ownerSwitchesSinceCheckpoint"]
    last = stage.requests.of("w1", "UpdateItem", key=key, since=begun_at)[-1]
    assert last.condition == f"leaseKey = {key} AND leaseOwner = java-2 AND checkpointOwner = w1"
    assert last.update == "SET leaseOwner = java-2 REMOVE checkpointOwner ADD leaseCounter 1"
    await stage.until(lambda: key in next_owner.held(), 20)


@story(1, **V3X)
async def test_it_completes_a_handoff_at_the_timeout_whatever_its_processor_does(stage):
    leader, key = await held_by_w1(stage, busy_s=1000.0)
    begun_at = stage.now
    assert await leader.begin_handoff(stage.row(key), "java-2") is not None
    await stage.until(lambda: "checkpointOwner" not in stage.row(key), 60)
    took = stage.now - begun_at
    assert HANDOFF_TIMEOUT_S <= took <= HANDOFF_TIMEOUT_S + FAILOVER_S / 3 + 1.0
    assert stage.owned_by("java-2") == [key]


@story(2, **V3X)
async def test_it_creates_rows_marked_as_leases(stage):
    stage.start("w1")
    await stage.until(lambda: len(stage.leases()) == 2)
    assert {row["entityType"]["S"] for row in stage.leases().values()} == {"LEASE"}
    created = stage.requests.of("w1", "PutItem", table=TABLE)
    assert {r.condition for r in created if r.key in stage.leases()} == {"attribute_not_exists(leaseKey)"}


@story(1, **V3X)
async def test_it_keeps_foreign_attributes_and_skips_rows_of_other_types(stage):
    leader = await led_by_java(stage, None)
    (key,) = stage.leases()
    foreign = {"pendingCheckpointState": {"B": b"stage-2"}, "somebodyElses": {"M": {"a": {"N": "1"}}}}
    stage.put({**stage.row(key), "somebodyElses": foreign["somebodyElses"]})
    others = [
        {"leaseKey": {"S": "clicks"}, "entityType": {"S": "STREAM"}, "streamId": {"S": "x"}},
        {"leaseKey": {"S": "later"}, "entityType": {"S": "OF_KCL_4"}, "leaseOwner": {"S": "w1"}},
    ]
    for row in others:
        stage.put(row)
    worker = stage.start("w1")
    await give(stage, leader, key, "w1")
    await stage.until(lambda: worker.worker.held() == {key}, 30)
    stage.world.put(10)
    await stage.advance(400)
    assert stage.row(key)["checkpoint"] != {"S": "TRIM_HORIZON"}
    assert stage.row(key)["somebodyElses"] == foreign["somebodyElses"]
    assert worker.worker.held() == {key}
    for row in others:
        assert stage.row(row["leaseKey"]["S"]) == row


@story(2, **V3X)
async def test_on_stop_it_gives_its_leases_to_live_workers_and_deletes_its_report(stage):
    leader = await led_by_java(stage, None, None)
    keys = list(stage.leases())
    worker = stage.start("w1")
    for key in keys:
        await give(stage, leader, key, "w1")
    await stage.until(lambda: worker.worker.held() == set(keys), 30)
    begun_at = stage.now
    assert await worker.stop()
    assert stage.owned_by("java-1") == keys, "the only live worker"
    assert stage.row("w1") is None
    gifts = [r for r in stage.requests.of("w1", "UpdateItem", since=begun_at) if "SET leaseOwner" in r.update]
    gift = "SET leaseOwner = java-1 REMOVE checkpointOwner ADD leaseCounter 1"
    assert {r.update.removesuffix(", ownerSwitchesSinceCheckpoint 1") for r in gifts} == {gift}
    assert {r.condition for r in gifts} >= {
        f"leaseKey = {key} AND leaseOwner = w1 AND attribute_not_exists(checkpointOwner)" for key in keys
    }
    await stage.until(lambda: set(leader.held()) == set(keys), 20)


@story(1, **V3X)
async def test_on_stop_it_evicts_its_leases_if_nobody_else_lives(stage):
    leader = await led_by_java(stage, None)
    (key,) = stage.leases()
    worker = stage.start("w1")
    await give(stage, leader, key, "w1")
    await stage.until(lambda: worker.worker.held() == {key}, 30)
    leader.crash()
    await stage.advance(61)  # its report has expired
    counter = int(stage.text(key, "leaseCounter"))
    await worker.stop()
    row = stage.row(key)
    assert "leaseOwner" not in row
    assert "checkpointOwner" not in row
    assert int(row["leaseCounter"]["N"]) > counter
    assert stage.row("w1") is None


@story(6, **V3X)
async def test_all_of_it_a_java_leader_shares_its_leases_with_mld_workers(stage):
    """The whole checklist at work: a leader that assigns, two workers of ours, a late one, a stop and a crash."""

    async def traffic() -> None:  # Java shares out by throughput
        while True:
            stage.world.put(60)
            await asyncio.sleep(1.0)

    producing = asyncio.create_task(traffic())
    await led_by_java(stage, *["java-1"] * 6, assigns=True)
    stage.start("w1")
    stage.start("w2", seed=2)
    await stage.until(lambda: [len(stage.owned_by(w)) for w in ("java-1", "w1", "w2")] == [2, 2, 2], 300)
    await stage.advance(20)
    ours = [row for row in stage.leases().values() if row["leaseOwner"]["S"] in ("w1", "w2")]
    assert all(row["checkpoint"] != {"S": "TRIM_HORIZON"} for row in ours)
    await stage.world.running[0].stop()
    assert stage.owned_by("w1") == []
    await stage.until(lambda: [len(stage.owned_by(w)) for w in ("java-1", "w2")] == [3, 3], 300)
    await stage.world.running[1].crash()
    await stage.until(lambda: len(stage.owned_by("java-1")) == 6, 120)
    assert stage.leader() == "java-1"
    producing.cancel()
