"""Whole workers in virtual time: real leases, shards, retrieval and consumers over in-memory AWS and children."""

import asyncio
import logging
from dataclasses import replace

import pytest

from mld.core.errors import StartupError, StreamThrottledError, StreamUnavailableError
from tests.support.fleet import STREAM, TABLE, fleet, in_fleet
from tests.twins.children import ChildExit, Recorder
from tests.twins.dynamo import Fault, lost_reply, throttled
from tests.virtual_time import virtual

SHARD_0 = "shardId-000000000000"
SHARD_1 = "shardId-000000000001"
SHARD_2 = "shardId-000000000002"
SHARD_3 = "shardId-000000000003"


@in_fleet(4)
async def test_a_fresh_application_reads_everything_from_the_horizon(world):
    world.put(200)
    worker = world.start()
    took = await world.until(world.all_delivered)
    assert took < 3
    world.check_order()
    assert len(world.recorder.deliveries) == 200
    assert await worker.stop()
    assert [world.lease(s.shard_id).owner for s in world.shards()] == [None] * 4
    assert worker.host.living() == []


@in_fleet(2)
async def test_a_graceful_stop_tells_each_child_and_gives_the_leases_back(world):
    worker = world.start()
    await world.until(lambda: len(world.recorder.actions) == 2)
    world.recorder.checkpoint_every_batch = False
    world.put(20)
    await world.until(world.all_delivered)
    assert await worker.stop()
    for shard in (SHARD_0, SHARD_1):
        assert world.recorder.actions_of(shard) == ["initialize", "shutdownRequested", "leaseLost"]
        assert world.lease(shard).checkpoint.number is not None
        assert world.lease(shard).owner is None
    assert world.recorder.errors == []


@virtual
async def test_the_last_one_out_takes_down_only_what_nobody_may_use():
    for broken_rows in (0, 1):
        taken_down = []

        async def take_down(taken_down=taken_down):
            taken_down.append(True)

        async with fleet(1) as world:
            worker = world.start()
            await world.until(lambda world=world: len(world.recorder.actions) == 1)
            sources = worker.worker.sources
            one = sources._tracked[None]
            sources._tracked[None] = replace(one, opened=replace(one.opened, take_down=take_down))
            settings = worker.worker._settings
            fanout, reader = replace(settings.fanout, deregister=True), replace(settings.reader, by_fan_out=True)
            worker.worker._settings = replace(settings, fanout=fanout, reader=reader)
            if broken_rows:
                world.dynamo.put_row(TABLE, {"leaseKey": {"S": "broken"}, "leaseCounter": {"N": "1"}})
            assert await worker.stop()
        assert bool(taken_down) is not bool(broken_rows)


@in_fleet(1)
async def test_a_split_is_followed_children_after_the_parent_without_loss(world):
    world.put(50)
    world.start()
    await world.until(world.all_delivered)
    world.split(SHARD_0)
    world.put(50)
    await world.until(world.all_delivered, 10)
    assert world.lease(SHARD_0).checkpoint.is_shard_end
    assert world.lease(SHARD_0).children == {SHARD_1, SHARD_2}
    parent_end = world.recorder.actions.index((SHARD_0, "shardEnded"))
    child_start = world.recorder.actions.index((SHARD_1, "initialize"))
    assert parent_end < child_start
    world.check_order()


@in_fleet(2)
async def test_a_merge_waits_for_both_parents(world):
    world.put(40)
    world.start()
    await world.until(world.all_delivered)
    world.merge(SHARD_0, SHARD_1)
    world.put(40)
    await world.until(world.all_delivered, 20)
    ends = [world.recorder.actions.index((shard, "shardEnded")) for shard in (SHARD_0, SHARD_1)]
    assert world.recorder.actions.index((SHARD_2, "initialize")) > max(ends)


