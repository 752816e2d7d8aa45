"""What is drawn on top of the plans of all modes, from random numbers of its own, so that everything else of a seed
stays what it is: limits, workers that stop together or while they start, operators, supervisors, and several children
for a shard.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.simulation.world.plan import Action, Kind, Plan, in_order

LIMITED = 0.3
"""The share of the plans in which workers have a limit (`maxLeasesForWorker`)."""
STOPPED = 0.3
"""The share in which everybody stops together, or somebody while it starts."""
OPERATED = 0.3
"""The share in which operators steer the fleet."""
WEIGHED = 0.3
"""The share of the plans of 3.x in which workers have a limit of throughput (`maxThroughputPerHostKBps`)."""
SHARED = 0.3
"""The share in which several children share the records of a shard."""
CHILDREN = (1, 2, 3, 8)
SHARED_SHARDS_MAX = 32
"""Plans with more would have thousands of children."""
GROUPED = 0.25
"""The share in which some workers are processes of one supervisor."""
ACTS_2X = ("release", "release", "pause", "pause", "resume", "restart", "leave out")
ACTS_3X = (*ACTS_2X, "move", "move", "drain", "drain", "undo")
BYTES_IN_KB = 1024
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
    if rng.random() >= share or plan.is_peaceful or kinds & {Kind.TWIN, Kind.REDEPLOY_AS}:
        return plan
    actions = [_stop(rng, rng.choice(STOP_KINDS), plan.trouble_s) for _ in range(rng.randrange(1, 5))]
    return replace(plan, actions=in_order([*plan.actions, *actions]))


def _stop(rng: Random, kind: Kind, trouble_s: float) -> Action:
    at_s, ids = rng.uniform(5.0, trouble_s), rng.choice(("same", "new"))
    if kind is Kind.STOP_ALL:
        return Action(at_s, kind, rng.choice((0, 1, rng.randrange(30))), rng.choice((0.0, 0.0, 1.0, 4.0)), ids)
    seconds = rng.choice((0.0, rng.uniform(0.0, 0.5), rng.uniform(0.0, 5.0)))
    return Action(at_s, kind, rng.randrange(64), seconds, ids + rng.choice(("", " cut")))


def operated(plan: Plan, *, share: float = OPERATED) -> Plan:
    """The plan, in some seeds with acts of operators, who see no Java workers here."""
    rng = Random(f"operators {plan.seed}")
    kinds = {action.kind for action in plan.actions}
    if rng.random() >= share or not _is_ours(plan) or plan.is_peaceful or Kind.DELETE_STREAM in kinds:
        return plan
    acts = ACTS_2X if _is_2x(plan) else ACTS_3X
    acts = acts if plan.streams is None else tuple(act for act in acts if act != "leave out")
    old_s = (0.0, 0.0, 5.0)
    actions = [
        Action(rng.uniform(15.0, plan.trouble_s), Kind.OPERATE, 0, rng.choice(old_s), rng.choice(acts))
        for _ in range(rng.randrange(1, 12))
    ]
    return replace(plan, actions=in_order([*plan.actions, *actions]))


def weighed(plan: Plan, *, share: float = WEIGHED) -> Plan:
    """The plan, in some seeds with large records, and limits that leave just room for all of them."""
    rng = Random(f"weights {plan.seed}")
    if rng.random() >= share or not _is_ours(plan) or _is_2x(plan) or plan.streams is not None:
        return plan
    kinds = [action.kind for action in plan.actions]
    ours = max(1, len(plan.workers) - kinds.count(Kind.SCALE_IN))
    record_bytes = rng.choice((1024, 4096, 16384))
    kbps = plan.records_per_s * (1 + 2 * plan.aggregated) * record_bytes / BYTES_IN_KB
    most = 1 + int(kbps / ours) + rng.choice((0, 0, 1, 5))
    settings = {**plan.settings, "maxThroughputPerHostKBps": str(most)}
    return replace(plan, record_bytes=record_bytes, settings=settings)


def grouped(plan: Plan, *, share: float = GROUPED) -> Plan:
    """The plan, in some seeds with several of our workers under one supervisor."""
    rng = Random(f"groups {plan.seed}")
    count = len(plan.workers)
    kinds = {action.kind for action in plan.actions}
    if rng.random() >= share or not _is_ours(plan) or Kind.TWIN in kinds or count == 1:
        return plan
    return replace(plan, group=rng.randint(2, count))


def shared(plan: Plan, *, share: float = SHARED) -> Plan:
    """The plan, in some seeds with several children for a shard in our workers, another number after each restart."""
    rng = Random(f"children {plan.seed}")
    if rng.random() >= share or plan.shards > SHARED_SHARDS_MAX:
        return plan
    return replace(plan, children=tuple(rng.choice(CHILDREN) for _ in range(rng.randint(1, 4))))


def _is_ours(plan: Plan) -> bool:
    takes = plan.fleet is not None and plan.fleet.takes
    return not takes and all(worker.kind == "mld" for worker in plan.workers)


def _is_2x(plan: Plan) -> bool:
    return plan.fleet is None
