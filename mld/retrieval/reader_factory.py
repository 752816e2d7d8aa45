"""Makes the readers of all shards from the settings: they poll, or use enhanced fan-out, over the adapter of Kinesis or
of DynamoDB Streams.

`Placement`: who chooses the shards of a stream's records, producers by their keys, or Kinesis
(retrieval#hash-range-rule). A stream in on-demand mode has a RecordDistributionStrategy, which may be changed at any
time; records stay where they are, and do not show by which one they came there. So only a stream without one is known
to have its records where their keys say. What is not known is never dropped for it.

`StreamNaming` tells children which stream this is: its ARN and time of creation, as another stream may have or
have had its name.

The Spark processor keeps positions in places that outlive the stream and that other streams may share, where a name is
not enough. Kinesis is asked at the start of each child, since a stream may be deleted and made again while we run;
children that start together share one answer. Without an answer they start all the same, and complain if they need it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from mld.aws.client_factory import CountedService
from mld.aws.dynamo_streams import DynamoDBStreams
from mld.aws.fanout import KinesisFanOut
from mld.aws.kinesis import KinesisStreams
from mld.aws.service import RawService
from mld.aws.wire.client import WireService
from mld.core.clock import Clock
from mld.core.error_boundary import contained
from mld.core.errors import MldError, StartupError, StreamError
from mld.core.periods import RENEWALS_PER_LEASE
from mld.core.streams import FanOut, HashRange, StreamKind, Streams
from mld.metrics.shard import ShardMetrics
from mld.properties.settings import Settings
from mld.properties.values import RetrievalMode
from mld.retrieval.fanout import YIELD_S, FanOutReader, RegisteredConsumer
from mld.retrieval.pacing import Pacing, beat_of
from mld.retrieval.rawbody import page_of, page_of_event
from mld.retrieval.reader import PollingReader, ReaderShares, ShardReader

log = logging.getLogger(__name__)

T = TypeVar("T")

NAMING_FRESH_S = 5.0
"""How long an answer, or its absence, is good for others. Kinesis takes longer to delete a stream and make it again."""
ATTEMPTS_MAX = 4
"""DescribeStreamSummary is allowed 20 times a second in an account, and a whole fleet may be starting."""
RETRY_S = 1.0
NAMING_ANSWER_S = 10.0
"""Longest wait for one answer."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

FRESH_S = 60.0
"""How long an answer counts. A stream is changed to on-demand mode, which takes a while, before its strategy is."""
ANSWER_S = 5.0

LABELS = {StreamKind.KINESIS: "Kinesis", StreamKind.DYNAMODB: "DynamoDB Streams"}
"""How people name the service."""

NewReader = Callable[[str, ShardMetrics], ShardReader]
"""Makes the reader of the shard with this id, which counts there what it reads."""
TABLE_CATCH_UP_FROM_S = 60.0
"""A shard of a DynamoDB stream further behind than this is read more often, by Amazon's adapter too; the age of the
newest record, which is all the service tells, is never 0."""
TABLE_CATCH_UP_FACTOR = 3


class Shared(Generic[T]):
    """What `ask` returns, asked for once for all who want to know it within `fresh_s`."""

    def __init__(self, ask: Callable[[], Awaitable[T]], clock: Clock, fresh_s: float) -> None:
        self._ask = ask
        self._clock = clock
        self._fresh_s = fresh_s
        self._asking = asyncio.Lock()
        self._answered_at = -fresh_s
        self._answer: T

    async def get(self) -> T:
        async with self._asking:
            if self._clock.monotonic() - self._answered_at >= self._fresh_s:
                self._answer = await self._ask()
                self._answered_at = self._clock.monotonic()
            return self._answer