@in_fleet(1)
async def test_completed_leases_are_cleaned_up_once_their_children_have_moved_on(world):
    world.start()
    world.put(10)
    await world.until(world.all_delivered)
    world.split(SHARD_0)
    world.put(50)
    await world.until(world.all_delivered)
    await world.until(lambda: world.lease(SHARD_0) is None, 400)
    assert world.lease(SHARD_1).owner == "w1"


@in_fleet(1, cleanupLeasesUponShardCompletion="false")
async def test_completed_leases_stay_when_clean_up_is_off(world):
    world.start()
    world.put(10)
    await world.until(world.all_delivered)
    world.split(SHARD_0)
    world.put(50)
    await world.until(world.all_delivered)
    await world.advance(4000)
    assert world.lease(SHARD_0).checkpoint.is_shard_end


@in_fleet(1)
async def test_a_child_row_deleted_by_hand_comes_back_from_the_horizon(world):
    world.start()
    world.put(10)
    await world.until(world.all_delivered)
    world.split(SHARD_0)
    world.recorder.checkpoint_every_batch = False  # so that the parent's row stays, and with it the memory of the child
    await world.until(lambda: world.lease(SHARD_1) is not None, 30)
    world.dynamo.delete_row(TABLE, SHARD_1)
    world.put(50)
    await world.until(lambda: world.lease(SHARD_1) is not None, 400)
    await world.until(world.all_delivered, 60)
    assert str(world.lease(SHARD_1).checkpoint) == "TRIM_HORIZON"


@in_fleet(4)
async def test_another_worker_takes_released_leases_within_one_taker_period(world):
    first = world.start("w1")
    second = world.start("w2", seed=2)
    world.put(40)
    await world.until(world.all_delivered)
    await world.advance(60)
    assert await first.stop()
    took = await world.until(lambda: all(world.lease(s.shard_id).owner == "w2" for s in world.shards()), 30)
    assert took <= 20.05 + 1
    world.put(40)
    await world.until(world.all_delivered, 10)
    assert await second.stop()


@in_fleet(4)
async def test_a_crashed_workers_shards_move_within_the_bound_of_the_spec(world):
    first = world.start("w1")
    world.put(40)
    await world.until(world.all_delivered)
    second = world.start("w2", seed=2)
    await world.advance(30)
    await first.crash()
    world.put(40)
    took = await world.until(world.all_delivered, 60)
    assert took <= 41  # leases#taker-observation: 20 to 40 s
    assert await second.stop()


@in_fleet(2)
async def test_a_restarted_worker_with_the_same_id_resumes_at_once(world):
    first = world.start("w1")
    world.put(20)
    await world.until(world.all_delivered)
    await first.crash()
    world.put(20)
    world.start("w1", seed=2)
    assert await world.until(world.all_delivered) < 2


class DiesOnce(Recorder):
    """The first child of a shard dies in its second batch, after it got the records and before it checkpoints."""

    died = False

    async def process(self, child, records):
        if not self.died and len(self.deliveries) > 0:
            self.died = True
            raise ChildExit
        await super().process(child, records)


@in_fleet(2)
async def test_a_dying_child_costs_only_its_shard_a_restart(world):
    world.recorder = DiesOnce(world.clock)
    worker = world.start()
    for _ in range(5):
        world.put(10)
        await world.advance(3)
    await world.until(world.all_delivered)
    assert world.recorder.died
    assert len(worker.host.children) == 3
    assert not worker.task.done()
    world.check_order()


@virtual
async def test_a_child_that_dies_while_its_shard_is_quiet_is_replaced_at_once():
    """What it had accepted and not checkpointed must not wait for the next record, which may be hours away."""

    class DiesIdle(Recorder):
        died = False

        async def __call__(self, child):
            while not self.died:
                message = await child.receive()
                child.done(message)
                if message["action"] == "processRecords":
                    await self.clock.sleep(1.0)
                    self.died = True
                    return
            await super().__call__(child)

    async with fleet(1) as world:
        world.recorder = DiesIdle(world.clock)
        worker = world.start()
        world.put(10)
        await world.until(lambda: world.recorder.died)
        assert await world.until(world.all_delivered) < 10
        assert len(worker.host.children) == 2
        world.check_order()


