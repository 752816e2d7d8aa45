"""How a worker enters a mode and how it leaves its fleet: whole workers in virtual time, seen from the tables."""

from __future__ import annotations

import asyncio

import pytest

from mld.core.errors import AwsUnreachableError
from mld.leases import writes
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.lease import Lease
from tests.support.fleet import TABLE
from tests.support.stage import COMPATIBLE, INDEX, LEASES, PHASE1, REPORTS, STATES, V3X, Stage, story
from tests.support.tiers import sliced
from tests.twins.children import ChildExit
from tests.twins.dynamo import Fault, lost_request

ALWAYS = {
    "versions",
    "late tables",
    "lost table",
    "reports",
}  # the loop of the reports is idle where nothing is reported


def reported(stage: Stage, worker: str, age_s: float = 0.0) -> None:
    at = {"N": str(int(stage.clock.wall() - age_s))}
    row = {"leaseKey": {"S": worker}, "entityType": {"S": "WORKER_METRIC_STATS"}, "lut": at, "sup": {"N": "1"}}
    stage.put({**row, "slu": at, "sts": {"M": {}}, "opr": {"M": {}}})


def busy(seconds: float):
    """A processor that takes its time over the end."""

    async def script(child) -> None:
        while True:
            message = await child.receive()
            if message["action"] == "shutdownRequested":
                await asyncio.sleep(seconds)
            child.done(message)
            if message["action"] in ("leaseLost", "shardEnded"):
                raise ChildExit

    return script


async def alone(stage: Stage, count: int, script=None):
    worker = stage.start("w1", script=script)
    await stage.until(lambda: len(worker.worker.held()) == count, 30)
    await stage.advance(5)
    return worker


# --- leaving


@pytest.mark.parametrize("how", ["lost", "slow"])
@story(2, **V3X)
async def test_without_a_look_at_the_fleet_leases_are_released(stage, how):
    worker = await alone(stage, 2)
    reported(stage, "live")
    fault = lost_request() if how == "lost" else Fault(delay_before_s=30.0)
    stage.requests.fault = lambda sender, operation, params: fault if operation == "Scan" else None
    begun_at = stage.now
    assert await worker.stop()
    assert stage.now - begun_at <= 5.0
    assert set(stage.owners().values()) == {None}


@story(2, **V3X)
async def test_a_receiver_that_died_is_no_obstacle(stage):
    """The assignment is written all the same; a refusal or an error ends in a release."""
    worker = await alone(stage, 2)
    reported(stage, "live")

    def refuse(sender, operation, params):
        update = params.get("UpdateExpression", "")
        return lost_request() if operation == "UpdateItem" and update.startswith("SET #leaseOwner") else None

    stage.requests.fault = refuse
    assert await worker.stop()
    assert set(stage.owners().values()) == {None}


@story(3, **V3X)
async def test_a_lease_that_comes_while_it_leaves_is_released(stage):
    await stage.create(LEASES, index=True)
    held, late, _ = stage.plant_leases("w1", "x", "x")
    stage.plant_version("3X")
    reported(stage, "w9")
    worker = stage.start("w1", script=busy(6.0))
    leader = DynamoLeaseTable(stage.dynamo.client("leader"), stage.clock, table_name=TABLE)
    seen = await leader.get(late)
    await stage.until(lambda: held in worker.worker.held(), 30)
    stopping = asyncio.create_task(worker.stop())
    await stage.advance(3)
    assert isinstance(await leader.apply(writes.assign(seen, "w1")), Lease)
    await stage.advance(2)
    assert late not in worker.worker.held(), "nothing is taken up any more"
    assert await stopping
    assert stage.owners()[late] is None
    (release,) = [write for write in stage.history(late) if write.sender == "w1"]
    assert int(release.after["leaseCounter"]["N"]) == int(release.before["leaseCounter"]["N"]) + 1


@story(2, **V3X)
async def test_a_lease_that_comes_while_the_last_worker_leaves_is_released(stage):
    worker = await alone(stage, 2, busy(6.0))
    key = next(iter(stage.leases()))
    stopping = asyncio.create_task(worker.stop())
    await stage.advance(1)
    stage.put({**stage.row(key), "leaseKey": {"S": "late"}, "leaseOwner": {"S": "w1"}})
    assert await stopping
    assert set(stage.owners().values()) == {None}


