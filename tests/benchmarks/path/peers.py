"""``make bench BENCH_ARGS="peers PYTHON"``: mld beside another reader of today, async-kinesis, without TLS.

PYTHON is an interpreter that has async-kinesis. Both read the same server by turns. They do not do the same: mld keeps
leases in DynamoDB and frames each record for a child process; async-kinesis hands bytes to a coroutine of its own
process and keeps nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from tests.benchmarks.path import scenarios
from tests.benchmarks.path.figures import LOADS, Load
from tests.benchmarks.path.records import event_records_max
from tests.benchmarks.path.rig import Rig, Stand, build, versions
from tests.benchmarks.path.subject import MLD, running
from tests.benchmarks.process import environment
from tests.benchmarks.tables import load_average, markdown_table, put_into_page

READER = Path(__file__).with_name("peer_reader.py")
CASES = (("1 KB", 1), ("1 KB", 4), ("100 B", 4))
MB = 200
"""Payload of a run; a fifth of it with records of 100 B."""
FIRST_RECORDS = 1_000
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one reader in one turn."""

    steady_us: float
    whole_us: float
    peak_mb: float
    first_s: float
    """From its exec to its first record."""


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench BENCH_ARGS=peers", description=__doc__)
    parser.add_argument("peer", type=Path, metavar="PYTHON", help="an interpreter that has async-kinesis")
    parser.add_argument("--runs", type=int, default=3, help="turns (default %(default)s)")
    parser.add_argument("--data", type=float, default=1.0, help="share of the usual data (default 1)")
    parser.add_argument("--write", action="store_true", help="put the table into docs/lab/performance.md")
    arguments = parser.parse_args(words)
    asked = "import importlib.metadata as m; print(m.version('async-kinesis'))"
    version = subprocess.run([arguments.peer, "-c", asked], check=True, capture_output=True, text=True).stdout.strip()
    before, lines = load_average(), []
    with (
        tempfile.TemporaryDirectory(prefix="mld-peers-") as directory,
        Rig(Path(directory), build(Path(directory))) as rig,
    ):
        for name, shards in CASES:
            load = LOADS[name]
            data = int(MB * arguments.data * (0.2 if load.record_bytes < LOADS["1 KB"].record_bytes else 1.0))
            load = replace(load, first_mb=data, mb=data)
            turns = [
                (_ours(rig, load, shards), _theirs(rig, arguments.peer, load, shards)) for _ in range(arguments.runs)
            ]
            lines += _lines(load, shards, turns)
    note = (
        f"* `peers PYTHON --runs {arguments.runs}`, {time.strftime('%d %B %Y')}: {versions()}; "
        f"async-kinesis {version}; load average before {before}, after {load_average()}"
    )
    columns = ("", "mld", f"async-kinesis {version}", "async-kinesis / mld")
    text = f"{note}\n\n{markdown_table('Two readers beside each other', columns, lines)}"
    print(text)
    if arguments.write:
        put_into_page("peers", text)
    return 0


def _ours(rig: Rig, load: Load, shards: int) -> Costs:
    (row,) = scenarios.backlog(rig, MLD, load, shards, tls=False)
    stream, server = f"backlog-{shards}-{FIRST_RECORDS}", _server(rig, load)
    server.tell("open")
    with running(rig, MLD, stream, server, tls=False, shards=shards, keys={}) as daemon:
        daemon.wait_for_records(1, TIMEOUT_S)
        first_s = daemon.notes.first_at - daemon.daemon.executed_at
    return Costs(row["steady_us_per_record"], row["whole_us_per_record"], row["peak_mb"], first_s)


def _theirs(rig: Rig, peer: Path, load: Load, shards: int) -> Costs:
    server = _server(rig, load)
    server.tell("open")
    each = load.records(shards, event_records_max(load.record_bytes))
    total = min(each, _in_shard(load)) * shards
    since, until = (int(share * total) for share in scenarios.STEADY)
    _, found = _run(rig, peer, server.endpoint, f"backlog-{shards}-{total // shards}", total, since, until)
    steady_us = 1e6 * found["steady_cpu_s"] / (until - since)
    executed_at, first = _run(rig, peer, server.endpoint, f"backlog-{shards}-{FIRST_RECORDS}", FIRST_RECORDS, 1, 2)
    return Costs(steady_us, 1e6 * found["whole_cpu_s"] / total, found["peak_mb"], first["first_at"] - executed_at)


def _run(rig: Rig, peer: Path, endpoint: str, stream: str, *numbers: int) -> tuple[float, dict[str, float]]:
    """Return when the reader was executed, and what it printed."""
    directory = rig.fresh("peer")
    command = [str(peer), str(READER), endpoint, stream, *map(str, numbers)]
    executed_at = time.time()
    with (directory / "log").open("wb") as log:
        done = subprocess.run(
            command,
            env=environment(directory),
            cwd=directory,
            check=True,
            timeout=TIMEOUT_S,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    figures: dict[str, float] = json.loads(done.stdout)
    return executed_at, figures


def _in_shard(load: Load) -> int:
    return load.records(1, event_records_max(load.record_bytes))


def _server(rig: Rig, load: Load) -> Stand:
    return rig.kinesis(_in_shard(load), load.record_bytes, tls=False)


def _lines(load: Load, shards: int, turns: list[tuple[Costs, Costs]]) -> list[tuple[str, ...]]:
    per_gb = 1000 / load.record_bytes
    figures = (
        ("CPU us/record, steady", [(ours.steady_us, theirs.steady_us) for ours, theirs in turns]),
        ("CPU us/record, whole run", [(ours.whole_us, theirs.whole_us) for ours, theirs in turns]),
        ("CPU s/GB, steady", [(per_gb * ours.steady_us, per_gb * theirs.steady_us) for ours, theirs in turns]),
        ("peak memory, MB", [(ours.peak_mb, theirs.peak_mb) for ours, theirs in turns]),
        ("exec to first record, s", [(ours.first_s, theirs.first_s) for ours, theirs in turns]),
    )
    title = f"{load.name}, {shards} shard{'s' if shards > 1 else ''}"
    return [
        (
            f"{title}: {figure}",
            _range([ours for ours, _ in pairs]),
            _range([theirs for _, theirs in pairs]),
            _range([theirs / ours for ours, theirs in pairs]),
        )
        for figure, pairs in figures
    ]


def _range(values: list[float]) -> str:
    low, high = (f"{value:.3g}" if value < 100 else f"{value:,.0f}" for value in (min(values), max(values)))
    return low if low == high else f"{low}-{high}"
