"""``python -m tests.benchmarks.path``: what ``make bench BENCH_ARGS="path ..."`` runs. See docs/lab/performance.md."""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

from tests.benchmarks.path import report, scenarios, table, yardsticks
from tests.benchmarks.path.figures import LOADS, Row, read, write
from tests.benchmarks.path.rig import Rig, build, versions
from tests.benchmarks.path.subject import MLD, Subject, checkout, java_of
from tests.benchmarks.process import BenchError
from tests.benchmarks.tables import load_average

BACKLOG, YARDSTICKS, TRICKLE, IDLE, QUIET = "backlog", "yardsticks", "trickle", "idle", "quiet"
TABLE = "table"
SCENARIOS = (YARDSTICKS, BACKLOG, TRICKLE, IDLE, QUIET)
SHARDS = (1, 4, 16, 64, 256)
QUIET_SHARDS = (1, 64, 1000)
WIRES = {"plain": False, "tls": True}
MODES = {"polling": scenarios.POLLING, "fanout": scenarios.FANOUT}
FANOUT_SHARDS_MAX = 64
IDLE_MS = (1500, 200)
MANY = 64
TABLE_IDLE_S = 8.0
TABLE_FIRST_MB = 400
EXIT_TERMINATED = 143
DIRECTORY = re.compile(r"(?<![^\s=])/\S+")


def arguments_of(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench BENCH_ARGS=path", description=__doc__)
    parser.add_argument(
        "scenarios",
        nargs="*",
        help=f"any of {', '.join(SCENARIOS)}; default: all. Or {TABLE} alone: the daemons beside each other",
    )
    parser.add_argument("--records", default=",".join(LOADS), help="sizes of records (default: %(default)s)")
    parser.add_argument("--shards", default=",".join(map(str, SHARDS)), help="of the backlogs (default: %(default)s)")
    parser.add_argument(
        "--data", type=float, default=1.0, help="share of the usual data, for busy machines (default 1)"
    )
    parser.add_argument("--wire", default=",".join(WIRES), help="(default: %(default)s)")
    parser.add_argument("--mode", default=",".join(MODES), help="retrieval (default: %(default)s)")
    parser.add_argument("--java", type=java_of, metavar="DIR", help="Amazon's daemon too, whose jars are in DIR")
    parser.add_argument(
        "--beside", type=checkout, action="append", default=[], metavar="NAME=DIR", help="another checkout of mld too"
    )
    parser.add_argument("--runs", type=int, default=3, help=f"of the {TABLE}, by turns (default %(default)s)")
    parser.add_argument("--results", type=Path, help="add the figures to this file, and print all that are in it")
    parser.add_argument("--show", action="store_true", help="measure nothing, print what is in the file")
    parser.add_argument("--write", action="store_true", help="put tables and plot into docs/lab/performance.md")
    parser.add_argument("--keep", action="store_true", help="keep the logs, and say where they are")
    arguments = parser.parse_args(words)
    if arguments.scenarios == [TABLE]:
        return arguments
    if unknown := set(arguments.scenarios) - set(SCENARIOS):
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    if unknown := set(arguments.records.split(",")) - set(LOADS):
        parser.error(f"no such records: {', '.join(sorted(unknown))}")
    return arguments


def main(words: Sequence[str] | None = None) -> int:
    arguments = arguments_of(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))  # so that daemons and servers end with us
    scratch = Path(tempfile.mkdtemp(prefix="mld-path-"))
    results = arguments.results or scratch / "results.jsonl"
    before, began = load_average(), time.monotonic()
    failures = 0
    if not arguments.show:
        with Rig(scratch, build(scratch)) as rig:
            for measure in (plan_of_table if arguments.scenarios == [TABLE] else plan)(rig, arguments):
                try:
                    rows = measure()
                except BenchError as error:
                    failures += 1
                    print(f"failed: {error}", flush=True)
                    continue
                for row in rows:
                    print(report.line(row), flush=True)
                write(results, rows)
        print(f"took {time.monotonic() - began:.0f} s; load average before {before}, after {load_average()}")
        words_used = DIRECTORY.sub("DIR", " ".join(sys.argv[1:] if words is None else words))
        note = (
            f"`path {words_used}`, {time.strftime('%d %B %Y')}: {versions()}; load average before {before}, "
            f"after {load_average()}"
        )
        write(results, [Row("note", note, turn=arguments.runs if arguments.scenarios == [TABLE] else 0)])
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


def plan(rig: Rig, arguments: argparse.Namespace) -> Iterator[report.Measure]:
    """One measurement after the other, those that share a server in a row."""
    wanted = arguments.scenarios or SCENARIOS
    wires = [WIRES[wire] for wire in arguments.wire.split(",")]
    modes = [MODES[mode] for mode in arguments.mode.split(",")]
    subjects = subjects_of(arguments)
    for load in (LOADS[name].scaled(arguments.data) for name in arguments.records.split(",")):
        for tls in wires:
            if YARDSTICKS in wanted:
                yield partial(yardsticks.boto3, rig, load, tls=tls)
            if BACKLOG in wanted:
                for mode, shards, subject in product(modes, map(int, arguments.shards.split(",")), subjects):
                    if mode == scenarios.POLLING or shards <= FANOUT_SHARDS_MAX:
                        yield partial(scenarios.backlog, rig, subject, load, shards, tls=tls, mode=mode)
    for tls in wires:
        for mode, subject in product(modes, subjects):
            if TRICKLE in wanted:
                yield partial(scenarios.trickle, rig, subject, MANY, tls=tls, mode=mode)
        for subject, idle_ms in product(subjects, IDLE_MS):
            if IDLE in wanted:
                yield partial(scenarios.idle, rig, subject, MANY, idle_ms, tls=tls)
    for subject, shards in product(subjects, QUIET_SHARDS if rig.tools.is_native else QUIET_SHARDS[:2]):
        if QUIET in wanted:
            yield partial(scenarios.quiet, rig, subject, shards, tls=wires[-1])


def plan_of_table(rig: Rig, arguments: argparse.Namespace) -> Iterator[report.Measure]:
    """By turns; what is compared with each other, one after the other."""
    subjects = subjects_of(arguments)
    turns = range(1, arguments.runs + 1)
    for tls in (WIRES[wire] for wire in arguments.wire.split(",")):
        for name, each_shards in table.BACKLOGS:
            load = replace(LOADS[name], first_mb=TABLE_FIRST_MB).scaled(arguments.data)
            for turn in turns:
                yield partial(_in_turn, turn, partial(yardsticks.boto3, rig, load, tls=tls))
                for shards, subject in product(each_shards, subjects):
                    yield partial(_in_turn, turn, partial(scenarios.backlog, rig, subject, load, shards, tls=tls))
        for each, turn, subject in product((scenarios.SMALL_EACH, 0), turns, subjects):
            idle = partial(scenarios.idle, rig, subject, MANY, table.IDLE_MS, each=each, seconds=TABLE_IDLE_S)
            yield partial(_in_turn, turn, partial(idle, tls=tls))


def subjects_of(arguments: argparse.Namespace) -> list[Subject]:
    return [MLD, *arguments.beside, *([arguments.java] if arguments.java else [])]


def _in_turn(turn: int, measure: report.Measure) -> list[Row]:
    return [replace(row, turn=turn) for row in measure()]


if __name__ == "__main__":
    raise SystemExit(main())
