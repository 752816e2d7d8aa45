"""Sends this worker's metrics to CloudWatch, one packed request a period. Nothing here ever disturbs a worker.

What cannot be sent is merged into what comes next, within `metricsMaxQueueSize`; a missing permission is one warning.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from mld.aws.service import Service
from mld.clock import Clock
from mld.errors import AwsError, MldError
from mld.surviving import survived
from mld.views.datums import Datum, DatumQueue, packed, request_of

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 5.0  # as Java's
LAST_WORDS_S = 5.0  # what a stop waits for the last request
DENIED = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"})


class CloudWatchPublisher:
    """`take` gives the datums of the period that ends; `run` publishes until cancelled, `close` what is left."""

    def __init__(
        self,
        service: Service,
        clock: Clock,
        take: Callable[[], list[Datum]],
        *,
        namespace: str,
        period_s: float,
        series_max: int,
    ) -> None:
        self._service = service
        self._clock = clock
        self._take = take
        self._namespace = namespace
        self._period_s = period_s
        self._queue = DatumQueue(series_max)
        self._denied = False

    async def run(self) -> None:
        while True:
            await self._clock.sleep(self._period_s)
            await self.publish()

    async def close(self) -> None:
        """Publish what is left, within a few seconds."""
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                await self.publish()
        except TimeoutError:
            log.warning("the last metrics were not sent in time", extra={"action": "metrics_failed"})

    async def publish(self) -> None:
        """Send everything there is; what fails waits for the next time."""
        self._queue.put(self._take())
        if self._queue.dropped:
            log.warning(
                "%d metrics dropped: more than metricsMaxQueueSize wait to be sent",
                self._queue.dropped,
                extra={"action": "metrics_dropped", "count": self._queue.dropped},
            )
            self._queue.dropped = 0
        wall_s = self._clock.wall()
        for batch in packed(self._queue.take()):
            try:
                await self._service.call(
                    "PutMetricData", request_of(self._namespace, batch, wall_s), timeout_s=CALL_TIMEOUT_S
                )
            except Exception as error:
                self._failed(survived(error, "publishing metrics"), batch)
            else:
                self._denied = False

    def _failed(self, error: MldError, batch: list[Datum]) -> None:
        if isinstance(error, AwsError) and error.code in DENIED:
            if not self._denied:
                log.warning(
                    "metrics are not published: %s. Allow cloudwatch:PutMetricData, or set metricsLevel = NONE",
                    error,
                    extra={"action": "metrics_denied"},
                )
            self._denied = True
            return  # kept, they would only grow old
        log.warning("%d metrics wait: %s", len(batch), error, extra={"action": "metrics_failed"})
        self._queue.put(batch)
