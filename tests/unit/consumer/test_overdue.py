"""A child that takes long or hangs is named in the log, with what it holds, at doubling intervals."""

import logging
from itertools import pairwise

import pytest

from mld.consumer.overdue import REPEAT_MAX_S, next_warning_s
from tests.support.fleet import fleet, in_fleet, settings_of
from tests.twins.children import Recorder
from tests.twins.dynamo import Fault
from tests.virtual_time import virtual

SHARD_0 = "shardId-000000000000"


class Hanging(Recorder):
    """Does not answer one action; notes when it came."""

    def __init__(self, world, hang_on: str, *, hang_s: float = 1e9) -> None:
        super().__init__(world.clock)
        self.hang_on = hang_on
        self.hang_s = hang_s
        self.hangs_since = None
        self.sequences = []

    async def act(self, child, message):
        if message["action"] == self.hang_on:
            self.hangs_since = self.clock.monotonic()
            self.sequences = [record["sequenceNumber"] for record in message.get("records", ())]
            await self.clock.sleep(self.hang_s)
        await super().act(child, message)


def warnings(caplog):
    return [record for record in caplog.records if getattr(record, "action", "") == "slow_task"]


def durations(caplog) -> list[int]:
    return [round(record.running_s) for record in warnings(caplog)]


@pytest.fixture(autouse=True)
def _log(caplog):
    caplog.set_level(logging.WARNING)


@in_fleet()
async def test_a_child_that_hangs_is_named_after_a_minute_and_each_time_that_has_doubled(world, caplog):
    world.put(7)
    world.recorder = hanging = Hanging(world, "processRecords")
    world.start()
    await world.advance(1000)
    assert durations(caplog) == [60, 120, 240, 480, 960]
    first = warnings(caplog)[0]
    sequences = hanging.sequences
    assert (first.shard, first.request, first.records, first.first) == (SHARD_0, "processRecords", 7, sequences[0])
    assert first.last == f"{sequences[-1]}/0"
    assert round(first.silent_s) == 60
    text = first.getMessage()
    assert "processRecords" in text and "timeoutInSeconds" in text and sequences[0] in text


@pytest.mark.parametrize("request_name", ["initialize", "shutdownRequested", "leaseLost"])
@in_fleet(shutdownGraceMillis="600000")
async def test_every_request_is_watched(world, request_name, caplog):
    world.recorder = Hanging(world, request_name, hang_s=90)
    worker = world.start()
    await world.advance(200)
    assert await worker.stop()
    assert [(record.request, round(record.running_s)) for record in warnings(caplog)] == [(request_name, 60)]


@pytest.mark.parametrize(
    ("millis", "expected"), [(1000, [1, 2, 4, 8, 16]), (10_000, [10, 20]), (0, [0, 1, 2, 4, 8, 16])]
)
@virtual
async def test_a_configured_time_is_where_the_warnings_begin(millis, expected, caplog):
    async with fleet(logWarningForTaskAfterMillis=str(millis)) as world:
        world.recorder = Hanging(world, "processRecords")
        world.put(1)
        world.start()
        await world.until(lambda: world.recorder.hangs_since is not None)
        await world.advance(25)
        assert [round(w.running_s) for w in warnings(caplog) if w.request == "processRecords"] == expected


@in_fleet()
async def test_each_request_has_its_own_time(world, caplog):
    world.recorder.work_s = 130.0
    world.start()
    for _ in range(2):
        world.put(1)
        await world.advance(20)
    await world.advance(600)
    assert len(world.recorder.deliveries) == 2
    assert durations(caplog) == [60, 120, 60, 120]


@in_fleet()
async def test_children_that_answer_in_time_are_not_mentioned(world, caplog):
    world.recorder.work_s = 40.0
    world.start()
    for _ in range(20):
        world.put(1)
        await world.advance(35)
    assert len(world.recorder.deliveries) > 10
    assert warnings(caplog) == []


@in_fleet()
async def test_a_child_that_was_replaced_is_not_mentioned_any_more(world, caplog):
    world.put(1)
    world.recorder = hanging = Hanging(world, "processRecords", hang_s=1e9)
    world.start(timeoutInSeconds="70")
    await world.until(lambda: hanging.hangs_since is not None)
    hanging.hang_on = ""
    await world.advance(600)
    assert durations(caplog) == [60]
    assert "nothing ends it" not in warnings(caplog)[0].getMessage()
    assert world.all_delivered()


@in_fleet(logWarningForTaskAfterMillis="3000")
async def test_a_child_that_waits_for_the_lease_table_is_not_blamed(world, caplog):
    world.put(1)
    worker = world.start()
    await world.until(lambda: worker.host.living() != [])
    world.dynamo.faults = lambda sender, operation, params: (
        Fault(delay_before_s=8.0) if "checkpoint" in str(params.get("UpdateExpression")) else None
    )
    world.put(1)
    await world.advance(30)
    assert "lease table" in warnings(caplog)[0].getMessage()


@in_fleet()
async def test_a_line_that_was_not_understood_is_quoted(world, caplog):
    async def glued(child):
        child.done(await child.receive())
        await child.receive()
        child.say('written: 7{"action":"status","responseFor":"processRecords"}')
        child.say("at last")
        await child.receive()

    world.recorder = glued
    world.put(1)
    world.start()
    await world.advance(70)
    assert (
        """no message: 'written: 7{"action":"status","responseFor":"processRecords"}'"""
        in warnings(caplog)[0].getMessage()
    )


def test_the_intervals_double_up_to_an_hour():
    times = [60.0]
    while times[-1] < 5 * REPEAT_MAX_S:
        times.append(next_warning_s(times[-1]))
    gaps = [after - before for before, after in pairwise(times)]
    assert gaps[:5] == [60, 120, 240, 480, 960]
    assert max(gaps) == gaps[-1] == REPEAT_MAX_S


@in_fleet()
async def test_a_bound_that_changes_counts_for_the_request_under_way(world, caplog):
    world.recorder = hanging = Hanging(world, "processRecords")
    world.put(1)
    running = world.start()
    await world.until(lambda: hanging.hangs_since is not None)
    await world.advance(5)
    settings = settings_of(logWarningForTaskAfterMillis="20000")
    running.worker.adjust(settings.child)
    await world.advance(100)
    assert durations(caplog) == [20, 40, 80]


@in_fleet()
async def test_a_reply_time_that_changes_counts_from_the_next_request_on(world, caplog):
    world.recorder = hanging = Hanging(world, "processRecords")
    running = world.start()
    await world.until(lambda: running.host.living() != [])
    await world.advance(5)
    settings = settings_of(timeoutInSeconds="30")
    running.worker.adjust(settings.child)
    world.put(1)
    await world.until(lambda: hanging.hangs_since is not None)
    hanging.hang_on = ""
    await world.advance(40)
    assert world.all_delivered()
    assert [record.action for record in caplog.records if hasattr(record, "action")] == ["child_failed"]
