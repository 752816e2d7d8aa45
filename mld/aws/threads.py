"""`Workers`: a few threads for work that blocks. They take jobs from one queue, and hand the outcome of each job back
to the event loop.

These are daemon threads. The threads of a `ThreadPoolExecutor` are joined by the interpreter at exit, so one hung
connection would keep a stopped daemon alive. A job costs one queue entry and one wake-up of the loop. If the caller's
time is over, the connection that the job waits for is shut down, provided that the job has named it (`Job.uses`). A job
that cannot be interrupted keeps its thread; other threads are started in its place, up to the limit.

The first few threads start as jobs come. More start only once jobs have waited for some time: sixty renewals that are
due at once do not need twenty threads, each with its stack, its connection and its buffers.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from mld.aws.wire.connection import Connection

T = TypeVar("T")

THREADS_AT_ONCE = 4
"""Up to this number, a thread is started as soon as a job needs one."""
WAIT_MAX_S = 0.02
"""How long a job waits before more threads are started, at most doubling their number. A call to AWS takes some 10 ms.
"""


class GivenUpError(Exception):
    """The job was not begun, because its caller has given up or the workers are closed."""


class Job:
    """One piece of work for a thread. Its caller waits for the future `outcome`.

    If the caller has given up and the work still returns a value, `unwanted` is called with this value. `at_end` is
    called on the loop when no thread has the job any more, whatever its outcome.
    """

    __slots__ = (
        "_at_end",
        "_connection",
        "_lock",
        "_loop",
        "_unwanted",
        "_work",
        "begun",
        "given_up",
        "leave",
        "outcome",
        "settled",
        "submitted_s",
    )

    def __init__(
        self,
        work: Callable[[Job], Any],
        unwanted: Callable[[Any], None] | None = None,
        at_end: Callable[[], None] | None = None,
    ) -> None:
        """Make a job that calls `work` with itself. `unwanted` gets the value if the caller does not take it, and
        `at_end` is called on the loop when no thread has the job any more.
        """
        self._unwanted = unwanted
        self._at_end = at_end
        self._loop = asyncio.get_running_loop()
        self._work = work
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        """The connection that the job waits for now."""
        self.given_up = False
        self.begun = False
        self.submitted_s = 0.0
        """When the job was queued, by the clock of the loop."""
        self.leave: Callable[[Job], None] | None = None
        """Called on the loop when no thread has the job any more."""
        self.settled: asyncio.Future[None] | None = None
        """A future that `close` makes if it has to wait for the job; done when no thread has the job any more."""
        self.outcome: asyncio.Future[Any] = self._loop.create_future()

    def give_up(self) -> None:
        """Give the job up. If it has not begun, it never will; if it waits for a connection, this is shut down. Called
        on the loop.

        If the caller was cancelled just when the value came, the value goes to `unwanted`.
        """
        with self._lock:
            self.given_up = True
            if self._connection is not None:
                self._connection.abort()
        if self.outcome.done() and not self.outcome.cancelled() and self.outcome.exception() is None:
            self._drop(self.outcome.result())

    async def value(self) -> Any:
        """Return what the work returns, or give the job up if the caller is cancelled. Raises what the work raises."""
        try:
            return await self.outcome
        except asyncio.CancelledError:
            self.give_up()
            raise

    # --- in the thread -----------------------------------------------------------------------------------------------

    def uses(self, connection: Connection | None) -> None:
        """Note the connection that the job waits for from now on."""
        with self._lock:
            self._connection = connection
            if self.given_up and connection is not None:
                connection.abort()

    def run(self) -> None:
        """Do the work, and hand the outcome to the loop."""
        self.begun = True
        error: BaseException | None = None
        value: Any = None
        try:
            if self.given_up:
                raise GivenUpError
            value = self._work(self)
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._settle, value, error)

    def _settle(self, value: Any, error: BaseException | None) -> None:
        """Set the outcome of the work: `value`, or `error` if that is not None. Then notify the workers, `close` and
        the caller of the job that no thread has the job any more. Called on the loop.
        """
        try:
            if self.outcome.done():  # the caller has given the job up, and takes no value any more
                if error is None:
                    self._drop(value)
            elif error is not None:
                is_legal = not isinstance(error, StopIteration)  # a future refuses a StopIteration
                self.outcome.set_exception(error if is_legal else RuntimeError(repr(error)))
            else:
                self.outcome.set_result(value)
        finally:
            if self.leave is not None:
                self.leave(self)
            if self.settled is not None:
                self.settled.set_result(None)
            if self._at_end is not None:
                self._at_end()

    def _drop(self, value: Any) -> None:
        """Pass on a value that the caller does not take any more."""
        if self._unwanted is not None:
            self._unwanted(value)


class Workers:
    """Runs jobs in at most `threads_max` daemon threads. `submit` and `close` are called on one loop."""

    def __init__(self, *, threads_max: int, name: str, wait_max_s: float = WAIT_MAX_S) -> None:
        self._threads_max = threads_max
        self._wait_max_s = wait_max_s
        self._name = name
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._waiting: deque[Job] = deque()  # the jobs in `_jobs`, in the same order; the first ones may have begun
        self._queue_check: asyncio.TimerHandle | None = None  # set while jobs may have to wait for a thread
        self._open: set[Job] = set()  # jobs in the queue or in a thread
        self.threads = 0  # how many were started
        self.is_closed = False

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns in a thread. Raises what `submit` and `work` raise."""
        value: T = await self.submit(Job(lambda _: work())).value()
        return value

    def submit(self, job: Job) -> Job:
        """Queue a job for a thread, and return the job. Raises GivenUpError after `close`.

        May start a thread for the job: at once while there are few threads (THREADS_AT_ONCE), else only if the job has
        waited for some time (`_check_queue`). If there is no thread and the first one cannot be started, raises that
        error and does not queue the job.
        """
        if self.is_closed:
            raise GivenUpError
        loop = asyncio.get_running_loop()
        # With this job there are more jobs than threads, and the limit allows one more thread.
        has_use_for_more = self.threads < min(len(self._open) + 1, self._threads_max)
        if has_use_for_more and self.threads < THREADS_AT_ONCE:
            self._start_thread()
        job.submitted_s = loop.time()
        job.leave = self._open.discard
        self._open.add(job)
        self._jobs.put(job)
        self._drop_begun()
        self._waiting.append(job)
        if has_use_for_more and self.threads >= THREADS_AT_ONCE and self._queue_check is None:
            self._queue_check = loop.call_later(self._wait_max_s, self._check_queue, loop)
        return job

    def close(self) -> list[asyncio.Future[None]]:
        """Refuse new jobs and give up all others. Idle threads end now, busy threads after their job.

        Return a future for each job that a thread still has; it is done when the job ends.
        """
        self.is_closed = True
        under_way = []
        for job in self._open:
            job.give_up()
            if job.begun:
                job.settled = job.settled or job.outcome.get_loop().create_future()
                under_way.append(job.settled)
            elif not job.outcome.done():
                job.outcome.set_exception(GivenUpError())
        if self._queue_check is not None:
            self._queue_check.cancel()
        for _ in range(self.threads):
            self._jobs.put(None)
        return under_way

    def _check_queue(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start a thread for each job that has waited too long, at most doubling the number of threads. While any job
        waits, call this again later.
        """
        self._queue_check = None
        self._drop_begun()
        limit_s = loop.time() - self._wait_max_s
        late = sum(job.submitted_s <= limit_s and not job.begun for job in self._waiting)
        for _ in range(min(late, self.threads, self._threads_max - self.threads)):
            self._start_thread()
        if self._waiting and self.threads < self._threads_max:
            self._queue_check = loop.call_later(self._wait_max_s, self._check_queue, loop)

    def _drop_begun(self) -> None:
        """Remove jobs that have begun from the front of `_waiting`."""
        while self._waiting and self._waiting[0].begun:
            self._waiting.popleft()

    def _start_thread(self) -> None:
        """Start one more thread. If that fails, raise the error only if there is no thread yet."""
        name = f"{self._name}-{self.threads + 1}"
        try:
            threading.Thread(target=self._work, name=name, daemon=True).start()
        except Exception:
            if not self.threads:
                raise
            return  # the existing threads will do the job
        self.threads += 1

    def _work(self) -> None:
        """Run jobs one after the other, until None is in the queue. This is what a thread does."""
        while (job := self._jobs.get()) is not None:
            job.run()
            del job  # an idle thread must not keep a 10 MB answer alive
