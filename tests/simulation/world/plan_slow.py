"""Plans with a DynamoDB whose answers are right and late, by up to two lease durations."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.simulation.world.fleet3x import COORDINATOR, REPORTS
from tests.simulation.world.plan import ROWS_BY_HAND, Kind, Plan, Rates, draw
from tests.simulation.world.plan3x import draw_3x
from tests.simulation.world.slowness import Slowness
from tests.support.fleet import TABLE

MOST = 2.0
"""The longest round trip, in lease durations."""
STEADY = 0.35
"""The share of the runs in which nothing happens but one jump."""
STEADY_FROM_S = 60.0
"""A fleet has shared its leases by then."""
SHARDS_MAX = 12
ACTIONS_MAX = 6
NOT_BESIDE = (*ROWS_BY_HAND, Kind.TWIN, Kind.DELETE_STREAM)
OPERATIONS = ("UpdateItem", "UpdateItem", "Scan", "GetItem")
OPERATIONS_3X = (*OPERATIONS, "Query", "PutItem", "BatchGetItem")
TABLES_3X = (TABLE, COORDINATOR, REPORTS)


def draw_slow(seed: int) -> Plan:
    """The plan of the same seed in 2.x mode, among our own workers, with few actions, and slowness on top."""
    return _slow(Random(f"slow {seed}"), draw(seed), OPERATIONS, ())


def draw_slow_3x(seed: int) -> Plan:
    """The same in 3.x mode. In some fleets the other two tables are there, and only one of the three may be slow."""
    rng = Random(f"slow 3x {seed}")
    is_legacy = rng.random() < 0.3
    plan = draw_3x(seed)
    assert plan.fleet is not None
    plan = replace(plan, fleet=replace(plan.fleet, is_legacy=is_legacy))
    return _slow(rng, plan, OPERATIONS_3X, TABLES_3X if is_legacy else ())


def _slow(rng: Random, plan: Plan, operations: tuple[str, ...], tables: tuple[str, ...]) -> Plan:
    plan = replace(
        plan,
        shards=min(SHARDS_MAX, plan.shards),
        workers=tuple(replace(worker, kind="mld") for worker in plan.workers),
        retention_s=0.0,
    )
    if rng.random() < STEADY:
        points = ((STEADY_FROM_S, 0.0), (STEADY_FROM_S, rng.uniform(0.0, MOST) * plan.failover_s))
        slow = Slowness(points, _before(rng), is_steady=True)
        return replace(plan, actions=(), rates=Rates(), initial="TRIM_HORIZON", slow=slow)
    actions = [action for action in plan.actions if action.kind not in NOT_BESIDE]
    kept = sorted(rng.sample(range(len(actions)), min(len(actions), rng.randrange(ACTIONS_MAX + 1))))
    rates = plan.rates if rng.random() < 0.3 else Rates(child_silent=plan.rates.child_silent)
    scope = rng.choice(("all", "all", "operation", "table" if tables else "operation"))
    slow = Slowness(
        _points(rng, plan),
        _before(rng),
        operation=rng.choice(operations) if scope == "operation" else "",
        table=rng.choice(tables) if scope == "table" else "",
        worker=rng.randrange(len(plan.workers)) if rng.random() < 0.3 else None,
    )
    return replace(plan, actions=tuple(actions[index] for index in kept), rates=rates, slow=slow)


def _before(rng: Random) -> float:
    return rng.choice((0.0, 0.5, 1.0, rng.random()))


def _points(rng: Random, plan: Plan) -> tuple[tuple[float, float], ...]:
    most_s, at_s = MOST * plan.failover_s, rng.uniform(5.0, plan.trouble_s * 0.6)
    low_s, high_s = sorted(rng.uniform(0.0, most_s) for _ in range(2))
    match rng.choice(("constant", "up", "down", "sawtooth")):
        case "constant":
            return ((0.0, high_s),)
        case "up":
            return ((0.0, low_s), (at_s, low_s), (at_s, high_s))
        case "down":
            return ((0.0, high_s), (at_s, high_s), (at_s, low_s))
    tooth_s = rng.uniform(1.0, 6.0) * plan.failover_s
    starts = [number * tooth_s for number in range(int(plan.trouble_s / tooth_s) + 1)]
    return tuple(point for start in starts for point in ((start, low_s), (start + tooth_s, high_s)))