@virtual
async def test_a_child_that_fails_on_and_on_stops_the_daemon_gracefully():
    async def broken(child):
        message = await child.receive()
        child.done(message)
        await child.receive()
        raise ChildExit

    async with fleet(1, mld__childFailurePolicy="restart") as world:
        world.put(1)
        worker = world.start(script=broken)
        assert await asyncio.wait_for(worker.task, 300)
        assert SHARD_0 in worker.worker.failure and "mld.childRestartsMax" in worker.worker.failure
        assert len(worker.host.children) == 6
        assert world.lease(SHARD_0).owner is None
        assert str(world.lease(SHARD_0).checkpoint) == "TRIM_HORIZON"


@virtual
async def test_javas_policy_ends_the_daemon_at_the_first_failure():
    async def broken(child):
        raise ChildExit

    async with fleet(1, mld__childFailurePolicy="exit") as world:
        worker = world.start(script=broken)
        await asyncio.wait_for(worker.task, 60)
        assert worker.worker.failure is not None
        assert len(worker.host.children) == 1


@virtual
async def test_a_child_that_never_answers_is_replaced_after_its_timeout():
    class HangsOnce(Recorder):
        hung = False

        async def process(self, child, records):
            if not self.hung:
                self.hung = True
                await asyncio.Event().wait()
            await super().process(child, records)

    async with fleet(1, timeoutInSeconds="30") as world:
        world.recorder = HangsOnce(world.clock)
        world.put(10)
        worker = world.start()
        took = await world.until(world.all_delivered)
        assert 30 < took < 60
        assert len(worker.host.children) == 2


@in_fleet(1, mld__childFailurePolicy="restart")
async def test_a_processor_that_forgets_the_checkpoint_at_shard_end_replays_and_then_fails_clearly(world):
    world.recorder.checkpoint_at_shard_end = False
    world.put(5)
    worker = world.start()
    await world.until(world.all_delivered)
    world.split(SHARD_0)
    await asyncio.wait_for(worker.task, 600)
    assert "the last failure: answered shardEnded without a successful checkpoint" in worker.worker.failure
    assert not world.lease(SHARD_0).checkpoint.is_shard_end


@in_fleet(2)
async def test_a_wrong_stream_name_beside_an_existing_table_fails_and_keeps_every_checkpoint(world):
    first = world.start()
    world.put(20)
    await world.until(world.all_delivered)
    await first.stop()
    before = [world.lease(shard).checkpoint for shard in (SHARD_0, SHARD_1)]
    wrong = world.start(streamName="klicks", seed=3)
    with pytest.raises(StartupError, match=r"klicks"):
        await asyncio.wait_for(asyncio.shield(wrong.task), 600)
    assert [world.lease(shard).checkpoint for shard in (SHARD_0, SHARD_1)] == before


@in_fleet(2)
async def test_each_attempt_to_start_without_a_stream_is_one_warning(world, caplog):
    wrong = world.start(streamName="klicks")
    with pytest.raises(StartupError, match=r"klicks.* regionName"):
        await asyncio.wait_for(asyncio.shield(wrong.task), 600)
    said = [record.action for record in caplog.records if record.levelno == logging.WARNING]
    assert said == ["initialization_failed"] * 20


@in_fleet(2)
async def test_a_recreated_stream_is_refused_with_the_remedy(world):
    first = world.start()
    world.put(20)
    await world.until(world.all_delivered)
    await first.stop()
    before = world.lease(SHARD_0).checkpoint
    world.kinesis.delete_stream(STREAM, now=world.clock.wall())
    await world.advance(100)
    world.kinesis.create_stream(STREAM, now=world.clock.wall(), shard_count=2)
    again = world.start(seed=3)
    with pytest.raises(StartupError, match="applicationName"):
        await asyncio.wait_for(asyncio.shield(again.task), 600)
    assert world.lease(SHARD_0).checkpoint == before
    unchecked = world.start(seed=4, skipShardSyncAtWorkerInitializationIfLeasesExist="true")
    await world.advance(30)
    assert not unchecked.task.done(), "only the comparison at the start would have refused it"


