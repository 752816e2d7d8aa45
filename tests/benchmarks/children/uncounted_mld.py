"""`mld` that counts nothing and tells nothing for half of the time, and measures itself: what the metrics cost.

In turns of `BENCH_TURN_S` seconds the verbs by which the shells count are what they are, and functions that do
nothing; rows have a status, and none. So both meet the same process on the same machine. At the end of each turn a
line of JSON goes to the file named in `BENCH_TURNS`: whether it counted, CPU seconds of this process, answers of
Kinesis, and bytes in batches. With ``always`` as first argument nothing is ever counted, and nothing measured.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mld.aws.counted import CountedService
from mld.aws.wire.client import WireService
from mld.cli import main
from mld.daemon import assembly
from mld.daemon import process as daemon
from mld.fleet.heartbeat_writer import HeartbeatWriter
from mld.leases.keeper import LeaseKeeper
from mld.metrics.instruments import Amounts, Calls, Progress, Spread, Tally
from mld.metrics.operations import RenewalCounts
from mld.metrics.registry import Metrics
from mld.metrics.shard import ShardMetrics


def _nothing(*_: Any, **__: Any) -> None:
    return None


async def _none(*_: Any) -> None:
    return None


async def _call(self: Any, *arguments: Any, **more: Any) -> Any:
    return await self._service.call(*arguments, **more)


async def _fetch(self: Any, *arguments: Any, **more: Any) -> Any:
    return await self._service.fetch(*arguments, **more)


VERBS: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (Tally, "add", _nothing),
    (Amounts, "add", _nothing),
    (Spread, "note", _nothing),
    (Calls, "note", _nothing),
    (Progress, "step", _nothing),
    (Progress, "timely_step", _nothing),
    (Progress, "rest", _nothing),
    (ShardMetrics, "fetched", _nothing),
    (ShardMetrics, "fetched_nothing", _nothing),
    (ShardMetrics, "saw_lag", _nothing),
    (ShardMetrics, "entered", _nothing),
    (ShardMetrics, "took", _nothing),
    (ShardMetrics, "handed_over", _nothing),
    (ShardMetrics, "answered", _nothing),
    (ShardMetrics, "stored", _nothing),
    (ShardMetrics, "failed", _nothing),
    (RenewalCounts, "ticked", _nothing),
    (Metrics, "renewed", _nothing),
    (Metrics, "lost", _nothing),
    (CountedService, "call", _call),
    (CountedService, "fetch", _fetch),
    (HeartbeatWriter, "_shards", _none),
    (assembly, "status_of", _nothing),
)
REAL = [getattr(owner, name) for owner, name, _ in VERBS]


def count(counts: bool) -> None:
    """Let everything count, or nothing."""
    for (owner, name, replacement), real in zip(VERBS, REAL, strict=True):
        setattr(owner, name, real if counts else replacement)


class Turns:
    """What was done in the turn that runs."""

    def __init__(self, path: str, turn_s: float, counts: bool) -> None:
        self._file = Path(path)
        self._turn_s = turn_s
        self._counts = counts
        count(counts)
        self._answers = self._bytes = 0
        self._cpu_s = time.process_time()

    def watch(self) -> None:
        fetch, deliver = WireService.fetch, LeaseKeeper.record_delivery

        async def counted_fetch(service: Any, *arguments: Any, **more: Any) -> Any:
            self._answers += 1
            return await fetch(service, *arguments, **more)

        def counted_delivery(keeper: Any, key: str, data_bytes: int) -> None:
            self._bytes += data_bytes
            deliver(keeper, key, data_bytes)

        WireService.fetch = counted_fetch  # type: ignore[method-assign]
        LeaseKeeper.record_delivery = counted_delivery  # type: ignore[method-assign]

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._turn_s)
            cpu_s = time.process_time()
            told = [self._counts, cpu_s - self._cpu_s, self._answers, self._bytes]
            with self._file.open("a") as file:
                file.write(json.dumps(told) + "\n")
            self._counts = not self._counts
            count(self._counts)
            self._answers = self._bytes = 0
            self._cpu_s = time.process_time()


def measure_in_turns(path: str, turn_s: float, first: str) -> None:
    turns = Turns(path, turn_s, first == "counts")
    turns.watch()
    run_daemon = daemon.run_daemon

    async def run(*arguments: Any, **more: Any) -> int:
        measuring = asyncio.create_task(turns.run())
        try:
            return await run_daemon(*arguments, **more)
        finally:
            measuring.cancel()

    daemon.run_daemon = run


if __name__ == "__main__":
    if sys.argv[1] == "always":
        del sys.argv[1]
        count(False)
    else:
        measure_in_turns(os.environ["BENCH_TURNS"], float(os.environ["BENCH_TURN_S"]), os.environ["BENCH_FIRST"])
    main()