@story(2, **V3X)
async def test_a_stop_ends_the_first_writes_of_assignments_that_get_no_answer(stage):
    """They begin before the task of the assigner does."""
    await stage.create(LEASES, index=True)
    stage.plant_leases(None, None)
    stage.plant_version("3X")
    swallowed = asyncio.Event()

    def swallow(sender, operation, params):
        if operation != "UpdateItem" or "SET #leaseOwner" not in params.get("UpdateExpression", ""):
            return None
        swallowed.set()
        return Fault(delay_before_s=1_000.0)

    stage.requests.fault = swallow
    worker = stage.start("w1")
    await swallowed.wait()
    await worker.stop()
    left = [task for task in asyncio.all_tasks() if "MoveWriter.write" in repr(task)]
    assert not left


@pytest.mark.parametrize("after_s", [0.5, 0.8, 1.0, 1.2, 1.4, 1.6])
@story(4, **V3X)
async def test_leases_assigned_at_the_start_and_never_held_are_not_left_to_who_stops(stage, after_s):
    stage.requests.fault = lambda sender, operation, params: Fault(delay_before_s=0.05, delay_after_s=0.05)
    await stage.create(LEASES)
    reported(stage, "live")
    worker = stage.start("w1")
    await stage.advance(after_s)
    assert await worker.stop()
    ours = [w for w in stage.dynamo.history if w.before.get("leaseOwner") == {"S": "w1"} and "leaseCounter" in w.after]
    given = [w for w in ours if w.after.get("leaseOwner") != {"S": "w1"}]
    assert {w.after.get("leaseOwner", {}).get("S") for w in given} <= {"live", None}
    assert "w1" not in stage.owners().values()


@story(2, **V3X)
async def test_a_handoff_to_us_that_somebody_is_finishing_is_left_to_it(stage):
    worker = await alone(stage, 2, busy(3.0))
    reported(stage, "live")
    key = next(iter(stage.leases()))
    row = {**stage.row(key), "leaseKey": {"S": "coming"}, "leaseOwner": {"S": "w1"}, "checkpointOwner": {"S": "live"}}
    stopping = asyncio.create_task(worker.stop())
    await stage.advance(1)
    stage.put(row)
    assert await stopping
    assert stage.row("coming") == row


@pytest.mark.parametrize("apart_s", sliced([0.0, 0.1, 0.5], 0.1))
@pytest.mark.parametrize("latency_s", sliced([0.0, 0.03], 0.03))
@pytest.mark.parametrize("busy_s", [0.0, 2.0])
@pytest.mark.parametrize("index_lag_s", [0.0, 1.0])
@story(6, **V3X)
async def test_workers_that_stop_together_leave_nothing_to_each_other(stage, apart_s, latency_s, busy_s, index_lag_s):
    stage.dynamo.index_lag = lambda: index_lag_s
    workers = [stage.start(f"w{number}", script=busy(busy_s), seed=number) for number in range(3)]
    await stage.until(lambda: all(len(one.worker.held()) == 2 for one in workers), 200)
    stage.requests.fault = lambda *_: Fault(delay_before_s=latency_s, delay_after_s=latency_s)
    stopping = []
    for one in workers:
        stopping.append(asyncio.create_task(one.stop()))
        await stage.advance(apart_s)
    assert all(await asyncio.gather(*stopping))
    assert set(stage.owners().values()) == {None}
    following = stage.start("w0", seed=9)
    await stage.until(lambda: len(following.worker.held()) == 6, 2)


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("apart_s", sliced([-1.0, 0.0, 1.0], 0.0))
@pytest.mark.parametrize("busy_s", [0.0, 2.0])
@story(4, **V3X)
async def test_a_handoff_between_workers_that_stop_together_leaves_nothing_to_either(stage, busy_s, apart_s, knows):
    old, following = (stage.start(name, script=busy(busy_s), seed=seed) for seed, name in enumerate(["w0", "w1"]))
    await stage.until(lambda: len(old.worker.held()) == len(following.worker.held()) == 2, 200)
    leader = DynamoLeaseTable(stage.dynamo.client("leader"), stage.clock, table_name=TABLE)
    for key in old.worker.held():
        lease = await leader.get(key)
        assert isinstance(await leader.apply(writes.begin_handoff(lease, "w1")), Lease)
    await stage.advance(0.1)
    if knows:
        await stage.until(lambda: all(one.lease.handoff_to for one in old.worker.parts.keeper.held().values()), 10)
    first, second = (old, following) if apart_s >= 0 else (following, old)
    stopping = [asyncio.create_task(first.stop())]
    await stage.advance(abs(apart_s))
    assert all(await asyncio.gather(*stopping, second.stop()))
    assert set(stage.owners().values()) == {None}
    after = stage.start("w2", seed=9)
    await stage.until(lambda: len(after.worker.held()) == 4, 2)