@in_fleet(2)
async def test_a_stream_deleted_meanwhile_parks_its_shards_and_keeps_the_checkpoints(world):
    worker = world.start()
    world.put(20)
    await world.until(world.all_delivered)
    before = [world.lease(shard).checkpoint for shard in (SHARD_0, SHARD_1)]
    world.kinesis.delete_stream(STREAM, now=world.clock.wall())
    await world.advance(600)
    assert [world.lease(shard).checkpoint for shard in (SHARD_0, SHARD_1)] == before
    assert "shardEnded" not in world.recorder.actions_of(SHARD_0)
    assert await worker.stop()


@in_fleet(4)
async def test_throttling_and_lost_replies_cost_nothing_but_time(world):
    world.put(100)
    trouble = iter([throttled(), lost_reply(), None, None] * 10_000)
    world.start()
    await world.until(world.all_delivered)
    world.dynamo.faults = lambda sender, operation, params: next(trouble)
    for _ in range(20):
        world.put(20)
        await world.advance(5)
    world.dynamo.faults = None
    await world.until(world.all_delivered)
    world.check_order()


@in_fleet(2)
async def test_kinesis_errors_are_waited_out(world):
    worker = world.start()
    world.put(10)
    await world.until(world.all_delivered)
    errors = iter([StreamThrottledError("slow"), StreamUnavailableError("500"), None] * 10_000)
    worker.streams.faults = lambda operation: next(errors)
    for _ in range(10):
        world.put(10)
        await world.advance(5)
    worker.streams.faults = lambda operation: None
    await world.until(world.all_delivered, 60)
    world.check_order()
    assert len(world.recorder.deliveries) == len(world.put_data)


@in_fleet(1)
async def test_an_executable_that_vanished_is_retried_like_a_failing_child(world):
    world.put(5)
    worker = world.start()
    await world.until(world.all_delivered)
    worker.host.refuse = True
    await worker.host.children[0].kill()
    await world.advance(3)
    worker.host.refuse = False
    world.put(5)
    await world.until(world.all_delivered, 30)


@in_fleet(1)
async def test_a_lost_lease_ends_its_child_with_lease_lost(world):
    world.put(5)
    worker = world.start()
    await world.until(world.all_delivered)
    row = world.dynamo.row(TABLE, SHARD_0)
    row["leaseOwner"], row["leaseCounter"] = {"S": "thief"}, {"N": "1000"}
    world.dynamo.put_row(TABLE, row)
    await world.until(lambda: not worker.host.living(), 10)
    assert world.recorder.actions_of(SHARD_0)[-1] == "leaseLost"


@in_fleet(1, initialPositionInStream="LATEST")
async def test_latest_reads_nothing_old_and_misses_nothing_new_over_a_child_restart(world):
    world.put(5, "old")
    world.put_data.clear()
    worker = world.start()
    await world.until(lambda: len(world.recorder.actions) == 1)
    await world.advance(20)
    await worker.host.children[0].kill()
    world.put(5, "new")
    await world.advance(0.5)
    world.put(5, "newer")
    await world.until(world.all_delivered, 30)
    assert not [data for data in world.recorder.data() if data.startswith(b"old")]


@virtual
async def test_a_stop_while_waiting_on_parents_is_immediate():
    class Slow(Recorder):
        async def act(self, child, message):
            if message["action"] == "shardEnded":
                await asyncio.sleep(3600)
            await super().act(child, message)

    async with fleet(1) as world:
        world.recorder = Slow(world.clock)
        world.put(5)
        worker = world.start(shutdownGraceMillis="2000")
        await world.until(world.all_delivered)
        world.split(SHARD_0)
        await world.until(lambda: world.lease(SHARD_1) is not None and world.lease(SHARD_1).owner == "w1", 60)
        started = world.clock.monotonic()
        assert not await worker.stop()  # the hanging child uses up the grace
        assert world.clock.monotonic() - started < 15
        assert world.lease(SHARD_1).owner is None


