"""Several children for one shard, in whole workers in virtual time."""

import asyncio
import base64
from typing import Any
from zlib import crc32

import pytest

from mld.consumer.parallel import all_or_none
from mld.core.positions import SHARD_END, Position
from mld.leases import writes
from mld.leases.dynamodb import DynamoLeaseTable
from mld.local.kinesis import PutEntry
from mld.metrics.activity import ShardActivity
from tests.support.fleet import STREAM, TABLE, in_fleet
from tests.twins.children import ChildExit, Recorder
from tests.twins.dynamo import throttled

SHARD_0 = "shardId-000000000000"
THREE = {"mld__childrenPerShard": "3"}
ROW_FOLLOWS_S = 2.0


def key_of(child: int, children: int = 3) -> str:
    """A partition key of this child."""
    return next(key for number in range(100) if crc32((key := f"k{number}").encode()) % children == child)


def put(world, child: int, data: bytes) -> Position:
    world.put_data.append(data)
    answer = world.kinesis.put_record(STREAM, PutEntry.of(data, key_of(child)), now=world.clock.wall())
    return Position(answer.sequence)


def held(worker, shard: str = SHARD_0):
    return [child for child in worker.host.living() if child.shard_id == shard]


def of_shard(worker) -> dict[int, int]:
    """Which of the shard's children each child is."""
    return {child.number: child.of_shard for child in worker.host.children}


class Stuck(Recorder):
    """The children whose numbers are in `stuck` begin a batch and do not end it; `mute` ones checkpoint only when they
    are told to end.
    """

    stuck: frozenset[int] = frozenset()
    mute: frozenset[int] = frozenset()
    dies: frozenset[int] = frozenset()

    async def process(self, child, records):
        if child.of_shard in self.dies:
            raise ChildExit
        while child.of_shard in self.stuck:
            await self.clock.sleep(0.1)
        self.checkpoint_every_batch = child.of_shard not in self.mute
        await super().process(child, records)


@in_fleet(1, **THREE)
async def test_each_record_goes_to_the_child_of_its_key_in_order(world):
    worker = world.start()
    for _ in range(20):
        world.put(10)
        await world.advance(0.5)
    await world.until(world.all_delivered)
    world.check_order()
    assert len(world.recorder.data()) == len(world.put_data)
    numbers = of_shard(worker)
    assert {numbers[one.child] for one in world.recorder.deliveries} == {0, 1, 2}
    assert all(numbers[one.child] == crc32(one.data) % 3 for one in world.recorder.deliveries)


@in_fleet(1, **THREE)
async def test_the_row_stops_before_the_first_record_that_is_open(world):
    world.recorder = Stuck(world.clock)
    world.recorder.stuck = frozenset({1})
    worker = world.start()
    first = put(world, 0, b"a")
    put(world, 1, b"b")
    last = put(world, 2, b"c")
    await world.until(lambda: len(world.recorder.data()) == 2)
    await world.advance(ROW_FOLLOWS_S)
    assert world.lease(SHARD_0).checkpoint == first
    world.recorder.stuck = frozenset()
    await world.until(lambda: world.lease(SHARD_0).checkpoint == last, ROW_FOLLOWS_S + 1)
    assert worker.metrics.shards[SHARD_0].lag_ms(world.clock.wall()) == 0


@in_fleet(1, **THREE)
async def test_a_stuck_child_holds_up_no_other_and_is_shown(world):
    world.recorder = Stuck(world.clock)
    world.recorder.stuck = frozenset({1})
    worker = world.start()
    put(world, 1, b"stuck")
    for number in range(30):
        put(world, number % 2 * 2, b"%d" % number)
        await world.advance(1.0)
    await world.until(lambda: len(world.recorder.data()) == 30)
    part = worker.metrics.shards[SHARD_0]
    await world.advance(40.0)
    assert part.activity_at(world.clock.wall()) is ShardActivity.STALLED
    assert part.lag_ms(world.clock.wall()) >= 60_000
    stuck = part.children.children[1]
    assert (stuck.in_hand, stuck.waiting) == (1, 0)
    assert world.clock.monotonic() - stuck.busy_since > 60


