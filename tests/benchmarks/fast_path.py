"""What the daemon's own work per record and per poll costs: a Kinesis and a child that cost next to nothing.

CPU is that of the daemon's process, from /proc, without that of a start on an empty stream; GB are of payload, 10^9
bytes. Ratios are to `boto3`, base64 and `json.dumps` on the same pages in the same run. See docs/performance.md.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.process import CHILDREN, ROOT, Daemon, environment
from tests.benchmarks.tables import load_average, table
from tests.support.servers import EmbeddedAws

PIPE_SINK = f"{sys.executable} -I -S {CHILDREN / 'pipe_sink.py'}"
SHARDS = 2
RUNS = 3
IDLE_SHARDS = 64
IDLE_FAILOVER_MS = 60_000
IDLE_SETTLE_S = 3.0
IDLE_WINDOW_S = 8.0
IDLE_CALLS = 300
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Load:
    """Pages of one size; `baseline_pages` are few, as the baseline is slow."""

    name: str
    records: int
    record_bytes: int
    pages: int
    baseline_pages: int

    @property
    def page_bytes(self) -> int:
        return self.records * self.record_bytes


LOADS = (
    Load("1 KB", 10_000, 1024, 20, 3),
    Load("20 KB", 512, 20_480, 20, 3),
    Load("100 B", 10_000, 100, 20, 3),
)


def measure(aws: EmbeddedAws, scratch: Path) -> None:
    """Run everything and print it."""
    before = load_average()
    rows = []
    for load in LOADS:
        for client in ("lean", "botocore"):
            cpu_s, wall_s = min(_reading(aws, scratch, load, client, run) for run in range(RUNS))
            data = load.page_bytes * load.pages * SHARDS
            rows.append(_row(load, f"daemon, {client}", cpu_s, wall_s, data))
        cpu_s, wall_s = _baseline(scratch / f"baseline-{load.name}", load)
        rows.append(_row(load, "boto3, base64, json.dumps", cpu_s, wall_s, load.page_bytes * load.baseline_pages))
    table(
        f"Fast path: full pages from {SHARDS} shards to the pipes of children, best of {RUNS}",
        ("records", "reader", "CPU s/GB", "us/record", "MB/s"),
        rows,
        f"load average before {before}, after {load_average()}",
    )
    _idle(aws, scratch)


def _row(load: Load, reader: str, cpu_s: float, wall_s: float, data: int) -> tuple[str, ...]:
    per_gb = cpu_s / (data / 1e9)
    return (
        load.name,
        reader,
        f"{per_gb:.2f}",
        f"{per_gb * load.record_bytes / 1000:.2f}",
        f"{data / 1e6 / wall_s:.0f}",
    )


@contextmanager
def canned(shards: int, pages: int, records: int, size: int) -> Iterator[str]:
    """The endpoint of a canned Kinesis."""
    command = [sys.executable, "-P", "-m", "tests.benchmarks.canned", *map(str, (shards, pages, records, size))]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(ROOT), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout and server.stdin
        yield server.stdout.readline().strip()
        server.stdin.close()


def _keys(endpoint: str, name: str) -> dict[str, str]:
    return {
        "executableName": PIPE_SINK,
        "applicationName": name,
        "streamName": "canned",
        "workerId": "reader",
        "kinesisEndpoint": endpoint,
    }


def _reading(aws: EmbeddedAws, scratch: Path, load: Load, client: str, run: int) -> tuple[float, float]:
    """CPU and wall seconds from the first page in a child to the last."""
    name = f"fast-{load.name.replace(' ', '')}-{client}-{run}"
    with canned(SHARDS, load.pages, load.records, load.record_bytes) as endpoint:
        keys = {**_keys(endpoint, name), "mld.wireClient": client}
        with Daemon(scratch / name, aws.endpoint, keys, log_level="info") as daemon:

            def pages() -> int:
                return sum(mark.event == "records" for mark in daemon.marks())

            daemon.wait_for(lambda: pages() >= SHARDS, TIMEOUT_S, "first pages")
            cpu_s, already = daemon.cpu_s(), pages()
            daemon.wait_for(lambda: pages() >= SHARDS * load.pages, TIMEOUT_S, "all pages")
            cpu_s = daemon.cpu_s() - cpu_s
            at = [mark.at for mark in daemon.marks() if mark.event == "records"]
            part = (SHARDS * load.pages) / (SHARDS * load.pages - already)
            return cpu_s * part, (at[-1] - at[already - 1]) * part


def _baseline(directory: Path, load: Load) -> tuple[float, float]:
    with canned(1, load.baseline_pages, load.records, load.record_bytes) as endpoint:
        return _run_baseline(
            directory, "read", endpoint, "canned", str(load.records * load.baseline_pages), *shlex.split(PIPE_SINK)
        )


def _run_baseline(directory: Path, *arguments: str) -> tuple[float, float]:
    directory.mkdir(parents=True)
    command = [sys.executable, "-P", "-m", "tests.benchmarks.baseline", *arguments]
    done = subprocess.run(
        command, env=environment(directory), cwd=ROOT, check=True, timeout=TIMEOUT_S, stdout=subprocess.PIPE
    )
    figures = json.loads(done.stdout)
    return figures["cpu_s"], figures["wall_s"]


def _idle(aws: EmbeddedAws, scratch: Path) -> None:
    before = load_average()
    rows = []
    with canned(IDLE_SHARDS, 0, 0, 0) as endpoint:
        cpu_s, _ = _run_baseline(scratch / "fast-idle", "idle", endpoint, "canned", str(IDLE_CALLS))
        yardstick_ms = 1000 * cpu_s / IDLE_CALLS
        for client in ("lean", "botocore"):
            keys = {
                **_keys(endpoint, f"fast-idle-{client}"),
                "failoverTimeMillis": str(IDLE_FAILOVER_MS),
                "mld.wireClient": client,
            }
            with Daemon(scratch / f"fast-idle-{client}", aws.endpoint, keys, log_level="info") as daemon:
                daemon.wait_for(
                    lambda d=daemon: sum(mark.event == "initialize" for mark in d.marks()) >= IDLE_SHARDS,  # type: ignore[misc]
                    TIMEOUT_S,
                    f"{IDLE_SHARDS} children",
                )
                time.sleep(IDLE_SETTLE_S)
                calls, cpu_s = _polls(endpoint), daemon.cpu_s()
                time.sleep(IDLE_WINDOW_S)
                calls, cpu_s = _polls(endpoint) - calls, daemon.cpu_s() - cpu_s
            cost_ms = 1000 * cpu_s / calls
            rows.append(
                (f"daemon, {client}", f"{calls / IDLE_WINDOW_S:.0f}", f"{cost_ms:.2f}", f"{cost_ms / yardstick_ms:.2f}")
            )
    rows.append(("boto3 get_records in a loop", "-", f"{yardstick_ms:.2f}", "1"))
    table(
        f"Idle: {IDLE_SHARDS} shards at the tip, everything the daemon does included",
        ("reader", "polls/s", "CPU ms/poll", "x baseline"),
        rows,
        f"load average before {before}, after {load_average()}",
    )


def _polls(endpoint: str) -> int:
    with urllib.request.urlopen(f"{endpoint}/calls", timeout=10) as answer:
        return int(json.loads(answer.read()).get("GetRecords", 0))
