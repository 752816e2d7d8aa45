"""One virtual-time loop with many *processes* in it, each of which can be stopped, resumed and killed from outside.

A process is a name in a context variable: every task and timer made inside it carries it. The loop looks at the name
whenever a callback becomes ready. Of a stopped process (SIGSTOP) the callbacks are kept, in order, until it resumes:
its timers are then all overdue, and it still believes what it believed. Of a killed process (SIGKILL) they are thrown
away: no `finally` runs, no last write is sent. What others do on its behalf (a request under way, a child process)
belongs to the world, which has no name and never stops.

A run is hundreds of thousands of callbacks, so the loop has its own handles and its own turn. Both behave as asyncio's,
to the order of timers that are due at the same instant.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import logging
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar
from unittest.mock import patch

from tests.virtual_time import DeadlockError, VirtualTimeLoop

T = TypeVar("T")
log = logging.getLogger(__name__)

TURNS_MAX = 20_000
"""At one instant. A start of 8 workers on 32 shards takes some hundred."""

TIMER_WAIT_MAX_S = 24 * 3600.0  # asyncio's limit of one wait
CANCELLED_PART_MIN = 0.5  # asyncio's limits, from which cancelled timers are thrown away in one go
CANCELLED_FEW = 50
UNWINDING_TRIES_MAX = 20  # as many awaits as there may be in the `finally` blocks of one task

_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Process:
    """A simulated operating-system process: all callbacks made inside it."""

    __slots__ = ("__weakref__", "_tasks", "dead", "kept", "name", "stopped")

    def __init__(self, name: str) -> None:
        self.name = name
        self.stopped = False
        self.dead = False
        self.kept: deque[_Call] = deque()
        self._tasks: list[weakref.ref[asyncio.Task[Any]]] = []

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Those made in it that have not ended."""
        found = [task for made in self._tasks if (task := made()) is not None and not task.done()]
        self._tasks = [weakref.ref(task) for task in found]
        return found

    def add(self, task: asyncio.Task[Any]) -> None:
        self._tasks.append(weakref.ref(task))

    def spawn(self, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine inside this process."""
        context = contextvars.copy_context()
        context.run(_PROCESS.set, self)
        return asyncio.get_running_loop().create_task(main, context=context)

    def stop(self) -> None:
        self.stopped = True

    def resume(self) -> None:
        self.stopped = False
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulationLoop)
        kept, self.kept = self.kept, deque()
        loop.ready.extend(kept)

    def kill(self) -> None:
        self.dead = True
        self.kept.clear()


def current_process() -> Process | None:
    """The process that runs now; None: the world."""
    return _PROCESS.get()


class LivelockError(AssertionError):
    """The loop turns without time going on: somebody works without ever waiting."""


class _Call:
    """A slim `asyncio.Handle`."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context")

    def __init__(self, callback: Any, args: tuple[Any, ...], context: contextvars.Context) -> None:
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = None
        self._args = ()

    def cancelled(self) -> bool:
        return self._cancelled


