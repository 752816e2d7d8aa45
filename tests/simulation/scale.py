"""Large fleets in virtual time, without a data path: how long leases take to find their places, and what that costs.

`python -m tests.simulation.scale` runs every case, each in a process of its own, and prints the tables of the page
docs/lab/scale.md; with `--write` it puts them there. `--case NAME` runs one case in this process. In 2.x mode workers
take their leases (`scale_fleet`), in 3.x mode a leader gives them (`scale3x_fleet`).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import resource
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeAlias

from tests.simulation.scale3x_fleet import Fleet3x
from tests.simulation.scale3x_fleet import Settling as Settling3x
from tests.simulation.scale_fleet import RULES, Fleet, Settling
from tests.simulation.world.loop import run_world

SEED = 1
CASE_REAL_S_MAX = 3600.0
PAGE = Path("docs/lab/scale.md")
JAVA = RULES
EVEN = RULES | {"even_shares": True}

TAKEN = (
    "| Workers | Shards | Step | All held after s | At rest after s | Moves | Refused writes | Read units "
    "| Write units | Most writes in a second | Leases per worker | Real s | MB |"
)
GIVEN = (
    "| Decider | Workers | Leases | Step | All renewed after s | At rest after s | Moves | Leases per worker "
    "| Lowest load | Highest load | Workers within 10 % | Read units | Write units |"
)
MARKS = {TAKEN: "measured", GIVEN: "measured 3.x"}
"""Which part of the page a table is in, by its head."""
Print: TypeAlias = Callable[[str], None]
Case: TypeAlias = Callable[[Print], Coroutine[None, None, None]]


# --- cases -----------------------------------------------------------------------------------------------------------


async def taken(say: Print, *, workers: int, shards: int) -> None:
    """A cold start, then 10 % more workers, then a third of them lost at the same moment."""
    fleet = Fleet(shards, SEED)
    for name, step in (
        ("cold start", lambda: fleet.start(workers, rules=EVEN)),
        ("10 % more workers", lambda: fleet.start(workers // 10, rules=EVEN)),
        ("a third lost at once", lambda: fleet.kill(len(fleet.workers) // 3)),
    ):
        say(_taken(name, await fleet.settle(step)))


async def given(say: Print, *, workers: int, leases: int, java: bool) -> None:
    """The same in 3.x mode."""
    fleet = Fleet3x(leases, SEED, java=java)
    for name, step in (
        ("cold start", lambda: fleet.start(workers)),
        ("10 % more workers", lambda: fleet.start(workers // 10)),
        ("a third lost at once", lambda: fleet.kill(len(fleet.living()) // 3)),
    ):
        say(_given("Java's" if java else "mld's", name, await fleet.settle(step)))


CASES: dict[str, tuple[str, Case]] = {
    "100x1000": (TAKEN, partial(taken, workers=100, shards=1000)),
    "1000x10000": (TAKEN, partial(taken, workers=1000, shards=10_000)),
    "3x-100x1000": (GIVEN, partial(given, workers=100, leases=1000, java=False)),
    "3x-100x1000-java": (GIVEN, partial(given, workers=100, leases=1000, java=True)),
    "3x-1000x10000": (GIVEN, partial(given, workers=1000, leases=10_000, java=False)),
    "3x-1000x10000-java": (GIVEN, partial(given, workers=1000, leases=10_000, java=True)),
}


# --- tables ----------------------------------------------------------------------------------------------------------


def _taken(name: str, seen: Settling) -> str:
    bill = seen.bill
    return _row(
        [
            f"{seen.workers:,}",
            f"{seen.shards:,}",
            name,
            *map(_seconds, (seen.held_s, seen.rest_s)),
            *(f"{value:,}" for value in (seen.moves, bill.refused)),
            *(f"{value:,.0f}" for value in (bill.read_units, bill.write_units, seen.peak_writes)),
            f"{min(seen.loads)} to {max(seen.loads)}",
            f"{seen.real_s:.0f}",
            f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}",
        ]
    )


def _given(decider: str, step: str, seen: Settling3x) -> str:
    return _row(
        [
            decider,
            f"{seen.workers:,}",
            f"{seen.leases:,}",
            step,
            *map(_seconds, (seen.held_s, seen.rest_s)),
            f"{seen.moves:,}",
            f"{seen.counts[0]} to {seen.counts[1]}",
            f"{seen.load_min:.2f}",
            f"{seen.load_max:.2f}",
            f"{seen.within:.0%}",
            *(f"{value:,.0f}" for value in (seen.bill.read_units, seen.bill.write_units)),
        ]
    )


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:,.0f}"


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


def run_all() -> dict[str, str]:
    """Run every case, one after another, each in a fresh process; the tables by their heads."""
    tables: dict[str, str] = {}
    for name, (head, _) in CASES.items():
        print(f"running {name}", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", __spec__.name, "--case", name]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=CASE_REAL_S_MAX)
        print(done.stdout, end="", file=sys.stderr, flush=True)
        tables.setdefault(head, f"{head}\n|{'---|' * (head.count('|') - 1)}\n")
        tables[head] += done.stdout
    return tables


def write(page: str, tables: dict[str, str]) -> str:
    """The page with these tables between its marks."""
    for mark in set(MARKS.values()):
        begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
        before, rest = page.split(begin)
        inside = "\n".join(table for head, table in tables.items() if MARKS[head] == mark)
        page = f"{before}{begin}\n\n{inside}\n{end}{rest.split(end)[1]}"
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES, help="run this case only, in this process")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE}")
    options = parser.parse_args()
    if options.case:
        run_case(options.case, partial(print, flush=True))
        return
    tables = run_all()
    print("\n".join(tables.values()))
    if options.write:
        PAGE.write_text(write(PAGE.read_text(), tables))


if __name__ == "__main__":
    main()
