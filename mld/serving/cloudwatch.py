"""Sends this worker's metrics to CloudWatch, once a period. Nothing here ever disturbs a worker.

Each outage is one warning, and its end one line. CloudWatch gets a period's datums in as few requests as it takes,
compressed by the SDK. What it does not answer, or is too busy for, waits within `metricsMaxQueueSize`, and is sent
later with the time at which it was measured. What it refuses is dropped, because it would be refused again. Rules:
metrics#publication.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from random import Random

from mld.aws.client_factory import AwsService, ClientFactory, service_of
from mld.aws.service import Service
from mld.core.clock import Clock
from mld.core.error_boundary import kept_running, survived
from mld.core.errors import AwsError, AwsUnreachableError, MetricsError, MldError
from mld.core.steps import Steps
from mld.core.turns import in_turns
from mld.core.waits import wait_for_event
from mld.metrics.datums import (
    DATUMS_PER_REQUEST_MAX,
    Datum,
    DatumQueue,
    Wanted,
    packed,
    request_of,
    take_datums,
    wait_s,
)
from mld.metrics.registry import Metrics
from mld.properties.settings import Settings

log = logging.getLogger(__name__)

LAST_WORDS_S = 5.0  # what a stop waits for the last values to be sent
SPREAD_S_MAX = 10.0
SPREAD_SHARE = 1 / 6
"""Workers take their values at the same moment, and send them at one of their own within this share of the period."""

CALL_TIMEOUT_S = 5.0  # as Java's
DENIED = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"})
PASSING = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "LimitExceeded",
        "LimitExceededException",
        "RequestExpired",
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
    }
)
"""Refusals that another time may end otherwise; so may everything from 500 on."""


class Publisher:
    """`take` gives the datums noted since the last call. `run` sends them until `close`, which sends what is left.

    `send` gets the values of a period and the time that they bear. It raises MldError if they were not sent, and keeps
    for the next time what may be sent later.
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
        self._take = take
        self._send = send
        self._clock = clock
        self._period_s = period_s
        self._pause_s = rng.uniform(0.0, min(SPREAD_S_MAX, SPREAD_SHARE * period_s))
        self._stopping = asyncio.Event()
        self._failing = ""
        self._running: asyncio.Task[None] | None = None
        self._begin_s = clock.wall()

    def start(self) -> None:
        self._running = asyncio.create_task(kept_running(self.run, "publishing metrics", self._clock))

    async def run(self) -> None:
        """Publish at the end of each period."""
        while not await wait_for_event(self._stopping, wait_s(self._clock.wall(), self._period_s)):
            datums, stamp_s = await self._taken()
            await wait_for_event(self._stopping, self._pause_s)
            await self._publish(datums, stamp_s)

    async def close(self) -> None:
        """Send what is left, within a few seconds."""
        self._stopping.set()
        try:
            async with asyncio.timeout(LAST_WORDS_S):
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
        """Return the values of a period and the time at which it began: not one of the future, should the clock have
        been set back.
        """
        begin_s, self._begin_s = self._begin_s, self._clock.wall()
        stamp_s = min(begin_s, self._begin_s)
        return await in_turns(self._take(), self._clock), stamp_s

    async def _publish(self, datums: list[Datum], stamp_s: float) -> None:
        try:
            await self._send(datums, stamp_s)
        except Exception as error:
            self._failed(survived(error, "publishing metrics"))
            return
        if self._failing:
            self._failing = ""
            log.info("metrics are published again", extra={"action": "metrics_published"})

    def _failed(self, error: MldError) -> None:
        """Warn of what has not been said since sending worked last."""
        kind = error.kind if isinstance(error, MetricsError) else type(error).__name__
        level = logging.DEBUG if self._failing == kind else logging.WARNING
        self._failing = kind
        log.log(level, "metrics are not published: %s", error, extra={"action": "metrics_failed"})


@asynccontextmanager
async def publishing(settings: Settings, metrics: Metrics, factory: ClientFactory, clock: Clock) -> AsyncIterator[None]:
    """Send metrics while the body runs, and what is left at its end."""
    wanted = Wanted.of(settings)
    service = cloudwatch_service(factory)
    cloudwatch = CloudWatch(service, namespace=settings.application_name, queue_max=settings.metrics.queue_max)
    publisher = Publisher(
        lambda: take_datums(metrics, wanted, clock.wall()),
        cloudwatch.send,
        clock,
        Random(),
        period_s=settings.metrics.period_s,
    )
    metrics.is_published = True
    async with AsyncExitStack() as stack:
        stack.push_async_callback(service.close)
        stack.push_async_callback(publisher.close)
        publisher.start()
        yield


# --- CloudWatch -------------------------------------------------------------------------------------------------------


def cloudwatch_service(factory: ClientFactory) -> AwsService:
    """Return a client of CloudWatch that makes itself with its first call: a start never waits for it, nor fails by
    it.
    """
    return service_of(factory, "cloudwatch", label="CloudWatch", threads_max=1, read_timeout_s=CALL_TIMEOUT_S)


class CloudWatch:
    """`namespace` is the application's name, as in KCL."""

    def __init__(self, service: Service, *, namespace: str, queue_max: int) -> None:
        self._service = service
        self._namespace = namespace
        self._queue = DatumQueue(queue_max)

    async def send(self, datums: list[Datum], stamp_s: float) -> None:
        """Send the values with this time, in epoch seconds. Raises MetricsError if not all were sent."""
        for first in range(0, len(datums), DATUMS_PER_REQUEST_MAX):
            part = datums[first : first + DATUMS_PER_REQUEST_MAX]
            self._queue.put([replace(datum, stamp_s=stamp_s) for datum in part])
            await asyncio.sleep(0)
        self._tell_dropped()
        waiting, done = self._queue.take(), 0
        failure: MetricsError | None = None
        for batch in packed(waiting):
            request = await in_turns(request_of(self._namespace, batch))
            done += len(batch)
            try:
                await self._service.call("PutMetricData", request, timeout_s=CALL_TIMEOUT_S)
            except MldError as error:
                if not _is_refusal(error):
                    self._queue.put_back(waiting[done - len(batch) :])
                    raise MetricsError("unavailable", f"{error}. They wait and are sent later") from error
                failure = _refused(error, len(batch))
        if failure is not None:
            raise failure

    def _tell_dropped(self) -> None:
        dropped, self._queue.dropped = self._queue.dropped, 0
        if dropped:
            log.warning(
                "metrics dropped: more values wait than metricsMaxQueueSize allows",
                extra={"action": "metrics_dropped", "count": dropped},
            )


def _is_refusal(error: MldError) -> bool:
    """Return whether the same request would be refused again."""
    if isinstance(error, AwsUnreachableError) or not isinstance(error, AwsError):
        return False
    return error.status < 500 and error.code not in PASSING


def _refused(error: MldError, count: int) -> MetricsError:
    if isinstance(error, AwsError) and error.code in DENIED:
        return MetricsError("denied", f"{error}. Allow cloudwatch:PutMetricData, or take cloudwatch out of mld.metrics")
    return MetricsError("refused", f"{error}. {count} series are lost")