class _Timer(_Call):
    """A slim `asyncio.TimerHandle`. Timers of the same time are equal: the heap alone decides, as asyncio's does."""

    __slots__ = ("_loop", "_scheduled", "_when")

    def __init__(
        self, when: float, callback: Any, args: tuple[Any, ...], context: contextvars.Context, loop: SimulationLoop
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False
        self._when = when
        self._loop = loop
        self._scheduled = True

    def __lt__(self, other: object) -> bool:
        return False

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        if not self._cancelled:
            if self._scheduled:
                self._loop.cancelled_timers += 1
            self._cancelled = True
            self._callback = None
            self._args = ()


class SimulationLoop(VirtualTimeLoop):
    """The loop of a world."""

    _closed: bool
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self.ready: deque[_Call] = deque()
        self.cancelled_timers = 0
        self._timers: list[tuple[float, _Timer]] = []
        self._now = 0.0
        self._turns = 0
        self.get_debug = bool  # type: ignore[method-assign]  # never
        self.create_future = partial(asyncio.Future, loop=self)  # type: ignore[method-assign]

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> _Call:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        if context is None:
            context = contextvars.copy_context()
        call = _Call(callback, args, context)
        process = context.get(_PROCESS)
        if process is None or not (process.stopped or process.dead):
            self.ready.append(call)
        elif not process.dead:
            process.kept.append(call)
        return call

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> _Timer:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> _Timer:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        timer = _Timer(when, callback, args, contextvars.copy_context() if context is None else context, self)
        heapq.heappush(self._timers, (when, timer))
        return timer

    def create_task(  # type: ignore[override]
        self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        process = _PROCESS.get() if context is None else context.get(_PROCESS)
        if process is not None:
            process.add(task)
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # a kill leaves them, wherever they are
        return task

    def _run_once(self) -> None:
        """All turns until the loop is told to stop."""
        with _known_without_asking(self):
            self._turn_until_stopped()

    def _turn_until_stopped(self) -> None:
        ready = self.ready
        while True:
            timers = self._timers
            if timers and (
                timers[0][1]._cancelled or self.cancelled_timers > CANCELLED_PART_MIN * len(timers) > CANCELLED_FEW
            ):
                self._forget_cancelled()
            if ready or self._stopping:
                self._turns += 1
                if self._turns > TURNS_MAX:
                    raise LivelockError(f"{TURNS_MAX} turns of the loop at the same instant")
            else:
                self._jump()
            due_before = self._now + self._clock_resolution
            timers = self._timers
            while timers and timers[0][0] < due_before:
                timer = heapq.heappop(timers)[1]
                timer._scheduled = False
                process = timer._context.get(_PROCESS)
                if process is None or not (process.stopped or process.dead):
                    ready.append(timer)
                elif not process.dead:
                    process.kept.append(timer)
            for _ in range(len(ready)):
                call = ready.popleft()
                if call._cancelled:
                    continue
                try:
                    call._context.run(call._callback, *call._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    message = f"Exception in callback {call._callback!r}"
                    self.call_exception_handler({"message": message, "exception": error, "handle": call})
            if self._stopping:
                return

    def _forget_cancelled(self) -> None:
        timers = self._timers
        if self.cancelled_timers > CANCELLED_PART_MIN * len(timers) > CANCELLED_FEW:
            kept = []
            for entry in timers:
                if entry[1]._cancelled:
                    entry[1]._scheduled = False
                else:
                    kept.append(entry)
            heapq.heapify(kept)
            self._timers = kept
            self.cancelled_timers = 0
            return
        while timers and timers[0][1]._cancelled:
            self.cancelled_timers -= 1
            heapq.heappop(timers)[1]._scheduled = False

    def _jump(self) -> None:
        """Move the time to the next timer."""
        if not self._timers:
            raise DeadlockError("no timer is set and nothing is ready")
        wait_s = self._timers[0][0] - self._now
        if wait_s > 0.0:
            self._turns = 0
            self._now += wait_s if wait_s < TIMER_WAIT_MAX_S else TIMER_WAIT_MAX_S
        else:
            self._turns += 1


@contextmanager
def _known_without_asking(loop: SimulationLoop) -> Iterator[None]:
    """asyncio asks the system for the process id before it names the running loop: the most expensive call of a run."""
    running = itertools.repeat(loop).__next__
    with (
        patch.object(asyncio, "get_running_loop", running),
        patch.object(asyncio.events, "get_running_loop", running),
        patch.object(asyncio.events, "_get_running_loop", running),
    ):
        yield


def in_world(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run work that goes on whatever happens to the process that asked for it."""
    context = contextvars.copy_context()
    if _PROCESS.get() is not None:
        context.run(_PROCESS.set, None)
    return asyncio.get_running_loop().create_task(work, context=context)


_WORLD = contextvars.Context()
"""Of no process: what runs in it never stops and is never killed."""


def later_in_world(delay_s: float, act: Callable[..., Any], *args: Any) -> None:
    """Call `act` in the world after `delay_s`: what a task that only sleeps would do, at a third of the price."""
    loop = asyncio.get_running_loop()
    if delay_s > 0.0:
        loop.call_later(delay_s, act, *args, context=_WORLD)
    else:
        loop.call_soon(act, *args, context=_WORLD)


def run_world(main: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine that is the world to its end, in virtual time.

    What is left then is dropped without a word: killed processes leave tasks behind that never end. They are unwound
    here and now, or the garbage collector would do it in the middle of something else.
    """
    loop = SimulationLoop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        loop.set_exception_handler(lambda _loop, _context: None)
        unwound: set[asyncio.Task[Any]] = set()
        with _known_without_asking(loop):
            while left := asyncio.all_tasks(loop) - unwound:  # again, because `finally` blocks make new tasks
                unwound |= left
                for task in left:
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    _unwind(task.get_coro())
        asyncio.set_event_loop(None)
        loop.close()


def _unwind(left: Any) -> None:
    """Close a coroutine that never ended, however much its `finally` blocks still want to do."""
    for _ in range(UNWINDING_TRIES_MAX):
        try:
            left.close()
            return
        except BaseException as error:
            log.debug("a coroutine that was left over: %r", error)
