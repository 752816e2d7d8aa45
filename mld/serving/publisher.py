"""`Publisher`: takes the metrics of each period and sends them. Whatever fails here, the worker goes on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from random import Random

from mld.core.clock import Clock
from mld.core.error_boundary import kept_running, survived
from mld.core.errors import MetricsError, MldError
from mld.core.steps import Steps
from mld.core.turns import in_turns
from mld.core.waits import wait_for_event
from mld.metrics.datums import (
    Datum,
    wait_s,
)

log = logging.getLogger(__name__)


LAST_SEND_S = 5.0  # a stop waits at most this long until the last values are sent
SPREAD_S_MAX = 10.0
SPREAD_SHARE = 1 / 6
"""All workers take their values at the same moment. So each waits at random before it sends them, for at most this
share of the period, and at most SPREAD_S_MAX.
"""


class Publisher:
    """Publishes at the end of each period, until `close`, which sends the remaining values.

    An outage is logged once when it begins and once when it ends.
    """

    def __init__(
        self,
        take: Callable[[], Steps[list[Datum]]],
        send: Callable[[list[Datum], float], Awaitable[None]],
        clock: Clock,
        rng: Random,
        *,
        period_s: float,
    ) -> None:
        """Make a publisher.

        `take` returns the values that were noted since its last call. `send` gets them with their time, in epoch
        seconds. It raises MldError if not all were sent, and keeps those that may be sent later.
        """
        self._take = take
        self._send = send
        self._clock = clock
        self._period_s = period_s
        self._pause_s = rng.uniform(0.0, min(SPREAD_S_MAX, SPREAD_SHARE * period_s))
        self._stopping = asyncio.Event()
        self._failing = ""
        """The kind of the last failure; empty while values can be sent."""
        self._running: asyncio.Task[None] | None = None
        self._begin_s = clock.wall()
        """When the present period began, in epoch seconds."""

    def start(self) -> None:
        self._running = asyncio.create_task(kept_running(self.run, "publishing metrics", self._clock))

    async def run(self) -> None:
        """Publish at the end of each period."""
        while not await wait_for_event(self._stopping, wait_s(self._clock.wall(), self._period_s)):
            datums, stamp_s = await self._taken()
            await wait_for_event(self._stopping, self._pause_s)
            await self._publish(datums, stamp_s)

    async def close(self) -> None:
        """Stop, and send the remaining values: first those that `run` is sending, then those that were noted since.
        What is not sent within LAST_SEND_S is lost.
        """
        self._stopping.set()
        try:
            async with asyncio.timeout(LAST_SEND_S):
                if self._running is not None:
                    await self._running
                await self._publish(*await self._taken())
        except TimeoutError:
            log.warning("the last metrics were not sent in time", extra={"action": "metrics_failed"})
        finally:
            if self._running is not None:
                self._running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._running

    async def _taken(self) -> tuple[list[Datum], float]:
        """Return the values of the period that ends now, and when the period began. If the clock was set back since
        then, return the present time instead.
        """
        begin_s, self._begin_s = self._begin_s, self._clock.wall()
        stamp_s = min(begin_s, self._begin_s)
        return await in_turns(self._take(), self._clock), stamp_s

    async def _publish(self, datums: list[Datum], stamp_s: float) -> None:
        """Send the values, and log when sending begins to fail and when it works again."""
        try:
            await self._send(datums, stamp_s)
        except Exception as error:
            self._failed(survived(error, "publishing metrics"))
            return
        if self._failing:
            self._failing = ""
            log.info("metrics are published again", extra={"action": "metrics_published"})

    def _failed(self, error: MldError) -> None:
        """Log a failure: as a warning if it is the first one, or of another kind than the last one;
        else for debugging.
        """
        kind = error.kind if isinstance(error, MetricsError) else type(error).__name__
        level = logging.DEBUG if self._failing == kind else logging.WARNING
        self._failing = kind
        log.log(level, "metrics are not published: %s", error, extra={"action": "metrics_failed"})
