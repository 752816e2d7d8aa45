"""Plans of fleets on their way from 2.x to 3.x mode, and from the legacy tables to a single one."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.simulation.world.fleet3x import Fleet3x, Load
from tests.simulation.world.migrations import BY_TABLE
from tests.simulation.world.plan import DRIFT_MAX, Action, Kind, Plan, Rates, WorkerSpec, in_order, surprise_rate

COMPATIBLE, V3X = "COMPATIBLE_WITH_2X", "3X"
QUIET_S = 420.0
SPACING_S = 40.0
"""Between two machines of a rolling upgrade."""
READY_S = 900.0
"""A fleet flips after 600 s of readiness, which is looked at once a minute, and follows within 90 s."""
STAYS_2X = 0.15
"""Share of the plans in which a fleet of 2.x meets mld and goes nowhere."""
SINGLE_TABLE = 0.12
"""Share of the plans that go on to a single table, which takes hours."""


def draw_migration(seed: int) -> Plan:
    """A fleet on its way to 3.x mode; in some seeds one of 2.x that meets mld and stays what it is."""
    rng = Random(f"2.x stays {seed}")
    return _draw_visit(rng, seed) if rng.random() < STAYS_2X else _draw_upgrade(seed)


def _draw_visit(rng: Random, seed: int) -> Plan:
    """Workers of Java 2.x, some replaced by ours for a while, by mistake in the mode of a later step, and back.

    At the end all are of 2.x again, or ours are there as well.
    """
    count = rng.choice((2, 3))
    first = ["java2"] * count
    actions, at_s = [], rng.uniform(90.0, 150.0)
    visited = list(range(rng.choice((1, count))))
    for number in visited:
        config = rng.choice((BY_TABLE, BY_TABLE, COMPATIBLE))
        actions.append(Action(at_s, Kind.REDEPLOY_AS, number, 2.0, f"mld {config}"))
        at_s += SPACING_S
    actions += [_trouble(rng, at_s, count) for _ in range(rng.randrange(3))]
    for number in visited if rng.random() < 0.7 else []:
        at_s += rng.uniform(SPACING_S, 2 * SPACING_S)
        actions.append(Action(at_s, Kind.REDEPLOY_AS, number, 2.0, f"java2 {BY_TABLE}"))
    return Plan(
        seed=seed,
        shards=rng.choice((2, 3, 4, 6)),
        workers=tuple(WorkerSpec(kind, rng.uniform(-DRIFT_MAX, DRIFT_MAX), rng.uniform(0.002, 0.03)) for kind in first),
        rates=_rates(rng),
        actions=in_order(actions),
        trouble_s=at_s + 90.0,
        quiet_s=QUIET_S,
        idle_s=rng.choice((4.0, 8.0)),
        records_per_s=rng.uniform(0.2, 0.5),
        stale_reads_s=rng.choice((0.0, 0.3, 1.5)),
        settings={"maxLeasesToStealAtOneTime": "3"},
        fleet=Fleet3x(takes=True, config=BY_TABLE),
    )


def _draw_upgrade(seed: int) -> Plan:
    """2.x workers of Java beside ours and Java's in compatible mode; the former are upgraded, then the fleet flips.

    Meanwhile an operator may roll the fleet back and forward again with the migration tool. In the end every worker is
    restarted with the configuration of 3.x.
    """
    rng = Random(f"migration {seed}")
    single = rng.random() < SINGLE_TABLE
    newer = ("mld", "mld", "java3") if single else ("mld", "mld", "java3", "java34")
    first = [rng.choice(("java2", *newer)) for _ in range(rng.choice((2, 3, 3, 4)))]
    first[0] = "mld"
    last = [rng.choice(newer) if kind == "java2" else kind for kind in first]
    if single:  # only a Java leader moves the rows
        last[-1] = "java3"
    actions, trouble_s = _upgrades(rng, first, last, single=single)
    return Plan(
        seed=seed,
        shards=rng.choice((2, 3, 4, 6)),
        workers=tuple(WorkerSpec(kind, rng.uniform(-DRIFT_MAX, DRIFT_MAX), rng.uniform(0.002, 0.03)) for kind in first),
        rates=replace(_rates(rng), surprise=surprise_rate(seed)),
        actions=in_order(actions),
        trouble_s=trouble_s,
        quiet_s=QUIET_S,
        idle_s=rng.choice((4.0, 8.0)),
        records_per_s=rng.uniform(0.2, 0.5),
        stale_reads_s=rng.choice((0.0, 0.3, 1.5)),
        settings={"maxLeasesToStealAtOneTime": "3"},
        fleet=Fleet3x(
            loads=rng.choice(((None,), (Load(10.0, 5.0),))),
            index_creation_s=rng.choice((0.0, 5.0, 60.0)),
            index_lag_max_s=rng.choice((0.0, 3.0)),
            is_legacy=True,
            takes=True,
            config=COMPATIBLE,
        ),
    )


def _rates(rng: Random) -> Rates:
    if rng.random() < 0.3:
        return Rates()
    return Rates(
        dynamo_error=rng.uniform(0.0, 0.05),
        dynamo_lost_reply=rng.uniform(0.0, 0.05),
        dynamo_throttled=rng.uniform(0.0, 0.05),
        dynamo_slow=rng.uniform(0.0, 0.05),
        child_silent=rng.uniform(0.0, 0.5),
    )


def _upgrades(rng: Random, first: list[str], last: list[str], *, single: bool) -> tuple[list[Action], float]:
    actions = []
    at_s = rng.uniform(60.0, 150.0)
    for number, (old, new) in enumerate(zip(first, last, strict=True)):
        if old == "java2":
            actions.append(Action(at_s, Kind.REDEPLOY_AS, number, 2.0, f"{new} {COMPATIBLE}"))
            at_s += SPACING_S
    for _ in range(rng.choice((0, 0, 1, 2))):  # the operator changes his mind
        at_s += rng.uniform(30.0, READY_S + 200.0)
        actions.append(Action(at_s, Kind.TOOL_BACK))
        at_s += rng.uniform(150.0, 400.0)
        actions.append(Action(at_s, Kind.TOOL_FORWARD))
    actions += [_trouble(rng, at_s, len(first)) for _ in range(rng.randrange(4))]
    at_s += READY_S + rng.choice((0.0, 300.0))
    for number, kind in enumerate(last):
        actions.append(Action(at_s, Kind.REDEPLOY_AS, number, 2.0, f"{kind} {V3X}"))
        at_s += SPACING_S
    if single:
        actions.append(Action(at_s, Kind.SINGLE_TABLE))
    return actions, at_s + 60.0


def _trouble(rng: Random, until_s: float, workers: int) -> Action:
    kind = rng.choice((Kind.CRASH, Kind.PAUSE, Kind.PARTITION, Kind.SPLIT))
    at_s, worker = rng.uniform(20.0, until_s), rng.randrange(workers)
    match kind:
        case Kind.CRASH:
            return Action(at_s, kind, worker, rng.uniform(0.5, 20.0), "new")
        case Kind.PARTITION:
            return Action(at_s, kind, worker, rng.uniform(2.0, 30.0), "dynamo")
        case Kind.PAUSE:
            return Action(at_s, kind, worker, rng.uniform(2.0, 30.0))
        case _:
            return Action(at_s, kind, rng.randrange(64), 0.5)


def with_kind(spec: WorkerSpec, kind: str) -> WorkerSpec:
    return replace(spec, kind=kind)
