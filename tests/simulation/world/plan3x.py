"""Plans of fleets in 3.x mode: a lock, worker reports, assignment by a leader, handoffs, discovery by an index."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.simulation.world import plan as plans
from tests.simulation.world.fleet3x import Fleet3x, Load
from tests.simulation.world.plan import Action, Kind, Plan, in_order

V3X = "CLIENT_VERSION_CONFIG_3X"
QUIET_S = 420.0
"""A lock is taken over in 150 s; then come two assignment runs, and a first balancing."""
WALL_JUMP_MAX_S = 8.0
"""The wall clocks of a fleet agree within a few seconds (coordination#every-worker); larger jumps are rare."""
LARGE_JUMPS = 0.1
INDEX_S = (0.0, 0.0, 5.0, 60.0, 300.0)
INDEX_LAGS_S = (0.0, 0.5, 3.0, 15.0)
_WEIGHTS: tuple[tuple[Kind, int], ...] = (
    (Kind.LEADER_CRASH, 4),
    (Kind.LEADER_PAUSE, 3),
    (Kind.LEADER_CUT, 3),
    (Kind.INDEX_GONE, 1),
    (Kind.INDEX_FORBIDDEN, 1),
    (Kind.LOAD_FAILS, 1),
)


def draw_3x(seed: int) -> Plan:
    """The plan of the same seed in 2.x mode, with our workers only, and what is special to 3.x on top."""
    plan = plans.draw(seed)
    rng = Random(f"3x {seed}")
    jumps = rng.random() < LARGE_JUMPS
    actions = [action if jumps else _small_jump(action) for action in plan.actions]
    actions += _leader_actions(rng, plan)
    return replace(
        plan,
        workers=tuple(replace(worker, kind="mld") for worker in plan.workers),
        actions=in_order(actions),
        quiet_s=max(plan.quiet_s, QUIET_S),
        retention_s=0.0,
        settings={**plan.settings, "clientVersionConfig": V3X},
        fleet=Fleet3x(
            loads=_loads(rng),
            index_creation_s=rng.choice(INDEX_S),
            index_lag_max_s=rng.choice(INDEX_LAGS_S),
            hot=rng.choice((0.0, 0.3, 0.8)),
        ),
    )


NOT_FOR_JAVA = (Kind.DELETE_STREAM, Kind.FINISH_ROW, Kind.REASSIGN_ROW, Kind.TWIN)
"""What a Java worker does then is not ours to judge."""


def draw_3x_mixed(seed: int) -> Plan:
    """Our workers beside Java 3.x workers: of 3.5 in one table, of any version where the legacy tables are."""
    plan = draw_3x(seed)
    rng = Random(f"3x mixed {seed}")
    is_legacy = rng.random() < 0.5
    kinds = ("mld", "mld", "java3", "java34") if is_legacy else ("mld", "java3")
    workers = tuple(replace(worker, kind=rng.choice(kinds)) for worker in plan.workers)
    if not any(worker.kind == "mld" for worker in workers):
        workers = (replace(workers[0], kind="mld"), *workers[1:])
    assert plan.fleet is not None
    return replace(
        plan,
        workers=workers,
        actions=tuple(action for action in plan.actions if action.kind not in NOT_FOR_JAVA),
        rates=replace(plan.rates, iterator_expired=0.0, shard_missing=0.0),
        fleet=replace(plan.fleet, is_legacy=is_legacy),
    )


def _small_jump(action: Action) -> Action:
    if action.kind is not Kind.WALL_JUMP:
        return action
    return replace(action, argument=action.argument / plans.WALL_JUMP_MAX_S * WALL_JUMP_MAX_S)


def _loads(rng: Random) -> tuple[Load | None, ...]:
    """Nobody measures, or everybody, or only some; alike or not."""
    kind = rng.choice(("none", "alike", "drawn", "mixed"))
    if kind == "none":
        return (None,)
    if kind == "alike":
        return (Load(rng.uniform(0.0, 20.0), rng.uniform(0.5, 10.0)),)
    loads = [Load(rng.uniform(0.0, 60.0), rng.uniform(0.5, 15.0)) for _ in range(8)]
    return tuple(None if kind == "mixed" and rng.random() < 0.4 else load for load in loads)


def draw_3x_hosts(seed: int) -> Plan:
    """The plan of the same seed in 3.x mode, with the workers on one machine or two, which others keep busy; in some
    other applications use the table for a while.
    """
    plan = draw_3x(seed)
    rng = Random(f"3x hosts {seed}")
    assert plan.fleet is not None
    busy = [Load(rng.choice((100.0, 97.0, rng.uniform(0.0, 100.0))), 0.0, f"boot {number}") for number in range(2)]
    machines = busy[: rng.choice((1, 2))]
    loads = tuple(rng.choice(machines) for _ in range(8))
    others = []
    for _ in range(rng.choice((0, 0, 1, 2))):
        at_s = rng.uniform(15.0, plan.trouble_s)
        others.append(Action(at_s, Kind.OTHER_APPLICATION, 0, rng.uniform(0.0, plan.trouble_s - at_s)))
    return replace(plan, actions=in_order([*plan.actions, *others]), fleet=replace(plan.fleet, loads=loads))


def _leader_actions(rng: Random, plan: Plan) -> list[Action]:
    kinds = [kind for kind, weight in _WEIGHTS for _ in range(weight)]
    return [_action(rng, rng.choice(kinds), plan) for _ in range(rng.randrange(5))]


def _action(rng: Random, kind: Kind, plan: Plan) -> Action:
    at_s, worker = rng.uniform(15.0, plan.trouble_s), rng.randrange(64)
    match kind:
        case Kind.LEADER_CRASH:
            return Action(at_s, kind, worker, rng.uniform(0.5, 30.0), rng.choice(("same", "new")))
        case Kind.LEADER_PAUSE | Kind.LEADER_CUT:
            # Some outlive the lock, whose lease is 120 s.
            return Action(at_s, kind, worker, rng.choice((rng.uniform(1.0, 40.0), rng.uniform(100.0, 170.0))))
        case Kind.INDEX_FORBIDDEN | Kind.LOAD_FAILS:
            return Action(at_s, kind, worker, rng.uniform(10.0, 200.0))
        case _:
            return Action(at_s, kind, worker)


SPECIALS = ("leaders", "shuffles", "hangs", "silences")


def with_special(plan: Plan, kind: str, times: int) -> Plan:
    """The plan with a rare combination of faults so many times on top."""
    rng = Random(f"{kind} {plan.seed}")
    actions, rates, settings = list(plan.actions), plan.rates, dict(plan.settings)
    for number in range(times):
        at_s, worker = rng.uniform(15.0, plan.trouble_s - 10.0), rng.randrange(64)
        match kind:
            case "leaders" if number == 0:  # one is cut off for longer than its lock lasts
                actions.append(Action(rng.uniform(20.0, 50.0), Kind.LEADER_CUT, worker, rng.uniform(200.0, 240.0)))
            case "leaders":  # others die
                last_s = rng.uniform(290.0, max(295.0, plan.trouble_s))
                actions.append(Action(last_s, Kind.LEADER_CRASH, worker, rng.uniform(0.5, 30.0), "new"))
            case "shuffles":  # several hands move the same leases
                actions.append(Action(at_s, Kind.CRASH, worker, rng.uniform(5.0, 20.0), "same"))
                actions.append(Action(at_s + rng.uniform(5.0, 15.0), Kind.LEADER_PAUSE, worker, rng.uniform(5.0, 30.0)))
                actions.append(Action(at_s + rng.uniform(5.0, 30.0), Kind.DEPLOY, worker + 1, 2.0, "new"))
            case "hangs":  # children that hang while their leases are to go to somebody else
                actions.append(Action(at_s, Kind.CRASH, worker, rng.uniform(5.0, 20.0), "new"))
                settings["timeoutInSeconds"] = "120"
            case "silences":
                actions.append(Action(at_s, Kind.PARTITION, worker, rng.uniform(3.0, 12.0), "dynamo"))
    if kind == "hangs":
        rates = replace(rates, child_hangs=0.04)
    if kind in ("shuffles", "silences"):
        rates = replace(rates, dynamo_slow=0.3, dynamo_lost_reply=0.2)
    return replace(plan, actions=in_order(actions), rates=rates, settings=settings)
