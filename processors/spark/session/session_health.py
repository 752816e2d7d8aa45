"""Watches whether a session can still run jobs: its JVM, executors, tasks that hang, and streaming queries.

After a restart, the master of a standalone cluster does not know its old applications and gives them no executors, and
Spark would wait for ever. So if a job has had no executor for a while, the session is given up, and a new session
registers at the master.
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
"""Longest time between two checks of the jobs."""
CANCEL_WAIT_S = 60
"""Longest wait for the tasks of a cancelled job to end. Spark kills a Python worker after two seconds, but a Java task
that ignores the interrupt cannot be ended.
"""
TAG = "mld-engine"
"""Tag of the engine's jobs. Jobs of the user's streaming queries do not have it."""


def _watch(limit_s: float, look: Callable[[], Any], act: Callable[[Any], None]) -> None:
    """Start a thread that calls `look` again and again. When it has returned the same non-empty value for `limit_s`,
    the thread calls `act` with that value. The thread ends with the session.
    """

    def watch() -> None:
        """Act when `look` has returned the same non-empty value for `limit_s`. End when the session has ended."""
        before, since = None, 0.0
        while True:
            try:
                found, now = look(), time.monotonic()
                if not found or found != before:
                    before, since = found, now
                elif now - since >= limit_s:
                    before = None
                    act(found)
            except Exception as error:  # usually the JVM is gone or the session has ended, which is noticed elsewhere
                log.debug("the jobs of the session are not watched any more: %s", first_line(error))
                return
            time.sleep(min(LOOK_MAX_S, limit_s / 4))

    threading.Thread(target=watch, daemon=True, name="watch").start()


class SessionHealth:
    """Checks that the session can run jobs, and that the user's streaming queries run; both checks raise SessionGone.

    A task that never ends would delay its batch for ever. So a job of the engine is cancelled if none of its running
    tasks ends for a while. While the driver waits for a sink and no task is running, no job is cancelled. If a
    cancelled task does not end, the session is given up.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._limit_s = math.inf
        self._queries: list[StreamingQuery] = []
        self._hung: list[int] = []
        """Ids of the cancelled stages, whose tasks did not end in time."""

    def watch(self, limit_s: float) -> None:
        """Start to watch the jobs that this thread runs from now on, and cancel a job of which no task ends for
        `limit_s`."""
        self._limit_s = limit_s
        self._session.sparkContext.addJobTag(TAG)
        self._session.sparkContext.setInterruptOnCancel(True)
        _watch(limit_s, self._progress, self._cancel)

    def _progress(self) -> list[tuple[int, int]]:
        """Return the stages with running tasks, each with the number of its tasks that have ended."""
        context: Any = self._session.sparkContext
        tracker, tagged = context.statusTracker(), context._jsc.sc().statusTracker().getJobIdsForTag(TAG)
        jobs = [tracker.getJobInfo(job) for job in {*tagged}.intersection(tracker.getActiveJobsIds())]
        stages = sorted({stage for job in jobs if job for stage in job.stageIds})
        return [(stage.stageId, stage.numCompletedTasks + stage.numFailedTasks) for stage in self._running(stages)]

    def _running(self, stages: Iterable[int]) -> list[SparkStageInfo]:
        """Return Spark's information about those of these stages that have running tasks."""
        found = map(self._session.sparkContext.statusTracker().getStageInfo, stages)
        return [info for info in found if info and info.numActiveTasks]

    def _cancel(self, progress: list[tuple[int, int]]) -> None:
        """Cancel the engine's jobs, and note the stages whose tasks hang. `progress` is from `_progress`."""
        self._hung = [stage for stage, _ in progress]
        self._session.sparkContext.cancelJobsWithTag(TAG)

    def _await_cancelled(self) -> NoReturn:
        """Raise TaskHangs once the cancelled tasks have ended, or SessionGone if they do not end."""
        reason = f"no task of a batch has ended for {self._limit_s:g} s (mld.spark.taskTimeoutMillis): it is cancelled"
        for _ in range(CANCEL_WAIT_S):
            if not self._running(self._hung):
                self._hung = []
                raise TaskHangs(reason)
            time.sleep(1)
        raise SessionGone(f"{reason}, and does not heed that")

    def check(self) -> None:
        """Check quickly, without running a job, that the JVM and the session live and no streaming query has failed.
        Raises SessionGone if that is not so, and TaskHangs if a job was cancelled because its tasks hung."""
        process = jvm_of(self._session)
        try:
            if process is not None and process.poll() is not None:
                raise SessionGone(f"the JVM has ended with status {process.returncode}")
            stopped = self._session.sparkContext._jsc.sc().isStopped()
            # A query that has failed is not active any more, so this examines the queries that the last check found.
            failed = [query for query in self._queries if query.exception() is not None]
            self._queries = self._session.streams.active
            if self._hung:
                self._await_cancelled()
        except SessionGone:
            raise
        except Exception as error:
            raise SessionGone(f"Spark does not answer any more: {first_line(error)}") from error
        if stopped:
            raise SessionGone("Spark has stopped the application; see its lines above")
        if failed:
            why = sentence(str(failed[0].exception()))
            raise SessionGone(f"the streaming query {failed[0].name or failed[0].id} has failed: {why}")

    def probe(self) -> None:
        """Run a job without records. If even this job fails, raise SessionGone: no record is to blame."""
        try:
            self._session.range(1).count()
        except Exception as error:
            raise SessionGone(f"Spark runs no job any more: {first_line(error)}") from error


def jvm_of(session: SparkSession) -> subprocess.Popen[bytes] | None:
    """Return the JVM's process if PySpark has started it, else None."""
    process: subprocess.Popen[bytes] | None
    process = getattr(getattr(getattr(session, "_sc", None), "_gateway", None), "proc", None)
    return process


def watch_executors(session: SparkSession, jvm_pid: int, where: str, limit_s: float) -> None:
    """Start a watcher that kills the JVM if a job has had no executor for `limit_s`. When the JVM ends, so does the
    host.
    """
    context = session.sparkContext

    def is_starved() -> bool:
        """Return whether a job is active although there is no executor."""
        executors = context._jsc.sc().getExecutorMemoryStatus().size() - 1  # the driver is counted, too
        return not executors and bool(context.statusTracker().getActiveJobsIds())

    def end_session(_: object) -> None:
        """Kill the JVM, so that a new session starts."""
        log.error(
            "the job has had no executor for %g s (key mld.spark.startTimeoutMillis): %s is gone, was restarted, or "
            "has no room for us; the session is given up, and a new one registers there",
            limit_s,
            where,
        )
        os.kill(jvm_pid, signal.SIGKILL)

    _watch(limit_s, is_starved, end_session)
