"""`make simulate SEEDS=n`: lives through many seeds and says what was covered and what broke.

python -m tests.simulation --seeds 1000 [--start 0] [--jobs 2]     many seeds
python -m tests.simulation --mode 3x ...                           fleets in 3.x mode; see `world.modes`
python -m tests.simulation --trace 4711                            one seed, as a readable timeline
python -m tests.simulation --shrink 4711                           the smallest plan that fails like this seed
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from functools import partial

from tests.simulation.run import Result, run_plan, run_seed
from tests.simulation.shrink import describe, shrink
from tests.simulation.world.modes import MODES, draw_of, features_of

SEEDS_PER_PROCESS = 50  # a fresh process now and then: nothing of an old world can pile up
FAILURES_SHOWN_MAX = 50


def main() -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets of texts is part of a run
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--mode", choices=sorted(MODES), default="2x")
    parser.add_argument("--trace", type=int, metavar="SEED")
    parser.add_argument("--shrink", type=int, metavar="SEED")
    arguments = parser.parse_args()
    if arguments.trace is not None:
        return _trace(arguments.mode, arguments.trace)
    if arguments.shrink is not None:
        return _shrink(arguments.mode, arguments.shrink)
    return _many(arguments.mode, range(arguments.start, arguments.start + arguments.seeds), arguments.jobs)


def _trace(mode: str, seed: int) -> int:
    plan = draw_of(mode, seed)
    print(f"seed {seed}: {describe(plan)}")
    for number, worker in enumerate(plan.workers):
        print(f"  machine {number}: {worker.kind}, drift {worker.drift * 1e6:.0f} ppm")
    result = run_seed(seed, print, mode=mode)
    print(result.violation or "all promises kept")
    return 1 if result.violation else 0


def _shrink(mode: str, seed: int) -> int:
    smallest = shrink(draw_of(mode, seed))
    print(f"smallest: {smallest}")
    result = run_plan(smallest, print)
    print(result.violation)
    return 1


def _many(mode: str, seeds: range, jobs: int) -> int:
    started = time.perf_counter()
    results = list(_results(mode, seeds, jobs))
    seconds = time.perf_counter() - started
    failed = [result for result in results if result.violation]
    _report(mode, seeds, results, seconds)
    for result in failed[:FAILURES_SHOWN_MAX]:
        print(f"FAILED seed {result.seed}: {result.violation}")
        print(f"  replay: python -m tests.simulation --mode {mode} --trace {result.seed}")
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def _results(mode: str, seeds: range, jobs: int) -> Iterator[Result]:
    run_one = partial(run_seed, mode=mode)
    if jobs <= 1:
        yield from map(run_one, seeds)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, maxtasksperchild=SEEDS_PER_PROCESS) as pool:
        for number, result in enumerate(pool.imap_unordered(run_one, seeds), start=1):
            if result.violation:
                print(f"seed {result.seed}: {result.violation}", file=sys.stderr, flush=True)
            if number % 500 == 0:
                print(f"{number} seeds", file=sys.stderr, flush=True)
            yield result


def _report(mode: str, seeds: range, results: list[Result], seconds: float) -> None:
    features = [sorted(draw_of(mode, seed).features) for seed in seeds]
    pairs = {frozenset(pair) for met in features for pair in itertools.combinations(met, 2)}
    possible = len(features_of(mode)) * (len(features_of(mode)) - 1) // 2
    print(f"{len(results)} seeds in {seconds:.0f} s: {len(results) / seconds:.1f} seeds a second")
    print(f"{sum(r.virtual_s for r in results) / 3600:.0f} virtual hours")
    print(
        f"{sum(r.deliveries for r in results)} deliveries ({sum(r.redeliveries for r in results)} again), "
        f"{sum(r.checkpoints for r in results)} checkpoints, {sum(r.takes for r in results)} lease takes, "
        f"{sum(r.trimmed for r in results)} records trimmed unread"
    )
    print(f"{len(pairs)} of {possible} pairs of faults met in one run")


if __name__ == "__main__":
    sys.exit(main())
