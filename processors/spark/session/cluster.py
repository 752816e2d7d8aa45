"""A cluster that is not ours: whether it answers, whether it gives us executors, whether it reads what we spool.

A standalone master that was restarted knows nothing of its old applications and gives them no executors any more, and
Spark then waits for ever. So a job without any executor is given up after a while, with its session: a new session
registers anew.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from mld.processors.spark.settings import SparkSettings
from mld.processors.spark.sink_port import SessionUnreachable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("mld.spark")

MASTER_PORT = 7077
"""Spark's own default."""
DIAL_S = 3.0
"""Longest wait for one address to take a connection."""
DIAL_PAUSE_S, DIAL_PAUSE_MAX_S = 0.5, 5.0
ANSWER_SHARE = 0.5
"""How long a cluster may leave us without an answer, as a share of `startTimeoutMillis`; the session has the rest."""
LOOK_MAX_S = 5.0
"""Longest time between two looks at the executors."""

Address = tuple[str, int]


def addresses(settings: SparkSettings) -> tuple[Address, ...]:
    """Return where a connection tells whether somebody is there; nothing for masters that name no such place."""
    if settings.master.startswith("spark://"):
        return tuple(_address(one) for one in settings.master.removeprefix("spark://").split(","))
    return ()


def _address(text: str) -> Address:
    host, colon, digits = text.strip().rpartition(":")
    if not colon or not digits.isdigit():
        host, digits = text.strip(), str(MASTER_PORT)
    return host.strip("[]"), int(digits)


def _dial(address: Address) -> None:
    socket.create_connection(address, DIAL_S).close()


def await_answer(
    where: str,
    anyone: Iterable[Address],
    within_s: float,
    *,
    dial: Callable[[Address], None] = _dial,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until one of the addresses takes a connection. Raises SessionUnreachable."""
    every = tuple(anyone)
    deadline = monotonic() + within_s
    pause_s = DIAL_PAUSE_S
    while every:
        reasons = []
        for address in every:
            try:
                dial(address)
                return
            except OSError as error:
                reasons.append(f"{address[0]}:{address[1]} says {error.strerror or error}")
        said = f"nobody answers at {where} ({', '.join(reasons)})"
        if monotonic() + pause_s > deadline:
            raise SessionUnreachable(f"{said}, tried for {within_s:g} s; start it, or correct mld.spark.master")
        if pause_s == DIAL_PAUSE_S:
            log.warning("%s; waiting up to %g s", said, within_s)
        sleep(pause_s)
        pause_s = min(DIAL_PAUSE_MAX_S, 2 * pause_s)


class Starved:
    """Decides when a job has been without any executor for too long. Pure."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since: float | None = None

    def seen(self, jobs: int, executors: int, now: float) -> bool:
        if not jobs or executors:
            self._since = None
            return False
        if self._since is None:
            self._since = now
        return now - self._since >= self._limit_s


def watch_executors(session: SparkSession, jvm_pid: int, where: str, limit_s: float) -> None:
    """Start to end the JVM when a job gets no executor: whoever watches the JVM does the rest."""
    context = session.sparkContext
    tracker = context.statusTracker()
    starved = Starved(limit_s)

    def look() -> None:
        while True:
            try:
                jobs = len(tracker.getActiveJobsIds())
                executors = context._jsc.sc().getExecutorMemoryStatus().size() - 1  # one is the driver
            except Exception:  # the JVM is gone, or the session has ended: others say so
                return
            if starved.seen(jobs, executors, time.monotonic()):
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
