"""Large fleets in virtual time, without a data path: how long leases take to find their places, and what that costs.

`python -m tests.simulation.scale` runs every case, each in a process of its own, and prints the table of the page
docs/lab/scale.md; with `--write` it puts it there. `--case NAME` runs one case in this process.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeAlias

from tests.simulation.scale3x_fleet import Fleet3x, Settling
from tests.simulation.world.loop import run_world

SEED = 1
CASE_REAL_S_MAX = 3600.0
PAGE = Path("docs/lab/scale.md")
HEAD = (
    "| Decider | Workers | Leases | Step | All renewed after s | At rest after s | Moves | Leases per worker "
    "| Lowest load | Highest load | Workers within 10 % | Read units | Write units |"
)
BEGIN, END = "<!-- measured 3.x: begin -->", "<!-- measured 3.x: end -->"
CASES = {
    "100x1000": (100, 1000, False),
    "100x1000-java": (100, 1000, True),
    "1000x10000": (1000, 10_000, False),
    "1000x10000-java": (1000, 10_000, True),
}
"""By name: workers, leases, whether Java's decider gives them."""
Print: TypeAlias = Callable[[str], None]


async def given(say: Print, workers: int, leases: int, java: bool) -> None:
    """A cold start, then 10 % more workers, then a third of them lost at the same moment."""
    fleet = Fleet3x(leases, SEED, java=java)
    for name, step in (
        ("cold start", lambda: fleet.start(workers)),
        ("10 % more workers", lambda: fleet.start(workers // 10)),
        ("a third lost at once", lambda: fleet.kill(len(fleet.living()) // 3)),
    ):
        say(_row("Java's" if java else "mld's", name, await fleet.settle(step)))


def _row(decider: str, step: str, seen: Settling) -> str:
    cells = [
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
        run_world(given(say, *CASES[name]))


def run_all() -> str:
    """Run every case, one after another, each in a fresh process; the table."""
    table = f"{HEAD}\n|{'---|' * (HEAD.count('|') - 1)}\n"
    for name in CASES:
        print(f"running {name}", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", __spec__.name, "--case", name]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=CASE_REAL_S_MAX)
        print(done.stdout, end="", file=sys.stderr, flush=True)
        table += done.stdout
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES, help="run this case only, in this process")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE}")
    options = parser.parse_args()
    if options.case:
        run_case(options.case, partial(print, flush=True))
        return
    table = run_all()
    print(table)
    if options.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
