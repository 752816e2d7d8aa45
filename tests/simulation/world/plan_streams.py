"""Plans of fleets that read several streams: streams and their lines come, go, and are made again."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.simulation.world import plan as plans
from tests.simulation.world.plan import ROWS_BY_HAND, Action, Kind, Plan, Rates, StreamsPlan, in_order
from tests.simulation.world.plan3x import draw_3x

STREAM_KINDS = (
    Kind.LIST_ADD,
    Kind.LIST_REMOVE,
    Kind.REMAKE,
    Kind.OLD_LIST,
    Kind.LIST_ROW_GONE,
    Kind.LIST_ROW_DAMAGED,
)
NOT_FOR_STREAMS = (*ROWS_BY_HAND, Kind.DELETE_STREAM, Kind.TWIN)
"""What is judged well enough with one stream."""
SHARE_2X = 0.25
PEACEFUL = 0.25
BY_HAND = 0.1
QUIET_S = 480.0
"""For a leader to be found, and for the changes in the calm."""
TROUBLE_S = (180.0, 300.0)


def draw_streams(seed: int) -> Plan:
    """The plan of the same seed in 3.x mode, or in 2.x, with several smaller streams."""
    rng = Random(f"streams {seed}")
    plan = plans.draw(seed) if rng.random() < SHARE_2X else draw_3x(seed)
    count = rng.choice((2, 3, 3, 4, 5))
    trouble_s = rng.uniform(*TROUBLE_S)
    streams = StreamsPlan(
        initials=tuple(rng.choice(("TRIM_HORIZON",) * 4 + ("LATEST", "AT_TIMESTAMP")) for _ in range(count)),
        wanted=tuple(sorted(rng.sample(range(count), rng.randrange(1, count + 1)))),
        former=rng.choice(("stop", "keep", "delete", "delete")),
        former_wait_s=rng.choice((30.0, 60.0, 120.0)),
        is_peaceful=rng.random() < PEACEFUL,
    )
    workers = tuple(replace(worker, kind="mld") for worker in plan.workers[:4])
    actions = [a for a in plan.actions if a.kind not in NOT_FOR_STREAMS and a.at_s < trouble_s]
    rates = plan.rates
    if streams.is_peaceful:
        actions = [a for a in actions if a.kind in (Kind.SPLIT, Kind.MERGE)][:3]
        rates = Rates(child_silent=plan.rates.child_silent)
    actions += _changes(rng, streams, trouble_s)
    return replace(
        plan,
        shards=rng.choice((1, 1, 2, 2, 3, 4)),
        workers=workers,
        rates=rates,
        actions=in_order(actions),
        trouble_s=trouble_s,
        quiet_s=max(QUIET_S, plans.QUIET_TAKER_PERIODS * 2 * plan.failover_s),
        initial="TRIM_HORIZON",
        retention_s=0.0,
        streams=streams,
    )


def _changes(rng: Random, streams: StreamsPlan, trouble_s: float) -> list[Action]:
    count = len(streams.initials)
    kinds = (Kind.LIST_ADD,) * 3 + (Kind.LIST_REMOVE,) * 3 + (Kind.REMAKE,) * 3
    actions = [_change(rng, rng.choice(kinds), rng.uniform(15.0, trouble_s), count) for _ in range(rng.randrange(2, 8))]
    if not streams.is_peaceful and rng.random() < 0.3:
        actions.append(Action(rng.uniform(15.0, trouble_s), Kind.OLD_LIST, rng.randrange(64), rng.uniform(20.0, 200.0)))
    if not streams.is_peaceful and rng.random() < BY_HAND:  # without the list nobody knows that a stream was made again
        actions = [action for action in actions if action.kind is not Kind.REMAKE]
        at_s = rng.uniform(15.0, trouble_s)
        actions.append(Action(at_s, rng.choice((Kind.LIST_ROW_GONE, Kind.LIST_ROW_DAMAGED)), 0, rng.uniform(5.0, 60.0)))
    return actions


def _change(rng: Random, kind: Kind, at_s: float, count: int) -> Action:
    seconds = rng.choice((rng.uniform(1.5, 10.0), rng.uniform(10.0, 90.0))) if kind is Kind.REMAKE else 0.0
    return Action(at_s, kind, rng.randrange(count), seconds)
