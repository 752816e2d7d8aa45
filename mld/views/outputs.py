"""The outputs of metrics that the settings choose, made of real parts, and the publisher that feeds them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

from mld.aws.client_factory import ClientFactory
from mld.core.clock import Clock
from mld.core.errors import StartupError
from mld.metrics.registry import Identity, Metrics
from mld.properties.settings import Settings
from mld.properties.values import MetricsOutput
from mld.views.cloudwatch import CloudWatchOutput, cloudwatch_service
from mld.views.datums import Wanted, take_datums
from mld.views.publisher import Output, Publisher


@asynccontextmanager
async def publishing(
    settings: Settings, identity: Identity, metrics: Metrics, factory: ClientFactory, clock: Clock
) -> AsyncIterator[None]:
    """Send metrics while the body runs, and what is left at its end. Raises StartupError if an output is impossible."""
    wanted = Wanted.of(settings)
    async with AsyncExitStack() as stack:
        outputs = [
            _output(output, settings, identity, factory, stack)
            for output in settings.metrics.outputs
            if output is not MetricsOutput.PROMETHEUS
        ]
        publisher = Publisher(
            lambda: take_datums(metrics, wanted, clock.wall()),
            outputs,
            clock,
            Random(),
            period_s=settings.metrics.period_s,
        )
        metrics.is_published = True
        publisher.start()
        stack.push_async_callback(publisher.close)
        yield


def _output(
    output: MetricsOutput, settings: Settings, identity: Identity, factory: ClientFactory, stack: AsyncExitStack
) -> Output:
    series_max = settings.metrics.queue_max
    match output:
        case MetricsOutput.CLOUDWATCH:
            service = cloudwatch_service(factory)
            stack.push_async_callback(service.close)
            return CloudWatchOutput(service, namespace=settings.application_name, queue_max=series_max)
        case MetricsOutput.OTLP:
            from mld.views.otlp import OtlpOutput

            try:
                return OtlpOutput(identity, series_max=series_max)
            except (OSError, ValueError) as error:
                raise StartupError(f"mld.metrics: otlp: a variable of OTEL_… cannot be used: {error}") from error
        case MetricsOutput.PROMETHEUS:
            raise AssertionError("scraped, not sent")
