"""``python -m tests.benchmarks.spark``: what ``make bench-spark BENCH_ARGS="..."`` runs. See docs/lab/performance.md.

Daemon, children, session host and JVM on a Kinesis of ready-made records: JSON of 1 KB, parsed, filtered (a quarter is
dropped), selected, into Parquet. Everything as by default, but for a poll every 200 ms.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from tests.benchmarks import spark_report as report
from tests.benchmarks.path.figures import Row, percentile, read, write
from tests.benchmarks.process import ROOT, BenchError
from tests.benchmarks.spark_rig import (
    JVM,
    PARTS,
    Rig,
    Running,
    environment_of_scripts,
    running,
)
from tests.benchmarks.tables import load_average

BACKLOG, QUIET, START = SCENARIOS = ("backlog", "quiet", "start")
RECORD_BYTES = 1024
SHARDS = (1, 4, 64)
WARM_RECORDS, MEASURED_RECORDS, REST_RECORDS = 2_000_000, 800_000, 400_000
"""The JVM compiles what it runs often for a minute. What is measured begins and ends in full flow: the rest is more
than a session has in flight."""
BACKLOG_TIMEOUT_S = 300.0
QUIET_WARM_S = 100.0
PACES = {"low": {"mld.spark.triggerIntervalMillis": "1000"}, "adaptive": {}}
QUIET_S = {"low": 40.0, "adaptive": 240.0}
"""Seconds of quiet shards that are measured; at least two triggers."""
COMMITTED_S = {"low": 5.0, "adaptive": 125.0}
"""Records that were put so long before the end are committed."""
START_SHARDS, START_RECORDS = 4, 20_000
EXIT_TERMINATED = 143


@dataclass(frozen=True, slots=True)
class Subject:
    """What a backlog is measured with: a checkout, and keys that are not as by default there."""

    name: str
    root: Path = ROOT
    keys: Mapping[str, str] = field(default_factory=dict)


OURS = Subject(report.OURS)


def subject_of(text: str) -> Subject:
    """NAME=DIRECTORY is another checkout, NAME=KEY=VALUE is this one with another setting."""
    name, _, rest = text.partition("=")
    key, has_value, value = rest.partition("=")
    if has_value:
        return Subject(name, keys={key: value})
    if not (Path(rest) / "bin" / "mld").exists():
        raise argparse.ArgumentTypeError(f"{text}: write NAME=KEY=VALUE, or NAME=DIRECTORY of another checkout")
    return Subject(name, Path(rest).absolute())


def backlog(rig: Rig, shards: int, data: float, measured_with: Subject = OURS, turn: int = 0) -> list[Row]:
    """Full shards, read as fast as it goes: between two moments of full flow."""
    warm, measured = int(data * WARM_RECORDS), int(data * MEASURED_RECORDS)
    each = -(-(warm + measured + REST_RECORDS) // shards)
    server = rig.kinesis(each, RECORD_BYTES)
    how: dict[str, Any] = {"keys": measured_with.keys, "root": measured_with.root}
    with running(rig, f"backlog-{shards}-{each}", server, shards=shards, **how) as subject:
        server.tell("open")
        figures = _in_full_flow(subject, warm, measured)
        memory = subject.pss_mb()
    figures |= {f"{part}_pss_mb": memory[part] for part in PARTS}
    return [Row("backlog", measured_with.name, "1 KB", shards, figures=figures, turn=turn)]


def start(rig: Rig, measured_with: Subject = OURS) -> list[Row]:
    """From exec of the daemon to the first commit: what the user waits, and what it costs until then."""
    each = START_RECORDS // START_SHARDS
    server = rig.kinesis(each, RECORD_BYTES)
    server.tell("open")
    how: dict[str, Any] = {"keys": {**PACES["low"], **measured_with.keys}, "root": measured_with.root}
    began = time.monotonic()
    with running(rig, f"backlog-{START_SHARDS}-{each}", server, shards=START_SHARDS, **how) as subject:
        ready_s, at_ready = time.monotonic() - began, subject.cpu_s()
        subject.wait_for_records(1, BACKLOG_TIMEOUT_S)
        commit_s, at_commit = time.monotonic() - began, subject.cpu_s()
        memory = subject.pss_mb()
    figures = {
        "jvm_pss_mb": memory[JVM],
        "ready_s": ready_s,
        "commit_s": commit_s,
        "ready_cpu_s": sum(at_ready.values()),
    }
    figures |= {f"{part}_cpu_s": at_commit[part] for part in PARTS}
    return [Row("start", measured_with.name, "1 KB", START_SHARDS, figures=figures)]


def _in_full_flow(subject: Running, warm: int, measured: int) -> dict[str, float]:
    subject.wait_for_records(warm, BACKLOG_TIMEOUT_S)
    before, began, at_start, triggers = subject.cpu_s(), time.monotonic(), subject.records, len(subject.triggers)
    subject.wait_for_records(at_start + measured, BACKLOG_TIMEOUT_S)
    after, took_s = subject.cpu_s(), time.monotonic() - began
    records, triggers = subject.records - at_start, len(subject.triggers) - triggers
    figures = {f"{part}_s_per_million": 1e6 * (after[part] - before[part]) / records for part in PARTS}
    return figures | {
        "records_per_s": records / took_s,
        "cores": sum(after[part] - before[part] for part in PARTS) / took_s,
        "triggers": triggers,
        "records_per_trigger": records / max(1, triggers),
    }


@dataclass(frozen=True, slots=True)
class Live:
    """Shards into each of which so many records are put every second."""

    shards: int = 64
    per_s: int = 1


def live_of(text: str) -> Live:
    """SHARDSxRECORDS, as 64x1."""
    shards, _, per_s = text.partition("x")
    try:
        return Live(int(shards), int(per_s))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: write SHARDSxRECORDS, such as 64x1") from None


def quiet(rig: Rig, live: Live, idle_ms: int, warm_s: float, latency: str) -> list[Row]:
    """Records that come slowly: the cost of a trigger and of a second, the age of a record when it is committed."""
    server = rig.kinesis(0, RECORD_BYTES)
    keys = {"idleTimeBetweenReadsInMillis": str(idle_ms), **PACES[latency]}
    with running(rig, f"live-{live.shards}-{live.per_s}", server, shards=live.shards, keys=keys) as subject:
        time.sleep(warm_s)
        subject.look()
        jobs = subject.jobs()  # before the CPU is read: the first answer of Spark's UI takes 2 CPU s
        before, began, first = subject.cpu_s(), time.time(), len(subject.triggers)
        time.sleep(QUIET_S[latency])
        after, jobs, ended = subject.cpu_s(), subject.jobs() - jobs, time.time()
        subject.look()
        memory = subject.pss_mb()
    triggers = [one for one in subject.triggers[first:] if one.at <= ended]
    delays = _delays_ms(rig, subject.sink, began, ended - COMMITTED_S[latency])
    spent = {part: after[part] - before[part] for part in PARTS}
    figures = {f"{part}_ms_per_trigger": 1000 * spent[part] / len(triggers) for part in PARTS}
    figures |= {f"{part}_ms_per_s": 1000 * spent[part] / (ended - began) for part in PARTS}
    figures |= {f"{part}_pss_mb": memory[part] for part in PARTS}
    figures |= {
        "triggers": len(triggers),
        "jobs": jobs,
        "shards_per_trigger": sum(one.figures["shards"] for one in triggers) / len(triggers),
        "records": len(delays),
        "p50_ms": percentile(delays, 0.5),
        "p90_ms": percentile(delays, 0.9),
        "p99_ms": percentile(delays, 0.99),
        "max_ms": delays[-1],
    }
    name = f"{latency}, {live.per_s} a second, poll every {idle_ms} ms, after {warm_s:.0f} s"
    return [Row("quiet", name, "1 KB", live.shards, figures=figures)]


def _delays_ms(rig: Rig, sink: Path, began: float, ended: float) -> list[float]:
    """From the put of each record to the rename that made its commit visible, for the records put between."""
    directory = rig.fresh("delays")
    command = [sys.executable, "-P", "-m", "tests.benchmarks.spark_delays", str(sink), str(began), str(ended)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment_of_scripts(directory) | {"BENCH_DIRECTORY": str(directory)},
        stdout=subprocess.PIPE,
        stderr=(directory / "log").open("wb"),
        text=True,
    )
    if done.returncode:
        raise BenchError(f"{' '.join(command[2:])} ended with status {done.returncode}; see {directory / 'log'}")
    return sorted(map(float, done.stdout.split()))


def plan(rig: Rig, arguments: argparse.Namespace) -> Iterator[report.Measure]:
    wanted = arguments.scenarios or SCENARIOS
    if BACKLOG in wanted:
        for shards in map(int, arguments.shards.split(",")):
            for turn in range(arguments.turns):
                for subject in (OURS, *arguments.beside):
                    yield partial(backlog, rig, shards, arguments.data, subject, turn)
    if START in wanted:
        for _ in range(arguments.turns):
            for subject in (OURS, *arguments.beside):
                yield partial(start, rig, subject)
    if QUIET in wanted:
        for live, idle_ms in product(arguments.live or [Live()], map(int, arguments.idle.split(","))):
            for latency in arguments.latency.split(","):
                yield partial(quiet, rig, live, idle_ms, arguments.warm, latency)


def arguments_of(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-spark", description=__doc__)
    parser.add_argument("scenarios", nargs="*", help=f"any of {', '.join(SCENARIOS)}; default: all")
    parser.add_argument("--shards", default=",".join(map(str, SHARDS)), help="of the backlogs (default: %(default)s)")
    parser.add_argument("--latency", default="low", help="of quiet shards: low, adaptive or both (%(default)s)")
    parser.add_argument(
        "--live", type=live_of, action="append", help="quiet shards and records a second in each (64x1)"
    )
    parser.add_argument("--idle", default="200,1500", help="milliseconds between polls of quiet shards (%(default)s)")
    parser.add_argument(
        "--warm",
        type=float,
        default=QUIET_WARM_S,
        help="seconds that quiet shards run before they are measured: the JVM compiles for minutes (%(default)g)",
    )
    parser.add_argument(
        "--beside",
        type=subject_of,
        action="append",
        default=[],
        metavar="NAME=DIRECTORY or NAME=KEY=VALUE",
        help="measure backlogs and starts by turns with another checkout, or with another setting, too",
    )
    parser.add_argument(
        "--turns", type=int, default=1, help="how often each backlog and start is measured (%(default)s)"
    )
    parser.add_argument("--data", type=float, default=1.0, help="share of the usual data (default 1)")
    parser.add_argument("--results", type=Path, help="add the figures to this file, and print all that are in it")
    parser.add_argument("--show", action="store_true", help="measure nothing, print what is in the file")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/lab/performance.md")
    parser.add_argument("--keep", action="store_true", help="keep the logs, and say where they are")
    arguments = parser.parse_args(words)
    if unknown := set(arguments.scenarios) - set(SCENARIOS):
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    return arguments


def main(words: Sequence[str] | None = None) -> int:
    arguments = arguments_of(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))  # so that daemons and servers end with us
    scratch = Path(tempfile.mkdtemp(prefix="mld-bench-spark-"))
    results = arguments.results or scratch / "results.jsonl"
    failures = 0
    if not arguments.show:
        before, began = load_average(), time.monotonic()
        with Rig(scratch) as rig:
            for measure in plan(rig, arguments):
                try:
                    rows = measure()
                except BenchError as error:
                    failures += 1
                    print(f"failed: {error}", flush=True)
                    continue
                for row in rows:
                    print(report.line(row), flush=True)
                write(results, rows)
        words_used = " ".join(sys.argv[1:] if words is None else words)
        note = (
            f'`make bench-spark BENCH_ARGS="{words_used}"`, {time.strftime("%d %B %Y %H:%M")}, '
            f"{time.monotonic() - began:.0f} s: {versions()}; load average before {before}, after {load_average()}"
        )
        print(note)
        write(results, [Row("note", note)])
    if results.exists():
        rows = read(results)
        print(report.markdown(rows))
        if arguments.write:
            report.put_into_page(rows)
    if arguments.keep or failures:
        print(f"logs: {scratch}")
    else:
        shutil.rmtree(scratch, ignore_errors=True)
    return 1 if failures else 0


def versions() -> str:
    """Machine and versions, in one sentence."""
    import pyspark

    from mld.processors.spark.session.java import find_java

    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    processor = names[0].partition(":")[2].strip() if names else platform.machine()
    return (
        f"{os.cpu_count()} CPUs ({processor}), Linux {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}, PySpark {pyspark.__version__}, Java {find_java(os.environ).version}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