@story(2, **V3X, shutdownGraceMillis="60000")
async def test_who_leaves_says_so_until_its_next_process_reports(stage):
    worker = await alone(stage, 2, busy(40.0))
    stopping = asyncio.create_task(worker.stop())
    await stage.advance(35)  # a regular report in between
    assert "mldLeaving" in stage.row("w1")
    await worker.crash()
    stopping.cancel()
    stage.start("w1", seed=2)
    await stage.until(lambda: "mldLeaving" not in stage.row("w1"), 5)


@story(3, **V3X)
async def test_its_report_goes_last_and_the_lock_first(stage):
    worker = await alone(stage, 3, busy(4.0))
    assert stage.leader() == "w1"
    begun_at = stage.now
    assert await worker.stop()
    writes = [r for r in stage.requests.of("w1", since=begun_at) if r.operation in ("UpdateItem", "DeleteItem")]
    assert (writes[-1].operation, writes[-1].key) == ("DeleteItem", "w1")
    (unlock,) = [r for r in writes if r.key == "Leader"]
    releases = [r.at for r in writes if "REMOVE leaseOwner" in r.update]
    assert len(releases) == 3
    assert unlock.at < begun_at + 1 <= min(releases)
    assert stage.row("w1") is None
    await stage.advance(200)
    assert stage.requests.of("w1", since=begun_at + 5) == [], "and then silence"


@story(2, **PHASE1)
async def test_in_2x_mode_leases_are_released_and_nobody_is_looked_for(stage):
    worker = await alone(stage, 2)
    reported(stage, "live")
    begun_at = stage.now
    assert await worker.stop()
    assert set(stage.owners().values()) == {None}
    assert stage.requests.of("w1", "Query") == []
    assert stage.requests.of("w1", "Scan", since=begun_at) == []


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.1, 0.5, 1.0, 2.0, 3.0])
@story(2, **V3X)
async def test_a_stop_at_any_moment_of_the_start_leaves_nothing_behind(stage, after_s):
    stage.requests.fault = lambda sender, operation, params: Fault(delay_before_s=0.05, delay_after_s=0.05)
    worker = stage.start("w1")
    await stage.advance(after_s)
    worker.worker.request_stop()
    async with asyncio.timeout(20):
        assert await worker.task
    stage.requests.fault = None
    begun_at = stage.now + 0.001  # what the start had just sent may still arrive
    await stage.advance(100)
    assert stage.requests.of("w1", since=begun_at) == []
    assert stage.leader() is None
    assert stage.row("w1") is None
    assert set(stage.owners().values()) <= {None}


@story(2, **V3X)
async def test_an_unreachable_table_does_not_hold_up_a_stop(stage):
    worker = await alone(stage, 2)
    stage.requests.fault = lambda sender, operation, params: Fault(
        fail_before=AwsUnreachableError(operation, "no route to host")
    )
    begun_at = stage.now
    await worker.stop()
    assert stage.now - begun_at <= 30.0


@story(1, **V3X)
async def test_a_crash_sends_nothing_more(stage):
    worker = await alone(stage, 1)
    begun_at = stage.now
    await worker.crash()
    await stage.advance(300)
    assert stage.requests.of("w1", since=begun_at + 0.01) == []
    assert stage.leader() == "w1"
    assert stage.owners() == dict.fromkeys(stage.leases(), "w1")


# --- modes


LOOPS = {
    "INIT": ALWAYS | {"taker"},
    "UPGRADE_FROM_2X": ALWAYS | {"taker", "index"},
    "2X": ALWAYS | {"taker"},
    "3X_WITH_ROLLBACK": ALWAYS | {"discovery", "assigner", "failover watcher", "index"},
    "3X": ALWAYS | {"discovery", "assigner", "failover watcher", "index"},
}


def running(worker) -> set[str]:
    return set(worker.worker.fleet.running())


@pytest.mark.parametrize("state", ["UPGRADE_FROM_2X", "2X", "3X_WITH_ROLLBACK", "3X"])
@pytest.mark.parametrize("before", ["UPGRADE_FROM_2X", "2X", "3X_WITH_ROLLBACK"])
@story(1, **COMPATIBLE)
async def test_a_flip_ends_the_old_loops_and_starts_the_new_ones(stage, before, state):
    await stage.create(LEASES, index=True)
    stage.plant_version(before)
    worker = stage.start("w1")
    await stage.advance(5)
    assert running(worker) == LOOPS[before]
    stage.plant_version(state)
    await stage.advance(95)
    assert running(worker) == LOOPS[state]
    assert len(worker.worker.held()) == 1
    assert not worker.task.done()
    begun_at = stage.now
    await stage.advance(62)
    reports = [r for r in stage.requests.of("w1", since=begun_at) if "lut = " in r.update]
    assert bool(reports) is (state != "2X"), "in 2X the reporter is off though the sampler runs"
    assert (stage.leader() == "w1") is state.startswith("3X")


