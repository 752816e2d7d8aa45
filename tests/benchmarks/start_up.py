"""Time from exec to the first record in the child, with its parts, beside a script that does the same in a row.

Every start finds a lease table whose rows name its worker id (the daemon before it was killed) or nobody (it was
stopped), and the same ten records per shard, because the children do not checkpoint here. The parts come from the
daemon's own log at DEBUG: those of the first list follow each other and add up, those of the second run beside them.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.process import (
    KCLPY_CHILD,
    ROOT,
    SDK_CHILD,
    Daemon,
    environment,
    first_records,
    read_marks,
)
from tests.benchmarks.tables import Spread, load_average, spread, table
from tests.benchmarks.world import make_stream, put_evenly
from tests.support.fetch_kclpy import installed
from tests.support.servers import EmbeddedAws

RECORDS_PER_SHARD = 10
SHARDS_MANY = 4
WORKER = "bench-worker"
TARGET_S = 1.5
BASELINE_TIMEOUT_S = 60.0

# Names of the log's actions, in the order of a start; each part ends with its event.
STEPS = (
    ("settings_loaded", "interpreter, command line, settings"),
    ("daemon_starting", "imports of the daemon"),
    ("aws_client", "botocore, credentials, both clients"),
    ("table_scanned", "scan of the lease table (connects)"),
    ("shards_synced", "shard sync: ListShards (connects)"),
    ("leases_acquired", "re-acquisition, one write per lease"),
    ("consumer_started", "child: spawn until initialize is answered"),
)
LAST_STEP = "first record in the child"
BESIDE = (
    ("aws_client", "botocore, credentials and a client, the slower of two"),
    ("reader_positioned", "GetShardIterator"),
    ("records_fetched", "first GetRecords"),
    ("child_spawned", "fork and exec of the child"),
)


@dataclass(frozen=True, slots=True)
class Start:
    """One start: seconds to the first and to the last shard's first record, and the parts in seconds."""

    first_s: float
    last_s: float
    parts: dict[str, float]
    beside: dict[str, float]


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    command: str
    python_path: tuple[Path, ...]
    shards: int


def measure(aws: EmbeddedAws, scratch: Path, runs: int) -> None:
    """Run everything and print it."""
    before = load_average()
    cases = [Case("SDK", SDK_CHILD, (), 1), Case("SDK", SDK_CHILD, (), SHARDS_MANY)]
    if (kclpy := installed()) is not None:
        cases.insert(1, Case("amazon_kclpy", KCLPY_CHILD, (kclpy,), 1))
    else:
        print("amazon_kclpy is not there (python tests/support/fetch_kclpy.py): left out")
    rows = []
    first_case: list[Start] = []
    for number, case in enumerate(cases):
        killed, stopped, baseline = _measure_case(aws, scratch / f"start-{number}", f"start-{number}", case, runs)
        first_case = first_case or killed
        rows += _rows(case, killed, stopped, baseline)
    title = f"Start-up: exec of bin/mld to the first record in the child, seconds, {runs} runs each, target {TARGET_S}"
    table(
        title,
        ("child", "shards", "leases before", "min", "median", "max", "last shard", "x baseline"),
        rows,
        f"load average before {before}, after {load_average()}",
    )
    _print_parts(first_case)


def _measure_case(
    aws: EmbeddedAws, scratch: Path, name: str, case: Case, runs: int
) -> tuple[list[Start], list[Start], list[tuple[float, float]]]:
    kinesis = aws.client("kinesis")
    make_stream(kinesis, name, case.shards)
    put_evenly(kinesis, name, case.shards, RECORDS_PER_SHARD)

    def start(run: str, *, graceful: bool) -> Start:
        keys = {"executableName": case.command, "applicationName": name, "streamName": name, "workerId": WORKER}
        with Daemon(scratch / run, aws.endpoint, keys, python_path=case.python_path) as daemon:
            daemon.wait_for_records(case.shards)
            if graceful:
                daemon.stop()
                daemon.wait()
            else:
                daemon.kill()
            return _read(daemon)

    start("first", graceful=False)  # makes the table; not counted
    killed, stopped, baseline = [], [], []
    for number in range(runs):
        baseline.append(_baseline(aws, scratch / f"baseline{number}", name, case))
        killed.append(start(f"killed{number}", graceful=False))
    start("between", graceful=True)
    for number in range(runs):
        stopped.append(start(f"stopped{number}", graceful=True))
    return killed, stopped, baseline


