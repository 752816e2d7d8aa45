"""`DaemonPool`: a few threads for calls that block.

The threads are daemons, on purpose not those of `ThreadPoolExecutor`: the interpreter joins these at exit, so that one
hung connection would keep a stopped daemon alive.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class PoolClosedError(Exception):
    """The pool takes no more jobs."""


class DaemonPool:
    """At most `threads_max` daemon threads, started as needed, working through one queue. Used from one loop only."""

    def __init__(self, *, threads_max: int, name: str) -> None:
        if threads_max < 1:
            raise ValueError(f"threads_max must be at least 1, not {threads_max}")
        self._threads_max = threads_max
        self._name = name
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._unfinished: set[Future[Any]] = set()
        self._closed = False

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Hand a job to a thread. Raises PoolClosedError, and what the machine says if it has no thread for the
        only job.
        """
        if self._closed:
            raise PoolClosedError
        future: Future[T] = Future()
        with self._lock:
            needed = min(len(self._unfinished) + 1, self._threads_max)
        if self._threads < needed:
            self._start_thread()
        with self._lock:
            self._unfinished.add(future)
        future.add_done_callback(self._forget)
        self._jobs.put((future, work))
        return future

    def close(self) -> list[Future[Any]]:
        """Refuse new jobs, cancel the queued ones, end idle threads; the jobs that are still under way."""
        self._closed = True
        with self._lock:
            unfinished = list(self._unfinished)
        under_way = [future for future in unfinished if not future.cancel()]
        for _ in range(self._threads):
            self._jobs.put(None)
        return under_way

    def _start_thread(self) -> None:
        name = f"aws-{self._name}-{self._threads + 1}"
        try:
            threading.Thread(target=self._work, name=name, daemon=True).start()
        except Exception:
            if not self._threads:
                raise
            return  # those that there are do it
        self._threads += 1

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._unfinished.discard(future)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            _finish(*job)
            del job  # an idle thread must not keep a 10 MB answer alive


def _finish(future: Future[Any], work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
