"""Throughput and CPU: 1 KB records through the daemon and through the naive loop, and the price of an empty poll.

The child is the cheapest one that keeps the protocol, so that the daemon's share shows. CPU is that of the daemon's
process alone, from /proc; the embedded AWS and the children compete for the same CPUs, so MB/s say more about this
machine than about the daemon. MB and GB are decimal and count payload, before base64.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.process import ROOT, SINK_CHILD, Daemon, environment
from tests.benchmarks.tables import load_average, spread, table
from tests.benchmarks.world import make_stream, put_evenly
from tests.support.servers import EmbeddedAws

SHARDS = 4
RECORD_BYTES = 1024
RECORDS_PER_SHARD = 20_000
RUNS = 3
IDLE_SHARDS = 64
IDLE_FAILOVER_MS = 60_000  # few renewals, as the polls are what is measured
IDLE_SETTLE_S = 3.0  # after the last child has started
IDLE_WINDOW_S = 8.0
IDLE_WINDOWS = 2
IDLE_BASELINE_CALLS = 400
TIMEOUT_S = 60.0
LOG_LEVEL = "info"  # as in production; DEBUG has a line per batch


@dataclass(frozen=True, slots=True)
class Reading:
    wall_s: float
    cpu_s: float


def measure(aws: EmbeddedAws, scratch: Path) -> None:
    """Run everything and print it."""
    _throughput(aws, scratch)
    _idle(aws, scratch)


# --- throughput ------------------------------------------------------------------------------------------------------


def _throughput(aws: EmbeddedAws, scratch: Path) -> None:
    before = load_average()
    stream = "throughput"
    kinesis = aws.client("kinesis")
    make_stream(kinesis, stream, SHARDS)
    put_evenly(kinesis, stream, SHARDS, RECORDS_PER_SHARD, RECORD_BYTES)
    empty = "throughput-nothing"
    make_stream(kinesis, empty, SHARDS)
    records = SHARDS * RECORDS_PER_SHARD
    daemon, baseline = [], []
    for number in range(RUNS):
        baseline.append(_baseline_reading(aws, scratch / f"read-baseline{number}", stream))
        start = _daemon_reading(aws, scratch / f"read-nothing{number}", empty, 0)
        whole = _daemon_reading(aws, scratch / f"read{number}", stream, records)
        daemon.append(Reading(whole.wall_s, whole.cpu_s - start.cpu_s))
    data_bytes = records * RECORD_BYTES
    speed, cost = _figures(daemon, data_bytes)
    speed_0, cost_0 = _figures(baseline, data_bytes)
    table(
        f"Throughput: {records} records of {RECORD_BYTES} bytes in {SHARDS} shards, median of {RUNS} runs",
        ("reader", "MB/s", "CPU s/GB", "MB/s x baseline", "CPU x baseline"),
        [
            ("daemon, polling", f"{speed:.1f}", f"{cost:.1f}", f"{speed / speed_0:.2f}", f"{cost / cost_0:.2f}"),
            ("boto3, base64, json.dumps", f"{speed_0:.1f}", f"{cost_0:.1f}", "1", "1"),
        ],
        "the daemon's time begins with its first lease; the CPU of a start on an empty stream is subtracted\n"
        f"load average before {before}, after {load_average()}",
    )


def _figures(readings: list[Reading], data_bytes: int) -> tuple[float, float]:
    """MB/s and CPU seconds per GB."""
    speed = spread([data_bytes / 1e6 / reading.wall_s for reading in readings]).median
    return speed, spread([reading.cpu_s / (data_bytes / 1e9) for reading in readings]).median


def _daemon_reading(aws: EmbeddedAws, directory: Path, stream: str, records: int) -> Reading:
    """From the first lease held until the last record is in a child, with 0 records until the last child has started.

    CPU is that of the whole life, start included: the reader fetches ahead while its child starts, so that the process
    itself shows no moment at which the one ends and the other begins.
    """
    keys = {
        "executableName": SINK_CHILD,
        "applicationName": directory.name,
        "streamName": stream,
        "workerId": "reader",
    }
    with Daemon(directory, aws.endpoint, keys, log_level=LOG_LEVEL) as daemon:

        def done() -> bool:
            marks = daemon.marks()
            started = sum(mark.event == "initialize" for mark in marks)
            return started >= SHARDS and sum(mark.count for mark in marks) >= records

        daemon.wait_for(done, TIMEOUT_S, f"{records} records")
        cpu_s = daemon.cpu_s()
        held_at = min(event["at"] for event in daemon.events() if event.get("action") == "lease_held")
        return Reading(daemon.marks()[-1].at - held_at, cpu_s)


def _baseline_reading(aws: EmbeddedAws, directory: Path, stream: str) -> Reading:
    return _run_baseline(
        directory, "read", aws.endpoint, stream, str(SHARDS * RECORDS_PER_SHARD), *shlex.split(SINK_CHILD)
    )


# --- idle ------------------------------------------------------------------------------------------------------------


def _idle(aws: EmbeddedAws, scratch: Path) -> None:
    before = load_average()
    stream = "idle"
    kinesis = aws.client("kinesis")
    make_stream(kinesis, stream, IDLE_SHARDS)
    baseline = _run_baseline(scratch / "idle-baseline", "idle", aws.endpoint, stream, str(IDLE_BASELINE_CALLS))
    keys = {
        "executableName": SINK_CHILD,
        "applicationName": stream,
        "streamName": stream,
        "workerId": "idler",
        "failoverTimeMillis": str(IDLE_FAILOVER_MS),
    }
    windows = []
    with Daemon(scratch / "idle", aws.endpoint, keys, log_level=LOG_LEVEL) as daemon:
        daemon.wait_for(
            lambda: sum(mark.event == "initialize" for mark in daemon.marks()) >= IDLE_SHARDS, TIMEOUT_S, "64 children"
        )
        time.sleep(IDLE_SETTLE_S)
        for _ in range(IDLE_WINDOWS):
            windows.append(_idle_window(aws, daemon))
    polls = sum(window[1] for window in windows)
    writes = sum(window[2] for window in windows)
    cost_ms = 1000 * sum(window[0] for window in windows) / polls
    yardstick_ms = 1000 * baseline.cpu_s / IDLE_BASELINE_CALLS
    share = 100 * sum(window[0] for window in windows) / (IDLE_WINDOW_S * IDLE_WINDOWS)
    table(
        f"Idle: {IDLE_SHARDS} empty shards, default idleTimeBetweenReadsInMillis, {IDLE_WINDOWS * IDLE_WINDOW_S:g} s",
        ("reader", "polls/s", "CPU ms/poll", "x baseline", "% of one CPU"),
        [
            (
                "daemon",
                f"{polls / (IDLE_WINDOW_S * IDLE_WINDOWS):.1f}",
                f"{cost_ms:.2f}",
                f"{cost_ms / yardstick_ms:.2f}",
                f"{share:.1f}",
            ),
            (
                "boto3 get_records in a loop",
                f"{IDLE_BASELINE_CALLS / baseline.wall_s:.0f}",
                f"{yardstick_ms:.2f}",
                "1",
                "-",
            ),
        ],
        f"the daemon's share includes {writes} lease writes in that time and everything else it does\n"
        f"load average before {before}, after {load_average()}",
    )


def _idle_window(aws: EmbeddedAws, daemon: Daemon) -> tuple[float, int, int]:
    """CPU seconds, polls, lease writes."""
    aws.clear_log()
    cpu_s = daemon.cpu_s()
    time.sleep(IDLE_WINDOW_S)
    cpu_s = daemon.cpu_s() - cpu_s
    calls = aws.log()
    return cpu_s, calls.get("kinesis.GetRecords", 0), calls.get("dynamodb.UpdateItem", 0)


def _run_baseline(directory: Path, *arguments: str) -> Reading:
    directory.mkdir(parents=True)
    command = [sys.executable, "-P", "-m", "tests.benchmarks.baseline", *arguments]
    done = subprocess.run(
        command, env=environment(directory), cwd=ROOT, check=True, timeout=TIMEOUT_S, stdout=subprocess.PIPE
    )
    figures = json.loads(done.stdout)
    return Reading(figures["wall_s"], figures["cpu_s"])
