"""What the daemon is compared with in the same run: plain boto3."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.benchmarks.path.figures import Load, Row
from tests.benchmarks.path.records import answer_records_max, event_records_max
from tests.benchmarks.path.rig import Rig
from tests.benchmarks.process import ROOT, environment

TIMEOUT_S = 300.0
BOTO3 = "boto3, base64, json.dumps"


def boto3(rig: Rig, load: Load, *, tls: bool) -> list[Row]:
    """The shortest loop (`tests.benchmarks.baseline`), one shard, without leases."""
    in_shard = load.records(1, event_records_max(load.record_bytes))
    server = rig.kinesis(in_shard, load.record_bytes, tls=tls)
    server.tell("open")
    page = answer_records_max(load.record_bytes)
    wanted = max(1, load.baseline_mb * 1_000_000 // load.record_bytes // page) * page
    records = min(wanted, in_shard)
    figures = baseline(rig, "read", server.endpoint, f"backlog-1-{records}", str(records), *rig.tools.sink, tls=tls)
    cost = per(figures["cpu_s"], figures["wall_s"], records, load.record_bytes)
    return [Row("yardstick", BOTO3, load.name, 1, tls, "", cost)]


def baseline(rig: Rig, *arguments: str, tls: bool) -> dict[str, float]:
    directory = rig.fresh("baseline")
    command = [sys.executable, "-P", "-m", "tests.benchmarks.baseline", *arguments]
    done = subprocess.run(
        command,
        env=environment(directory, **rig.environment(tls=tls)),
        cwd=ROOT,
        check=True,
        timeout=TIMEOUT_S,
        stdout=subprocess.PIPE,
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def per(cpu_s: float, wall_s: float, records: int, record_bytes: int) -> dict[str, float]:
    data = records * record_bytes
    return {
        "cpu_s": cpu_s,
        "wall_s": wall_s,
        "records": records,
        "cpu_s_per_gb": cpu_s / (data / 1e9),
        "us_per_record": cpu_s / records * 1e6,
        "records_per_s": records / wall_s,
        "mb_per_s": data / 1e6 / wall_s,
    }
