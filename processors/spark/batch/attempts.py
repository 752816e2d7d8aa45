"""Waits between attempts: after a lost race, while a sink is unavailable, until the host ends.

An attempt that another writer's commit made void is repeated at once; any other one waits, longer each time. Every wait
ends when the host ends or its session is gone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from mld.processors.spark.sink_port import Fenced, SinkError, SinkRefused

log = logging.getLogger("mld.spark")
ATTEMPTS_MAX = 3
"""Attempts at a micro-batch before a record is searched for; none follows a wrong value."""
BACKOFF_S = 0.5
"""Pause before the second attempt; it doubles each time."""
BACKOFF_MAX_S = 30.0
"""Longest pause between attempts at a sink that cannot take anything now."""
FENCED_MAX = 100
"""Times in a row that others may move our shards under one batch; more is a fault, not a fleet."""
Result = TypeVar("Result")


class Stopped(Exception):
    """The host ends; the batch is given up where it is."""


class HealthCheck(Protocol):
    """`session_health.SessionHealth`; both raise SessionGone."""

    def check(self) -> None: ...
    def probe(self) -> None: ...


def pause_s(failures: int) -> float:
    """Return how long to wait after so many failures in a row."""
    return min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** min(failures - 1, 20))


def bound_fences(error: Fenced, fenced: int) -> None:
    """Raise SinkRefused if one batch was fenced more often than other workers explain."""
    if fenced > FENCED_MAX:
        raise SinkRefused(f"{error}; this has happened {fenced} times in a row") from error


def until_published(attempt: Callable[[], Result], wait: Callable[[SinkError, int], None]) -> Result:
    """Return what the attempt returns once it succeeds: it is repeated at once if another writer has moved a shard, and
    after `wait(error, waits)` if the sink cannot now. Raises SinkRefused, and what `wait` raises.
    """
    fenced = waits = 0
    while True:
        try:
            return attempt()
        except Fenced as error:
            fenced += 1
            bound_fences(error, fenced)
            log.info("%s", error)
        except SinkRefused:
            raise
        except SinkError as error:
            waits += 1
            wait(error, waits)


class Patience:
    """Waits between attempts, which end when the host ends or its session is gone. `stop` is called on any thread."""

    def __init__(self, health: HealthCheck) -> None:
        self._health = health
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Wake a wait; it ends in Stopped."""
        self._stopping.set()

    def check(self) -> None:
        """Raise SessionGone, or Stopped if the host ends: then no attempt can help."""
        if self._stopping.is_set():
            raise Stopped
        self._health.check()

    def pause(self, failures: int) -> None:
        """Wait before the next attempt. Raises Stopped."""
        if self._stopping.wait(pause_s(failures)):
            raise Stopped

    def wait(self, error: Exception, waits: int) -> None:
        """Say what the next attempt waits for, and pause. Raises SessionGone and Stopped."""
        self.check()
        log.error("%s; trying again", error)
        self.pause(waits)
