"""Plans for the liveness of a fleet in 3.x mode: workers come and go in every way and moment, and the table answers.

Kills and stops during a start, twice within a minute, right after somebody was taken for dead, in the middle of
handoffs, of leaders and of many at once; clocks that jump, scans that lag; our workers alone, or with Java's.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.simulation.world.fleet3x import Fleet3x
from tests.simulation.world.plan import DRIFT_MAX, Action, Kind, Plan, Rates, WorkerSpec, in_order

TROUBLE_S = 420.0
QUIET_S = 420.0
JAVA_SHARE = 0.3
V3X = "CLIENT_VERSION_CONFIG_3X"


def draw_live(seed: int) -> Plan:
    """The plan of a seed."""
    rng = Random(f"live {seed}")
    failover_s = rng.choice((4.0, 6.0, 10.0, 10.0))
    count = rng.choice((1, 1, 2, 2, 3, 3, 4, 6))
    java = rng.random() < JAVA_SHARE
    workers = tuple(
        WorkerSpec(
            "java3" if java and number and rng.random() < 0.6 else "mld",
            drift=rng.uniform(-DRIFT_MAX, DRIFT_MAX),
            latency_s=rng.uniform(0.002, 0.02),
        )
        for number in range(count)
    )
    actions: list[Action] = []
    for _ in range(rng.randrange(3, 12)):
        actions += _chain(rng, rng.uniform(5.0, TROUBLE_S - 60.0), count)
    return Plan(
        seed=seed,
        shards=rng.choice((1, 2, 4, 6, 12, 24)),
        workers=workers,
        rates=Rates(),
        actions=in_order(actions),
        trouble_s=TROUBLE_S,
        quiet_s=QUIET_S,
        failover_s=failover_s,
        records_per_s=0.5,
        stale_reads_s=rng.choice((0.0, 0.0, 0.3)),
        settings={"clientVersionConfig": V3X},
        fleet=Fleet3x(
            index_creation_s=rng.choice((0.0, 5.0, 60.0)),
            index_lag_max_s=rng.choice((0.0, 0.5, 3.0)),
        ),
    )


def _chain(rng: Random, at_s: float, count: int) -> list[Action]:
    """A few things that happen soon after one another, often to the same worker."""
    worker = rng.randrange(64)
    chain = []
    for _ in range(rng.randrange(1, 5)):
        chain.append(_action(rng, at_s, worker))
        at_s += rng.choice((rng.uniform(0.0, 2.0), rng.uniform(2.0, 15.0), rng.uniform(10.0, 60.0)))
        if rng.random() < 0.5:
            worker = rng.randrange(64)
    if rng.random() < 0.15:  # everybody at once, or nearly
        chain += [
            Action(at_s + rng.uniform(0.0, 3.0), Kind.CRASH, number, _restart_s(rng), "new") for number in range(count)
        ]
    return [replace(action, at_s=min(action.at_s, TROUBLE_S)) for action in chain]


def _action(rng: Random, at_s: float, worker: int) -> Action:
    kinds = (Kind.CRASH,) * 6 + (Kind.DEPLOY,) * 5 + (Kind.LEADER_CRASH,) * 4 + (Kind.PAUSE, Kind.LEADER_PAUSE)
    kinds += (Kind.SCALE_OUT, Kind.SCALE_IN, Kind.PARTITION, Kind.WALL_JUMP, Kind.SPLIT)
    match kind := rng.choice(kinds):
        case Kind.CRASH | Kind.LEADER_CRASH | Kind.DEPLOY:
            return Action(at_s, kind, worker, _restart_s(rng), rng.choice(("same", "new", "new")))
        case Kind.PAUSE | Kind.LEADER_PAUSE:
            return Action(at_s, kind, worker, rng.uniform(2.0, 40.0))
        case Kind.PARTITION:
            return Action(at_s, kind, worker, rng.uniform(2.0, 30.0), "dynamo")
        case Kind.WALL_JUMP:
            return Action(at_s, kind, worker, rng.choice((rng.uniform(-8.0, 8.0), rng.uniform(-3600.0, 3600.0))))
        case Kind.SPLIT:
            return Action(at_s, kind, worker, rng.uniform(0.2, 0.8))
        case _:
            return Action(at_s, kind, worker)


def _restart_s(rng: Random) -> float:
    """At once, as a supervisor does, or after a while."""
    return rng.choice((rng.uniform(0.1, 2.0), rng.uniform(2.0, 15.0), rng.uniform(15.0, 60.0)))
