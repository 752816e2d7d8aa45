"""Time from exec to the first record in the child, beside a script that does the same in a row.

Every start finds a lease table whose rows name its worker id (the daemon before it was killed), and the same ten
records, because the child does not checkpoint here. Where a start spends its time, the log at DEBUG tells (`took_ms`).
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from pathlib import Path

from tests.benchmarks.process import ROOT, SDK_CHILD, Daemon, environment, first_records, read_marks
from tests.benchmarks.tables import load_average, spread, table
from tests.benchmarks.world import make_stream, put_evenly
from tests.support.servers import EmbeddedAws

RECORDS = 10
NAME = "start"  # of the stream and the application
WORKER = "bench-worker"
TARGET_S = 1.5
BASELINE_TIMEOUT_S = 60.0


def measure(aws: EmbeddedAws, scratch: Path, runs: int) -> None:
    """Run everything and print it."""
    before = load_average()
    kinesis = aws.client("kinesis")
    make_stream(kinesis, NAME, 1)
    put_evenly(kinesis, NAME, 1, RECORDS)
    _start(aws, scratch / "first")  # makes the table; not counted
    yardstick, seen = [], []
    for number in range(runs):
        yardstick.append(_baseline(aws, scratch / f"baseline{number}"))
        seen.append(_start(aws, scratch / f"killed{number}"))
    baseline = spread(yardstick).median
    rows = []
    for name, figure in (("bin/mld", spread(seen)), ("boto3 in a row", spread(yardstick))):
        times = (f"{value:.3f}" for value in (figure.min, figure.median, figure.max))
        rows.append((name, *times, f"{figure.median / baseline:.2f}"))
    table(
        f"Start-up after kill -9: exec to the first record in the child, seconds, {runs} runs, target {TARGET_S}",
        ("what", "min", "median", "max", "x baseline"),
        rows,
        f"load average before {before}, after {load_average()}",
    )


def _start(aws: EmbeddedAws, directory: Path) -> float:
    keys = {"executableName": SDK_CHILD, "applicationName": NAME, "streamName": NAME, "workerId": WORKER}
    with Daemon(directory, aws.endpoint, keys) as daemon:
        daemon.wait_for_records(1)
        daemon.kill()
        return min(first_records(daemon.marks()).values()) - daemon.executed_at


def _baseline(aws: EmbeddedAws, directory: Path) -> float:
    directory.mkdir(parents=True)
    command = [sys.executable, "-P", "-m", "tests.benchmarks.baseline", "start", aws.endpoint, NAME, NAME, WORKER]
    started_at = time.time()
    subprocess.run(
        [*command, *shlex.split(SDK_CHILD)],
        env=environment(directory, MLD_WORKER_ID="baseline"),
        cwd=ROOT,
        check=True,
        timeout=BASELINE_TIMEOUT_S,
    )
    return min(first_records(read_marks(directory)).values()) - started_at
