"""Plans with what people and careless programs write: rows that cannot be of their shards, and children that name
places which they were not given. Both are said, and stop at most their shard.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.simulation.world.plan import ROWS_BY_HAND, Action, Kind, Plan, draw, in_order
from tests.simulation.world.plan3x import draw_3x

SHARDS_MIN = 6
"""Most rows of a table fit."""
NOT_BESIDE = (*ROWS_BY_HAND, Kind.TWIN, Kind.DELETE_STREAM)


def draw_odd(seed: int) -> Plan:
    """The plan of a seed: of the same one in another mode, among our own workers."""
    rng = Random(f"odd {seed}")
    plan = rng.choice((draw, draw_3x))(seed)
    actions = [action for action in plan.actions if action.kind not in NOT_BESIDE]
    for _ in range(rng.randrange(1, 4)):
        at_s = rng.uniform(15.0, plan.trouble_s - 30.0)
        actions.append(Action(at_s, Kind.ODD_ROW, rng.randrange(64), rng.choice((0, 1, 2, 3, 3, 4, 4))))
        # Whoever starts then reads the row: a checkpoint of a child that is at work would write over it.
        some = range(len(plan.workers)) if rng.random() < 0.7 else (rng.randrange(64),)
        actions += [Action(at_s + rng.uniform(0.0, 0.2), Kind.CRASH, number, 5.0, "new") for number in some]
    return replace(
        plan,
        shards=max(SHARDS_MIN, plan.shards),
        workers=tuple(replace(worker, kind="mld") for worker in plan.workers),
        actions=in_order(actions),
        rates=replace(plan.rates, child_careless=rng.uniform(0.05, 0.5)),
        retention_s=0.0,
    )
