"""``python -m tests.benchmarks parallel``: why a shard has several children, and what they cost the daemon.

The reason: one shard, 900 records a second, 5 ms of work for each. An amazon_kclpy processor that sleeps does the work,
with one child and with eight, over 500 keys, and with half of the records under one key. Printed is how old records
are when they are done, in each part of the run: a lag that grows shows as ages that grow. Records of the child that has
the hot key stand apart, whatever their keys. The load is the same in all runs, and whoever cannot keep up is not waited
for.

The cost: CPU and peak memory of the daemon alone for a backlog of 1 KB records, with one child and with eight by turns.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.children.marks import HOT
from tests.benchmarks.path.subject import cpu_clock
from tests.benchmarks.process import CHILDREN, ROOT, Daemon, Mark
from tests.benchmarks.tables import load_average, table
from tests.benchmarks.world import make_stream
from tests.support.fetch_kclpy import installed
from tests.support.servers import EmbeddedAws

RECORDS_PER_S = 900
KEYS = 500
RECORD_BYTES = 200
PUT_EVERY_S = 0.1
RUN_S = 45.0
PARTS = 3
CASES = ((1, False), (8, False), (8, True))
IDLE_READ_MS = 250
BACKLOG, WARM, BACKLOG_BYTES = 200_000, 20_000, 1024
TURNS = 3
COUNTING = f"{sys.executable} -P -m tests.benchmarks.children.counting_child"


class Load(threading.Thread):
    """Puts records at a steady rate; each begins with the time when it was put."""

    def __init__(self, kinesis: Any, stream: str, *, is_hot: bool) -> None:
        super().__init__(daemon=True)
        self._kinesis = kinesis
        self._stream = stream
        self._is_hot = is_hot
        self._over = threading.Event()
        self.put = 0

    def run(self) -> None:
        began = time.monotonic()
        while not self._over.wait(PUT_EVERY_S):
            due = int((time.monotonic() - began) * RECORDS_PER_S)
            entries = []
            for number in range(self.put, due):
                key = HOT if self._is_hot and number % 2 else f"user-{number % KEYS}"
                entries.append({"Data": (b"%f " % time.time()).ljust(RECORD_BYTES, b"."), "PartitionKey": key})
            for start in range(0, len(entries), 500):
                self._kinesis.put_records(StreamName=self._stream, Records=entries[start : start + 500])
            self.put = due

    def end(self) -> None:
        self._over.set()
        self.join()


def measure(aws: EmbeddedAws, scratch: Path) -> None:
    """Measure the cost and the reason, and print both."""
    measure_cost(aws, scratch)
    measure_reason(aws, scratch)


def measure_cost(aws: EmbeddedAws, scratch: Path) -> None:
    """Read one backlog again and again, with one child and with eight."""
    kinesis = aws.client("kinesis")
    make_stream(kinesis, "cost", 1)
    for start in range(0, BACKLOG, 500):
        entries = [
            {"Data": os.urandom(BACKLOG_BYTES), "PartitionKey": f"user-{number % KEYS}"}
            for number in range(start, start + 500)
        ]
        assert kinesis.put_records(StreamName="cost", Records=entries)["FailedRecordCount"] == 0
    seen: dict[int, list[tuple[float, float]]] = {1: [], 8: []}
    for turn in range(TURNS):
        for children, costs in seen.items():
            costs.append(_cost(aws, scratch, f"cost-{children}-{turn}", children))
    base = min(cpu_s for cpu_s, _ in seen[1])
    rows = [
        (
            str(children),
            f"{min(cpu_s for cpu_s, _ in costs) / BACKLOG_BYTES * 1e9:.2f}",
            f"{min(cpu_s for cpu_s, _ in costs) * 1e6:.2f}",
            f"{min(cpu_s for cpu_s, _ in costs) / base:.2f}",
            f"{max(peak for _, peak in costs):.0f}",
        )
        for children, costs in seen.items()
    ]
    columns = ("children", "CPU s/GB", "µs a record", "ratio", "peak MB")
    table(
        f"The daemon alone, {BACKLOG:,} records of 1 KB",
        columns,
        rows,
        f"the best of {TURNS} turns, after the first {WARM:,}",
    )


def _cost(aws: EmbeddedAws, scratch: Path, name: str, children: int) -> tuple[float, float]:
    """Return CPU seconds of a record, and the peak of memory in MB."""
    keys = {
        "executableName": COUNTING,
        "applicationName": name,
        "streamName": "cost",
        "workerId": "w",
        "mld.childrenPerShard": str(children),
    }
    daemon = Daemon(scratch / name, aws.endpoint, keys)
    try:
        daemon.wait_for(lambda: _count(daemon, "records") >= WARM, 120, f"{WARM} records")
        warm, warm_s = _count(daemon, "records"), time.clock_gettime(cpu_clock(daemon.process.pid))
        daemon.wait_for(lambda: _count(daemon, "records") >= BACKLOG, 300, f"{BACKLOG} records")
        cpu_s = (time.clock_gettime(cpu_clock(daemon.process.pid)) - warm_s) / (BACKLOG - warm)
        status = Path(f"/proc/{daemon.process.pid}/status").read_text()
        peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    finally:
        daemon.close()
    return cpu_s, peak / 1000


def measure_reason(aws: EmbeddedAws, scratch: Path) -> None:
    """Run the cases one after the other, and print the table."""
    kclpy = installed()
    if kclpy is None:
        print("amazon_kclpy is not there (python tests/support/fetch_kclpy.py): parallel left out")
        return
    before = load_average()
    rows = [_row(aws, scratch, kclpy, children, is_hot=is_hot) for children, is_hot in CASES]
    parts = [f"{part + 1}/{PARTS}" for part in range(PARTS)]
    table(
        f"One shard, {RECORDS_PER_S} records/s over {KEYS} keys, 5 ms each: oldest record when done, in seconds",
        ("children", "keys", *(f"at {part}" for part in parts), "done of put", "child of the hot key"),
        rows,
        f"{RUN_S:g} s each; load average before {before}, after {load_average()}",
    )


def _row(aws: EmbeddedAws, scratch: Path, kclpy: Path, children: int, *, is_hot: bool) -> tuple[str, ...]:
    name = f"parallel-{children}{'-hot' if is_hot else ''}"
    kinesis = aws.client("kinesis")
    make_stream(kinesis, name, 1)
    keys = {
        "executableName": f"{sys.executable} -P {CHILDREN / 'kclpy_sleeping_child.py'}",
        "applicationName": name,
        "streamName": name,
        "workerId": "w",
        "idleTimeBetweenReadsInMillis": str(IDLE_READ_MS),
        "mld.childrenPerShard": str(children),
    }
    env = {"PYTHONPATH": f"{ROOT}:{kclpy}"}
    daemon = Daemon(scratch / name, aws.endpoint, keys, env=env)
    load = Load(kinesis, name, is_hot=is_hot)
    try:
        daemon.wait_for(
            lambda: len([mark for mark in daemon.marks() if mark.event == "initialized"]) == children,
            120,
            f"{children} children",
        )
        load.start()
        began = time.time()
        time.sleep(RUN_S)
        load.end()
        marks = daemon.marks()
    finally:
        daemon.close()
    ages = [_oldest(marks, "age", began + part * RUN_S / PARTS, RUN_S / PARTS) for part in range(PARTS)]
    hot = _oldest(marks, "age beside hot", began + (PARTS - 1) * RUN_S / PARTS, RUN_S / PARTS) if is_hot else None
    done = sum(mark.count for mark in marks if mark.event == "records")
    keys_in_words = f"{KEYS}, half of the records under one" if is_hot else str(KEYS)
    hot_in_words = "-" if hot is None else f"{hot:.1f}"
    return (str(children), keys_in_words, *(f"{age:.1f}" for age in ages), f"{done} of {load.put}", hot_in_words)


def _count(daemon: Daemon, event: str) -> int:
    return sum(mark.count for mark in daemon.marks() if mark.event == event)


def _oldest(marks: Sequence[Mark], event: str, since: float, for_s: float) -> float:
    found = [mark.count for mark in marks if mark.event == event and since <= mark.at < since + for_s]
    return max(found, default=0) / 1000
