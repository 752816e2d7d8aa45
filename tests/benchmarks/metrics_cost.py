"""What the metrics cost: CPU per poll and per GB with and without them, and memory with and without the pages.

A hundredth is less than a machine wanders between two runs. So one daemon counts in short turns and not at all
in those between (`children/uncounted_mld.py`), and CPU per poll and per GB of neighbouring turns are compared: the same
process on the same machine at nearly the same time. The verbs are also timed alone: the calls that a poll and a batch
make, set against what a poll and a batch cost the daemon. Memory is that of a daemon which never counts beside one that
does, and of one that is scraped.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from mld.aws.counted import CountedService
from mld.core.clock import LoopClock
from mld.leases.lease import status_of
from mld.metrics.registry import Metrics
from mld.metrics.shard import FetchResult
from mld.protocol.messages import Record
from tests.benchmarks.process import SINK_CHILD, Daemon
from tests.benchmarks.tables import load_average, table
from tests.benchmarks.world import make_stream, put_evenly
from tests.support.pages import page_with
from tests.support.servers import EmbeddedAws

IDLE_SHARDS = 64
IDLE_FAILOVER_MS = 60_000  # few renewals, as the polls are what is measured
LOG_LEVEL = "info"  # as in production; DEBUG has a line per batch
TIMEOUT_S = 60.0
IDLE_READ_MS = "200"
"""More polls a second than by default, so that the turns are long."""
SETTLE_S = 4.0
POLLING_TURN_S, POLLING_S = 1.0, 240.0
READING_TURN_S, READING_PASSES = 0.5, 16
READ_SHARDS, READ_RECORDS_PER_SHARD, READ_RECORD_BYTES = 4, 40_000, 2 * 1024
READ_BYTES_MIN = 8_000_000
SCRAPES = 30
CALLS, REPEATS = 50_000, 9
UNCOUNTED_MLD = (sys.executable, "-P", "-m", "tests.benchmarks.children.uncounted_mld")
OURS = (sys.executable, "-P", "-m", "mld")
OPTIONS = ("{properties}", "--log-format", "json", "--log-level", LOG_LEVEL)
TARGET = 0.01
MEGA, GIGA = 1e6, 1e9
PORT_FREE = "127.0.0.1:0"


@dataclass(frozen=True, slots=True)
class Turn:
    """CPU seconds of the daemon in one turn, and what it did for them."""

    counts: bool
    cpu_s: float
    polls: int
    data_bytes: int


def measure(aws: EmbeddedAws, scratch: Path) -> None:
    """Run everything and print it."""
    before = load_average()
    verbs = asyncio.run(_verbs())
    polling = _polling_turns(aws, scratch)
    reading = _reading_turns(aws, scratch)
    poll_ms = 1000 * _sum(polling, lambda turn: turn.cpu_s) / _sum(polling, lambda turn: turn.polls)
    batch_ms = 1000 * _sum(reading, lambda turn: turn.cpu_s) / _sum(reading, lambda turn: turn.polls)
    table(
        "Metrics: one daemon, in turns with and without",
        ("figure", "turns", "with", "without", "with / without", "error of that, +/-"),
        [
            ("CPU ms/poll, idle", *_ratio(polling, lambda turn: turn.polls / 1000)),
            ("CPU s/GB", *_ratio(reading, lambda turn: turn.data_bytes / GIGA)),
        ],
        f"the error is the standard error over pairs of neighbouring turns\n"
        f"load average before {before}, after {load_average()}",
    )
    table(
        "Metrics: their verbs alone",
        ("of", "us of metrics", "ms of the daemon", "share, %"),
        [
            ("a poll", f"{verbs['poll']:.2f}", f"{poll_ms:.3f}", f"{verbs['poll'] / 10 / poll_ms:.2f}"),
            ("a batch, its poll included", f"{verbs['batch']:.2f}", f"{batch_ms:.3f}",
             f"{verbs['batch'] / 10 / batch_ms:.2f}"),
            ("a checkpoint or renewal", f"{verbs['write']:.2f}", "-", "-"),
        ],
        f"the least of {REPEATS} times {CALLS} calls; the target is {TARGET:.0%} of a poll and of a GB",
    )  # fmt: skip
    _memory(aws, scratch)


def _sum(turns: Sequence[Turn], what: Callable[[Turn], float]) -> float:
    return sum(map(what, turns))


def _ratio(turns: Sequence[Turn], amount: Callable[[Turn], float]) -> tuple[str, ...]:
    """Cost per amount in both kinds of turns, their ratio over all, and how far that may be off."""

    def cost(found: Sequence[Turn]) -> float:
        return _sum(found, lambda turn: turn.cpu_s) / _sum(found, amount)

    with_, without = [t for t in turns if t.counts], [t for t in turns if not t.counts]
    pairs = [
        cost([a]) / cost([b]) if a.counts else cost([b]) / cost([a])
        for a, b in pairwise(turns)
        if a.counts is not b.counts
    ]
    error = statistics.stdev(pairs) / len(pairs) ** 0.5
    return (
        str(len(turns)),
        f"{cost(with_):.3f}",
        f"{cost(without):.3f}",
        f"{cost(with_) / cost(without):.3f}",
        f"{error:.3f}",
    )


# --- whole daemons ---------------------------------------------------------------------------------------------------


def _polling_turns(aws: EmbeddedAws, scratch: Path) -> list[Turn]:
    stream, file = "metrics-idle", scratch / "polling.jsonl"
    make_stream(aws.client("kinesis"), stream, IDLE_SHARDS)
    with _idle(aws, scratch / "polling", stream, UNCOUNTED_MLD, file):
        settled = len(_turns(file))
        time.sleep(POLLING_S)
        return _turns(file)[settled + 1 :]


def _reading_turns(aws: EmbeddedAws, scratch: Path) -> list[Turn]:
    """Several daemons, one after the other, each over the whole stream."""
    stream = "metrics-gb"
    kinesis = aws.client("kinesis")
    make_stream(kinesis, stream, READ_SHARDS)
    put_evenly(kinesis, stream, READ_SHARDS, READ_RECORDS_PER_SHARD, READ_RECORD_BYTES)
    turns = []
    for number in range(READING_PASSES):
        directory, file = scratch / f"reading{number}", scratch / f"reading{number}.jsonl"
        keys = {
            "executableName": SINK_CHILD,
            "applicationName": directory.name,
            "streamName": stream,
            "workerId": "reader",
        }
        # Every other pass begins without metrics: what a turn meets depends on its place in the reading.
        env = _turning(file, READING_TURN_S, counts_first=number % 2 == 0)
        with Daemon(directory, aws.endpoint, keys, command=(*UNCOUNTED_MLD, *OPTIONS), env=env) as daemon:
            daemon.wait_for(
                lambda daemon=daemon: (
                    sum(mark.count for mark in daemon.marks()) >= READ_SHARDS * READ_RECORDS_PER_SHARD
                ),
                TIMEOUT_S,
                "all records",
            )
        # The first turn has the start in it, and one in which the reading ends or pauses is no reading.
        turns += [turn for turn in _turns(file)[1:] if turn.data_bytes > READ_BYTES_MIN]
    return turns


def _turning(file: Path, turn_s: float, *, counts_first: bool = True) -> dict[str, str]:
    first = "counts" if counts_first else "counts not"
    return {"BENCH_TURNS": str(file), "BENCH_TURN_S": str(turn_s), "BENCH_FIRST": first}


def _await_records(daemon: Daemon, records: int) -> None:
    daemon.wait_for(lambda: sum(mark.count for mark in daemon.marks()) >= records, TIMEOUT_S, f"{records} records")


def _turns(file: Path) -> list[Turn]:
    return [Turn(*json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def _idle(aws: EmbeddedAws, directory: Path, stream: str, command: tuple[str, ...], turns: Path, **more: str) -> Daemon:
    """A daemon whose shards are all at the tip."""
    keys = {
        "executableName": SINK_CHILD,
        "applicationName": directory.name,
        "streamName": stream,
        "workerId": "idler",
        "failoverTimeMillis": str(IDLE_FAILOVER_MS),
        "idleTimeBetweenReadsInMillis": IDLE_READ_MS,
        **{name.replace("__", "."): value for name, value in more.items()},
    }
    env = _turning(turns, POLLING_TURN_S)
    daemon = Daemon(directory, aws.endpoint, keys, command=(*command, *OPTIONS), env=env)
    daemon.wait_for(
        lambda: sum(mark.event == "initialize" for mark in daemon.marks()) >= IDLE_SHARDS, TIMEOUT_S, "all children"
    )
    time.sleep(SETTLE_S)
    return daemon


def rss_mb(pid: int) -> float:
    """Resident memory of a process, without its children."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / MEGA
    raise ValueError(f"process {pid} tells no VmRSS")


