"""What the tests of both models of Java workers share: one stream, one table, Java workers only."""

from __future__ import annotations

import gc
import itertools
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any

from mld.core.positions import TRIM_HORIZON, InitialPosition
from mld.local.kinesis import Kinesis, PutEntry
from tests.simulation.world.loop import Process
from tests.simulation.world.loop import run_world as run_any_world
from tests.simulation.world.plan import Rates
from tests.twins.dynamo import MemoryDynamo
from tests.twins.kinesis_model import ModelStreams
from tests.twins.streams import VirtualClock
from tests.virtual_time import asked_of_pytest

STREAM, TABLE = "clicks", "app"


def run_world(story: Coroutine[Any, Any, None]) -> None:
    """A world ends in the middle of requests; what is left of it goes with the test that made it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_any_world(story)
        gc.collect()


class Notes:
    """A ledger that only writes down."""

    def __init__(self) -> None:
        self.deliveries: list[tuple[str, int, str, int]] = []
        self.begun = 0

    def batch_begins(self, worker: str, shard: str, *, is_ours: bool = True) -> None:
        self.begun += 1

    def delivered(self, worker: str, child: int, shard: str, records: list[tuple[int, int]]) -> None:
        self.deliveries += [(worker, child, shard, sequence) for sequence, _sub in records]

    def seen(self) -> set[int]:
        return {sequence for *_, sequence in self.deliveries}


class JavaWorld:
    """Starts workers of one generation, which `start` makes."""

    def __init__(self, shards: int) -> None:
        self.clock = VirtualClock()
        self.kinesis = Kinesis()
        self.dynamo = MemoryDynamo(self.clock)
        self.notes = Notes()
        self.put: set[int] = set()
        self.workers: dict[str, Any] = {}
        self.processes: dict[str, Process] = {}
        self.exits: dict[str, Any] = {}
        self._numbers = itertools.count(1)
        self.kinesis.create_stream(STREAM, now=self.clock.wall(), shard_count=shards)

    def run(self, kind: Callable[..., Any], name: str, **settings: Any) -> Any:
        common = {
            "table": TABLE,
            "failover_s": 10.0,
            "steals_max": 1,
            "initial": InitialPosition(TRIM_HORIZON),
            "idle_s": 1.0,
            "child_numbers": self._numbers,
            "rates": Rates(),
        }
        streams = ModelStreams(self.kinesis, STREAM, self.clock)
        dynamo = self.dynamo.client(name)
        worker = kind(name, dynamo, streams, self.notes, self.clock, Random(name), **{**common, **settings})
        self.workers[name], self.processes[name] = worker, Process(name)
        self.exits[name] = self.processes[name].spawn(worker.run())
        return worker

    def open_shards(self) -> list[str]:
        page = self.kinesis.list_shards(STREAM, now=self.clock.wall())
        return [state.shard_id for state in page.shards if state.view().is_open]

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        del self.workers[name]

    def records(self, count: int) -> None:
        for _ in range(count):
            entry = PutEntry.of(b"x", str(len(self.put)))
            self.put.add(int(self.kinesis.put_record(STREAM, entry, now=self.clock.wall()).sequence))


def in_world(world_of: Callable[..., JavaWorld], *how: Any, **settings: Any) -> Callable[..., Callable[..., None]]:
    """A test that lives in a world of Java workers, given as `world`."""

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        def run(**asked: Any) -> None:
            async def main() -> None:
                await test(world_of(*how, **settings), **asked)

            run_world(main())

        return asked_of_pytest(test, run, "world")

    return decorate
