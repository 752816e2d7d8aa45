"""Plans with what people and careless programs write: rows that cannot be of their shards, and children that name
places which they were not given. Both are said, and stop at most their shard.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.simulation.world.plan import ROWS_BY_HAND, Action, Kind, Plan, draw, in_order
from tests.simulation.world.plan3x import draw_3x

NOT_BESIDE = (*ROWS_BY_HAND, Kind.TWIN, Kind.DELETE_STREAM)


def draw_odd(seed: int) -> Plan:
    """The plan of a seed: of the same one in another mode, among our own workers."""
    rng = Random(f"odd {seed}")
    plan = rng.choice((draw, draw_3x))(seed)
    actions = [action for action in plan.actions if action.kind not in NOT_BESIDE]
    for _ in range(rng.randrange(1, 4)):
        at_s = rng.uniform(15.0, plan.trouble_s - 30.0)
        actions.append(Action(at_s, Kind.ODD_ROW, rng.randrange(64), rng.randrange(5)))
        if rng.random() < 0.8:  # whoever takes the lease then reads the row
            restart = Action(at_s + rng.uniform(0.1, 10.0), Kind.CRASH, rng.randrange(64), 5.0, "new")
            actions += [
                replace(restart, worker=restart.worker + n) for n in range(rng.choice((1, 1, len(plan.workers))))
            ]
    return replace(
        plan,
        workers=tuple(replace(worker, kind="mld") for worker in plan.workers),
        actions=in_order(actions),
        rates=replace(plan.rates, child_careless=rng.uniform(0.05, 0.5)),
        retention_s=0.0,
    )
