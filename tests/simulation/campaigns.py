"""`make campaigns`: many seeds of every mode and special program, at one commit, in pieces, resumable.

python -m tests.simulation.campaigns [--commit HEAD] [--seeds 20000] [--jobs 1] [--only 3x,resets] [--under DIR]

The sources of the commit are copied first, so that work goes on while a campaign runs. Each piece runs in a process of
its own and leaves one line of JSON in `pieces.jsonl`; what has a line is not run again. Programs take turns, so that a
campaign that is stopped has seen all of them.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.simulation import catch_ups, lost_tables, poison, resets, retention, steering, table_streams
from tests.simulation.run import run_plan, run_seed
from tests.simulation.world.extras import limited, shared
from tests.simulation.world.modes import MODES
from tests.simulation.world.plan import Plan
from tests.virtual_time import run_virtual

SOURCES = ("mld", "protocol", "processors", "properties", "tests", "setup.cfg", "pyproject.toml")
PIECE_SEEDS = 20
DEAR = {"wide": 20}
"""Programs of which only every so many seeds run, and pieces are so much smaller."""
SEED_S_MAX = 1800
"""A seed that takes longer has failed: the slowest ones take a minute on a busy machine."""
SHOWN_CHARS_MAX = 300
SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""How the sources of a commit are unpacked. Python 3.11 has no filters before 3.11.4."""


def _lives(live: Callable[[int], Coroutine[Any, Any, Any]], seed: int) -> str:
    logging.disable(logging.CRITICAL)
    run_virtual(live(seed))
    return ""


def _quick(seed: int) -> Plan:
    """A plan of all modes but `wide` in turn; a seed of `wide` takes as long as twenty of others."""
    modes = [draw for mode, draw in MODES.items() if mode != "wide"]
    return modes[seed % len(modes)](seed)


def _limits(seed: int) -> str:
    """Always with a limit where a mode can have one."""
    return run_plan(limited(_quick(seed), share=1.0)).violation


def _children(seed: int) -> str:
    """Always with several children for a shard in some workers or all."""
    plan = shared(_quick(seed), share=1.0)
    return run_plan(replace(plan, children=plan.children if max(plan.children, default=1) > 1 else (2,))).violation


PROGRAMS: dict[str, Callable[[int], str]] = {
    **{mode: lambda seed, mode=mode: run_seed(seed, mode=mode).violation for mode in MODES},  # type: ignore[misc]
    "limits": _limits,
    "children": _children,
    "table-streams": partial(_lives, table_streams.live),
    "catch-ups": partial(_lives, catch_ups.live),
    "resets": partial(_lives, resets.live),
    "steering": partial(_lives, steering.live),
    "retention": partial(_lives, retention.live),
    "poison": partial(_lives, poison.live),
    "lost-tables": partial(_lives, lost_tables.live),
}
"""By name: lives through a seed; returns the promise that was broken, or raises what tells of it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Seeds of one program. `failed` has the violation of each that failed."""

    version: str
    program: str
    first: int
    count: int
    seconds: float = 0.0
    failed: dict[str, str] | None = None
    """None: not run yet."""

    @property
    def seeds(self) -> range:
        return range(self.first, self.first + self.count)


