"""`ModelStreams` and `ModelFanOut`: the ports over the pure Kinesis model of `mld.local`, in process and in the loop's
time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mld.core.clock import Clock
from mld.core.errors import (
    InvalidStreamArgumentError,
    IteratorExpiredError,
    StreamError,
    StreamInUseError,
    StreamNotFoundError,
    StreamThrottledError,
    StreamUnavailableError,
)
from mld.core.positions import TRIM_HORIZON
from mld.core.streams import Shard, ShardFilter, ShardsPage, StartingPoint, StreamConsumer, StreamSummary
from mld.local import records as served
from mld.local import shard_subscription
from mld.local.kinesis import Kinesis, KinesisError
from mld.local.shard_filter import FilterType, ListFilter
from mld.local.shard_reading import LogPage
from mld.local.stream_state import Consumer
from mld.protocol.messages import Record
from mld.retrieval import rawbody
from mld.retrieval.rawpage import RawPage
from tests.support.pages import records_of

_ERRORS: dict[str, type[StreamError]] = {
    "ResourceNotFoundException": StreamNotFoundError,
    "ResourceInUseException": StreamInUseError,
    "LimitExceededException": StreamThrottledError,
    "ProvisionedThroughputExceededException": StreamThrottledError,
    "ExpiredIteratorException": IteratorExpiredError,
    "ExpiredNextTokenException": IteratorExpiredError,
    "InvalidArgumentException": InvalidStreamArgumentError,
    "ValidationException": InvalidStreamArgumentError,
}


class ModelStreams:
    """One stream of `model` as one worker sees it. `faults(operation)` may return an error to raise; `bend_page` and
    `bend_listing` alter what is answered."""

    def __init__(
        self,
        model: Kinesis,
        stream_name: str,
        clock: Clock,
        *,
        latency_s: float = 0.005,
        faults: Callable[[str], StreamError | None] = lambda operation: None,
    ) -> None:
        self.bend_page: Callable[[RawPage], RawPage] = lambda page: page
        self.bend_listing: Callable[[Shard], Shard] = lambda shard: shard
        self._model = model
        self._name = stream_name
        self._clock = clock
        self._latency_s = latency_s
        self.faults = faults

    async def list_shards(self, shard_filter: ShardFilter | None, next_token: str | None) -> ShardsPage:
        wanted = None
        if shard_filter is not None and next_token is None:
            wanted = ListFilter(FilterType(shard_filter.type.value), timestamp_s=shard_filter.timestamp_s)
        page = await self._ask(
            "ListShards",
            lambda now: self._model.list_shards(
                None if next_token else self._name, now=now, token=next_token, shard_filter=wanted
            ),
        )
        return ShardsPage(tuple(self.bend_listing(state.view()) for state in page.shards), page.next_token)

    async def describe(self) -> StreamSummary:
        stream = await self._ask("DescribeStreamSummary", lambda now: self._model.stream(self._name, now))
        return StreamSummary(
            stream.name,
            stream.arn,
            stream.status(self._clock.wall()),
            stream.created_ms,
            stream.on_demand,
            stream.retention_h * 3600.0,
        )

    async def shard_iterator(self, shard_id: str, start: StartingPoint) -> str:
        return await self._ask(
            "GetShardIterator", lambda now: self._model.get_shard_iterator(self._name, shard_id, start, now=now)
        )

    async def get_records(self, iterator: str, limit: int | None) -> RawPage:
        page, following = await self._ask(
            "GetRecords", lambda now: self._model.get_records(iterator, now=now, limit=limit, ref=self._name)
        )
        return self.bend_page(page_of(page, following))

    async def _ask(self, operation, act):
        await self._clock.sleep(self._latency_s)
        return self._asked(operation, act)

    def _asked(self, operation: str, act: Callable[[float], Any]) -> Any:
        """What the service answers now."""
        if (fault := self.faults(operation)) is not None:
            raise fault
        try:
            return act(self._clock.wall())
        except KinesisError as error:
            raise stream_error(operation, error) from None


PUSH_S = 0.07
"""How often an idle subscription looks for records that have come."""


class ModelFanOut(ModelStreams):
    """The `FanOut` of one stream of `model`."""

    async def consumer_named(self, stream_arn: str, name: str) -> StreamConsumer:
        return await self._consumer(
            "DescribeStreamConsumer", lambda now: self._model.consumer(now=now, stream_arn=stream_arn, name=name)
        )

    async def consumer(self, arn: str) -> StreamConsumer:
        return await self._consumer("DescribeStreamConsumer", lambda now: self._model.consumer(now=now, arn=arn))

    async def register_consumer(self, stream_arn: str, name: str) -> StreamConsumer:
        return await self._consumer(
            "RegisterStreamConsumer", lambda now: self._model.register_consumer(stream_arn, name, now=now)
        )

    async def _consumer(self, operation: str, act: Callable[[float], Consumer]) -> StreamConsumer:
        def seen(now: float) -> StreamConsumer:
            consumer = act(now)
            return StreamConsumer(consumer.arn, consumer.status(now))

        return await self._ask(operation, seen)

    async def subscribe(self, consumer_arn: str, shard_id: str, start: StartingPoint) -> ModelSubscription:
        opened = await self._ask(
            "SubscribeToShard", lambda now: self._model.subscribe(consumer_arn, shard_id, start, now=now)
        )
        return ModelSubscription(opened, self._clock, lambda page: self.bend_page(page))


class ModelSubscription:
    """An open subscription of the model; its holder pulls what the service would push."""

    def __init__(
        self, service: shard_subscription.ShardSubscription, clock: Clock, bend: Callable[[RawPage], RawPage]
    ) -> None:
        self._service = service
        self._clock = clock
        self._bend = bend

    async def next(self) -> RawPage | None:
        while True:
            match self._service.next_step(self._clock.wall()):
                case shard_subscription.SubscriptionEvent(page=page, continuation=continuation):
                    return self._bend(page_of(page, continuation))
                case shard_subscription.Finished(error=None):
                    return None
                case shard_subscription.Finished(error=error):
                    raise stream_error("SubscribeToShard", error)
                case shard_subscription.Idle():
                    await self._clock.sleep(PUSH_S)

    def close(self) -> None:
        self._service.stop()


def page_of(page: LogPage, following: str | None) -> RawPage:
    """A page of the model as the port has it."""
    return rawbody.page_of(served.page_json(page, "NextShardIterator", following))


def records_in(page: LogPage) -> list[Record]:
    return records_of(page_of(page, None).after(TRIM_HORIZON))


def stream_error(operation: str, error: KinesisError) -> StreamError:
    return _ERRORS.get(error.code, StreamUnavailableError)(f"{operation}: {error}")