def _baseline(aws: EmbeddedAws, directory: Path, name: str, case: Case) -> tuple[float, float]:
    directory.mkdir(parents=True)
    command = [sys.executable, "-P", "-m", "tests.benchmarks.baseline", "start", aws.endpoint, name, name, WORKER]
    started_at = time.time()
    subprocess.run(
        [*command, *shlex.split(case.command)],
        env=environment(directory, *case.python_path, MLD_WORKER_ID="baseline"),
        cwd=ROOT,
        check=True,
        timeout=BASELINE_TIMEOUT_S,
    )
    first = first_records(read_marks(directory)).values()
    return min(first) - started_at, max(first) - started_at


def _read(daemon: Daemon) -> Start:
    marks = daemon.marks()
    first = first_records(marks)
    events = daemon.events()
    shard = min(first, key=lambda key: first[key])
    previous = daemon.executed_at
    parts = {}
    for action, label in STEPS:
        # Clients: the step is over with the last one. Shards: that of the one that was first.
        at = [event["at"] for event in events if event.get("action") == action and event.get("shard", shard) == shard]
        reached = max(at) if action == "aws_client" else min(at)
        parts[label] = max(0.0, reached - previous)
        previous = max(previous, reached)
    parts[LAST_STEP] = max(0.0, first[shard] - previous)
    return Start(
        min(first.values()) - daemon.executed_at,
        max(first.values()) - daemon.executed_at,
        parts,
        {label: _took_s(events, action, shard) for action, label in BESIDE},
    )


def _took_s(events: Sequence[dict[str, Any]], action: str, shard: str) -> float:
    """Of the first such event of the shard; of clients, the longest."""
    took = [
        float(event["took_ms"]) / 1000
        for event in events
        if event.get("action") == action and event.get("shard", shard) == shard
    ]
    return max(took) if action == "aws_client" else took[0]


def _rows(
    case: Case, killed: Sequence[Start], stopped: Sequence[Start], baseline: Sequence[tuple[float, float]]
) -> list[tuple[str, ...]]:
    yardstick = spread([first for first, _ in baseline])
    yardstick_last = spread([last for _, last in baseline])
    rows = []
    for before, starts in (("its own (kill -9)", killed), ("released (SIGTERM)", stopped)):
        seen = spread([start.first_s for start in starts])
        last = spread([start.last_s for start in starts])
        ratio = seen.median / yardstick.median
        rows.append(_row(case, before, seen, last, f"{ratio:.2f}"))
    rows.append(_row(case, "boto3 in a row", yardstick, yardstick_last, "1"))
    return rows


def _row(case: Case, before: str, seen: Spread, last: Spread, ratio: str) -> tuple[str, ...]:
    figures = tuple(f"{value:.3f}" for value in (seen.min, seen.median, seen.max))
    return (case.name, str(case.shards), before, *figures, f"{last.median:.3f}", ratio)


def _print_parts(starts: Sequence[Start]) -> None:
    def rows(parts: Sequence[dict[str, float]]) -> list[tuple[str, ...]]:
        lines = []
        for label in parts[0]:
            seen = spread([part[label] * 1000 for part in parts])
            lines.append((label, *(f"{value:.0f}" for value in (seen.min, seen.median, seen.max))))
        return lines

    columns = ("part", "min", "median", "max")
    note = "a part of the first list begins where the one above ends"
    table("Parts of the start, SDK child, 1 shard, kill -9 before, ms", columns, rows([s.parts for s in starts]), note)
    note = f"inside or beside the parts above; {os.cpu_count()} CPUs"
    table("What single steps took, ms", columns, rows([s.beside for s in starts]), note)
