"""The doors of the workers to DynamoDB and Kinesis, with the faults a story asks for. Nothing here is random."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mld.core.clock import Clock
from mld.core.errors import AwsError, AwsUnreachableError, StreamThrottledError, StreamUnavailableError
from mld.core.streams import ShardFilter, ShardsPage, StartingPoint, StreamSummary
from mld.local.kinesis import Kinesis
from mld.local.tokens import decode_iterator
from mld.retrieval.rawpage import RawPage
from tests.simulation.world.loop import in_world
from tests.twins.dynamo import Fault, MemoryDynamo
from tests.twins.kinesis_model import ModelStreams

LATENCY_S = 0.005
VOID_S = 3600.0
"""A packet into the void: longer than anybody waits."""
CONNECT_TIMEOUT_S = 3.0
"""How long the adapter waits for a Kinesis that does not answer."""
WRITES = ("PutItem", "UpdateItem", "DeleteItem")


@dataclass(slots=True)
class Weather:
    """The faults of the moment. Times are when they end, on the story's clock; `cut` are (worker, service) pairs."""

    cut: set[tuple[str, str]] = field(default_factory=set)
    throttled_until: dict[str, float] = field(default_factory=dict)
    replies_lost_until: float = 0.0
    lose_every: int = 1
    writes: int = 0
    replies_to_lose: int = 0
    slow_until: float = 0.0
    slow_s: float = 0.0


class Network:
    """What lies between the workers and AWS. `calls` counts requests by service and operation."""

    def __init__(self, clock: Clock, dynamo: MemoryDynamo) -> None:
        self.weather = Weather()
        self.calls: Counter[tuple[str, str]] = Counter()
        self.reads: list[tuple[float, str, int]] = []
        self._clock = clock
        self._dynamo = dynamo
        dynamo.faults = self._fault

    def dynamo_door(self, worker: str) -> DynamoDoor:
        return DynamoDoor(self._dynamo, worker)

    def kinesis_door(self, model: Kinesis, stream: str, worker: str) -> KinesisDoor:
        return KinesisDoor(self, model, stream, self._clock, worker)

    def is_throttled(self, service: str) -> bool:
        return self._clock.monotonic() < self.weather.throttled_until.get(service, 0.0)

    def _fault(self, worker: str, operation: str, params: Mapping[str, Any]) -> Fault:
        self.calls["DynamoDB", operation] += 1
        weather, now = self.weather, self._clock.monotonic()
        if (worker, "dynamo") in weather.cut:
            return Fault(delay_before_s=VOID_S, fail_before=AwsUnreachableError(operation, "unreachable"))
        if self.is_throttled("dynamo"):
            error = AwsError(operation, "ProvisionedThroughputExceededException", "slow down")
            return Fault(LATENCY_S, error)
        if operation in WRITES and self._loses_reply(now):
            return Fault(LATENCY_S, None, AwsUnreachableError(operation, "connection reset"), LATENCY_S)
        if now < weather.slow_until:
            return Fault(LATENCY_S, None, None, weather.slow_s)
        return Fault(LATENCY_S, None, None, LATENCY_S)

    def _loses_reply(self, now: float) -> bool:
        weather = self.weather
        if weather.replies_to_lose:
            weather.replies_to_lose -= 1
            return True
        weather.writes += 1
        return now < weather.replies_lost_until and weather.writes % weather.lose_every == 0


class DynamoDoor:
    """The `Service` of one worker. A request that was sent goes on without its sender."""

    def __init__(self, dynamo: MemoryDynamo, worker: str) -> None:
        self._dynamo = dynamo
        self._worker = worker

    async def call(self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        work = in_world(self._dynamo.request(self._worker, operation, params, timeout_s))
        work.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(work)


class KinesisDoor:
    """The `Streams` of one worker."""

    def __init__(self, network: Network, model: Kinesis, stream: str, clock: Clock, worker: str) -> None:
        self._network = network
        self._streams = ModelStreams(model, stream, clock, latency_s=LATENCY_S)
        self._clock = clock
        self._worker = worker

    async def list_shards(self, shard_filter: ShardFilter | None, next_token: str | None) -> ShardsPage:
        await self._travel("ListShards")
        return await in_world(self._streams.list_shards(shard_filter, next_token))

    async def describe(self) -> StreamSummary:
        await self._travel("DescribeStreamSummary")
        return await in_world(self._streams.describe())

    async def shard_iterator(self, shard_id: str, start: StartingPoint) -> str:
        await self._travel("GetShardIterator")
        return await in_world(self._streams.shard_iterator(shard_id, start))

    async def get_records(self, iterator: str, limit: int | None) -> RawPage:
        place = decode_iterator(iterator)
        self._network.reads.append((self._clock.monotonic(), self._worker, place.shard_index))
        await self._travel("GetRecords")
        return await in_world(self._streams.get_records(iterator, limit))

    async def _travel(self, operation: str) -> None:
        self._network.calls["Kinesis", operation] += 1
        if (self._worker, "kinesis") in self._network.weather.cut:
            await self._clock.sleep(CONNECT_TIMEOUT_S)
            raise StreamUnavailableError(f"{operation}: no connection within {CONNECT_TIMEOUT_S:g} s")
        if self._network.is_throttled("kinesis"):
            await self._clock.sleep(LATENCY_S)
            raise StreamThrottledError(f"{operation}: rate exceeded")
