"""Repeats attempts at a micro-batch, and waits between them.

If an attempt failed because another writer committed first, the next attempt follows at once. After any other failure
there is a wait, which grows each time. When the session host ends or its session is gone, no further attempts are made.

A mark is the position up to which the records of a shard are in a sink. The error `Fenced` means that another writer
has moved a mark since this writer read it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from mld.processors.spark.sink_port import Fenced, SinkError, SinkRefused

log = logging.getLogger("mld.spark")
ATTEMPTS_MAX = 3
"""The search for the record to blame begins after this many failed attempts at a micro-batch. If an attempt fails over
a value, the search begins at once.
"""
BACKOFF_S = 0.5
"""Wait before the second attempt; it doubles each time."""
BACKOFF_MAX_S = 30.0
"""Longest wait between attempts while a sink is unavailable."""
FENCED_MAX = 100
"""How often other writers may move the marks of our shards during one batch. If it happens more often, something is
wrong.
"""
Result = TypeVar("Result")


class Stopped(Exception):
    """The batch is given up, because the host ends."""


class HealthCheck(Protocol):
    """Checks whether the session works: `session_health.SessionHealth`. Both methods raise SessionGone."""

    def check(self) -> None: ...
    def probe(self) -> None: ...


def pause_s(failures: int) -> float:
    """Return how long to wait after this many failures in a row, in seconds."""
    return min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** min(failures - 1, 20))


def bound_fences(error: Fenced, fenced: int) -> None:
    """Raise SinkRefused if other writers have moved the marks more than FENCED_MAX times during one batch. `fenced` is
    how often they have, and `error` the last of these errors.
    """
    if fenced > FENCED_MAX:
        raise SinkRefused(f"{error}; this has happened {fenced} times in a row") from error


def until_published(attempt: Callable[[], Result], wait: Callable[[SinkError, int], None]) -> Result:
    """Run `attempt` until it succeeds, and return its result.

    If another writer has moved a mark, it runs again at once. If the sink is unavailable, it runs again after
    `wait(error, waits)`, where `waits` counts the failures of this kind. Raises SinkRefused, and what `wait` raises.
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
    """Waits between attempts. `stop` may be called on any thread."""

    def __init__(self, health: HealthCheck) -> None:
        self._health = health
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End the present wait, which then raises Stopped, and prevent further ones."""
        self._stopping.set()

    def check(self) -> None:
        """Raise Stopped if the host ends, and SessionGone if the session is gone: no further attempt can help."""
        if self._stopping.is_set():
            raise Stopped
        self._health.check()

    def pause(self, failures: int) -> None:
        """Wait before the next attempt. Raises Stopped."""
        if self._stopping.wait(pause_s(failures)):
            raise Stopped

    def wait(self, error: Exception, waits: int) -> None:
        """Log the error, and wait before the next attempt. `waits` counts the failures so far, with this one; the wait
        grows with it. Raises SessionGone and Stopped.
        """
        self.check()
        log.error("%s; trying again", error)
        self.pause(waits)
