"""A few threads that work through one queue of jobs, and give each outcome back to the loop that asked.

As `mld.aws.pool`, but for calls by the thousand: a job costs one queue entry and one wake-up of the loop, and a caller
whose time is over interrupts the connection that its job waits for, so that no thread stays with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

from mld.aws.wire.connection import Connection


class Job:
    """One piece of work on its way to a thread and back. `outcome` is the future of the one who waits.

    A value for which nobody waits any more goes to `unwanted`.
    """

    __slots__ = ("_connection", "_lock", "_loop", "_unwanted", "_work", "given_up", "outcome")

    def __init__(self, work: Callable[[Job], Any], unwanted: Callable[[Any], None] | None = None) -> None:
        self._unwanted = unwanted
        self._loop = asyncio.get_running_loop()
        self._work = work
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self.given_up = False
        self.outcome: asyncio.Future[Any] = self._loop.create_future()

    def give_up(self) -> None:
        """Nobody waits any more: the job is not begun, or what it waits for is cut off. From the loop."""
        with self._lock:
            self.given_up = True
            if self._connection is not None:
                self._connection.abort()

    # --- in the thread -----------------------------------------------------------------------------------------------

    def uses(self, connection: Connection | None) -> None:
        """From now on the job waits for this connection."""
        with self._lock:
            self._connection = connection
            if self.given_up and connection is not None:
                connection.abort()

    def run(self) -> None:
        if self.given_up:
            return
        error: BaseException | None = None
        value: Any = None
        try:
            value = self._work(self)
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._settle, value, error)

    def _settle(self, value: Any, error: BaseException | None) -> None:
        if self.outcome.done():
            if error is None and self._unwanted is not None:
                self._unwanted(value)
            return
        if error is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(value)


class Workers:
    """At most `threads_max` daemon threads, started as needed. `submit` and `close` are called on one loop.

    `at_end` is the last thing that each thread does.
    """

    def __init__(self, *, threads_max: int, name: str, at_end: Callable[[], None]) -> None:
        self._at_end = at_end
        self._threads_max = threads_max
        self._name = name
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads = 0
        self._open = 0
        self.is_closed = False

    def submit(self, job: Job) -> None:
        self._open += 1
        job.outcome.add_done_callback(self._forget)
        self._jobs.put(job)
        if self._threads < min(self._open, self._threads_max):
            self._threads += 1
            threading.Thread(target=self._work, name=f"wire-{self._name}-{self._threads}", daemon=True).start()

    def close(self) -> None:
        """Take no more jobs; idle threads end now, the others after their job."""
        self.is_closed = True
        for _ in range(self._threads):
            self._jobs.put(None)

    def _forget(self, _: asyncio.Future[Any]) -> None:
        self._open -= 1

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
            del job  # an idle thread must not keep a 10 MB answer alive
        self._at_end()
