"""Waits for events, and waits with time limits, that are cheap enough for code that waits hundreds of times a
second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


async def wait_for_event(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Wait until `event` is set or the time is over; return whether it is set."""
    if event.is_set():
        return True
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return event.is_set()
    return True


async def unless(event: asyncio.Event, work: Awaitable[T]) -> T | None:
    """Return the result of `work`, or None if `event` is set first; then `work` is cancelled."""
    working = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        waiting.cancel()
        if working.cancel():
            await asyncio.wait({working})
            _ = working.cancelled() or working.exception()  # nobody needs its result, so nobody else reads its error


class Interruption:
    """A `with` block whose wait can be ended by calling `end`: that cancels the task, and the block's exit undoes the
    cancellation, so that the task goes on after the block.

    A cancellation from elsewhere passes through.
    """

    __slots__ = ("_before", "_task", "is_over")

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None  # the task in the block; None outside of it
        self.is_over = False
        """Whether the block was interrupted."""

    def __enter__(self) -> Interruption:
        task = asyncio.current_task()
        assert task is not None, "only tasks are interrupted"
        self._task = task
        self._before = task.cancelling()  # cancellations from elsewhere that are not handled yet
        self.is_over = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        task, self._task = self._task, None
        assert task is not None
        # Swallow a cancellation if it was ours only. If another came, too, one is left after `uncancel`.
        return self.is_over and task.uncancel() <= self._before and kind is asyncio.CancelledError

    def end(self, _: object = None) -> None:
        """End the wait of the block. Call it from a callback of the loop, while the task waits. After the block it does
        nothing.
        """
        if self._task is not None and not self.is_over:
            self.is_over = True
            self._task.cancel()


def _nothing() -> None:
    """Do nothing: the callback of a closed timer."""


class LazyTimer:
    """Calls `on_due` when a wait takes too long. It serves one wait at a time, and is meant for waits that nearly all
    end in time.

    It does not set a timer of the event loop for each wait: when its timer fires, it checks the wait that is running by
    then, and sets the timer again if that wait has time left.
    """

    __slots__ = ("_due_s", "_on_due", "_timer")

    def __init__(self, on_due: Callable[[], None]) -> None:
        self._on_due = on_due
        self._due_s: float | None = None  # when the running wait takes too long; None if no wait runs
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, seconds: float) -> None:
        """Start a wait of at most `seconds`."""
        loop = asyncio.get_running_loop()
        self._due_s = loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._due_s:
            self._cancel()
        if self._timer is None:
            self._timer = loop.call_at(self._due_s, self._look)

    def end(self) -> None:
        """Note that the wait ended in time, so that `on_due` is not called."""
        self._due_s = None

    def close(self) -> None:
        """Close the timer for good, and drop `on_due`: the callback's owner usually holds this timer, which would leave
        a reference cycle.
        """
        self._cancel()
        self._on_due = _nothing

    def _cancel(self) -> None:
        """Cancel the timer of the event loop, if one is set."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _look(self) -> None:
        """Call `on_due` if the running wait takes too long; otherwise set the timer for the end of that wait."""
        timer, self._timer = self._timer, None
        if self._due_s is None or timer is None:
            return
        if timer.when() < self._due_s:
            self._timer = asyncio.get_running_loop().call_at(self._due_s, self._look)
            return
        self._due_s = None
        self._on_due()


class TimeLimit:
    """A reusable time limit: `with limit.of(seconds):` raises TimeoutError if the block takes longer; one block at a
    time.

    It is like `asyncio.timeout`, but cheap for hundreds of calls a second, because it does not set a timer each time.
    """

    __slots__ = ("_interruption", "_seconds", "_timer")

    def __init__(self) -> None:
        self._seconds = 0.0
        self._interruption = Interruption()
        self._timer = LazyTimer(self._interruption.end)

    def of(self, seconds: float) -> TimeLimit:
        """Set the limit of the next block, and return self."""
        self._seconds = seconds
        return self

    @property
    def is_over(self) -> bool:
        """Whether the running block, or else the last one, has exceeded its time."""
        return self._interruption.is_over

    def __enter__(self) -> TimeLimit:
        self._interruption.__enter__()
        self._timer.begin(self._seconds)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.end()
        if self._interruption.__exit__(kind, error, traceback):
            raise TimeoutError from error
