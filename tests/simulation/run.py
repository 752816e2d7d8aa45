"""Runs plans: one seed, many seeds, with or without a trace."""

from __future__ import annotations

import gc
import logging
import sys
import time
import traceback
import warnings
from dataclasses import dataclass

from tests.simulation.checkers import Violation
from tests.simulation.world.loop import run_world
from tests.simulation.world.modes import draw_of
from tests.simulation.world.plan import Plan
from tests.simulation.world.world import Trace, World


@dataclass(frozen=True, slots=True)
class Result:
    """One run. `violation` is empty if all promises were kept."""

    seed: int
    violation: str
    virtual_s: float
    cpu_s: float
    """Processor time: the same on a busy machine."""
    deliveries: int
    redeliveries: int
    checkpoints: int
    takes: int
    trimmed: int = 0
    """Records that fell out of the stream before anybody got them."""


def run_plan(plan: Plan, trace: Trace | None = None) -> Result:
    """Live through a plan. Bugs (unexpected exceptions) count as violations."""
    with _quiet():
        return _live(plan, trace)


def _live(plan: Plan, trace: Trace | None) -> Result:
    started = time.process_time()
    worlds: list[World] = []
    violation = ""
    try:
        run_world(_main(plan, trace, worlds))
    except Violation as error:
        violation = str(error)
    except Exception as error:
        violation = f"exception: {type(error).__name__}: {error}"
        if trace is not None:
            trace(traceback.format_exc())
    ledger = worlds[0].ledger
    return Result(
        plan.seed,
        violation,
        plan.end_s,
        time.process_time() - started,
        ledger.deliveries,
        ledger.redeliveries,
        ledger.checkpoints,
        ledger.takes,
        ledger.trimmed,
    )


async def _main(plan: Plan, trace: Trace | None, worlds: list[World]) -> None:
    world = World(plan, trace)
    worlds.append(world)
    await world.run()


def run_seed(seed: int, trace: Trace | None = None, *, mode: str = "2x") -> Result:
    return run_plan(draw_of(mode, seed), trace)


class _quiet:
    """No log, no warnings about tasks of killed processes, and no garbage collection in the middle of a run."""

    def __enter__(self) -> None:
        self._level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        self._hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        self._filters = warnings.catch_warnings()
        self._filters.__enter__()
        warnings.simplefilter("ignore")
        gc.disable()
        if not gc.get_freeze_count():
            gc.freeze()  # what was there before the first run needs no looking at after each

    def __exit__(self, *error: object) -> None:
        gc.enable()
        gc.collect()
        self._filters.__exit__(None, None, None)
        sys.unraisablehook = self._hook
        logging.disable(self._level)