class StreamNaming:
    """Describes one stream to all children of a daemon."""

    def __init__(self, streams: Streams, clock: Clock) -> None:
        self._streams = streams
        self._clock = clock
        self._shared = Shared(self._ask, clock, NAMING_FRESH_S)

    async def variables(self) -> Mapping[str, str]:
        """Return variables for the environment of a child; empty if Kinesis does not answer."""
        return await self._shared.get()

    async def _ask(self) -> dict[str, str]:
        why = ""
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                await self._clock.sleep(RETRY_S * attempt)
            try:
                async with asyncio.timeout(NAMING_ANSWER_S):
                    summary = await self._streams.describe()
            except StreamError as error:
                why = str(error)
            except TimeoutError:
                why = f"no answer within {NAMING_ANSWER_S:g} s"
            else:
                if summary.created_ms is None:
                    why = "the answer has no StreamCreationTimestamp"
                    break
                return {"MLD_STREAM_ARN": summary.arn, "MLD_STREAM_CREATED": _written(summary.created_ms)}
        log.warning("cannot tell children which stream this is: %s", why, extra={"action": "stream_not_described"})
        return {}


def _written(created_ms: int) -> str:
    """Return a time, written as `2026-01-02T03:04:05.678Z`."""
    created = _EPOCH + timedelta(milliseconds=created_ms)
    return f"{created.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


class Placement:
    """Knows it of one stream; asks only if somebody wants to know, and all of a worker's shards together."""

    def __init__(self, streams: Streams, clock: Clock) -> None:
        self._streams = streams
        self._is_by_key = Shared(self._ask, clock, FRESH_S)

    async def range_of(self, hash_range: HashRange | None) -> HashRange | None:
        """Return the range of a shard to which its records belong; None if they need not belong to it, or nobody
        knows.
        """
        return hash_range if hash_range is not None and await self._is_by_key.get() else None

    async def _ask(self) -> bool:
        try:
            async with asyncio.timeout(ANSWER_S):
                return not (await contained(self._streams.describe(), "describing the stream")).has_strategy
        except (MldError, TimeoutError) as error:
            log.warning(
                "cannot tell whether records lie where their keys say, so all of KPL aggregates are delivered: %s",
                error or f"no answer within {ANSWER_S:g} s",
                extra={"action": "stream_not_described"},
            )
            return False


def kind_of(arn: str | None) -> StreamKind:
    """Return the kind of the stream with this ARN; without one it is of Kinesis."""
    return StreamKind.DYNAMODB if arn is not None and arn.split(":")[2] == "dynamodb" else StreamKind.KINESIS


def service_name(kind: StreamKind) -> str:
    """Return the API that streams of this kind have."""
    return "kinesis" if kind is StreamKind.KINESIS else "dynamodbstreams"


def streams_port(service: RawService, clock: Clock, name: str, arn: str | None, extra: bytes = b"") -> Streams:
    """Return the `Streams` port of one stream over the service of its kind; `extra` is what each record has besides."""
    page = replace(page_of, extra=extra)
    if arn is not None and kind_of(arn) is StreamKind.DYNAMODB:
        return DynamoDBStreams(service, clock, stream_arn=arn, page_of=page)
    return KinesisStreams(service, stream_name=name, stream_arn=arn, page_of=page)


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


def readers_of(
    settings: Settings,
    streams: Streams,
    fan_out: FanOut | None,
    shares: ReaderShares,
    consumer_arn: str | None,
    kind: StreamKind = StreamKind.KINESIS,
) -> NewReader:
    """Return what makes the readers of one stream."""
    common: dict[str, Any] = {"deliver_empty": settings.child.deliver_empty_batches}
    if fan_out is None:
        intervals = polling_intervals(settings, kind, on_a_beat=shares.on_a_beat)
        common |= {"max_records": settings.reader.records_max, "intervals": intervals}
        return lambda shard_id, metrics: PollingReader(streams, shares, shard_id=shard_id, metrics=metrics, **common)
    consumer = RegisteredConsumer(fan_out, shares.clock, shares.rng, settings.fanout, arn=consumer_arn)
    # The next renewal at the latest shows that a lease is lost, and a renewal may take as long as its interval.
    common["yield_s"] = max(YIELD_S, 2 * settings.leases.duration_s / RENEWALS_PER_LEASE)
    return lambda shard_id, metrics: FanOutReader(
        fan_out, consumer, shares, shard_id=shard_id, metrics=metrics, streams=streams, **common
    )


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
