"""Unexpected exceptions cost one item or one round; broken invariants end the daemon (`mld.core.error_boundary`)."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from mld.core.clock import LoopClock
from mld.core.error_boundary import contained, counts, kept_running, survived
from mld.core.errors import StartupError, StreamError, TableError, TableThrottledError, UnexpectedError
from mld.leases.validity import may_be_applied
from tests.virtual_time import run_virtual, virtual


def test_an_error_of_ours_is_what_it_is(caplog: pytest.LogCaptureFixture) -> None:
    error = TableThrottledError("throttled")
    assert survived(error, "testing") is error
    assert not caplog.records


def test_anything_else_means_unknown_to_whoever_asked_the_table_or_the_stream() -> None:
    failure = survived(MemoryError(), "testing")
    assert isinstance(failure, UnexpectedError)
    assert isinstance(failure, TableError)
    assert isinstance(failure, StreamError)
    assert may_be_applied(failure), "a write may have been applied"


def test_what_is_survived_is_counted_and_logged_with_its_trace_at_first_and_whenever_the_count_has_doubled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(9):
        survived(KeyError("row"), "counting", "shard-0")
    assert counts()["counting", "KeyError"] == 9
    assert [record.exc_info is not None for record in caplog.records] == [
        number in (1, 2, 4, 8) for number in range(1, 10)
    ]
    assert all(vars(record)["shard"] == "shard-0" for record in caplog.records)


@pytest.mark.parametrize(
    "error",
    [AssertionError("ours"), ExceptionGroup("", [ValueError(), ExceptionGroup("", [AssertionError()])])],
    ids=["bare", "in a group"],
)
def test_a_broken_invariant_is_not_survived(error: Exception) -> None:
    with pytest.raises(type(error)):
        survived(error, "testing")


@virtual
async def test_a_call_raises_nothing_but_errors_of_ours() -> None:
    async def fail(error: Exception) -> None:
        raise error

    with pytest.raises(UnexpectedError) as unknown:
        await contained(fail(OSError(9, "Bad file descriptor")), "testing")
    assert isinstance(unknown.value.__cause__, OSError)
    with pytest.raises(TableThrottledError):
        await contained(fail(TableThrottledError("")), "testing")
    with pytest.raises(AssertionError):
        await contained(fail(AssertionError()), "testing")


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), TableThrottledError("throttled")])
@virtual
async def test_a_loop_that_ends_by_an_exception_begins_anew(error: Exception) -> None:
    begun = 0

    async def loop() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            raise error

    await kept_running(loop, "testing", LoopClock())
    assert begun == 3


@pytest.mark.parametrize("error", [AssertionError("ours"), StartupError("no use")])
@virtual
async def test_a_loop_ends_by_a_broken_invariant_and_by_a_startup_error(error: Exception) -> None:
    async def loop() -> None:
        raise error

    with pytest.raises(type(error)):
        await kept_running(loop, "testing", LoopClock())


@virtual
async def test_a_loop_that_fails_while_it_is_cancelled_does_not_begin_anew() -> None:
    async def loop() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError

    task = asyncio.create_task(kept_running(loop, "testing", LoopClock()))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(ValueError):
        await task


def test_a_loop_that_is_thrown_away_with_the_event_loop_does_not_begin_anew(caplog: pytest.LogCaptureFixture) -> None:
    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except GeneratorExit:
            await asyncio.sleep(1)

    async def main() -> Generator[object, None, None]:
        driven = kept_running(stubborn, "testing", LoopClock()).__await__()
        next(driven)
        return driven

    left = run_virtual(main())
    with pytest.raises(RuntimeError):
        left.close()
    assert "unexpected" not in caplog.text
