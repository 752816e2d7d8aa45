"""`readers_of`: makes the readers of shards as the settings say: by polling or enhanced fan-out, of Kinesis or of
DynamoDB Streams.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mld.aws.counted_service import CountedService
from mld.aws.dynamo_streams import DynamoDBStreams
from mld.aws.fanout import KinesisFanOut
from mld.aws.kinesis import KinesisStreams
from mld.aws.service import RawService
from mld.aws.wire.client import WireService
from mld.core.clock import Clock
from mld.core.errors import StartupError
from mld.core.periods import RENEWALS_PER_LEASE
from mld.core.streams import FanOut, StreamKind, Streams
from mld.metrics.shard import ShardMetrics
from mld.properties.settings import Settings
from mld.properties.values import RetrievalMode
from mld.retrieval.fanout import FanOutReader
from mld.retrieval.pacing import Pacing, beat_of
from mld.retrieval.polling import PollingReader
from mld.retrieval.rawbody import page_of, page_of_event
from mld.retrieval.reader import ReaderShares, ShardReader
from mld.retrieval.registration import RegisteredConsumer
from mld.retrieval.subscriptions import YIELD_S

log = logging.getLogger(__name__)

LABELS = {StreamKind.KINESIS: "Kinesis", StreamKind.DYNAMODB: "DynamoDB Streams"}
"""Names of the services for messages."""

NewReader = Callable[[str, ShardMetrics], ShardReader]
"""Makes the reader for a shard, given its id and its metrics."""
TABLE_CATCH_UP_FROM_S = 60.0
"""If the reader of a DynamoDB stream is further behind than this, it reads more often, as in Amazon's adapter. The
limit is not 0, because the lag is measured by the age of the newest record, which is never 0.
"""
TABLE_CATCH_UP_FACTOR = 3
"""How many times as often it reads then."""


def kind_of(arn: str | None) -> StreamKind:
    """Return the kind of the stream with this ARN; None means Kinesis."""
    return StreamKind.DYNAMODB if arn is not None and arn.split(":")[2] == "dynamodb" else StreamKind.KINESIS


def service_name(kind: StreamKind) -> str:
    """Return the name of the AWS API for streams of this kind."""
    return "kinesis" if kind is StreamKind.KINESIS else "dynamodbstreams"


def streams_port(service: RawService, clock: Clock, settings: Settings, name: str, arn: str | None) -> Streams:
    """Return the `Streams` port of one stream."""
    if arn is not None and kind_of(arn) is StreamKind.DYNAMODB:
        is_shared = settings.child.children_per_shard > 1  # then the key decides which child gets a change
        return DynamoDBStreams(service, clock, stream_arn=arn, page_of=page_of, keyed_by_item=is_shared)
    return KinesisStreams(service, stream_name=name, stream_arn=arn, page_of=page_of)


def fan_out_of(settings: Settings, kinesis: RawService, streams: Streams) -> FanOut | None:
    """Return the port of enhanced fan-out; None if the shards are to be polled.

    Fan-out needs the lean wire client. If the settings demand fan-out although every call must go through botocore,
    raises StartupError.
    """
    if not settings.reader.by_fan_out:
        return None
    if isinstance(kinesis, WireService | CountedService) and kinesis.can_stream:
        return KinesisFanOut(kinesis, streams, stream_name=settings.stream_name, page_of=page_of_event)
    why = "enhanced fan-out needs the lean wire client, and thus no client certificate and no proxy that speaks TLS"
    if settings.reader.mode is RetrievalMode.FANOUT:
        raise StartupError(f"{why}; set retrievalMode=POLLING")
    log.warning("%s; retrievalMode DEFAULT polls instead", why, extra={"action": "fan_out_impossible"})
    return None


def readers_of(
    settings: Settings,
    streams: Streams,
    fan_out: FanOut | None,
    shares: ReaderShares,
    consumer_arn: str | None,
    kind: StreamKind = StreamKind.KINESIS,
) -> NewReader:
    """Return a function that makes the readers of one stream: polling readers if `fan_out` is None, else readers by
    enhanced fan-out, which use the registered consumer `consumer_arn` if that is given.
    """
    common: dict[str, Any] = {"deliver_empty": settings.child.deliver_empty_batches}
    if fan_out is None:
        intervals = polling_intervals(settings, kind, on_a_beat=shares.on_a_beat)
        common |= {"max_records": settings.reader.records_max, "intervals": intervals}
        return lambda shard_id, metrics: PollingReader(streams, shares, shard_id=shard_id, metrics=metrics, **common)
    consumer = RegisteredConsumer(fan_out, shares.clock, shares.rng, settings.fanout, arn=consumer_arn)
    # A worker learns at the next renewal that it has lost a lease, and the renewal may take as long as its interval.
    common["yield_s"] = max(YIELD_S, 2 * settings.leases.duration_s / RENEWALS_PER_LEASE)
    return lambda shard_id, metrics: FanOutReader(
        fan_out, consumer, shares, shard_id=shard_id, metrics=metrics, streams=streams, **common
    )


def polling_intervals(settings: Settings, kind: StreamKind, *, on_a_beat: bool = False) -> Pacing:
    """Return how often a shard of a stream of this kind is read. `on_a_beat`: readers at the tip wake together."""
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