@in_fleet(1, **THREE, mld__prefetchBytesMax="40000")
async def test_the_reader_waits_when_the_share_of_memory_is_used_up(world):
    world.recorder = Stuck(world.clock)
    world.recorder.stuck = frozenset({1})
    worker = world.start()
    await world.until(lambda: len(held(worker)) == 3)
    for number in range(60):
        put(world, 1, b"%d" % number * 1000)
        await world.advance(0.5)
    put(world, 0, b"behind")
    await world.advance(60)
    assert world.recorder.data() == []  # it is not even read
    assert worker.metrics.shards[SHARD_0].children.children[1].waiting < 30
    world.recorder.stuck = frozenset()
    await world.until(world.all_delivered)
    world.check_order()


@in_fleet(1, **THREE)
async def test_a_checkpoint_of_one_child_says_nothing_about_another(world):
    """The child that was given most checkpoints it, the mute one nothing: after a crash all of its records come."""
    world.recorder = Stuck(world.clock)
    world.recorder.mute = frozenset({0})
    worker = world.start()
    put(world, 0, b"first")
    for number in range(5):
        put(world, 1, b"%d" % number)
    await world.until(world.all_delivered)
    await world.advance(ROW_FOLLOWS_S)
    await worker.crash()
    again = world.start("w2")
    await world.until(lambda: world.recorder.data().count(b"first") == 2)
    await again.stop()


@in_fleet(1, **THREE)
async def test_at_a_stop_all_children_checkpoint_and_the_row_has_everything(world):
    world.recorder = Stuck(world.clock)
    world.recorder.mute = frozenset({0, 1, 2})
    worker = world.start()
    places = [put(world, number % 3, b"%d" % number) for number in range(9)]
    await world.until(world.all_delivered)
    await world.advance(ROW_FOLLOWS_S)
    assert world.lease(SHARD_0).checkpoint < places[0]
    assert await worker.stop()
    assert world.lease(SHARD_0).checkpoint == places[-1]
    assert world.recorder.actions_of(SHARD_0)[-6:] == ["shutdownRequested"] * 3 + ["leaseLost"] * 3


@in_fleet(1, **THREE)
async def test_at_a_stop_each_child_is_told_as_soon_as_it_has_answered(world):
    """The two that have nothing in hand checkpoint at once, and do not wait for the slow one."""
    world.recorder = Stuck(world.clock)
    world.recorder.stuck = frozenset({1})
    worker = world.start()
    put(world, 0, b"a")
    put(world, 1, b"b")
    await world.until(lambda: len(world.recorder.data()) == 1)
    stop = asyncio.create_task(worker.stop())
    await world.advance(2)
    assert world.recorder.actions_of(SHARD_0)[-2:] == ["shutdownRequested"] * 2
    world.recorder.stuck = frozenset()
    assert await stop
    assert world.recorder.actions_of(SHARD_0)[-4:] == ["shutdownRequested"] + ["leaseLost"] * 3


class Starting:
    """A child that starts when told, and then runs until it is killed."""

    def __init__(self) -> None:
        self.may_start = asyncio.Event()
        self.state = "starting"

    async def start(self) -> Any:
        await self.may_start.wait()
        self.state = "running"
        return self

    async def kill(self) -> str:
        self.state = "killed"
        return self.state


