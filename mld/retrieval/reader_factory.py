"""Makes the readers of all shards from the settings: they poll, or use enhanced fan-out."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from random import Random

from mld.aws.counted import CountedService
from mld.aws.fanout import KinesisFanOut
from mld.aws.service import RawService
from mld.aws.wire.client import WireService
from mld.core.clock import Clock
from mld.core.errors import StartupError
from mld.core.periods import RENEWALS_PER_LEASE
from mld.core.streams import FanOut, StreamKind, Streams
from mld.metrics.shard import ShardMetrics
from mld.properties.settings import Settings
from mld.properties.values import RetrievalMode
from mld.retrieval.buffer import Budget
from mld.retrieval.fanout import FanOutReader
from mld.retrieval.pacing import Pacing, beat_of
from mld.retrieval.polling import PollingReader
from mld.retrieval.rawpage import page_of_event
from mld.retrieval.reader import ShardReader
from mld.retrieval.registration import RegisteredConsumer
from mld.retrieval.subscribing import YIELD_S

log = logging.getLogger(__name__)

NewReader = Callable[[str, ShardMetrics], ShardReader]
"""Makes the reader of the shard with this id, which counts there what it reads."""
TakeDown = Callable[[], Awaitable[None]]
"""What the last worker of a fleet does when it ends."""
TABLE_CATCH_UP_FROM_S = 60.0
"""A shard of a DynamoDB stream further behind than this is read more often, by Amazon's adapter too; the age of the
newest record, which is all the service tells, is never 0."""
TABLE_CATCH_UP_FACTOR = 3


def fan_out_of(settings: Settings, kinesis: RawService, streams: Streams, extra: bytes = b"") -> FanOut | None:
    """Return the port of enhanced fan-out; None to poll. Nothing can subscribe where every call must go through
    botocore.
    """
    if not settings.reader.by_fan_out:
        return None
    if isinstance(kinesis, WireService | CountedService) and kinesis.can_stream:
        return KinesisFanOut(
            kinesis, streams, stream_name=settings.stream_name, page_of=replace(page_of_event, extra=extra)
        )
    why = "enhanced fan-out needs the lean wire client, and thus no client certificate and no proxy that speaks TLS"
    if settings.reader.mode is RetrievalMode.FANOUT:
        raise StartupError(f"{why}; set retrievalMode=POLLING")
    log.warning("%s; retrievalMode DEFAULT polls instead", why, extra={"action": "fan_out_impossible"})
    return None


@dataclass(frozen=True, slots=True)
class ReaderShares:
    """What all readers of a worker share; with `on_a_beat` those at the tip wake together (`retrieval.pacing`)."""

    clock: Clock
    rng: Random
    budget: Budget
    on_a_beat: bool = False


def readers_of(
    settings: Settings,
    streams: Streams,
    fan_out: FanOut | None,
    shares: ReaderShares,
    consumer_arn: str | None,
    kind: StreamKind = StreamKind.KINESIS,
) -> tuple[NewReader, TakeDown | None]:
    """Return what makes the readers of one stream, and what the last worker takes down."""
    if fan_out is None:
        return polling_readers(settings, streams, shares, kind), None
    consumer = consumer_of(settings, fan_out, shares.clock, shares.rng, consumer_arn)
    new_reader = fan_out_readers(settings, fan_out, consumer, shares)
    return new_reader, consumer.deregister if settings.fanout.deregister else None


def consumer_of(settings: Settings, fan_out: FanOut, clock: Clock, rng: Random, arn: str | None) -> RegisteredConsumer:
    """Return the registered consumer with which all readers of a worker subscribe."""
    return RegisteredConsumer(fan_out, clock, rng, settings.fanout, arn=arn)


def fan_out_readers(
    settings: Settings, fan_out: FanOut, consumer: RegisteredConsumer, shares: ReaderShares
) -> NewReader:
    """Return readers that subscribe."""
    # The next renewal at the latest shows that a lease is lost, and a renewal may take as long as its interval.
    yield_s = max(YIELD_S, 2 * settings.leases.duration_s / RENEWALS_PER_LEASE)

    def new_reader(shard_id: str, metrics: ShardMetrics) -> FanOutReader:
        return FanOutReader(
            fan_out,
            consumer,
            shares.clock,
            shares.rng,
            shard_id=shard_id,
            yield_s=yield_s,
            budget=shares.budget,
            deliver_empty=settings.child.deliver_empty_batches,
            metrics=metrics,
        )

    return new_reader


def polling_intervals(settings: Settings, kind: StreamKind, *, on_a_beat: bool = False) -> Pacing:
    """Return how often a shard of a stream of this kind is read."""
    idle_interval_s = settings.reader.idle_interval_s
    intervals = Pacing(
        idle_interval_s,
        reduced_tps_threshold_s=settings.reader.reduced_tps_threshold_s,
        beat_s=beat_of(idle_interval_s) if on_a_beat else 0.0,
    )
    if kind is StreamKind.KINESIS:
        return intervals
    catch_up_interval_s = idle_interval_s / TABLE_CATCH_UP_FACTOR
    return replace(intervals, catch_up_interval_s=catch_up_interval_s, catch_up_from_s=TABLE_CATCH_UP_FROM_S)


def polling_readers(settings: Settings, streams: Streams, shares: ReaderShares, kind: StreamKind) -> NewReader:
    """Return readers that poll."""
    intervals = polling_intervals(settings, kind, on_a_beat=shares.on_a_beat)

    def new_reader(shard_id: str, metrics: ShardMetrics) -> PollingReader:
        return PollingReader(
            streams,
            shares.clock,
            shares.rng,
            shard_id=shard_id,
            max_records=settings.reader.records_max,
            intervals=intervals,
            budget=shares.budget,
            deliver_empty=settings.child.deliver_empty_batches,
            metrics=metrics,
        )

    return new_reader
