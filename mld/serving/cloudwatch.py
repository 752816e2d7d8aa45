"""`CloudWatch`: sends a period's metrics of this worker to CloudWatch. Rules: metrics#publication.

The values of a period go in as few requests as possible, compressed by the SDK. If CloudWatch does not answer or is too
busy, the values wait (at most `metricsMaxQueueSize` of them), and are sent later with the time at which they were
measured. Values that CloudWatch refuses are dropped, because it would refuse them again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from random import Random

from mld.aws.client_factory import ClientFactory
from mld.aws.service import Service
from mld.aws.service_factory import AwsService, service_of
from mld.core.clock import Clock
from mld.core.errors import AwsError, AwsUnreachableError, MetricsError, MldError
from mld.core.turns import in_turns
from mld.metrics.datums import (
    DATUMS_PER_REQUEST_MAX,
    Datum,
    DatumQueue,
    Wanted,
    packed,
    request_of,
    take_datums,
)
from mld.metrics.registry import Metrics
from mld.properties.settings import Settings
from mld.serving.publisher import Publisher

log = logging.getLogger(__name__)


CALL_TIMEOUT_S = 5.0  # as in Java's daemon
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
"""Error codes after which the same request may succeed later, although the status is below 500. After an error with
status 500 or more the request may always succeed later.
"""


@asynccontextmanager
async def publishing(settings: Settings, metrics: Metrics, factory: ClientFactory, clock: Clock) -> AsyncIterator[None]:
    """Send metrics while the context is open, and the remaining ones at its end."""
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
        stack.push_async_callback(publisher.close)  # called first: it sends the remaining values
        publisher.start()
        yield


def cloudwatch_service(factory: ClientFactory) -> AwsService:
    """Return a client of CloudWatch that opens with its first call, so that the daemon starts even if CloudWatch is
    away.
    """
    return service_of(factory, "cloudwatch", label="CloudWatch", threads_max=1, read_timeout_s=CALL_TIMEOUT_S)


class CloudWatch:
    """Sends values to one namespace, and keeps at most `queue_max` values that could not be sent."""

    def __init__(self, service: Service, *, namespace: str, queue_max: int) -> None:
        """Make a sender. `namespace` is the application's name, as in KCL."""
        self._service = service
        self._namespace = namespace
        self._queue = DatumQueue(queue_max)

    async def send(self, datums: list[Datum], stamp_s: float) -> None:
        """Send the values, stamped with `stamp_s`, in epoch seconds, and the values that wait from earlier calls.

        Raises MetricsError if not all were sent. After a failure that may pass, the values that were not sent wait for
        the next call. Values that CloudWatch refuses are lost.
        """
        for first in range(0, len(datums), DATUMS_PER_REQUEST_MAX):
            part = datums[first : first + DATUMS_PER_REQUEST_MAX]
            self._queue.put([replace(datum, stamp_s=stamp_s) for datum in part])
            await asyncio.sleep(0)  # let other tasks run: 10,000 shards have many values
        self._warn_of_dropped()
        waiting, first_of_batch = self._queue.take(), 0
        failure: MetricsError | None = None
        for batch in packed(waiting):
            request = await in_turns(request_of(self._namespace, batch))
            try:
                await self._service.call("PutMetricData", request, timeout_s=CALL_TIMEOUT_S)
            except MldError as error:
                if not _is_refusal(error):
                    self._queue.put_back(waiting[first_of_batch:])
                    raise MetricsError("unavailable", f"{error}. They wait and are sent later") from error
                failure = _refused(error, len(batch))
            first_of_batch += len(batch)
        if failure is not None:
            raise failure

    def _warn_of_dropped(self) -> None:
        """Warn of the values that the full queue has dropped since the last warning."""
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
    """Return the error for a refused request with `count` series: of kind ``denied`` if IAM does not allow the call,
    else ``refused``. The series are lost in both cases.
    """
    if isinstance(error, AwsError) and error.code in DENIED:
        return MetricsError("denied", f"{error}. Allow cloudwatch:PutMetricData, or take cloudwatch out of mld.metrics")
    return MetricsError("refused", f"{error}. {count} series are lost")