@virtual
async def test_a_grace_that_is_over_kills_the_children_and_releases_all_the_same():
    class Stubborn(Recorder):
        async def act(self, child, message):
            if message["action"] == "shutdownRequested":
                await asyncio.sleep(3600)
            await super().act(child, message)

    async with fleet(2, shutdownGraceMillis="3000") as world:
        world.recorder = Stubborn(world.clock)
        worker = world.start()
        await world.until(lambda: len(world.recorder.actions) == 2)
        assert not await worker.stop()
        assert worker.host.living() == []
        assert world.lease(SHARD_0).owner is None


@virtual
async def test_stale_garbage_and_wrong_answers_of_one_child_do_not_touch_the_other():
    class Noisy(Recorder):
        wrong = False

        async def act(self, child, message):
            child.say("")
            child.say("null")
            child.say("{not json")
            child.say('{"action":"status","responseFor":"')
            if message["action"] == "processRecords" and child.shard_id == SHARD_0 and not self.wrong:
                self.wrong = True
                child.send({"action": "status", "responseFor": "initialize"})
            await super().act(child, message)
            child.say("bye")

    async with fleet(2) as world:
        world.recorder = Noisy(world.clock)
        world.put(40)
        worker = world.start()
        await world.until(lambda: len(worker.host.children) == 3)
        await world.until(world.all_delivered)
        await world.advance(30)
        assert [c.shard_id for c in worker.host.children].count(SHARD_1) == 1


@in_fleet(8)
async def test_two_workers_share_the_shards_and_one_row_has_one_owner(world):
    world.start("w1", maxLeasesToStealAtOneTime="4")
    world.start("w2", seed=2, maxLeasesToStealAtOneTime="4")
    world.put(80)
    await world.until(world.all_delivered)
    await world.advance(120)
    owners = [world.lease(shard.shard_id).owner for shard in world.shards()]
    assert sorted(owners) == ["w1"] * 4 + ["w2"] * 4
    for _ in range(5):
        world.put(20)
        await world.advance(2)
    await world.until(world.all_delivered)
    world.check_order()


@in_fleet(8, maxLeasesForWorker="4")
async def test_a_worker_whose_rows_another_one_created_first_takes_of_them_at_once(world):
    world.start("w1")
    world.start("w2", seed=2)
    await world.advance(2)
    owners = {world.lease(shard.shard_id).owner for shard in world.shards()}
    assert owners >= {"w1", "w2"}  # not only after the first period of its taker


@pytest.mark.parametrize("mode", ["CLIENT_VERSION_CONFIG_3X", "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1"])
@pytest.mark.parametrize(
    ("operation", "fault"),
    [
        ("CreateTable", throttled()),
        ("DescribeTable", throttled()),
        ("Scan", Fault(delay_before_s=600.0)),
        ("GetItem", Fault(delay_before_s=600.0)),
        ("PutItem", throttled()),
        ("PutItem", Fault(delay_before_s=600.0)),
        ("ListShards", Fault(fail_before=StreamThrottledError("throttled"))),
    ],
)
@virtual
async def test_a_start_that_waits_for_aws_ends_when_a_stop_is_asked_for(
    operation: str, fault: Fault, mode: str
) -> None:
    async with fleet(2, clientVersionConfig=mode, failoverTimeMillis="3000") as world:
        world.dynamo.faults = lambda _, asked, __: fault if asked == operation else None
        running = world.start()
        running.streams.faults = lambda asked: fault.fail_before if asked == operation else None
        await world.advance(9)
        assert not running.worker.is_ready
        asked_at = world.clock.monotonic()
        assert await running.stop()
        assert world.clock.monotonic() - asked_at < 5
