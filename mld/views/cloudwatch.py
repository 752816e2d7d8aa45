"""PutMetricData: a period's datums in as few requests as CloudWatch takes, compressed by the SDK.

What CloudWatch does not answer, or is too busy for, waits within `metricsMaxQueueSize`, and is sent later with the time
at which it was measured. What it refuses is dropped, because it would be refused again. Rules: metrics#publication.
"""

from __future__ import annotations

import asyncio
import logging

from mld.aws.client import BotoService
from mld.aws.client_factory import ClientFactory
from mld.aws.counted import service_of
from mld.aws.service import Service
from mld.core.clock import in_turns
from mld.core.errors import AwsError, AwsUnreachableError, MetricsError, MldError
from mld.views.datums import DATUMS_PER_REQUEST_MAX, Datum, DatumQueue, Period, Stamped, packed, request_of

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 5.0  # as Java's
CONNECT_TIMEOUT_S = 3.0
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


def cloudwatch_service(factory: ClientFactory) -> BotoService:
    """Return a client of CloudWatch that makes itself with its first call: a start never waits for it, nor fails by
    it.
    """
    service = service_of(
        factory,
        "cloudwatch",
        label="CloudWatch",
        lean=False,
        threads_max=1,
        calls_max=1,
        read_timeout_s=CALL_TIMEOUT_S,
        connect_timeout_s=CONNECT_TIMEOUT_S,
    )
    assert isinstance(service, BotoService)
    return service


class CloudWatchOutput:
    """`namespace` is the application's name, as in KCL."""

    name = "cloudwatch"

    def __init__(self, service: Service, *, namespace: str, queue_max: int) -> None:
        self._service = service
        self._namespace = namespace
        self._queue = DatumQueue(queue_max)

    async def publish(self, datums: list[Datum], period: Period) -> None:
        for first in range(0, len(datums), DATUMS_PER_REQUEST_MAX):
            part = datums[first : first + DATUMS_PER_REQUEST_MAX]
            self._queue.put([Stamped(datum, period.stamp_s) for datum in part])
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

    async def close(self) -> None:
        """Close nothing of its own; the service is closed by who made it."""

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
