"""Large fleets in virtual time, without a data path: how long leases take to find their places, and what that costs.

`python -m tests.simulation.scale` runs every case, each in a process of its own, and prints the tables of the page
docs/lab/scale.md; with `--write` it puts them there. `--case NAME` runs one case in this process.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from tests.simulation.scale_fleet import RULES, Fleet, Settling
from tests.simulation.world.loop import run_world

SEED = 1
CASE_REAL_S_MAX = 3600.0
PAGE = Path("docs/lab/scale.md")
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
JAVA = RULES
EVEN = replace(RULES, even_shares=True)

STEPS_HEAD = (
    "| Workers | Shards | Step | All held after s | Balanced after s | At rest after s | Moves | Scan pages | Renewals "
    "| Takes | Refused writes | Read units | Write units | Most writes in a second | Leases per worker | Real s | MB |"
)
CLUSTERS_HEAD = (
    "| Rules of the first hundred | Rules of the second hundred | First hundred: leases (per worker) "
    "| Second hundred: leases (per worker) | At rest after s | Moves | Moves to equal halves at least | Real s |"
)
Print: TypeAlias = Callable[[str], None]
Case: TypeAlias = Callable[[Print], Coroutine[None, None, None]]


# --- cases -----------------------------------------------------------------------------------------------------------


async def grow_and_shrink(say: Print, *, workers: int, shards: int, seed: int = SEED, even: bool = True) -> None:
    """A cold start, then 10 % more workers, then a third of them lost at the same moment."""
    fleet = Fleet(shards, seed)
    rules = EVEN if even else JAVA
    kind = "" if even else " (as Java)"
    await _step(say, fleet, f"cold start{kind}", lambda: fleet.start(workers, rules=rules))
    await _step(say, fleet, f"10 % more workers{kind}", lambda: fleet.start(workers // 10, rules=rules))
    await _step(say, fleet, f"a third lost at once{kind}", lambda: fleet.kill(len(fleet.workers) // 3))


async def cold_start(say: Print, *, workers: int, shards: int, seed: int = SEED) -> None:
    fleet = Fleet(shards, seed)
    await _step(say, fleet, "cold start", lambda: fleet.start(workers, rules=EVEN))


async def double(say: Print, *, workers: int, shards: int, first_even: bool, second_even: bool) -> None:
    """The stable imbalance: a second cluster as large as the first one joins."""
    fleet = Fleet(shards, SEED)
    rules = [EVEN if even else JAVA for even in (first_even, second_even)]
    first = fleet.start(workers, cluster="first", rules=rules[0])
    await fleet.settle(lambda: None)
    second: list[str] = []
    settling = await fleet.settle(lambda: second.extend(fleet.start(workers, cluster="second", rules=rules[1])))
    names = ["even shares" if even else "as Java" for even in (first_even, second_even)]
    loads = [_spread(fleet.loads(cluster)) for cluster in (first, second)]
    say(
        f"| {names[0]} | {names[1]} | {loads[0]} | {loads[1]} | {_seconds(settling.rest_s)} | {settling.moves} "
        f"| {shards // 2} | {settling.real_s:.1f} |"
    )


CASES: dict[str, tuple[str, Case]] = {
    "20x200": (STEPS_HEAD, partial(cold_start, workers=20, shards=200)),
    "100x1000": (STEPS_HEAD, partial(grow_and_shrink, workers=100, shards=1000)),
    "300x3000": (STEPS_HEAD, partial(grow_and_shrink, workers=300, shards=3000)),
    "300x3000-java": (STEPS_HEAD, partial(grow_and_shrink, workers=300, shards=3000, even=False)),
    "1000x10000": (STEPS_HEAD, partial(grow_and_shrink, workers=1000, shards=10_000)),
    "double-java": (CLUSTERS_HEAD, partial(double, workers=100, shards=500, first_even=False, second_even=False)),
    "double-even": (CLUSTERS_HEAD, partial(double, workers=100, shards=500, first_even=True, second_even=True)),
    "double-java-even": (CLUSTERS_HEAD, partial(double, workers=100, shards=500, first_even=False, second_even=True)),
    "double-even-java": (CLUSTERS_HEAD, partial(double, workers=100, shards=500, first_even=True, second_even=False)),
}


async def _step(say: Print, fleet: Fleet, name: str, act: Callable[[], object]) -> None:
    say(_row(name, await fleet.settle(act)))


# --- tables ----------------------------------------------------------------------------------------------------------


def _row(name: str, settling: Settling) -> str:
    bill = settling.bill
    cells = (
        f"{settling.workers:,}",
        f"{settling.shards:,}",
        name,
        *(_seconds(value) for value in (settling.held_s, settling.balanced_s, settling.rest_s)),
        *(f"{value:,}" for value in (settling.moves, bill.pages, bill.renewals, bill.takes, bill.refused)),
        *(f"{value:,.0f}" for value in (bill.read_units, bill.write_units, settling.peak_writes)),
        _counts(settling.loads),
        f"{settling.real_s:.0f}",
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:,.0f}"


def _counts(loads: Counter[int]) -> str:
    return ", ".join(f"{load} ({workers:,})" for load, workers in sorted(loads.items()))


def _spread(loads: dict[str, int]) -> str:
    by_load = ", ".join(f"{load} x {workers}" for load, workers in sorted(Counter(loads.values()).items()))
    return f"{sum(loads.values())} ({by_load})"


# --- running ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def lean() -> Iterator[None]:
    """No log, no garbage collection, and not a word about the tasks of killed workers."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    logging.disable(logging.CRITICAL)
    gc.disable()
    try:
        yield
        gc.collect()
    finally:
        gc.enable()
        logging.disable(logging.NOTSET)
        sys.unraisablehook = hook


def run_case(name: str, say: Print) -> None:
    """Run one case in this process and say its rows."""
    with lean():
        run_world(CASES[name][1](say))


def run_all() -> str:
    """Run every case, one after another, each in a fresh process; the tables."""
    lines: list[str] = []
    head = ""
    for name, (case_head, _) in CASES.items():
        if case_head != head:
            head = case_head
            lines += ["", head, "|" + " --- |" * (head.count("|") - 1)]
        print(f"running {name}", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", __spec__.name, "--case", name]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=CASE_REAL_S_MAX)
        print(done.stdout, end="", file=sys.stderr, flush=True)
        lines += done.stdout.splitlines()
    return "\n".join([*lines[1:], ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES, help="run this case only, in this process")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE}")
    options = parser.parse_args()
    if options.case:
        run_case(options.case, partial(print, flush=True))
        return
    tables = run_all()
    print(tables)
    if options.write:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{tables}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
