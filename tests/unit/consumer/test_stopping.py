"""Waits of a consumer that a stop, or the end of its child, ends: without a task of their own."""

import asyncio

import pytest

from mld.consumer.lifecycle import StopReason
from mld.consumer.stopping import Stopping
from mld.core.clock import LoopClock
from tests.virtual_time import virtual


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@virtual
async def test_a_wait_returns_its_value_and_needs_no_task():
    stopping, page = Stopping(LoopClock()), asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(stopping.unless(page))
    await turns()
    assert asyncio.all_tasks() == {asyncio.current_task(), waiting}
    page.set_result("page")
    assert await waiting == "page"


@virtual
@pytest.mark.parametrize("before", [False, True])
async def test_a_stop_ends_a_wait_and_leaves_the_task_uncancelled(before):
    stopping, page = Stopping(LoopClock()), asyncio.get_running_loop().create_future()
    if before:
        stopping.ask(StopReason.REQUESTED)
    waiting = asyncio.create_task(stopping.unless(page))
    await turns()
    if not before:
        stopping.ask(StopReason.REQUESTED)
    assert await waiting is None
    assert page.cancelled()
    assert waiting.cancelling() == 0


@virtual
async def test_the_end_of_the_child_ends_a_wait_but_no_later_one():
    stopping, gone = Stopping(LoopClock()), asyncio.get_running_loop().create_future()

    async def two_waits():
        first = await stopping.unless(asyncio.Event().wait(), gone)
        return first, await stopping.unless(asyncio.sleep(1, "later"))

    waiting = asyncio.create_task(two_waits())
    await turns()
    gone.set_result(None)
    assert await waiting == (None, "later")


@virtual
async def test_a_stop_in_the_turn_in_which_the_value_comes_ends_the_wait_and_nothing_after_it():
    stopping, page = Stopping(LoopClock()), asyncio.get_running_loop().create_future()

    async def wait_and_go_on():
        value = await stopping.unless(page)
        await asyncio.sleep(1)
        return value

    waiting = asyncio.create_task(wait_and_go_on())
    await turns()
    page.set_result("page")
    stopping.ask(StopReason.REQUESTED)
    assert await waiting is None


@virtual
async def test_a_cancellation_by_others_passes_even_beside_a_stop():
    stopping = Stopping(LoopClock())
    waiting = asyncio.create_task(stopping.unless(asyncio.Event().wait()))
    await turns()
    stopping.ask(StopReason.REQUESTED)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
