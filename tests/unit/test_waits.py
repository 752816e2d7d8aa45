"""Bounds of waits that set no timer each."""

import asyncio

import pytest

from mld.core.waits import LazyTimer, TimeLimit
from tests.virtual_time import virtual


def watched():
    loop = asyncio.get_running_loop()
    due_at = []
    return LazyTimer(lambda: due_at.append(loop.time())), due_at, loop.time()


@virtual
async def test_a_wait_that_lasts_too_long_is_told_at_its_time():
    timer, due_at, since = watched()
    timer.begin(30)
    await asyncio.sleep(100)
    assert due_at == [since + 30]


@virtual
async def test_a_wait_that_ended_is_not_told_and_the_next_one_at_its_own_time():
    timer, due_at, since = watched()
    timer.begin(30)
    await asyncio.sleep(20)
    timer.end()
    timer.begin(30)
    await asyncio.sleep(100)
    assert due_at == [since + 50]


@virtual
async def test_a_wait_with_a_nearer_end_than_the_one_before_is_told_at_its_own_time():
    timer, due_at, since = watched()
    timer.begin(30)
    timer.end()
    timer.begin(5)
    await asyncio.sleep(100)
    assert due_at == [since + 5]


@virtual
async def test_waits_that_end_in_time_need_one_timer_of_the_loop():
    timer, due_at, _ = watched()
    loop = asyncio.get_running_loop()
    set_at = []
    call_at = loop.call_at
    loop.call_at = lambda when, *rest, **keys: set_at.append(when) or call_at(when, *rest, **keys)
    for _ in range(100):
        timer.begin(30)
        timer.end()
    assert len(set_at) == 1
    timer.close()
    await asyncio.sleep(100)
    assert due_at == []


@virtual
async def test_a_limit_ends_what_takes_too_long_and_serves_again():
    limit, loop = TimeLimit(), asyncio.get_running_loop()
    for seconds in (30, 5, 60):
        since = loop.time()
        with pytest.raises(TimeoutError), limit.of(seconds):
            await asyncio.sleep(100)
        assert (loop.time() - since, limit.is_over) == (seconds, True)
    with limit.of(5):
        await asyncio.sleep(4)
    assert not limit.is_over
    await asyncio.sleep(100)


@virtual
async def test_a_cancellation_by_another_passes_a_limit():
    limit = TimeLimit()

    async def limited():
        with limit.of(30):
            await asyncio.sleep(100)

    task = asyncio.ensure_future(limited())
    await asyncio.sleep(10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not limit.is_over


@virtual
async def test_a_cancellation_in_the_moment_in_which_the_time_is_over_is_not_lost():
    limit, loop = TimeLimit(), asyncio.get_running_loop()

    async def limited():
        with limit.of(30):
            await asyncio.sleep(100)

    task = asyncio.ensure_future(limited())
    await asyncio.sleep(0)
    loop.call_at(loop.time() + 30, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task


@virtual
async def test_what_fails_within_a_limit_fails_as_it_is():
    with pytest.raises(KeyError), TimeLimit().of(30):
        raise KeyError
