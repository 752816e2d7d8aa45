"""A fleet in one loop and in virtual time: real workers over the pure Kinesis model and the in-memory DynamoDB."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from mld.aws.counted_service import CountedService
from mld.consumer.record_budgets import RecordBudgets
from mld.core.streams import ChildBatch
from mld.daemon.assembly import assemble
from mld.daemon.stream_ports import SourcePorts, StreamPorts
from mld.daemon.until_tip import RunUntilTip, UntilTip
from mld.fleet.fleet import DetectLoad, no_load
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.rows import parse_row
from mld.local.kinesis import Kinesis, PutEntry
from mld.metrics.reach import TableReach
from mld.metrics.registry import Metrics
from mld.properties.loader import load
from mld.properties.settings import Settings
from tests.support.sources import one_stream
from tests.twins.children import MemoryHost, Recorder
from tests.twins.dynamo import MemoryDynamo
from tests.twins.kinesis_model import ModelFanOut
from tests.twins.letters import MemoryBox
from tests.twins.streams import VirtualClock
from tests.virtual_time import asked_of_pytest, virtual

STREAM = "clicks"
TABLE = "app"
BASIC = {
    "executableName": "processor",
    "applicationName": TABLE,
    "streamName": STREAM,
    "AwsCredentialsProvider": "AnonymousCredentialsProvider",
    "regionName": "us-east-1",
    "initialPositionInStream": "TRIM_HORIZON",
    "retrievalMode": "POLLING",
    "clientVersionConfig": "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1",  # leases are taken; 3.x tests say so
}


def settings_of(**keys: str):
    """Settings from keys, dots in names written as double underscores; an empty value takes a key away."""
    pairs = {**BASIC, **{name.replace("__", "."): value for name, value in keys.items()}}
    pairs = {name: value for name, value in pairs.items() if value}
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as file:
        file.write("".join(f"{key}={value}\n" for key, value in pairs.items()))
        file.flush()
        return load(Path(file.name)).settings


class Running:
    """One worker under way."""

    def __init__(self, worker, task, host, streams, worker_id: str, metrics: Metrics, reach: TableReach) -> None:
        self.worker = worker
        self.metrics = metrics
        self.task = task
        self.host = host
        self.streams = streams
        self.worker_id = worker_id
        self.reach = reach

    async def stop(self) -> bool:
        """Graceful; True if it was in time."""
        self.worker.request_stop()
        return await self.task

    def tell_nothing(self) -> None:
        """Write no status of any shard; for the price of telling it."""
        self.worker.parts.keeper.status_of = lambda _key: None

    async def crash(self) -> None:
        """As kill -9: children vanish, nothing is written. Writes under way may still arrive."""
        for child in self.host.living():
            await child.kill()
        self.task.cancel()
        await asyncio.wait({self.task})


class Fleet:
    """The world of a test: one stream, one table, any number of workers."""

    def __init__(self, shard_count: int = 1, **keys: str) -> None:
        self.clock = VirtualClock()
        self.kinesis = Kinesis()
        self.dynamo = MemoryDynamo(self.clock)
        self.keys = keys
        self.recorder = Recorder(self.clock)
        self.letters = MemoryBox()
        self.prepare_of: Callable[[Metrics], Callable[[ChildBatch, RecordBudgets], Awaitable[ChildBatch]]] | None = None
        """What takes frames off records, for a worker with these metrics."""
        self.counts_requests = False
        """Whether workers count them, and hear of the answers of their table, as daemons do."""
        self.running: list[Running] = []
        self.put_data: list[bytes] = []
        if shard_count:
            self.kinesis.create_stream(STREAM, now=self.clock.wall(), shard_count=shard_count)

    def start(
        self,
        worker_id: str = "w1",
        script: Callable[..., Any] | None = None,
        seed: int = 1,
        detect_load: DetectLoad = no_load,
        until_tip: UntilTip | None = None,
        **keys: str,
    ) -> Running:
        settings = self.adjusted(settings_of(**{**self.keys, **keys}))
        host = MemoryHost(script or self.recorder)
        ports = None if settings.is_multi_stream else self.ports(settings)
        metrics = Metrics()
        metrics.is_published = True
        dynamo: Any = self.dynamo.client(worker_id)
        reach = TableReach(settings.lease_table.name, settings.leases.duration_s, self.clock.monotonic())
        if self.counts_requests:
            dynamo = CountedService(dynamo, "dynamodb", metrics.worker, reach, self.clock.monotonic)
        table = DynamoLeaseTable(dynamo, self.clock, table_name=settings.lease_table.name)
        worker = assemble(
            settings,
            worker_id,
            self.sources_of(worker_id) if ports is None else one_stream(ports),
            table,
            dynamo,
            host,
            self.clock,
            Random(seed),
            detect_load=detect_load,
            letters=self.letters,
            metrics=metrics,
            prepare=None if self.prepare_of is None else self.prepare_of(metrics),
        )
        if until_tip is not None:
            worker = RunUntilTip(worker, metrics, worker_id, self.clock, settings, until_tip)
        task = asyncio.create_task(worker.run(settings.shutdown_grace_s))
        streams = None if ports is None else ports.streams
        running = Running(worker, task, host, streams, worker_id, metrics, reach)
        self.running.append(running)
        return running

    def adjusted(self, settings: Settings) -> Settings:
        """The settings of a worker with what no key sets."""
        return settings

    def sources_of(self, worker_id: str) -> SourcePorts:
        """The streams of a worker that has several."""
        raise NotImplementedError

    def ports(self, settings: Settings) -> StreamPorts:
        """The one stream of a worker."""
        streams = ModelFanOut(self.kinesis, settings.stream_name, self.clock)
        return StreamPorts(streams, streams if settings.reader.by_fan_out else None, settings.fanout.consumer_arn)

    def put(self, count: int, prefix: str = "r") -> None:
        for _ in range(count):
            data = f"{prefix}-{len(self.put_data)}".encode()
            self.put_data.append(data)
            self.kinesis.put_record(STREAM, PutEntry.of(data, data.decode()), now=self.clock.wall())

    def split(self, shard_id: str) -> None:
        shard = next(s for s in self.shards() if s.shard_id == shard_id)
        middle = (shard.hash_range.start + shard.hash_range.end) // 2 + 1
        self.kinesis.split_shard(STREAM, shard_id, middle, now=self.clock.wall())

    def merge(self, one: str, other: str) -> None:
        self.kinesis.merge_shards(STREAM, one, other, now=self.clock.wall())

    async def recreate_stream(self, shard_count: int = 1, *, gone_s: float = 0.0) -> None:
        """Delete the stream and make another one under its name, `gone_s` later."""
        self.kinesis.delete_stream(STREAM, now=self.clock.wall(), with_consumers=True)
        await self.advance(gone_s)
        self.kinesis.create_stream(STREAM, now=self.clock.wall(), shard_count=shard_count)

    def shards(self):
        return self.kinesis.list_shards(STREAM, now=self.clock.wall()).shards

    def lease(self, key: str):
        row = self.dynamo.row(TABLE, key)
        return None if row is None else parse_row(row)

    async def advance(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def until(self, condition: Callable[[], bool], within_s: float = 120.0, what: str = "") -> float:
        """Advance until the condition holds; the virtual seconds it took."""
        started = self.clock.monotonic()
        while not condition():
            if self.clock.monotonic() - started > within_s:
                raise AssertionError(f"not within {within_s} s: {what or condition}")
            await asyncio.sleep(0.05)
        return self.clock.monotonic() - started

    def all_delivered(self) -> bool:
        return set(self.recorder.data()) >= set(self.put_data)

    def check_order(self) -> None:
        """Sequence order within one child's life."""
        last: dict[int, int] = {}
        for delivery in self.recorder.deliveries:
            number = int(delivery.sequence)
            assert number > last.get(delivery.child, -1), f"child {delivery.child} went back to {number}"
            last[delivery.child] = number

    async def close(self) -> None:
        for running in self.running:
            if not running.task.done():
                await running.crash()


@asynccontextmanager
async def fleet(shard_count: int = 1, **keys: str):
    world = Fleet(shard_count, **keys)
    try:
        yield world
    finally:
        await world.close()


def in_fleet(shard_count: int = 1, **keys: str) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """A test that runs in virtual time and is given a fleet as `world`."""

    def decorate(test: Callable[..., Any]) -> Callable[..., None]:
        @virtual
        async def run(**asked: Any) -> None:
            async with fleet(shard_count, **keys) as world:
                await test(world, **asked)

        return asked_of_pytest(test, run, "world")

    return decorate
