"""Large fleets in 3.x mode in virtual time: how a leader spreads load, beside the same leader with Java's decider.

`python -m tests.simulation.scale3x` runs every case, each in a process of its own, and prints the table of the page
docs/lab/scale.md; with `--write` it puts it there. `--case NAME` runs one case in this process.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from functools import partial
from pathlib import Path

from tests.simulation.scale import CASE_REAL_S_MAX, SEED, Print, lean
from tests.simulation.scale3x_fleet import Fleet3x, Settling
from tests.simulation.world.loop import run_world

PAGE = Path("docs/lab/scale.md")
BEGIN, END = "<!-- measured 3.x: begin -->", "<!-- measured 3.x: end -->"
HEAD = (
    "| Decider | Workers | Leases | Step | All renewed after s | At rest after s | Runs | Moves | Most leases of one "
    "| Leases per worker | Lowest load | Highest load | Workers within 10 % | Scan pages | Read units | Write units "
    "| Real s |"
)
SIZES = {"100x1000": (100, 1000), "1000x10000": (1000, 10_000)}
CASES = {
    f"{size}-{decider}": (workers, leases, decider)
    for size, (workers, leases) in SIZES.items()
    for decider in ("mld", "java")
}


async def grow_and_shrink(say: Print, workers: int, leases: int, decider: str) -> None:
    """A cold start, then 10 % more workers, then a third of them lost at the same moment."""
    fleet = Fleet3x(leases, SEED, java=decider == "java")
    for name, step in (
        ("cold start", lambda: fleet.start(workers)),
        ("10 % more workers", lambda: fleet.start(workers // 10)),
        ("a third lost at once", lambda: fleet.kill(len(fleet.living()) // 3)),
    ):
        say(_row(decider, name, await fleet.settle(step)))


def _row(decider: str, step: str, seen: Settling) -> str:
    cells = (
        "Java's" if decider == "java" else "mld's",
        f"{seen.workers:,}",
        f"{seen.leases:,}",
        step,
        _seconds(seen.held_s),
        _seconds(seen.rest_s),
        str(seen.runs),
        f"{seen.moves:,}",
        f"{seen.most_held:,}",
        f"{seen.counts[0]} to {seen.counts[1]}",
        f"{seen.load_min:.2f}",
        f"{seen.load_max:.2f}",
        f"{seen.within:.0%}",
        *(f"{value:,.0f}" for value in (seen.bill.pages, seen.bill.read_units, seen.bill.write_units)),
        f"{seen.real_s:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:,.0f}"


def run_case(name: str, say: Print) -> None:
    """Run one case in this process and say its rows."""
    with lean():
        run_world(grow_and_shrink(say, *CASES[name]))


def run_all() -> str:
    lines = [HEAD, "|" + " --- |" * (HEAD.count("|") - 1)]
    for name in CASES:
        print(f"running {name}", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", __spec__.name, "--case", name]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=CASE_REAL_S_MAX)
        print(done.stdout, end="", file=sys.stderr, flush=True)
        lines += done.stdout.splitlines()
    return "\n".join([*lines, ""])


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
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
