"""Whether a session can still run jobs: watches the JVM, executors, tasks that hang, and streaming queries.

A standalone master that was restarted knows nothing of its old applications and gives them no executors any more, and
Spark then waits for ever. So a job without any executor is given up after a while, with its session: a new session
registers anew.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from mld.processors.spark.sentences import first_line, sentence
from mld.processors.spark.session_errors import SessionGone, TaskHangs

if TYPE_CHECKING:
    from pyspark import SparkStageInfo
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("mld.spark")
LOOK_MAX_S = 5.0
"""Longest time between two looks at the jobs."""
HEED_S = 60
"""Longest wait for tasks of a cancelled job to end: Spark ends a worker of Python after two seconds, and nothing ends
what does not look up."""
TAG = "mld-engine"
"""Of the jobs of the engine, and not of queries that the user has started."""


def _watch(limit_s: float, look: Callable[[], Any], act: Callable[[Any], None]) -> None:
    """Start to `act` whenever `look` has said the same for so long, and something. Ends with the session."""

    def watch() -> None:
        before, since = None, 0.0
        while True:
            try:
                seen, now = look(), time.monotonic()
                if not seen or seen != before:
                    before, since = seen, now
                elif now - since >= limit_s:
                    before = None
                    act(seen)
            except Exception as error:  # mostly the JVM is gone, or the session has ended: others say so
                log.debug("the jobs of the session are not watched any more: %s", first_line(error))
                return
            time.sleep(min(LOOK_MAX_S, limit_s / 4))

    threading.Thread(target=watch, daemon=True, name="watch").start()


class SessionHealth:
    """Whether the session can still run jobs, and the streaming queries that the user has started in it run; both raise
    SessionGone.

    A task that does not end holds up its batch for ever. So a job of the engine is cancelled if none of its tasks has
    ended for a while; what only waits for a sink, outside of tasks, is not meant. The task has to heed that."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._limit_s = math.inf
        self._queries: list[StreamingQuery] = []
        self._hung: list[int] = []
        """Stages whose tasks do not end."""

    def watch(self, limit_s: float) -> None:
        """Start to cancel jobs that this thread runs from now on."""
        self._limit_s = limit_s
        self._session.sparkContext.addJobTag(TAG)
        self._session.sparkContext.setInterruptOnCancel(True)
        _watch(limit_s, self._progress, self._cancel)

    def _progress(self) -> list[tuple[int, int]]:
        """Return the stages of which a task runs, and how many tasks of each have ended."""
        context: Any = self._session.sparkContext
        tracker, tagged = context.statusTracker(), context._jsc.sc().statusTracker().getJobIdsForTag(TAG)
        jobs = [tracker.getJobInfo(job) for job in {*tagged}.intersection(tracker.getActiveJobsIds())]
        stages = sorted({stage for job in jobs if job for stage in job.stageIds})
        return [(one.stageId, one.numCompletedTasks + one.numFailedTasks) for one in self._running(stages)]

    def _running(self, stages: Iterable[int]) -> list[SparkStageInfo]:
        found = map(self._session.sparkContext.statusTracker().getStageInfo, stages)
        return [info for info in found if info and info.numActiveTasks]

    def _cancel(self, progress: list[tuple[int, int]]) -> None:
        self._hung = [stage for stage, _ in progress]
        self._session.sparkContext.cancelJobsWithTag(TAG)

    def _heed(self) -> NoReturn:
        """Raise TaskHangs once the tasks that were cancelled have ended, and SessionGone if they do not."""
        said = f"no task of a batch has ended for {self._limit_s:g} s (mld.spark.taskTimeoutMillis): it is cancelled"
        for _ in range(HEED_S):
            if not self._running(self._hung):
                self._hung = []
                raise TaskHangs(said)
            time.sleep(1)
        raise SessionGone(f"{said}, and does not heed that")

    def check(self) -> None:
        """Ask cheaply: has our JVM ended, or the session in it? Raises TaskHangs if a job was cancelled."""
        process = jvm_of(self._session)
        try:
            if process is not None and process.poll() is not None:
                raise SessionGone(f"the JVM has ended with status {process.returncode}")
            stopped = self._session.sparkContext._jsc.sc().isStopped()
            failed = [query for query in self._queries if query.exception() is not None]
            self._queries = self._session.streams.active
            if self._hung:
                self._heed()
        except SessionGone:
            raise
        except Exception as error:
            raise SessionGone(f"Spark does not answer any more: {first_line(error)}") from error
        if stopped:
            raise SessionGone("Spark has stopped the application; see its lines above")
        if failed:
            said = sentence(str(failed[0].exception()))
            raise SessionGone(f"the streaming query {failed[0].name or failed[0].id} has failed: {said}")

    def probe(self) -> None:
        """Run a job without data: if even that fails, it is not the records."""
        try:
            self._session.range(1).count()
        except Exception as error:
            raise SessionGone(f"Spark runs no job any more: {first_line(error)}") from error


def jvm_of(session: SparkSession) -> subprocess.Popen[bytes] | None:
    """Return the process that PySpark has started; None where others have started the JVM."""
    process: subprocess.Popen[bytes] | None
    process = getattr(getattr(getattr(session, "_sc", None), "_gateway", None), "proc", None)
    return process


def jvm_pid(session: SparkSession) -> int | None:
    process = jvm_of(session)
    return None if process is None else process.pid


def watch_executors(session: SparkSession, jvm_pid: int, where: str, limit_s: float) -> None:
    """Start to end the JVM when a job gets no executor: whoever watches the JVM does the rest."""
    context = session.sparkContext

    def is_starved() -> bool:
        executors = context._jsc.sc().getExecutorMemoryStatus().size() - 1  # one is the driver
        return not executors and bool(context.statusTracker().getActiveJobsIds())

    def end_session(_: object) -> None:
        log.error(
            "the job has had no executor for %g s (key mld.spark.startTimeoutMillis): %s is gone, was restarted, or "
            "has no room for us; the session is given up, and a new one registers there",
            limit_s,
            where,
        )
        os.kill(jvm_pid, signal.SIGKILL)

    _watch(limit_s, is_starved, end_session)