def _memory(aws: EmbeddedAws, scratch: Path) -> None:
    rows = []
    plain = 0.0
    nowhere = scratch / "no-turns.jsonl"
    for what, command, more in (
        ("never counts", (*UNCOUNTED_MLD, "always"), {}),
        ("as it is", OURS, {}),
        ("with mld.http, and scrapes of /metrics", OURS, {"mld__http": PORT_FREE}),
    ):
        with _idle(aws, scratch / f"memory{len(rows)}", "metrics-idle", command, nowhere, **more) as daemon:
            for event in daemon.events():
                if event.get("action") == "http_serving":
                    for _ in range(SCRAPES):
                        with urllib.request.urlopen(f"http://{event['address']}/metrics", timeout=10) as answer:
                            answer.read()
            mb = rss_mb(daemon.process.pid)
            plain = plain or mb
            rows.append((what, f"{mb:.1f}", f"{mb - plain:.1f}"))
    table(
        f"Memory of a daemon with {IDLE_SHARDS} idle shards",
        ("daemon", "resident MB", "more"),
        rows,
        f"after {SCRAPES} scrapes; the target is 8 MB more at most",
    )


# --- the verbs alone -------------------------------------------------------------------------------------------------


class Nothing:
    """A service that answers at once; and a batch."""

    count, data_bytes, largest = 500, 1_000_000, None

    async def fetch(self, *_: Any, **__: Any) -> None: ...

    async def call(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {"ConsumedCapacity": {"TableName": "app", "CapacityUnits": 1.0}}


async def _verbs() -> dict[str, float]:
    """Microseconds of metrics in a poll, in a poll with its batch, and in a write of a lease row."""
    metrics, clock, nothing = Metrics(), LoopClock(), Nothing()
    page = page_with((Record(b"x", "k", "1", 0, 1),))
    key = "shardId-000000000000"
    part = metrics.begin(key, clock.monotonic())
    service: Any = CountedService(nothing, "kinesis", metrics.worker)  # type: ignore[arg-type]
    params = {"TableName": "app", "Key": {}, "UpdateExpression": "", "ConditionExpression": ""}

    def poll() -> None:
        part.fetched_nothing(0.01)
        part.saw_lag(0, clock.wall())

    def batch() -> None:
        part.fetched(FetchResult.RECORDS, 0.01)
        part.took(page, clock.wall())
        since = clock.monotonic()
        part.handed_over(since)
        part.answered(nothing, clock.monotonic() - since, clock.wall())  # type: ignore[arg-type]

    def write() -> None:
        metrics.renewed(key, True, clock.monotonic(), clock.monotonic())
        status_of(part, clock.wall())

    fetched = await _least_async(lambda: service.fetch("GetRecords", params, None))
    fetched -= await _least_async(lambda: nothing.fetch("GetRecords", params, None))
    called = await _least_async(lambda: service.call("UpdateItem", params))
    called -= await _least_async(lambda: nothing.call("UpdateItem", params))
    polled = _least(poll) + fetched
    return {"poll": polled, "batch": fetched + _least(batch), "write": called + _least(write)}


def _least(verb: Callable[[], None]) -> float:
    times = []
    for _ in range(REPEATS):
        began = time.process_time()
        for _ in range(CALLS):
            verb()
        times.append(time.process_time() - began)
    return min(times) / CALLS * MEGA


async def _least_async(call: Callable[[], Awaitable[object]]) -> float:
    times = []
    for _ in range(REPEATS):
        began = time.process_time()
        for _ in range(CALLS):
            await call()
        times.append(time.process_time() - began)
    return min(times) / CALLS * MEGA