def _piece(version: str, program: str, offset: int, count: int, start: int) -> Piece:
    price = DEAR.get(program, 1)
    return Piece(version, program, start + offset // price, -(-count // price))


class Campaign:
    """The pieces of one version under one directory, and what came of them."""

    def __init__(self, under: Path, version: str, programs: list[str], seeds: int, start: int) -> None:
        self.version = version
        self.sources = under / version
        self._state = under / "pieces.jsonl"
        self._writing = threading.Lock()
        each = -(-seeds // len(programs))
        self.wanted = [
            _piece(version, program, first - start, min(PIECE_SEEDS, start + each - first), start)
            for first in range(start, start + each, PIECE_SEEDS)
            for program in programs
        ]

    def done(self) -> list[Piece]:
        """The finished ones of this version; a line that was cut off by a kill counts for nothing."""
        found = []
        for line in self._state.read_text().splitlines() if self._state.exists() else ():
            try:
                found.append(Piece(**json.loads(line)))
            except ValueError:
                continue
        return [piece for piece in found if piece.version == self.version]

    def seen(self) -> set[tuple[str, int]]:
        return {(piece.program, seed) for piece in self.done() for seed in piece.seeds}

    def left(self) -> list[Piece]:
        seen = self.seen()
        return [piece for piece in self.wanted if any((piece.program, seed) not in seen for seed in piece.seeds)]

    def run(self, piece: Piece) -> None:
        began_s, failed, at = time.monotonic(), {}, piece.first
        end = piece.first + piece.count
        while at < end:
            for seed, violation in self._results(piece.program, at, end - at):
                at = seed + 1
                if violation:
                    failed[str(seed)] = violation
            if at < end:
                failed[str(at)] = f"its process ended, or the seed took over {SEED_S_MAX} s"
                at += 1
        finished = Piece(piece.version, piece.program, piece.first, piece.count, time.monotonic() - began_s, failed)
        with self._writing, self._state.open("a") as out:
            out.write("\n" * (not _ends_a_line(self._state)) + json.dumps(asdict(finished)) + "\n")
        for number, violation in failed.items():
            print(f"FAILED {piece.program} {number}: {violation[:SHOWN_CHARS_MAX]}", flush=True)

    def _results(self, program: str, first: int, count: int) -> Iterator[tuple[int, str]]:
        command = [sys.executable, "-m", "tests.simulation.campaigns", "--piece", program, str(first), str(count)]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}  # the order of sets of texts is part of a run
        with subprocess.Popen(command, cwd=self.sources, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                seed, violation = json.loads(line)
                yield seed, violation
        if process.returncode in (-signal.SIGINT, -signal.SIGTERM):  # we are being stopped: this piece is not done
            raise KeyboardInterrupt
        if process.returncode > 0:
            raise SystemExit(f"{program} cannot run at {self.version}: exit {process.returncode}")

    def table(self) -> bool:
        """Print what ran; returns whether nothing failed and nothing is left."""
        done, seen = self.done(), self.seen()
        broken = {
            (piece.program, seed): violation for piece in done for seed, violation in (piece.failed or {}).items()
        }
        print(f"version {self.version}\n{'program':15}{'seeds':>8}{'failed':>8}{'s a seed':>10}")
        for program in dict.fromkeys(piece.program for piece in (*self.wanted, *done)):
            ours = [piece for piece in done if piece.program == program]
            seconds = sum(piece.seconds for piece in ours) / max(1, sum(piece.count for piece in ours))
            count, failures = (sum(one == program for one, _ in found) for found in (seen, broken))
            print(f"{program:15}{count:8}{failures:8}{seconds:10.2f}")
        print(f"{'all':15}{len(seen):8}{len(broken):8}")
        for (program, seed), violation in broken.items():
            print(f"FAILED {program} {seed}: {violation[:SHOWN_CHARS_MAX]}")
        return not broken and not self.left()


def _ends_a_line(file: Path) -> bool:
    return not file.exists() or file.read_bytes()[-1:] in (b"", b"\n")


def _copy_sources(version: str, into: Path) -> None:
    if into.exists():
        return
    making = into.with_suffix(f".{os.getpid()}")
    making.mkdir(parents=True)
    with subprocess.Popen(["git", "archive", version, *SOURCES], stdout=subprocess.PIPE) as git:
        assert git.stdout is not None
        with tarfile.open(fileobj=git.stdout, mode="r|") as archive:
            archive.extractall(making, **SAFELY)
    making.rename(into)


def _run_piece(program: str, first: int, count: int) -> int:
    """In a process of its own, in the copy of the sources: one line for each seed."""
    for seed in range(first, first + count):
        signal.alarm(SEED_S_MAX)
        try:
            violation = PROGRAMS[program](seed)
        except Exception as error:
            violation = f"{type(error).__name__}: {error}"
        print(json.dumps([seed, violation]), flush=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.campaigns",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--seeds", type=int, default=20_000, help="of all programs together")
    parser.add_argument("--start", type=int, default=0, help="the first seed of each program")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default=",".join(PROGRAMS), help="programs, separated by commas")
    parser.add_argument("--under", type=Path, default=Path(".cache/campaigns"))
    parser.add_argument("--table", action="store_true", help="run nothing, show what has run")
    parser.add_argument("--piece", nargs=3, metavar=("PROGRAM", "FIRST", "COUNT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.piece is not None:
        program, first, count = arguments.piece
        return _run_piece(program, int(first), int(count))
    programs = arguments.only.split(",")
    if unknown := set(programs) - set(PROGRAMS):
        parser.error(f"no such program: {', '.join(sorted(unknown))}; there are {', '.join(PROGRAMS)}")
    command = ["git", "rev-parse", "--verify", f"{arguments.commit}^{{commit}}"]
    version = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()[:12]
    under = arguments.under.resolve()
    campaign = Campaign(under, version, programs, arguments.seeds, arguments.start)
    if not arguments.table:
        _copy_sources(version, campaign.sources)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        left = campaign.left()
        print(f"{len(left)} of {len(campaign.wanted)} pieces left, state in {under / 'pieces.jsonl'}", flush=True)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            try:
                for _ in pool.map(campaign.run, left):
                    pass
            except KeyboardInterrupt:
                pool.shutdown(cancel_futures=True)
                print("stopped: the same command goes on")
    return 0 if campaign.table() else 1


if __name__ == "__main__":
    sys.exit(main())
