"""How many requests for leases are under way: more where the way is long, no more where the table is busy."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from mld.core.clock import LoopClock
from mld.leases.slots import ROOM_MAX, SILENT, Slots
from tests.twins.dynamo import Fault, MemoryDynamo
from tests.unit.leases.support import DURATION_S, Worker, new_dynamo, running
from tests.virtual_time import virtual

LEASES = 64
SIZE = 4
LATE_S = 1.0


def answer_late(dynamo: MemoryDynamo, took_s: float) -> list[float]:
    """From now on each write of a row takes so long; how long each took."""
    took: list[float] = []

    def late(sender: str, operation: str, params: object) -> Fault | None:
        if operation != "UpdateItem":
            return None
        took.append(took_s)
        return Fault(delay_before_s=took_s / 2, delay_after_s=took_s / 2)

    dynamo.faults = late
    return took


def answer_one_by_one(dynamo: MemoryDynamo, per_s: float) -> list[float]:
    """From now on so many writes of rows are made in a second, one after another; how long each took."""
    took: list[float] = []
    clock = LoopClock()
    free_at = 0.0

    def busy(sender: str, operation: str, params: object) -> Fault | None:
        nonlocal free_at
        if operation != "UpdateItem":
            return None
        free_at = max(free_at, clock.monotonic()) + 1 / per_s
        took.append(free_at - clock.monotonic())
        return Fault(delay_before_s=took[-1])

    dynamo.faults = busy
    return took


async def held_each_second(me: Worker, seconds: int) -> list[int]:
    counts = []
    for _ in range(seconds):
        await asyncio.sleep(1)
        counts.append(len(me.keeper.held()))
    return counts


@pytest.mark.parametrize(("took_s", "leases"), [(1.5, LEASES), (3.5, LEASES), (7.5, 20)])
@virtual
async def test_over_a_long_way_as_many_requests_are_under_way_as_all_leases_need(took_s: float, leases: int) -> None:
    dynamo = await new_dynamo()
    me = Worker(dynamo, "me", request_timeout_s=60.0)
    await me.hold(*map(str, range(leases)))
    async with running(me):
        await asyncio.sleep(DURATION_S)
        answer_late(dynamo, took_s)
        await asyncio.sleep(8 * DURATION_S)
        assert set(await held_each_second(me, 20)) == {leases}


@pytest.mark.parametrize(("per_s", "least"), [(25, LEASES), (8, 36)])
@virtual
async def test_a_busy_table_gets_no_more_requests_at_a_time_than_it_answers_soon(per_s: float, least: int) -> None:
    dynamo = await new_dynamo()
    me = Worker(dynamo, "me", request_timeout_s=60.0)
    await me.hold(*map(str, range(LEASES)))
    async with running(me):
        await asyncio.sleep(DURATION_S)
        took = answer_one_by_one(dynamo, per_s)
        await asyncio.sleep(8 * DURATION_S)
        del took[:]
        assert min(await held_each_second(me, 20)) >= least
        assert max(took) <= 2 * me.keeper.settings.renewals_concurrent_max / per_s
        answer_late(dynamo, 0.01)
        await asyncio.sleep(DURATION_S)
        assert set(await held_each_second(me, 10)) == {LEASES}


async def ask(slots: Slots, took_s: float) -> None:
    async with slots.one():
        await asyncio.sleep(took_s)


@contextlib.asynccontextmanager
async def asked_all_the_time(slots: Slots, by: int, took_s: Callable[[], float]) -> AsyncIterator[None]:
    async def keep_asking() -> None:
        while True:
            await ask(slots, took_s())

    asking = [asyncio.create_task(keep_asking()) for _ in range(by)]
    yield
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)


@virtual
async def test_requests_that_nobody_answers_give_their_slots_away_and_others_keep_theirs() -> None:
    slots = Slots(SIZE, LATE_S)
    silent = [asyncio.create_task(ask(slots, 1_000)) for _ in range(SIZE - 1)]
    answered = [asyncio.create_task(ask(slots, 1)) for _ in range(10)]
    await asyncio.sleep(10.5)
    assert all(task.done() for task in answered), "the last slot serves them one by one"
    more = [asyncio.create_task(ask(slots, 1_000)) for _ in range(SIZE)]
    await asyncio.sleep(0)
    assert slots.locked()
    await asyncio.sleep(SILENT * LATE_S)
    await asyncio.wait_for(ask(slots, 1), 1.5)
    for task in (*silent, *more):
        task.cancel()
    await asyncio.gather(*silent, *more, return_exceptions=True)


@virtual
async def test_room_is_doubled_while_answers_come_no_later_and_given_back_when_they_are_quick_again() -> None:
    slots, took_s, waiting = Slots(SIZE, LATE_S), 2.0, 10 * SIZE
    async with asked_all_the_time(slots, waiting, lambda: took_s):
        await asyncio.sleep(60)
        assert waiting <= slots.room <= 4 * waiting
        took_s = 0.01
        await asyncio.sleep(10)
        assert slots.room == SIZE


@virtual
async def test_room_has_a_bound() -> None:
    slots = Slots(SIZE, LATE_S)
    async with asked_all_the_time(slots, 3 * ROOM_MAX, lambda: 2.0):
        await asyncio.sleep(100)
        assert slots.room == ROOM_MAX


@virtual
async def test_a_request_that_is_cancelled_leaves_its_slot() -> None:
    slots = Slots(1, LATE_S)
    first = asyncio.create_task(ask(slots, 1_000))
    second = asyncio.create_task(ask(slots, 1_000))
    await asyncio.sleep(0)
    second.cancel()
    first.cancel()
    await asyncio.wait_for(ask(slots, 1), 2)
