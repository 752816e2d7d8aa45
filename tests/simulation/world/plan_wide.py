"""Plans of large fleets in 3.x mode: up to 40 workers and 400 shards, of which many die, stop and split at once."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.simulation.world.fleet3x import Fleet3x
from tests.simulation.world.plan import DRIFT_MAX, Action, Kind, Plan, Rates, WorkerSpec, in_order

TROUBLE_S = 100.0
QUIET_S = 150.0
SIZES = ((12, 60), (12, 60), (24, 120), (40, 400))
"""Workers and shards; with the largest a seed takes minutes."""
PARTS_LOST = (0.1, 0.3, 0.6)
"""A zone that is lost, with so many of the workers."""


def draw_wide(seed: int) -> Plan:
    """The plan of a seed."""
    rng = Random(f"wide {seed}")
    count, shards = rng.choice(SIZES)
    workers = tuple(
        WorkerSpec("mld", drift=rng.uniform(-DRIFT_MAX, DRIFT_MAX), latency_s=rng.uniform(0.002, 0.02))
        for _ in range(count)
    )
    actions = [action for _ in range(rng.randrange(2, 6)) for action in _many(rng, count)]
    return Plan(
        seed=seed,
        shards=shards,
        workers=workers,
        rates=_rates(rng),
        actions=in_order(replace(action, at_s=min(action.at_s, TROUBLE_S)) for action in actions),
        trouble_s=TROUBLE_S,
        quiet_s=QUIET_S,
        idle_s=8.0,
        records_per_s=10.0,
        settings={"clientVersionConfig": "CLIENT_VERSION_CONFIG_3X"},
        fleet=Fleet3x(
            index_creation_s=rng.choice((0.0, 5.0, 60.0)),
            index_lag_max_s=rng.choice((0.0, 0.5, 3.0)),
        ),
    )


def _rates(rng: Random) -> Rates:
    if rng.random() < 0.5:  # the table answers, so that every gap counts
        return Rates(child_dies=0.01, child_silent=0.3)
    return Rates(
        dynamo_error=0.02, dynamo_lost_reply=0.02, dynamo_throttled=rng.choice((0.0, 0.1)), dynamo_slow=0.02,
        kinesis_error=0.05, kinesis_throttled=0.1, child_dies=0.01, child_silent=0.3,
    )  # fmt: skip


def _many(rng: Random, count: int) -> list[Action]:
    """Something that happens to many at once, or nearly."""
    at_s, apart_s = rng.uniform(20.0, TROUBLE_S - 20.0), rng.choice((0.0, 1.0, 10.0))
    some = rng.sample(range(count), max(1, int(count * rng.choice(PARTS_LOST))))

    def near() -> float:
        return at_s + rng.uniform(0.0, apart_s)

    match rng.choice(("crash", "deploy", "pause", "cut", "split", "merge", "leader", "scale")):
        case "crash":
            restart_s = rng.uniform(0.5, 60.0)
            return [Action(near(), Kind.CRASH, number, restart_s, "new") for number in some]
        case "deploy":
            return [Action(near(), Kind.DEPLOY, number, 2.0, "new") for number in some]
        case "pause":
            return [Action(near(), Kind.PAUSE, number, rng.uniform(2.0, 30.0)) for number in some]
        case "cut":
            return [Action(near(), Kind.PARTITION, number, rng.uniform(2.0, 30.0), "dynamo") for number in some]
        case "leader":
            return [Action(at_s, rng.choice((Kind.LEADER_CRASH, Kind.LEADER_PAUSE)), 0, 20.0, "new")]
        case "scale":
            return [Action(near(), rng.choice((Kind.SCALE_OUT, Kind.SCALE_IN)), number) for number in some[:6]]
        case "split":
            return [Action(near(), Kind.SPLIT, rng.randrange(400), 0.5) for _ in range(rng.randrange(1, 40))]
    return [Action(near(), Kind.MERGE, rng.randrange(400)) for _ in range(rng.randrange(1, 40))]
