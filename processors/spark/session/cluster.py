"""A cluster that is not ours: whether it gives us executors.

A standalone master that was restarted knows nothing of its old applications and gives them no executors any more, and
Spark then waits for ever. So a job without any executor is given up after a while, with its session: a new session
registers anew.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("mld.spark")

LOOK_MAX_S = 5.0
"""Longest time between two looks at the executors."""


def watch_executors(session: SparkSession, jvm_pid: int, where: str, limit_s: float) -> None:
    """Start to end the JVM when a job gets no executor: whoever watches the JVM does the rest."""
    context = session.sparkContext
    tracker = context.statusTracker()

    def look() -> None:
        starved_at: float | None = None
        while True:
            try:
                jobs = len(tracker.getActiveJobsIds())
                executors = context._jsc.sc().getExecutorMemoryStatus().size() - 1  # one is the driver
            except Exception:  # the JVM is gone, or the session has ended: others say so
                return
            if not jobs or executors:
                starved_at = None
            elif starved_at is None:
                starved_at = time.monotonic()
            elif time.monotonic() - starved_at >= limit_s:
                log.error(
                    "the job has had no executor for %g s (key mld.spark.startTimeoutMillis): %s is gone, was "
                    "restarted, or has no room for us; the session is given up, and a new one registers there",
                    limit_s,
                    where,
                )
                with suppress(ProcessLookupError):
                    os.kill(jvm_pid, signal.SIGKILL)
                return
            time.sleep(min(LOOK_MAX_S, limit_s / 4))

    threading.Thread(target=look, daemon=True, name="executors").start()
