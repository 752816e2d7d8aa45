"""`mld.core.error_boundary`: which tasks run, when they end, and who hears of one that failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from mld.core.clock import LoopClock
from mld.core.error_boundary import RESTART_PAUSE_S
from mld.core.tasks import Task, TaskList, Until
from tests.virtual_time import virtual

UNTIL = {"b": Until.RELEASED}


def task(name: str, run: Callable[[], Awaitable[None]], until: Until | None = None) -> Task[Sequence[str]]:
    return Task(name, run, lambda state: name in state, until or Until.LEAVING)


class Bed:
    """Tasks a, b and c, which note when they begin and end; `slow` ones take a second to end. The state names them."""

    def __init__(self, slow: str = "") -> None:
        self.slow = slow
        self.events: list[str] = []
        self.failures: list[BaseException | None] = []
        self.end: dict[str, BaseException | None] = {}
        self.tasks = TaskList([task(name, self._factory(name), UNTIL.get(name)) for name in "abc"], LoopClock())

    async def allow(self) -> None:
        await self.tasks.allow(self.failures.append)

    def _factory(self, name: str):  # type: ignore[no-untyped-def]
        async def run() -> None:
            self.events.append(f"+{name}")
            try:
                while name not in self.end:
                    await asyncio.sleep(0.1)
                error = self.end[name]
                if error is not None:
                    raise error
            except asyncio.CancelledError:
                if name in self.slow:
                    await asyncio.sleep(1)
                raise
            finally:
                self.events.append(f"-{name}")

        return run

    async def settle(self) -> list[str]:
        """What has happened since the last call, after a moment."""
        await asyncio.sleep(0.01)
        events, self.events = self.events, []
        return events


@virtual
async def test_nothing_runs_before_it_is_allowed() -> None:
    bed = Bed()
    await bed.tasks.enter(["a", "b"])
    assert await bed.settle() == []
    await bed.tasks.enter(["b", "c"])
    await bed.allow()
    assert await bed.settle() == ["+b", "+c"]
    assert bed.tasks.running() == {"b", "c"}
    await bed.tasks.end(Until.CLOSED)


@virtual
async def test_only_what_changes_is_started_and_ended() -> None:
    bed = Bed()
    await bed.allow()
    await bed.tasks.enter(["a", "b"])
    assert await bed.settle() == ["+a", "+b"]
    await bed.tasks.enter(["b", "c"])
    assert sorted(await bed.settle()) == ["+c", "-a"]
    await bed.tasks.enter(["b", "c"])
    await bed.allow()
    assert await bed.settle() == []
    await bed.tasks.end(Until.CLOSED)
    assert sorted(await bed.settle()) == ["-b", "-c"]
    assert bed.tasks.running() == frozenset()


@virtual
async def test_a_mode_change_returns_when_the_old_tasks_have_ended() -> None:
    bed = Bed(slow="a")
    await bed.allow()
    await bed.tasks.enter(["a"])
    await bed.settle()
    before = asyncio.get_running_loop().time()
    await bed.tasks.enter(["b"])
    assert asyncio.get_running_loop().time() - before == pytest.approx(1.0, abs=0.05)
    assert "-a" in bed.events
    await bed.tasks.end(Until.CLOSED)


@virtual
async def test_what_has_ended_at_a_stop_stays_so_and_the_rest_runs_on() -> None:
    bed = Bed()
    await bed.tasks.enter(["a", "b"])
    await bed.tasks.end(Until.LEAVING)
    await bed.allow()
    assert await bed.settle() == ["+b"]
    await bed.tasks.end(Until.RELEASED)
    await bed.allow()
    assert await bed.settle() == ["-b"]


@virtual
async def test_an_ended_loop_may_be_wanted_again() -> None:
    bed = Bed()
    await bed.allow()
    for _ in range(3):
        await bed.tasks.enter(["a"])
        assert await bed.settle() == ["+a"]
        await bed.tasks.enter([])
        assert await bed.settle() == ["-a"]
    assert bed.failures == []


@pytest.mark.parametrize("error", [None, AssertionError("broken")], ids=["returned", "raised"])
@virtual
async def test_a_task_that_ends_by_itself_is_told(error: AssertionError | None) -> None:
    bed = Bed()
    await bed.allow()
    await bed.tasks.enter(["a", "b"])
    bed.end["a"] = error
    await asyncio.sleep(1)
    assert bed.failures == [error]
    assert bed.tasks.running() >= {"b"}
    await bed.tasks.end(Until.CLOSED)
    assert bed.failures == [error], "an ordinary end is no failure"


@virtual
async def test_a_task_begins_anew_after_an_unexpected_exception() -> None:
    bed = Bed()
    await bed.allow()
    await bed.tasks.enter(["a"])
    bed.end["a"] = ValueError("broken")
    await asyncio.sleep(1)
    del bed.end["a"]
    await asyncio.sleep(RESTART_PAUSE_S)
    assert bed.events == ["+a", "-a", "+a"]
    assert bed.failures == []
    await bed.tasks.end(Until.CLOSED)


@virtual
async def test_a_task_that_fails_while_it_is_being_ended_is_not_told() -> None:
    failures: list[BaseException | None] = []

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("on the way out")

    tasks = TaskList([task("a", stubborn)], LoopClock())
    await tasks.allow(failures.append)
    await tasks.enter(["a"])
    await asyncio.sleep(0)
    await tasks.end(Until.CLOSED)
    assert failures == []


@virtual
async def test_a_task_may_end_itself_by_changing_the_mode() -> None:
    ended: list[str] = []

    async def switching() -> None:
        try:
            await asyncio.sleep(1)
            await tasks.enter(["b"])
            ended.append("not waited for itself")
            await asyncio.sleep(1)
            ended.append("not cancelled")
        finally:
            ended.append("end")

    async def other() -> None:
        await asyncio.Event().wait()

    tasks = TaskList([task("a", switching), task("b", other)], LoopClock())
    await tasks.allow(lambda _: None)
    await tasks.enter(["a"])
    await asyncio.sleep(5)
    assert ended == ["not waited for itself", "end"]
    assert tasks.running() == {"b"}
    await tasks.end(Until.CLOSED)
