"""What is drawn on top of the plans of all modes, from random numbers of its own, so that everything else of a seed
stays what it is: limits, and workers that stop together or while they start.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.simulation.world.plan import Action, Kind, Plan, in_order

LIMITED = 0.3
"""The share of the plans in which workers have a limit (`maxLeasesForWorker`)."""
STOPPED = 0.3
"""The share in which everybody stops together, or somebody while it starts."""
STOP_KINDS = (Kind.STOP_ALL, Kind.STOP_IN_START)


def limited(plan: Plan, *, share: float = LIMITED) -> Plan:
    """The plan, in some seeds with room for just the shards that it may have open in the end, on the workers left then.

    Workers of Java count their finished shards, too, so only ours are relied upon; a twin takes its own share of room.
    """
    rng = Random(f"limit {plan.seed}")
    kinds = [action.kind for action in plan.actions]
    ours = sum(worker.kind == "mld" for worker in plan.workers) - kinds.count(Kind.SCALE_IN)
    if rng.random() >= share or plan.streams is not None or Kind.REDEPLOY_AS in kinds:
        return plan
    most = -(-(plan.shards + kinds.count(Kind.SPLIT)) // max(1, ours))
    return replace(plan, settings={**plan.settings, "maxLeasesForWorker": str(max(1, most + rng.choice((0, 0, 1, 3))))})


def stopped(plan: Plan, *, share: float = STOPPED) -> Plan:
    """The plan, in some seeds with stops of everybody, and of workers that have just been started."""
    rng = Random(f"stops {plan.seed}")
    kinds = {action.kind for action in plan.actions}
    if rng.random() >= share or kinds & {Kind.TWIN, Kind.REDEPLOY_AS}:
        return plan
    actions = [_stop(rng, rng.choice(STOP_KINDS), plan.trouble_s) for _ in range(rng.randrange(1, 5))]
    return replace(plan, actions=in_order([*plan.actions, *actions]))


def _stop(rng: Random, kind: Kind, trouble_s: float) -> Action:
    at_s, ids = rng.uniform(5.0, trouble_s), rng.choice(("same", "new"))
    if kind is Kind.STOP_ALL:
        return Action(at_s, kind, rng.choice((0, 1, rng.randrange(30))), rng.choice((0.0, 0.0, 1.0, 4.0)), ids)
    seconds = rng.choice((0.0, rng.uniform(0.0, 0.5), rng.uniform(0.0, 5.0)))
    return Action(at_s, kind, rng.randrange(64), seconds, ids + rng.choice(("", " cut")))