async def test_children_that_have_started_are_killed_if_the_start_of_all_is_given_up():
    fast, slow = Starting(), Starting()
    fast.may_start.set()
    starting = asyncio.create_task(all_or_none([fast.start(), slow.start()]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert fast.state == "running"
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert (fast.state, slow.state) == ("killed", "starting")


@in_fleet(1, **THREE, timeoutInSeconds="5")
async def test_a_child_that_does_not_answer_its_last_batch_ends_with_its_siblings_at_a_stop(world, caplog):
    world.recorder = Stuck(world.clock)
    world.recorder.stuck = frozenset({1})
    worker = world.start()
    first = put(world, 0, b"a")
    put(world, 1, b"b")
    await world.until(lambda: len(world.recorder.data()) == 1)
    assert await worker.stop()
    assert held(worker) == []
    assert (world.lease(SHARD_0).checkpoint, world.lease(SHARD_0).owner) == (first, None)
    assert "ended unexpectedly" not in caplog.text


@in_fleet(1, **THREE)
async def test_a_lease_that_is_handed_over_takes_the_checkpoints_of_all_children_with_it(world):
    world.recorder = Stuck(world.clock)
    world.recorder.mute = frozenset({0, 1, 2})
    worker = world.start()
    places = [put(world, number % 3, b"%d" % number) for number in range(9)]
    await world.until(world.all_delivered)
    leader = DynamoLeaseTable(world.dynamo.client("leader"), world.clock, table_name=TABLE)
    await leader.apply(writes.begin_handoff(world.lease(SHARD_0), "w2"))
    await world.until(lambda: not worker.host.living(), 10)
    lease = world.lease(SHARD_0)
    assert (lease.owner, lease.checkpoint_owner, lease.checkpoint) == ("w2", None, places[-1])


@in_fleet(1, **THREE)
async def test_the_shard_ends_when_all_children_have_ended_it(world):
    world.recorder = Stuck(world.clock)
    world.recorder.stuck = frozenset({2})
    worker = world.start()
    put(world, 2, b"slow")
    put(world, 0, b"fast")
    await world.until(lambda: len(held(worker)) == 3)
    world.split(SHARD_0)
    await world.advance(30)
    assert "shardEnded" not in world.recorder.actions_of(SHARD_0)
    world.recorder.stuck = frozenset()
    await world.until(lambda: world.lease(SHARD_0).checkpoint == SHARD_END)
    assert world.recorder.actions_of(SHARD_0)[-3:] == ["shardEnded"] * 3
    await world.until(lambda: len(held(worker, "shardId-000000000001")) == 3)


@in_fleet(1, **THREE)
async def test_one_child_that_forgets_to_checkpoint_the_end_keeps_the_shard(world, caplog):
    class Forgets(Recorder):
        forgets = True

        async def act(self, child, message):
            if not (message["action"] == "shardEnded" and child.of_shard == 1 and self.forgets):
                await super().act(child, message)

    world.recorder = Forgets(world.clock)
    world.put(3)
    worker = world.start()
    await world.until(world.all_delivered)
    world.split(SHARD_0)
    await world.until(lambda: "without a successful checkpoint" in caplog.text)
    assert world.lease(SHARD_0).checkpoint != SHARD_END
    Forgets.forgets = False
    await world.until(lambda: world.lease(SHARD_0).checkpoint == SHARD_END)
    assert len(worker.host.children) >= 6


@in_fleet(1, **THREE)
async def test_a_child_that_dies_takes_its_siblings_back_to_the_safe_prefix(world):
    world.recorder = Stuck(world.clock)
    world.recorder.mute = frozenset({0})
    world.recorder.dies = frozenset({1})
    worker = world.start()
    put(world, 0, b"mute")
    put(world, 2, b"done")
    await world.until(lambda: len(world.recorder.data()) == 2)
    put(world, 1, b"deadly")
    await world.until(lambda: len(worker.host.children) >= 6)
    world.recorder.dies = frozenset()
    await world.until(world.all_delivered)
    await world.until(lambda: world.recorder.data().count(b"mute") >= 2)
    world.check_order()
    assert all(child.ended for child in worker.host.children[:-3])
    assert "child 1 of 3: exited" in str(worker.metrics.shards[SHARD_0].last_error)


@in_fleet(1, **THREE)
async def test_an_idle_child_that_is_killed_starts_all_of_them_again(world):
    worker = world.start()
    world.put(6)
    await world.until(world.all_delivered)
    await held(worker)[1].kill()
    await world.until(lambda: len(worker.host.children) == 6)
    world.put(6)
    await world.until(world.all_delivered)


@in_fleet(1, **THREE)
async def test_children_that_cannot_all_be_started_are_none(world):
    worker = world.start()
    worker.host.refuse = True
    await world.advance(5)
    worker.host.refuse = False
    world.put(6)
    await world.until(world.all_delivered)
    assert len(held(worker)) == 3


@in_fleet(1, **THREE, mld__poisonAttempts="3", mld__deadLetter="letters")
async def test_a_record_that_kills_its_child_is_found_among_those_of_all_children(world):
    class Dies(Recorder):
        async def process(self, child, records):
            if any(base64.b64decode(record["data"]) == b"poison" for record in records):
                raise ChildExit
            await super().process(child, records)

    world.recorder = Dies(world.clock)
    world.start()
    world.put(30)
    put(world, 1, b"poison")
    world.put_data.pop()
    world.put(30)
    await world.until(lambda: len(world.letters.letters) == 1 and world.all_delivered(), 3600)
    assert b"poison" not in world.recorder.data()


@in_fleet(1, **THREE)
async def test_writes_that_fail_are_tried_until_the_row_has_the_prefix(world):
    world.start()
    await world.advance(5)
    failing = iter([throttled()] * 20)

    def fault(_sender, operation, params):
        is_checkpoint = operation == "UpdateItem" and ":checkpoint" in str(params)
        return next(failing, None) if is_checkpoint else None

    world.dynamo.faults = fault
    last = [put(world, number % 3, b"%d" % number) for number in range(6)][-1]
    await world.until(lambda: world.lease(SHARD_0).checkpoint == last, 120)


@in_fleet(1, **THREE)
async def test_many_checkpoints_cost_few_writes(world):
    """Each child checkpoints each of its batches; the row follows once a second."""
    worker = world.start()
    began = world.clock.monotonic()
    for _ in range(60):
        world.put(9)
        await world.advance(0.25)
    await world.until(world.all_delivered)
    stored = worker.metrics.shards[SHARD_0].checkpoints_by["stored"]
    assert 0 < stored <= world.clock.monotonic() - began + 2


@in_fleet(1, **THREE)
async def test_the_busiest_child_is_counted(world):
    worker = world.start()
    for number in range(20):
        put(world, 0 if number % 2 else number // 2 % 3, b"%d" % number)
    await world.until(world.all_delivered)
    assert worker.metrics.shards[SHARD_0].children.busiest_share == pytest.approx(0.7, abs=0.1)


@in_fleet(1, **THREE)
async def test_a_careless_number_of_one_child_is_refused(world):
    """It names what only its sibling was given, and more."""
    errors = []

    class Careless(Recorder):
        async def process(self, child, records):
            errors.append(await child.checkpoint("9" * 56))
            await super().process(child, records)

    world.recorder = Careless(world.clock)
    world.start()
    last = [put(world, number % 3, b"%d" % number) for number in range(3)][-1]
    await world.until(world.all_delivered)
    await world.until(lambda: world.lease(SHARD_0).checkpoint == last)
    assert set(errors) == {"IllegalArgumentException"}


@in_fleet(1, **THREE)
async def test_the_log_names_a_slow_and_a_failed_child_by_its_number(world, caplog):
    world.recorder = Stuck(world.clock)
    world.recorder.stuck = frozenset({1})
    world.start()
    put(world, 1, b"slow")
    await world.advance(70.0)
    (slow,) = (one for one in caplog.records if getattr(one, "action", "") == "slow_task")
    assert slow.child_number == 1
    assert slow.getMessage().startswith("child 1 takes longer than 60 s over processRecords")
    world.recorder.stuck, world.recorder.dies = frozenset(), frozenset({2})
    put(world, 2, b"fatal")
    await world.advance(3.0)
    failed = next(one for one in caplog.records if getattr(one, "action", "") == "child_failed")
    assert "child 2 of 3: " in failed.getMessage()


@in_fleet(1, **THREE, callProcessRecordsEvenForEmptyRecordList="true")
async def test_a_child_without_records_gets_an_empty_batch_and_may_checkpoint(world):
    """It looks at the clock when records come; its keys have none any more, and those of the others do."""

    class Hourly(Recorder):
        async def process(self, child, records):
            self.checkpoint_every_batch = False
            await super().process(child, records)
            if child.of_shard != 0 or not records:
                await self.note_error(child, await child.checkpoint())

    world.recorder = Hourly(world.clock)
    world.start()
    put(world, 0, b"last of its keys")
    await world.until(world.all_delivered)
    last = put(world, 1, b"of another key")
    await world.until(world.all_delivered)
    await world.until(lambda: world.lease(SHARD_0).checkpoint == last, 5)
