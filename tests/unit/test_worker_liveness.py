"""Whole workers in virtual time: what makes one count as hanging, and what must not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mld.core.errors import StreamUnavailableError
from mld.metrics.progress import PERIODS
from mld.metrics.registry import RENEWALS
from mld.retrieval.polling import CALL_TIMEOUT_S
from mld.retrieval.reader import PROMISE_EVERY_S
from tests.support.fleet import Fleet, Running, in_fleet
from tests.support.tiers import sliced
from tests.twins.children import Recorder
from tests.twins.dynamo import Fault, lost_request

V3X = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_3X"}
FAN_OUT = {**V3X, "retrievalMode": "FANOUT"}
EVERYWHERE = pytest.mark.parametrize(
    "keys",
    [
        pytest.param({}, id="2.x", marks=pytest.mark.full),
        pytest.param(V3X, id="3.x"),
        pytest.param(FAN_OUT, id="fan-out"),
    ],
)
SHARD_0 = "shardId-000000000000"
READER = f"reader of {SHARD_0}"
LOOK_EVERY_S = 1.0
AN_HOUR_S = 3600.0


def overdue(running: Running, world: Fleet) -> list[str]:
    return [late.name for late in running.metrics.progress.overdue(world.clock.monotonic())]


async def never_overdue(world: Fleet, running: Running, seconds: float) -> None:
    """Looked at all the time: an alarm that goes away again restarts a daemon all the same."""
    until = world.clock.monotonic() + seconds
    while world.clock.monotonic() < until:
        assert overdue(running, world) == [], f"at {world.clock.monotonic():.0f} s"
        await world.advance(LOOK_EVERY_S)


def nobody_answers(world: Fleet, running: Running, *, slow: bool) -> None:
    """Neither service: each request fails at once, or hangs until it is given up."""

    async def hang(*_: Any) -> Any:
        await asyncio.Event().wait()

    world.dynamo.faults = lambda *_: Fault(delay_before_s=AN_HOUR_S) if slow else lost_request()
    if slow:
        running.streams._ask = hang
        return
    running.streams.faults = lambda operation: StreamUnavailableError(operation)


@EVERYWHERE
@pytest.mark.parametrize("slow", [False, True], ids=["refused", "silent"])
@in_fleet(2)
async def test_an_aws_that_cannot_be_reached_is_no_reason_to_restart(
    world: Fleet, keys: dict[str, str], slow: bool
) -> None:
    world.keys |= keys
    running = world.start()
    world.put(10)
    await world.until(world.all_delivered)
    nobody_answers(world, running, slow=slow)
    await never_overdue(world, running, 900.0)
    assert not running.task.done()


class Hanging(Recorder):
    """Takes a batch and never answers."""

    async def process(self, child, records):
        await asyncio.Event().wait()


@EVERYWHERE
@in_fleet(1)
async def test_a_lag_that_grows_is_no_reason_to_restart(world: Fleet, keys: dict[str, str]) -> None:
    world.keys |= keys
    world.recorder = Hanging(world.clock)
    running = world.start()
    for _ in range(15):
        world.put(2_000)
        await never_overdue(world, running, 60.0)


@pytest.mark.parametrize("keys", sliced([{}, V3X], V3X), ids=["2.x", "3.x"])
@in_fleet(1)
async def test_a_worker_without_leases_lives(world: Fleet, keys: dict[str, str]) -> None:
    world.keys |= keys
    world.start("w1")
    await world.advance(5.0)
    idle = world.start("w2", seed=2)
    await never_overdue(world, idle, 900.0)
    assert not idle.metrics.shards


@in_fleet(1)
async def test_a_shard_that_is_missing_or_ended_promises_nothing(world: Fleet) -> None:
    running = world.start()
    world.put(5)
    await world.until(world.all_delivered)
    world.split(SHARD_0)
    await never_overdue(world, running, 300.0)
    await world.recreate_stream(2, gone_s=60.0)
    await never_overdue(world, running, 900.0)


@in_fleet(1)
async def test_a_reader_that_stands_still_is_overdue(world: Fleet) -> None:
    running = world.start()
    await world.until(lambda: READER in running.metrics.progress._promises)
    hung = asyncio.create_task(asyncio.Event().wait())
    reader = next(iter(running.worker._consumers.values())).consumer._reader
    assert reader is not None
    reader._fetch = lambda: asyncio.shield(hung)
    took = await world.until(lambda: overdue(running, world) == [READER], 200.0)
    assert took <= PERIODS * (CALL_TIMEOUT_S + PROMISE_EVERY_S + 2.0)
    hung.cancel()


@in_fleet(1, **FAN_OUT)
async def test_a_subscription_that_is_never_read_again_is_overdue(world: Fleet) -> None:
    running = world.start()
    await world.until(lambda: READER in running.metrics.progress._promises)
    reader = next(iter(running.worker._consumers.values())).consumer._reader
    assert reader is not None
    hung = asyncio.create_task(asyncio.Event().wait())
    reader._next = lambda: asyncio.shield(hung)
    await world.until(lambda: overdue(running, world) == [READER], 300.0)
    hung.cancel()


@in_fleet(1)
async def test_renewals_that_stand_still_are_overdue_after_three_periods(world: Fleet) -> None:
    running = world.start()
    await world.advance(20.0)
    hung = asyncio.create_task(asyncio.Event().wait())
    running.worker.parts.keeper._start_renewals = lambda _: asyncio.shield(hung)
    took = await world.until(lambda: RENEWALS in overdue(running, world), 30.0)
    assert took <= (PERIODS + 1) * 10.0 / 3 + 1
    hung.cancel()


@in_fleet(3, **V3X)
async def test_a_stopped_worker_promises_nothing_but_its_renewals(world: Fleet) -> None:
    running = world.start()
    await world.advance(20.0)
    assert await running.stop()
    assert set(running.metrics.progress._promises) <= {RENEWALS}


class NeverStops(Recorder):
    """Does not answer `shutdownRequested`."""

    async def act(self, child: Any, message: dict[str, Any]) -> None:
        if message["action"] == "shutdownRequested":
            await self.clock.sleep(1e9)
        await super().act(child, message)


@EVERYWHERE
@in_fleet(2)
async def test_a_long_stop_is_progress_until_the_grace_is_over(world: Fleet, keys: dict[str, str]) -> None:
    """The service manager ends a stop in which a loop hangs, and the children with it."""

    world.keys |= keys
    world.recorder = NeverStops(world.clock)
    running = world.start(shutdownGraceMillis="300000")
    world.put(20)
    await world.until(world.all_delivered)
    running.worker.request_stop()
    await never_overdue(world, running, 299)
    assert not running.task.done()
    await world.advance(30)
    assert running.task.done()