@story(1, **COMPATIBLE)
async def test_a_phase_1_worker_stops_taking_when_the_fleet_has_left_2x(stage):
    await stage.create(LEASES)
    worker = stage.start("w1", **PHASE1)
    await stage.until(lambda: len(worker.worker.held()) == 1, 30)
    stage.plant_version("3X_WITH_ROLLBACK")
    await stage.advance(95)
    assert running(worker) == ALWAYS
    assert len(worker.worker.held()) == 1, "it keeps what it has"
    stage.plant_version("2X")
    await stage.advance(65)
    assert running(worker) == LOOPS["INIT"]


@story(1, **COMPATIBLE)
async def test_a_flip_that_fails_is_tried_again_until_it_works(stage):
    await stage.create(LEASES)
    stage.plant_version("2X")
    worker = stage.start("w1")
    await stage.until(lambda: len(worker.worker.held()) == 1, 30)
    stage.requests.fault = lambda sender, operation, params: lost_request() if operation == "DescribeTable" else None
    stage.plant_version("3X_WITH_ROLLBACK")
    await stage.advance(120)
    assert running(worker) != LOOPS["3X_WITH_ROLLBACK"]
    assert len(worker.worker.held()) == 1
    stage.requests.fault = None
    await stage.until(lambda: running(worker) == LOOPS["3X_WITH_ROLLBACK"], 5)


@story(1, **COMPATIBLE)
async def test_a_stop_in_the_middle_of_a_flip_ends_in_time(stage):
    await stage.create(LEASES)
    stage.plant_version("2X")
    worker = stage.start("w1")
    await stage.until(lambda: len(worker.worker.held()) == 1, 30)
    stage.requests.fault = lambda sender, operation, params: (
        Fault(delay_before_s=100.0) if operation == "DescribeTable" else None
    )
    stage.plant_version("3X_WITH_ROLLBACK")
    await stage.until(lambda: bool(stage.requests.of("w1", "DescribeTable", table=TABLE, since=60)), 120)
    begun_at = stage.now
    assert await worker.stop()
    assert stage.now - begun_at <= 10
    assert set(stage.owners().values()) == {None}
    assert REPORTS.table not in {r.table for r in stage.requests.of("w1") if r.operation == "UpdateItem"}


# --- what the migration tool deletes


@story(1, **COMPATIBLE)
async def test_the_metrics_table_and_the_index_are_made_again_after_a_rollback(stage):
    await stage.legacy()
    stage.plant_version("UPGRADE_FROM_2X", STATES)
    stage.start("w1")
    await stage.advance(95)
    stage.plant_version("2X", STATES)
    index = [{"Delete": {"IndexName": INDEX}}]
    await stage.dynamo.call("UpdateTable", {"TableName": TABLE, "GlobalSecondaryIndexUpdates": index})
    await stage.dynamo.call("DeleteTable", {"TableName": REPORTS.table})
    await stage.advance(95)
    stage.plant_version("UPGRADE_FROM_2X", STATES)
    await stage.advance(95)
    described = (await stage.dynamo.call("DescribeTable", {"TableName": TABLE}))["Table"]
    assert [one["IndexName"] for one in described["GlobalSecondaryIndexes"]] == [INDEX]
    assert stage.row("w1", REPORTS) is not None


@story(1, **COMPATIBLE)
async def test_a_metrics_table_that_was_never_there_is_not_made(stage):
    await stage.create(LEASES, STATES)
    stage.plant_version("3X_WITH_ROLLBACK", STATES)
    stage.start("w1")
    await stage.advance(10)
    for version in ("2X", "UPGRADE_FROM_2X"):
        stage.plant_version(version, STATES)
        await stage.advance(95)
    assert not stage.dynamo.has_table(REPORTS.table)


@story(1, **V3X)
async def test_a_leader_goes_on_leading_without_the_metrics_table(stage):
    await stage.legacy()
    worker = stage.start("w1")
    await stage.until(lambda: stage.leader(STATES) == "w1" and len(worker.worker.held()) == 1)
    await stage.dynamo.call("DeleteTable", {"TableName": REPORTS.table})
    await stage.advance(180)
    assert stage.leader(STATES) == "w1"
    assert stage.requests.of("w1", "DeleteItem", key="Leader") == [], "no run has failed"
