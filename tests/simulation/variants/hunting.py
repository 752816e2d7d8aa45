"""Runs variants against drawn plans: which seed catches which variant, and by which checker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tests.simulation.run import Result, run_plan
from tests.simulation.variants.catalog import Variant
from tests.simulation.variants.patching import patched
from tests.simulation.world.plan import Plan, draw

SIZE_MAX = 32
"""Workers times shards: larger plans catch no more here and cost more."""


@dataclass(frozen=True, slots=True)
class Catch:
    """A seed and how the variant shows in it, for example "checker 4"."""

    seed: int
    kind: str


def plan_of(seed: int) -> Plan:
    """The plan of a seed with our workers only: a Java worker has nothing that could be broken."""
    plan = draw(seed)
    return replace(plan, workers=tuple(replace(worker, kind="mld") for worker in plan.workers))


def small_seeds(seeds: Iterable[int]) -> list[int]:
    return [seed for seed in seeds if (plan := plan_of(seed)).shards * len(plan.workers) <= SIZE_MAX]


def run_broken(variant: Variant, seed: int) -> Result:
    with patched(variant.patches):
        return run_plan(plan_of(seed))
