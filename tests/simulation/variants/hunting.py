"""Runs variants against drawn plans: which seed catches which variant, and by which checker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random

from tests.simulation.run import Result, run_plan
from tests.simulation.variants import catalog_children
from tests.simulation.variants.catalog import Variant
from tests.simulation.variants.patching import patched
from tests.simulation.world import plan3x
from tests.simulation.world.modes import MODES
from tests.simulation.world.plan import Plan, in_order, special_of

TIMES = 5
CHILDREN = (3, 2)
"""What `needs` children means."""
SIZE_MAX = 32
"""Workers times shards: larger plans catch no more here and cost more."""


@dataclass(frozen=True, slots=True)
class Catch:
    """A seed and how the variant shows in it, for example "checker 4"."""

    seed: int
    kind: str


def plan_of(seed: int, needs: str = "", mode: str = "2x") -> Plan:
    """The plan of a seed with our workers only: a Java worker has nothing that could be broken.

    `needs` names a rare combination of faults, which comes `TIMES` times on top. Arbitrary exceptions come only if
    they are needed, so that they hide no other fault.
    """
    plan = MODES[mode](seed)
    plan = replace(plan, rates=replace(plan.rates, surprise=0.0))
    if mode == "3x" and needs in plan3x.SPECIALS:
        return plan3x.with_special(plan, needs, TIMES)
    plan = replace(plan, workers=tuple(replace(worker, kind="mld") for worker in plan.workers))
    if needs == catalog_children.NEEDS:
        return replace(plan, children=CHILDREN)
    if not needs:
        return plan
    rng, actions, rates = Random(f"{needs} {seed}"), list(plan.actions), {}
    for _ in range(TIMES):
        at_s, worker = rng.uniform(15.0, plan.trouble_s - 10.0), rng.randrange(len(plan.workers))
        more, rates = special_of(needs, rng, at_s, worker, len(plan.workers), plan.trouble_s, plan.failover_s)
        actions += more
    return replace(plan, actions=in_order(dict.fromkeys(actions)), rates=replace(plan.rates, **rates))


def small_seeds(seeds: Iterable[int], mode: str = "2x") -> list[int]:
    return [seed for seed in seeds if (plan := plan_of(seed, mode=mode)).shards * len(plan.workers) <= SIZE_MAX]


def run_broken(variant: Variant, seed: int) -> Result:
    with patched(variant.patches):
        return run_plan(plan_of(seed, variant.needs, variant.mode))
