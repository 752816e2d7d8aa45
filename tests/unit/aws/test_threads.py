"""The threads of the wire client: as many as are needed, and not at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mld.aws.threads import THREADS_AT_ONCE, GivenUpError, Job, Workers
from tests.support.patience import PATIENCE_S

AT_ONCE = THREADS_AT_ONCE
SOON_S = 0.001
SLOW_S = 1.0
NEVER_S = 3600.0


@contextmanager
def workers(*, threads_max: int, wait_max_s: float) -> Iterator[Workers]:
    made = Workers(threads_max=threads_max, name="test", wait_max_s=wait_max_s)
    try:
        yield made
    finally:
        made.close()


class Held:
    """Jobs that begin, and end when let go."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._go = threading.Event()
        self._begun: asyncio.Queue[None] = asyncio.Queue()

    def job(self) -> Job:
        return Job(self._run)

    def _run(self, _: Job) -> None:
        self._loop.call_soon_threadsafe(self._begun.put_nowait, None)
        self._go.wait(PATIENCE_S)

    async def begun(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(count):
                await self._begun.get()

    def let_go(self) -> None:
        self._go.set()


async def test_jobs_one_after_the_other_need_one_thread() -> None:
    with workers(threads_max=20, wait_max_s=SOON_S) as few:
        for number in range(10):
            job = Job(lambda _, number=number: number)  # type: ignore[misc]
            few.submit(job)
            assert await job.outcome == number
        assert few.threads == 1


async def test_a_burst_that_does_not_wait_long_needs_few_threads() -> None:
    with workers(threads_max=20, wait_max_s=NEVER_S) as few:
        jobs = [Job(lambda _: threading.current_thread().name) for _ in range(200)]
        for job in jobs:
            few.submit(job)
        names = set(await asyncio.gather(*(job.outcome for job in jobs)))
        assert len(names) <= few.threads == AT_ONCE


async def test_jobs_that_wait_get_threads_up_to_the_limit() -> None:
    held = Held()
    with workers(threads_max=AT_ONCE + 7, wait_max_s=SOON_S) as many:
        jobs = [held.job() for _ in range(AT_ONCE + 10)]
        for job in jobs:
            many.submit(job)
        await held.begun(AT_ONCE + 7)
        assert many.threads == AT_ONCE + 7
        held.let_go()
        await asyncio.gather(*(job.outcome for job in jobs))
        assert many.threads == AT_ONCE + 7


async def test_no_more_threads_than_jobs_wait() -> None:
    held = Held()
    with workers(threads_max=30, wait_max_s=SLOW_S) as some:  # a thread takes a while to start on a busy machine
        jobs = [held.job() for _ in range(AT_ONCE + 1)]
        for job in jobs:
            some.submit(job)
        await held.begun(AT_ONCE + 1)
        assert some.threads == AT_ONCE + 1
        held.let_go()
        await asyncio.gather(*(job.outcome for job in jobs))


@pytest.mark.parametrize("threads_max", [1, 2])
async def test_the_limit_holds_for_the_first_few_too(threads_max: int) -> None:
    with workers(threads_max=threads_max, wait_max_s=SOON_S) as few:
        jobs = [Job(lambda _: None) for _ in range(20)]
        for job in jobs:
            few.submit(job)
        await asyncio.gather(*(job.outcome for job in jobs))
        assert few.threads <= threads_max


async def test_a_job_that_hangs_after_its_caller_has_left_keeps_no_other_from_a_thread() -> None:
    held = Held()
    with workers(threads_max=3, wait_max_s=SOON_S) as few:
        for _ in range(2):
            hung = few.submit(held.job())
            waiting = asyncio.ensure_future(hung.value())
            await held.begun(1)
            waiting.cancel()
            await asyncio.wait({waiting})
            async with asyncio.timeout(PATIENCE_S):
                assert await few.run(lambda: "done") == "done"
        assert few.threads == 3
        under_way = few.close()
        assert [future.done() for future in under_way] == [False] * 2, "they are waited for, and told of"
        held.let_go()
        await asyncio.gather(*under_way)


async def test_closing_ends_the_growth_and_gives_up_what_has_not_begun() -> None:
    held = Held()
    with workers(threads_max=30, wait_max_s=SOON_S) as closed:
        jobs = [held.job() for _ in range(AT_ONCE + 5)]
        for job in jobs[:AT_ONCE]:
            closed.submit(job)
        await held.begun(AT_ONCE)
        for job in jobs[AT_ONCE:]:
            closed.submit(job)
        grown = closed.threads - AT_ONCE  # on a slow machine the first jobs have waited for a thread, too
        closed.close()
        held.let_go()
        outcomes = await asyncio.gather(*(job.outcome for job in jobs), return_exceptions=True)
        assert closed.threads == AT_ONCE + grown
        assert [type(outcome) for outcome in outcomes[:AT_ONCE]] == [type(None)] * AT_ONCE
        assert [type(outcome) for outcome in outcomes[AT_ONCE + grown :]] == [GivenUpError] * (5 - grown)


@pytest.mark.parametrize("cancelled_first", [True, False])
async def test_a_value_for_one_who_is_cancelled_just_then_is_dropped(cancelled_first: bool) -> None:
    dropped: list[str] = []
    job = Job(lambda _: "connection", dropped.append)

    async def wait() -> None:
        try:
            await job.outcome
        except asyncio.CancelledError:
            job.give_up()
            raise

    if not cancelled_first:
        job.outcome.add_done_callback(lambda _: waiting.cancel())  # before the one who waits hears of it
    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    if cancelled_first:
        waiting.cancel()
        await asyncio.wait({waiting})
        assert job.given_up
        job.given_up = False  # the thread was past looking
    job.run()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.sleep(0)
    assert dropped == ["connection"]
