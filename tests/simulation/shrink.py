"""Makes a failing plan small: takes away faults, workers and shards while it still fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.simulation.run import Result, run_plan
from tests.simulation.world.plan import Plan, Rates

RUNS_MAX = 200


def kind_of(violation: str) -> str:
    """Which promise was broken: two failures of the same kind count as the same."""
    return violation.split(" at ")[0].split(":")[0] if violation else ""


def shrink(plan: Plan, run: Callable[[Plan], Result] = run_plan, say: Callable[[str], None] = print) -> Plan:
    """The smallest plan found that still fails like `plan`. Raises ValueError if `plan` does not fail."""
    wanted = kind_of(run(plan).violation)
    if not wanted:
        raise ValueError(f"seed {plan.seed} does not fail")
    runs = 0
    smaller = True
    while smaller and runs < RUNS_MAX:
        smaller = False
        for candidate in _candidates(plan):
            runs += 1
            if kind_of(run(candidate).violation) == wanted:
                say(f"{runs:4} runs: {describe(candidate)}")
                plan, smaller = candidate, True
                break
            if runs >= RUNS_MAX:
                break
    return plan


def describe(plan: Plan) -> str:
    rates = ", ".join(name for name in Rates.__slots__ if getattr(plan.rates, name)) or "none"
    children = f", children {plan.children}" if plan.children else ""
    return f"{len(plan.workers)} workers, {plan.shards} shards{children}, {len(plan.actions)} actions, rates: {rates}"


def _candidates(plan: Plan) -> Iterator[Plan]:
    """Smaller plans, the boldest first."""
    half = len(plan.actions) // 2
    if half:
        yield replace(plan, actions=plan.actions[:half])
        yield replace(plan, actions=plan.actions[half:])
    for number in range(len(plan.actions)):
        yield replace(plan, actions=plan.actions[:number] + plan.actions[number + 1 :])
    for name in Rates.__slots__:
        if getattr(plan.rates, name):
            yield replace(plan, rates=replace(plan.rates, **{name: 0.0}))
    for name in ("stale_reads_s", "aggregated", "retention_s"):
        if getattr(plan, name):
            yield replace(plan, **{name: 0.0})
    if plan.children:
        yield replace(plan, children=())
        yield replace(plan, children=(2,))
    if len(plan.workers) > 1:
        for number in range(len(plan.workers)):
            yield replace(plan, workers=plan.workers[:number] + plan.workers[number + 1 :])
    if plan.shards > 1:
        yield replace(plan, shards=max(1, plan.shards // 2))
        yield replace(plan, shards=plan.shards - 1)
