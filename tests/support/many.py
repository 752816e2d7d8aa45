"""A fleet that consumes several streams, in virtual time; see `tests.support.fleet`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from mld.core.streams import StreamSummary
from mld.daemon.stream_ports import SourcePorts, StreamPorts
from mld.local.kinesis import PutEntry
from mld.properties.settings import Settings
from mld.tracking.list_follower import WantedStream
from mld.tracking.stream_list import ListedStream, account_and_name
from tests.support.fleet import TABLE, Fleet
from tests.twins.kinesis_model import ModelFanOut
from tests.virtual_time import asked_of_pytest, virtual

V3X = "CLIENT_VERSION_CONFIG_3X"
FORMER_WAIT_S = 600.0
"""Before leases of former streams are deleted: a sixth of what daemons wait, and of the processor time for it."""


class ManyFleet(Fleet):
    """`wanted` is what the settings of all workers say, unless `own` has a list for one; both may change."""

    def __init__(self, *names: str, shard_count: int = 1, **keys: str) -> None:
        keys = {"clientVersionConfig": V3X, **keys}
        super().__init__(0, streamName="", mld__streams=",".join(names), **keys)
        self.wanted: Sequence[WantedStream] = [WantedStream(name) for name in names]
        self.described = 0
        """How often the service was asked about a stream."""
        self.own: dict[str, Sequence[WantedStream]] = {}
        self.opened: list[tuple[str, str, bool]] = []
        """Worker, label, and whether the list that the worker had read last has this label, for each stream opened."""
        self.put_to: dict[str, list[bytes]] = defaultdict(list)
        for name in names:
            self.create(name, shard_count)

    def create(self, name: str, shard_count: int = 1) -> None:
        self.kinesis.create_stream(name, now=self.clock.wall(), shard_count=shard_count)

    def delete(self, name: str) -> None:
        self.kinesis.delete_stream(name, now=self.clock.wall(), with_consumers=True)

    def adjusted(self, settings: Settings) -> Settings:
        return replace(settings, shards=replace(settings.shards, former_streams_wait_s=FORMER_WAIT_S))

    def sources_of(self, worker_id: str) -> SourcePorts:
        def port(name: str) -> ModelFanOut:
            return ModelFanOut(self.kinesis, name, self.clock)

        async def describe(wanted: WantedStream) -> StreamSummary:
            self.described += 1
            name = wanted.label if wanted.arn is None else account_and_name(wanted.arn)[1]
            return await port(name).describe()

        known = {one.label for one in self.own.get(worker_id, self.wanted)}

        async def open_stream(listed: ListedStream | None) -> StreamPorts:
            assert listed is not None
            self.opened.append((worker_id, listed.label, listed.label in known))
            return StreamPorts(port(listed.id.name))

        async def wanted() -> Sequence[WantedStream]:
            found = self.own.get(worker_id, self.wanted)
            known.clear()
            known.update(one.label for one in found)
            return found

        return SourcePorts(open_stream, wanted, describe)

    def start(self, worker_id: str = "w1", *args: Any, **keys: Any):
        return super().start(worker_id, *args, **{"workerId": worker_id, **keys})

    def put_in(self, name: str, count: int) -> None:
        for _ in range(count):
            data = f"{name}-{len(self.put_to[name])}".encode()
            self.put_to[name].append(data)
            self.put_data.append(data)
            self.kinesis.put_record(name, PutEntry.of(data, data.decode()), now=self.clock.wall())

    def rows(self) -> dict[str, Any]:
        """The lease rows as they are, by key."""
        rows = self.dynamo.rows(TABLE) if self.dynamo.has_table(TABLE) else {}
        return {key: row for key, row in rows.items() if row.get("entityType", {}).get("S") == "LEASE"}

    def stream_id(self, name: str) -> str:
        """The identifier that the newest leases of a stream have."""
        ids = {row["streamName"]["S"] for row in self.rows().values() if row["streamName"]["S"].split(":")[1] == name}
        return max(ids, key=lambda one: int(one.rsplit(":")[-1]))


@asynccontextmanager
async def many_fleet(*names: str, shard_count: int = 1, **keys: str):
    world = ManyFleet(*names, shard_count=shard_count, **keys)
    try:
        yield world
    finally:
        await world.close()


def in_many_fleet(
    *names: str, shard_count: int = 1, **keys: str
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """A test that runs in virtual time and is given a fleet of several streams as `world`."""

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @virtual
        async def run(**asked: Any) -> None:
            async with many_fleet(*names, shard_count=shard_count, **keys) as world:
                await test(world, **asked)

        return asked_of_pytest(test, run, "world")

    return decorate
