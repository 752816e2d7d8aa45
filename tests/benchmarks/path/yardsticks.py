"""What the daemon is compared with in the same run: plain boto3, a copy in C, `memcpy`; and what the server can do."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence

from tests.benchmarks.path.figures import Load, Row
from tests.benchmarks.path.records import answer_records_max, event_records_max
from tests.benchmarks.path.rig import Rig, Stand
from tests.benchmarks.process import ROOT, environment

TIMEOUT_S = 300.0
COPY_REPEATS = 20
BOTO3, COPY, MEMCPY, SERVER = "boto3, base64, json.dumps", "copy in C", "memcpy", "server alone"


def all_of(rig: Rig, load: Load, *, tls: bool) -> list[Row]:
    rows = compared(rig, load, tls=tls)
    if len(rows) > 1:
        rows.append(copier(rig, _server(rig, load, tls=tls), load, tls=tls, sends_on=False))
    return [*rows, memcpy(load, tls=tls)]


def compared(rig: Rig, load: Load, *, tls: bool) -> list[Row]:
    """boto3, and the copy in C if there is a compiler."""
    server = _server(rig, load, tls=tls)
    rows = [boto3(rig, server, load, tls=tls)]
    if rig.tools.copier is not None and (rig.tools.copier_has_tls or not tls):
        rows.append(copier(rig, server, load, tls=tls, sends_on=True))
    return rows


def _server(rig: Rig, load: Load, *, tls: bool) -> Stand:
    """With the gate open."""
    server = rig.kinesis(_records(load), load.record_bytes, tls=tls)
    server.tell("open")
    return server


def _records(load: Load) -> int:
    return load.records(1, event_records_max(load.record_bytes))


def boto3(rig: Rig, server: Stand, load: Load, *, tls: bool) -> Row:
    """The shortest loop (`tests.benchmarks.baseline`), one shard, without leases."""
    page = answer_records_max(load.record_bytes)
    wanted = max(1, load.baseline_mb * 1_000_000 // load.record_bytes // page) * page
    records = min(wanted, _records(load))
    figures = baseline(rig, "read", server.endpoint, f"backlog-1-{records}", str(records), *rig.tools.sink, tls=tls)
    return Row("yardstick", BOTO3, load.name, 1, tls, "", _per(figures, records, load))


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


def copier(rig: Rig, server: Stand, load: Load, *, tls: bool, sends_on: bool) -> Row:
    """Socket to pipe, or socket to nowhere: the latter is what the server alone can do on one connection."""
    records = _records(load)
    command = [str(rig.tools.copier), str(server.port), f"backlog-1-{records}", "1", "pipe" if sends_on else "drop"]
    command += [str(rig.certificate)] if tls else []
    drain: Sequence[str] = (*rig.tools.sink, "drain")
    with subprocess.Popen(drain, stdin=subprocess.PIPE) as child:
        done = subprocess.run(command, stdout=child.stdin, stderr=subprocess.PIPE, check=True, timeout=TIMEOUT_S)
        assert child.stdin
        child.stdin.close()
    figures: dict[str, float] = json.loads(done.stderr)
    return Row("yardstick", COPY if sends_on else SERVER, load.name, 1, tls, "", _per(figures, records, load))


def memcpy(load: Load, *, tls: bool) -> Row:
    """Of the text of one full answer, again and again: it does not fit into a cache."""
    records = answer_records_max(load.record_bytes)
    source = memoryview(bytes(int(records * (load.record_bytes * 4 / 3 + 170))))
    target = memoryview(bytearray(len(source)))
    target[:] = source
    cpu = time.process_time()
    for _ in range(COPY_REPEATS):
        target[:] = source
    cpu = time.process_time() - cpu
    return Row(
        "yardstick", MEMCPY, load.name, 1, tls, "", _per({"cpu_s": cpu, "wall_s": cpu}, records * COPY_REPEATS, load)
    )


def _per(figures: dict[str, float], records: int, load: Load) -> dict[str, float]:
    return per(figures["cpu_s"], figures["wall_s"], records, load.record_bytes)


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
