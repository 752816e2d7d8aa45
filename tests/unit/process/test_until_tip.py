"""Whole workers that run until they are caught up, in virtual time."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from mld.core.errors import StartupError
from mld.daemon.catching_up import STALL_S, CatchingUp
from mld.daemon.until_tip import UntilTip
from mld.properties.remarks import ConfigurationError
from tests.support.fleet import STREAM, TABLE, Fleet, Running, in_fleet
from tests.support.kpl import User, aggregate
from tests.twins.children import ChildExit, MemoryChild, Recorder
from tests.twins.dynamo import Fault, lost_reply, lost_request, server_error, throttled

SHARD_0 = "shardId-000000000000"
V3X = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_3X"}
LEASE_S = 10.0
modes = pytest.mark.parametrize(
    "keys",
    [
        pytest.param({}, id="2.x"),
        pytest.param(V3X, id="3.x"),
        pytest.param({"retrievalMode": "FANOUT"}, id="fan-out"),
        pytest.param({"callProcessRecordsEvenForEmptyRecordList": "true"}, id="empty batches"),
    ],
)


def begin(world: Fleet, name: str = "w1", time_max_s: float | None = None, **more: Any) -> Running:
    return world.start(name, until_tip=UntilTip(time_max_s), **more)


async def ended(run: Running, within_s: float = 60.0) -> str | None:
    """Why it is not caught up; None if it is."""
    async with asyncio.timeout(within_s):
        await run.task
    return run.worker.failure


@modes
@in_fleet(3)
async def test_everything_is_delivered_checkpointed_and_released(world, keys) -> None:
    world.recorder.checkpoint_every_batch = False
    world.put(100)
    run = begin(world, **keys)
    assert await ended(run) is None
    assert world.all_delivered()
    for shard in world.shards():
        last = max(int(d.sequence) for d in world.recorder.deliveries if d.shard_id == shard.shard_id)
        assert world.lease(shard.shard_id).checkpoint.number == last
        assert world.lease(shard.shard_id).owner is None
        assert world.recorder.actions_of(shard.shard_id) == ["initialize", "shutdownRequested", "leaseLost"]


@modes
@in_fleet(2)
async def test_a_stream_without_records_is_caught_up_at_once(world, keys) -> None:
    started = world.clock.monotonic()
    assert await ended(begin(world, **keys)) is None
    assert world.clock.monotonic() - started < 12
    assert world.lease(SHARD_0).checkpoint.sequence == "TRIM_HORIZON"


@modes
@in_fleet(2)
async def test_the_next_run_goes_on_where_the_last_one_ended(world, keys) -> None:
    for number in range(3):
        world.put(20)
        started = world.clock.monotonic()
        assert await ended(begin(world, f"run-{number}", seed=number, **keys)) is None
        assert world.clock.monotonic() - started < 12
    delivered = world.recorder.data()
    assert len(delivered) == len(set(delivered)) == 60


@pytest.mark.parametrize("keys", [{}, V3X], ids=["2.x", "3.x"])
@in_fleet(1)
async def test_children_of_a_reshard_during_the_run_are_read_too(world, keys) -> None:
    world.recorder.work_s = 1.0
    world.put(50)
    run = begin(world, maxRecords="10", **keys)
    await world.until(lambda: bool(world.recorder.actions))
    world.split(SHARD_0)
    world.put(50)
    assert await ended(run) is None
    assert world.all_delivered()
    assert world.lease(SHARD_0).checkpoint.is_shard_end
    assert {d.shard_id for d in world.recorder.deliveries} == {s.shard_id for s in world.shards()}


@modes
@in_fleet(1)
async def test_children_of_a_shard_that_was_split_between_two_runs_are_read_in_the_next(world, keys) -> None:
    world.put(10)
    assert await ended(begin(world, **keys)) is None
    world.split(SHARD_0)
    world.put(10)
    assert await ended(begin(world, seed=2, **keys)) is None
    assert world.all_delivered()
    assert world.lease(SHARD_0).checkpoint.is_shard_end


@in_fleet(1)
async def test_a_stream_that_is_never_quiet_is_caught_up_all_the_same(world) -> None:
    async def produce() -> None:
        while True:
            world.put(1)
            await asyncio.sleep(0.1)

    producing = asyncio.create_task(produce())
    try:
        world.put(500)
        assert await ended(begin(world)) is None
        assert len(world.recorder.data()) >= 500
    finally:
        producing.cancel()


@in_fleet(1)
async def test_aggregates_are_read_to_the_last_user_record(world) -> None:
    from mld.local.kinesis import PutEntry

    for start in range(0, 30, 3):
        entry = PutEntry.of(aggregate([User("key", str(start + n).encode(), "0") for n in range(3)]), "a", 0)
        world.kinesis.put_record(STREAM, entry, now=world.clock.wall())
    assert await ended(begin(world)) is None
    assert [int(data) for data in world.recorder.data()] == list(range(30))
    assert world.lease(SHARD_0).checkpoint.sub == 2


# --- others at work ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [{}, V3X], ids=["2.x", "3.x"])
@pytest.mark.parametrize("name", ["w2", "w1"])
@in_fleet(2)
async def test_a_run_leaves_another_one_at_work_alone(world, keys, name) -> None:
    """Also one with the same workerId, which would otherwise resume the leases of the other."""
    world.start("w1", **keys)
    world.put(10)
    await world.until(world.all_delivered)
    await world.advance(5)
    before = {shard.shard_id: world.lease(shard.shard_id).owner for shard in world.shards()}
    run = begin(world, name, seed=2, **keys)
    assert await ended(run, LEASE_S) is None
    assert run.host.children == []
    assert {shard.shard_id: world.lease(shard.shard_id).owner for shard in world.shards()} == before


@pytest.mark.parametrize("keys", [{}, V3X], ids=["2.x", "3.x"])
@in_fleet(2)
async def test_leases_of_a_dead_run_are_taken(world, keys) -> None:
    first = world.start("w1", **keys)
    world.put(10)
    await world.until(world.all_delivered)
    await first.crash()
    world.put(10)
    assert await ended(begin(world, "w2", seed=2, **keys), 4 * LEASE_S) is None
    assert world.all_delivered()
    assert world.lease(SHARD_0).owner is None


@in_fleet(4)
async def test_two_runs_that_start_together_share_the_work_and_both_end(world) -> None:
    world.put(100)
    runs = [begin(world, name, seed=seed) for seed, name in enumerate(("w1", "w2"))]
    assert [await ended(run, 120) for run in runs] == [None, None]
    assert world.all_delivered()
    assert {world.lease(shard.shard_id).owner for shard in world.shards()} == {None}


# --- what is in the way -----------------------------------------------------------------------------------------------


class Failing(Recorder):
    """Dies of each batch of shard 0."""

    async def process(self, child: MemoryChild, records: list[dict[str, Any]]) -> None:
        if child.shard_id == SHARD_0:
            raise ChildExit
        await super().process(child, records)


@in_fleet(2)
async def test_a_run_that_waits_for_a_failing_shard_only_ends_and_names_it(world) -> None:
    world.put(20)
    failing = Failing(world.clock)
    started = world.clock.monotonic()
    why = await ended(begin(world, script=failing), 3 * STALL_S)
    assert "no shard has made progress" in why
    assert f"{SHARD_0} its record processor fails" in why
    assert "shardId-000000000001" not in why
    assert world.clock.monotonic() - started > STALL_S
    assert world.lease(SHARD_0).checkpoint.sequence == "TRIM_HORIZON"
    assert world.lease("shardId-000000000001").checkpoint.number is not None
    assert world.lease(SHARD_0).owner is None


@in_fleet(1)
async def test_a_run_that_waits_for_a_parked_shard_only_ends_and_names_it(world) -> None:
    world.recorder.work_s = 1.0
    world.put(20)
    run = begin(world, maxRecords="2")
    await world.until(lambda: len(world.recorder.data()) >= 2)
    world.kinesis.delete_stream(STREAM, now=world.clock.wall(), with_consumers=True)
    why = await ended(run, 4 * STALL_S)
    assert "no shard has made progress" in why
    assert f"{SHARD_0} is parked: Kinesis does not know this shard" in why
    assert not world.lease(SHARD_0).is_complete
    assert world.lease(SHARD_0).owner is None


@pytest.mark.parametrize("time_max_s", [None, 600.0])
@in_fleet(2)
async def test_paused_shards_are_not_waited_for_and_named(world, time_max_s) -> None:
    world.put(20)
    assert await ended(begin(world)) is None
    row = world.dynamo.row(TABLE, SHARD_0)
    world.dynamo.put_row(TABLE, {**row, "mldPaused": {"S": "by me"}})
    world.put(20)
    started = world.clock.monotonic()
    why = await ended(begin(world, "w2", seed=2, time_max_s=time_max_s))
    assert why == f"only paused shards are left: {SHARD_0} is paused (by me); `mld resume` continues it"
    assert world.clock.monotonic() - started < 15
    assert world.lease("shardId-000000000001").checkpoint.number == max(
        int(d.sequence) for d in world.recorder.deliveries if d.shard_id != SHARD_0
    )


@in_fleet(2)
async def test_the_time_may_be_over_before_it_is_known_whether_others_live(world, caplog) -> None:
    first = world.start("w1")
    await world.advance(5)
    await first.crash()
    run = begin(world, "w2", seed=2, time_max_s=2.0)
    assert "--max-time" in await ended(run, 5)
    assert run.host.children == []
    assert [r.action for r in caplog.records if r.levelname == "ERROR"][-1] == "not_caught_up"


@in_fleet(1)
async def test_a_defect_of_the_watch_ends_the_run(world, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(CatchingUp, "looked", fail)
    with pytest.raises(RuntimeError, match="a defect"):
        await ended(begin(world))
    assert world.lease(SHARD_0).owner is None


@in_fleet(2)
async def test_a_table_that_cannot_be_read_for_a_moment_is_looked_at_again(world) -> None:
    world.put(10)
    assert await ended(begin(world, "w1")) is None
    world.put(10)
    faults = iter([throttled("Scan")] * 2)
    world.dynamo.faults = lambda _sender, operation, _params: next(faults, None) if operation == "Scan" else None
    assert await ended(begin(world, "w2", seed=2)) is None
    assert world.all_delivered()


@in_fleet(2)
async def test_the_time_ends_a_run_that_is_not_done(world) -> None:
    world.recorder.work_s = 30.0
    world.put(40)
    started = world.clock.monotonic()
    why = await ended(begin(world, time_max_s=45.0, maxRecords="5"), 120)
    assert "the time (--max-time) is over" in why
    assert "shardId" in why
    assert 45 <= world.clock.monotonic() - started < 45 + 31
    assert {world.lease(shard.shard_id).owner for shard in world.shards()} == {None}


@in_fleet(1)
async def test_a_busy_child_is_waited_for_however_long_it_takes(world) -> None:
    world.recorder.work_s = 3 * STALL_S
    world.put(5)
    assert await ended(begin(world), 5 * STALL_S) is None
    assert world.all_delivered()


class FailsOnce(Recorder):
    """The first child of shard 0 answers without checkpoints, and dies a second after the tip; the next one is slow."""

    async def process(self, child: MemoryChild, records: list[dict[str, Any]]) -> None:
        is_first = self.actions_of(SHARD_0).count("initialize") < 2
        self.checkpoint_every_batch = not is_first or child.shard_id != SHARD_0
        self.work_s = 0.0 if is_first and child.shard_id == SHARD_0 else 2.0
        await super().process(child, records)
        if is_first and child.shard_id == SHARD_0:
            asyncio.get_running_loop().call_later(1.0, child.hang_up)


@in_fleet(2)
async def test_a_child_that_dies_after_the_tip_takes_the_tip_with_it(world) -> None:
    """Else the run would end with the other shard, in the middle of what comes again."""
    world.put(40)
    script = FailsOnce(world.clock)
    assert await ended(begin(world, script=script, maxRecords="5")) is None
    got = [int(d.sequence) for d in script.deliveries if d.shard_id == SHARD_0]
    assert len(got) == 2 * len(set(got)) > 10
    assert world.lease(SHARD_0).checkpoint.number == max(got)


class NoCheckpoints(Recorder):
    async def act(self, child: MemoryChild, message: dict[str, Any]) -> None:
        if message["action"] == "processRecords":
            await self.process(child, message["records"])


@in_fleet(1)
async def test_records_without_a_checkpoint_are_not_called_done(world) -> None:
    world.put(5)
    why = await ended(begin(world, script=NoCheckpoints(world.clock, checkpoint_every_batch=False)))
    assert why.startswith("records come again in the next run: shardId-000000000000 was given")


@in_fleet(1)
async def test_a_stop_before_the_tip_is_said(world) -> None:
    world.recorder.work_s = 5.0
    world.put(5)
    run = begin(world)
    await world.advance(2)
    await run.stop()
    assert run.worker.failure == "stopped before it had caught up"


@in_fleet(1)
async def test_a_stop_ends_the_first_look_at_a_table_that_does_not_answer(world) -> None:
    world.dynamo.faults = lambda _, operation, __: Fault(delay_before_s=600.0) if operation == "Scan" else None
    run = world.start(until_tip=UntilTip())
    await world.advance(1)
    asked_at = world.clock.monotonic()
    await run.stop()
    assert world.clock.monotonic() - asked_at < 1
    assert run.worker.failure == "stopped before it had caught up"


@in_fleet(1, initialPositionInStream="LATEST")
async def test_a_fleet_that_began_at_latest_is_left_alone_like_any_other(world) -> None:
    world.start("w1")
    await world.advance(5)
    assert str(world.lease(SHARD_0).checkpoint) == "LATEST"
    assert await ended(begin(world, "w2", seed=2), LEASE_S) is None


@pytest.mark.parametrize("is_there", [False, True])
@in_fleet(1)
async def test_a_start_at_latest_is_refused_before_anything_is_changed(world, is_there) -> None:
    if is_there:
        first = world.start("w1", initialPositionInStream="LATEST")
        await world.until(lambda: world.lease(SHARD_0) is not None) if world.dynamo.has_table("app") else None
        await world.advance(3)
        await first.stop()
    run = begin(world, "w2", initialPositionInStream="LATEST" if not is_there else "TRIM_HORIZON")
    with pytest.raises(ConfigurationError, match="records that arrive between two runs"):
        await ended(run)
    assert world.dynamo.has_table("app") is is_there


@in_fleet(2)
async def test_a_run_that_cannot_hold_all_shards_says_so(world) -> None:
    world.put(10)
    why = await ended(begin(world, maxLeasesForWorker="1"), 3 * STALL_S)
    assert "has no owner" in why


# --- it never says so wrongly -----------------------------------------------------------------------------------------


class Fickle(Recorder):
    """Dies of one batch in eight, sometimes between its answer and its checkpoint."""

    rng: Random

    async def process(self, child: MemoryChild, records: list[dict[str, Any]]) -> None:
        if self.rng.random() < 1 / 8:
            raise ChildExit
        self.checkpoint_every_batch = self.rng.random() < 1 / 2
        await super().process(child, records)


@pytest.mark.parametrize("keys", [{}, V3X, {"retrievalMode": "FANOUT"}], ids=["2.x", "3.x", "fan-out"])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.full) for n in range(2, 12))])
@in_fleet(2)
async def test_caught_up_means_checkpointed_whatever_goes_wrong(world, keys, seed) -> None:
    rng = Random(seed)
    faults = [throttled, lost_request, lost_reply, server_error]
    world.dynamo.faults = lambda *_: rng.choice(faults)() if rng.random() < 0.1 else None
    script = Fickle(world.clock)
    script.rng = rng
    done_runs = 0
    for number in range(6):
        world.put(30)
        if number == 1:
            world.split(SHARD_0)
        put = set(world.put_data)
        run = begin(world, f"run-{number}", time_max_s=300.0, script=script, maxRecords="5", seed=seed + number, **keys)
        try:
            is_over = await ended(run, 400) is None
        except StartupError:
            is_over = False
        if not is_over:
            continue
        done_runs += 1
        assert set(script.data()) >= put
        for shard in world.shards():
            got = [int(d.sequence) for d in script.deliveries if d.shard_id == shard.shard_id]
            lease = world.lease(shard.shard_id)
            done = lease is None or lease.is_complete or not got or lease.checkpoint.number == max(got)
            assert done, f"{shard.shard_id} stands at {lease.checkpoint}, and was given {max(got)}"
    assert done_runs >= 2
