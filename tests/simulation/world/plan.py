"""What happens in one run, drawn from its seed before it starts: values only, so that a shrinker can take things away.

Times are virtual seconds from the start. Rates are probabilities per request, per batch or per start.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random

from tests.simulation.world.fleet3x import Fleet3x
from tests.simulation.world.slowness import Slowness

QUIET_TAKER_PERIODS = 14
"""Length of the part without faults: dead workers are noticed in two, the rest lets stealing come to rest."""
WALL_JUMP_MAX_S = 3600.0
RETENTION_S = (60.0, 300.0)
SURPRISED = 0.35
"""The share of the runs with arbitrary exceptions."""
SURPRISE_MAX = 0.05
DRIFT_MAX = 200e-6
"""Quartz clocks differ by some 50 ppm; this is a bad one."""


class Kind(Enum):
    CRASH = "crash"
    """kill -9; `argument` seconds later it starts again, as `text` says: same, new."""
    DEPLOY = "deploy"
    """SIGTERM; `argument` seconds after its end it starts again, with a new id if `text` is new."""
    STOP_ALL = "stop_all"
    """SIGTERM to everybody within `argument` seconds; `worker` seconds after the last end they start again, as far
    apart, with new ids if `text` is new."""
    STOP_IN_START = "stop_in_start"
    """A DEPLOY whose new process gets a SIGTERM `argument` seconds after its start, and is started once more; no way
    from it to DynamoDB if `text` ends with cut."""
    PAUSE = "pause"
    """SIGSTOP for `argument` seconds, then SIGCONT."""
    PARTITION = "partition"
    """No way to `text` (dynamo, kinesis, both) for `argument` seconds."""
    WALL_JUMP = "wall_jump"
    """The wall clock moves by `argument` seconds."""
    SCALE_OUT = "scale_out"
    SCALE_IN = "scale_in"
    SPLIT = "split"
    """The open shard number `worker` (modulo) splits, at a share `argument` of its hash range."""
    MERGE = "merge"
    """The open shard number `worker` (modulo) merges with its neighbour."""
    DELETE_ROW = "delete_row"
    """By hand: the row of open shard number `worker` (modulo)."""
    CORRUPT_ROW = "corrupt_row"
    """By hand; repaired when the trouble is over."""
    REASSIGN_ROW = "reassign_row"
    """By hand, from the console: another owner in the row of open shard number `worker`, the counter untouched."""
    FINISH_ROW = "finish_row"
    """By hand: SHARD_END into the row of a closed shard that is still being read, the counter untouched."""
    TWIN = "twin"
    """A second process with the worker id of this worker, for `argument` seconds, then killed."""
    OUTAGE = "outage"
    """DynamoDB answers every request of everybody with `text` (throttled, errors) for `argument` seconds."""
    LEADER_CRASH = "leader_crash"
    """As CRASH, of whoever holds the lock of a 3.x fleet."""
    LEADER_PAUSE = "leader_pause"
    LEADER_CUT = "leader_cut"
    """No way from the leader to DynamoDB for `argument` seconds."""
    INDEX_GONE = "index_gone"
    """Somebody deletes the owner index."""
    INDEX_FORBIDDEN = "index_forbidden"
    """Nobody may read or create the owner index for `argument` seconds."""
    REDEPLOY_AS = "redeploy_as"
    """A restart as another kind of worker, with another clientVersionConfig: `text` names both."""
    TOOL_BACK = "tool_back"
    """The migration tool rolls the fleet back to 2.x mode."""
    TOOL_FORWARD = "tool_forward"
    SINGLE_TABLE = "single_table"
    """When the fleet is ready for it, all workers are restarted to bring everything into one table."""
    LOAD_FAILS = "load_fails"
    """This machine cannot read its load for `argument` seconds."""
    OTHER_APPLICATION = "other_application"
    """A worker that reads another stream reports in this lease table for `argument` seconds, then it is dead."""
    DEREGISTER = "deregister"
    """By hand: the consumer of enhanced fan-out goes."""
    LIST_ADD = "list_add"
    """Stream number `worker` (modulo) gets a line in the file that all workers read, and is made if it is not there."""
    LIST_REMOVE = "list_remove"
    """The line of stream number `worker` (modulo) goes."""
    REMAKE = "remake"
    """Stream number `worker` (modulo) is deleted, and made again `argument` seconds later."""
    OLD_LIST = "old_list"
    """For `argument` seconds this worker reads the file as it is now."""
    LIST_ROW_GONE = "list_row_gone"
    """By hand: the row with the list of streams is deleted."""
    LIST_ROW_DAMAGED = "list_row_damaged"
    """By hand: the row cannot be read, and a leader writes another over it."""
    ODD_ROW = "odd_row"
    """By hand, until the calm: a row gets a checkpoint or hash keys that its shard cannot have."""
    OPERATE = "operate"
    """An operator's act `text`, planned `argument` seconds before it is carried out."""
    DELETE_STREAM = "delete_stream"
    """The last action of its run: from then on only safety is checked."""


ODD_FEATURES = frozenset({Kind.ODD_ROW.value, "child_careless"})
ROWS_BY_HAND = (Kind.DELETE_ROW, Kind.CORRUPT_ROW, Kind.REASSIGN_ROW, Kind.FINISH_ROW)


@dataclass(frozen=True, slots=True)
class Action:
    at_s: float
    kind: Kind
    worker: int = 0
    argument: float = 0.0
    text: str = ""

    def __str__(self) -> str:
        extra = "".join(f" {part}" for part in (f"{self.argument:.1f}" if self.argument else "", self.text) if part)
        return f"{self.kind.value} {self.worker}{extra}"


@dataclass(frozen=True, slots=True)
class Rates:
    dynamo_error: float = 0.0
    dynamo_lost_reply: float = 0.0
    dynamo_throttled: float = 0.0
    dynamo_slow: float = 0.0
    kinesis_error: float = 0.0
    kinesis_throttled: float = 0.0
    kinesis_slow: float = 0.0
    iterator_expired: float = 0.0
    """Per GetRecords: as after a long stop of the process, or when the service forgets."""
    shard_missing: float = 0.0
    """Per GetRecords or GetShardIterator: ResourceNotFound for a shard that is there."""
    subscribe_throttled: float = 0.0
    subscribe_lost: float = 0.0
    """Per SubscribeToShard: no answer comes, whatever the service has done."""
    subscription_cut: float = 0.0
    """Per event, as the next four: the connection breaks."""
    subscription_error: float = 0.0
    """An exception comes instead."""
    subscription_silent: float = 0.0
    """Nothing comes any more."""
    subscription_short: float = 0.0
    """The ordinary end, before its time."""
    event_empty: float = 0.0
    """One without records comes before it, although there are some."""
    child_dies: float = 0.0
    child_wrong: float = 0.0
    child_hangs: float = 0.0
    child_silent: float = 0.0
    """Does not checkpoint a batch."""
    child_careless: float = 0.0
    """Asks for a checkpoint at what it was not given, also when its shard ends."""
    child_fails_to_start: float = 0.0
    surprise: float = 0.0
    """Per call of any port of our workers: an exception that no port is meant to raise."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    kind: str
    """mld, java2, java3 (of 3.5), java34 (of 3.0 to 3.4)"""
    drift: float = 0.0
    latency_s: float = 0.005


@dataclass(frozen=True, slots=True)
class FanOutPlan:
    """What a plan adds for enhanced fan-out.

    `event_records` is the most that one event holds, `window` how many events a connection holds, and `consumer_s` how
    long a consumer is CREATING or DELETING. `answer_s` is the longest that SubscribeToShard takes, either way.
    """

    event_records: int
    window: int
    consumer_s: float
    answer_s: float


@dataclass(frozen=True, slots=True)
class StreamsPlan:
    """What a plan adds for several streams. Stream number n has `initials[n]` as its initial position."""

    initials: tuple[str, ...]
    wanted: tuple[int, ...]
    """The streams that the file names at the beginning."""
    former: str = "stop"
    former_wait_s: float = 60.0
    is_peaceful: bool = False
    """Nothing but the streams and their list changes: every change is to be seen in time."""


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    shards: int
    workers: tuple[WorkerSpec, ...]
    rates: Rates
    actions: tuple[Action, ...]
    trouble_s: float
    quiet_s: float
    failover_s: float = 10.0
    idle_s: float = 3.0
    records_per_s: float = 2.0
    initial: str = "TRIM_HORIZON"
    stale_reads_s: float = 0.0
    aggregated: float = 0.0
    """The share of puts that are KPL aggregates."""
    group: int = 0
    """So many workers, the first ones, are processes of one supervisor (`mld.processes`): they share a clock, keep
    their ids, and hear at once of each other's end."""
    children: tuple[int, ...] = ()
    """How many children our workers start for a shard: `children[n]` for machine and incarnation that add up to n, from
    the front again after the last. Empty: one."""
    record_bytes: int = 0
    """0: some ten."""
    retention_s: float = 0.0
    """0: nothing falls out of the stream while the run lasts."""
    settings: dict[str, str] = field(default_factory=dict)
    fleet: Fleet3x | None = None
    """None: leases are taken, as in 2.x."""
    fan_out: FanOutPlan | None = None
    """None: records are polled for."""
    streams: StreamsPlan | None = None
    """None: there is one."""
    slow: Slowness | None = None
    """None: answers of DynamoDB take milliseconds, but for those that `rates` makes late."""

    @property
    def end_s(self) -> float:
        return self.trouble_s + self.quiet_s

    @property
    def is_peaceful(self) -> bool:
        """Whether nothing is to be drawn on top."""
        is_steady = self.slow is not None and self.slow.is_steady
        return is_steady or (self.streams is not None and self.streams.is_peaceful)

    @property
    def features(self) -> frozenset[str]:
        """Which kinds of trouble are in it, for the coverage of pairs."""
        kinds = {action.kind.value for action in self.actions}
        rates = {name for name in Rates.__slots__ if getattr(self.rates, name)}
        more = {"stale_reads"} if self.stale_reads_s else set()
        more |= {worker.kind for worker in self.workers if worker.kind != "mld"}
        more |= {name for name in ("aggregated", "retention_s") if getattr(self, name)}
        return frozenset(kinds | rates | more)

    @property
    def deletes_stream(self) -> bool:
        return any(action.kind is Kind.DELETE_STREAM for action in self.actions)

    @property
    def touches_rows(self) -> bool:
        return any(action.kind in (Kind.DELETE_ROW, Kind.CORRUPT_ROW) for action in self.actions)


ALL_FEATURES = frozenset(
    {kind.value for kind in Kind} | set(Rates.__slots__) | {"stale_reads", "java2"} | {"aggregated", "retention_s"}
)


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    rng = Random(f"plan {seed}")
    failover_s = rng.choice((6.0, 10.0, 10.0))
    worker_count = rng.choice((2, 2, 3, 3, 4, 5, 6, 8))
    java = rng.random() < 0.3
    workers = tuple(
        WorkerSpec(
            kind="java2" if java and rng.random() < 0.4 else "mld",
            drift=rng.uniform(-DRIFT_MAX, DRIFT_MAX),
            latency_s=rng.uniform(0.002, 0.03),
        )
        for _ in range(worker_count)
    )
    if all(worker.kind == "java2" for worker in workers):
        workers = (WorkerSpec("mld", workers[0].drift, workers[0].latency_s), *workers[1:])
    is_mixed = any(worker.kind == "java2" for worker in workers)
    trouble_s = rng.uniform(300.0, 420.0)
    quiet_s = max(600.0 - trouble_s, QUIET_TAKER_PERIODS * 2 * failover_s)
    special, changed_rates = _special(seed, is_mixed, worker_count, trouble_s, failover_s)
    plan = Plan(
        seed=seed,
        shards=rng.choice((2, 2, 2, 3, 4, 4, 5, 6, 8, 8, 12, 16, 32)),
        workers=workers,
        rates=replace(_more_rates(seed, _rates(rng), is_mixed), **changed_rates),
        actions=_for_fleet(in_order([*_actions(rng, worker_count, trouble_s, failover_s), *special]), is_mixed),
        trouble_s=trouble_s,
        quiet_s=quiet_s,
        failover_s=failover_s,
        idle_s=rng.choice((1.5, 4.0, 6.0, 8.0)),
        records_per_s=rng.uniform(0.3, 3.0),
        initial=rng.choice(("TRIM_HORIZON",) * 6 + ("LATEST", "AT_TIMESTAMP")),
        stale_reads_s=rng.choice((0.0, 0.3, 1.5)),
        settings={"maxLeasesToStealAtOneTime": rng.choice(("1", "3", "8"))},
    )
    return replace(
        plan,
        rates=replace(plan.rates, surprise=surprise_rate(seed)),
        aggregated=_aggregated(seed),
        retention_s=_retention_s(seed, plan, is_mixed),
    )


def surprise_rate(seed: int) -> float:
    rng = Random(f"{seed}:surprises")
    return rng.uniform(0.0, SURPRISE_MAX) if rng.random() < SURPRISED else 0.0


def _aggregated(seed: int) -> float:
    rng = Random(f"{seed}:kpl")
    return rng.uniform(0.1, 0.9) if rng.random() < 0.6 else 0.0


def _retention_s(seed: int, plan: Plan, is_mixed: bool) -> float:
    """Far shorter than AWS allows, so that a backlog falls out. A shard that is gone is a finished one for Java, and
    what an operator does to rows by hand is not to be judged together with it."""
    rng = Random(f"{seed}:retention")
    seconds = rng.choice((rng.uniform(*RETENTION_S), 0.0, 0.0, 0.0))
    by_hand = any(action.kind in ROWS_BY_HAND for action in plan.actions)
    return 0.0 if is_mixed or by_hand or plan.deletes_stream else seconds


def _for_fleet(actions: tuple[Action, ...], is_mixed: bool) -> tuple[Action, ...]:
    """Java takes a stream that is gone for finished shards: what it does then is not ours to judge."""
    return tuple(a for a in actions if not (is_mixed and a.kind is Kind.DELETE_STREAM))


def _rates(rng: Random) -> Rates:
    """Some runs are calm in some respect, so that the faults that are there are seen alone, too."""

    def maybe(share: float, most: float) -> float:
        return rng.uniform(0.0, most) if rng.random() < share else 0.0

    return Rates(
        dynamo_error=maybe(0.5, 0.1),
        dynamo_lost_reply=maybe(0.6, 0.15),
        dynamo_throttled=maybe(0.4, 0.2),
        dynamo_slow=maybe(0.5, 0.1),
        kinesis_error=maybe(0.5, 0.15),
        kinesis_throttled=maybe(0.4, 0.2),
        kinesis_slow=maybe(0.3, 0.05),
        child_dies=maybe(0.5, 0.05),
        child_wrong=maybe(0.3, 0.03),
        child_hangs=maybe(0.3, 0.02),
        child_silent=maybe(0.6, 0.7),
        child_fails_to_start=maybe(0.2, 0.2),
    )


def _more_rates(seed: int, rates: Rates, is_mixed: bool) -> Rates:
    """Faults that a Java worker does not survive without loss stay away from mixed fleets."""
    rng = Random(f"more rates {seed}")
    if is_mixed:
        return rates
    return replace(
        rates,
        iterator_expired=rng.uniform(0.0, 0.1) if rng.random() < 0.3 else 0.0,
        shard_missing=rng.uniform(0.0, 0.05) if rng.random() < 0.2 else 0.0,
    )


def _special(
    seed: int, is_mixed: bool, workers: int, trouble_s: float, failover_s: float
) -> tuple[list[Action], dict[str, float]]:
    """Rare combinations on top, and the rates that go with them, in half of the runs.

    Java's renewal does not look at the owner and writes over SHARD_END: some of these are not for mixed fleets.
    """
    rng = Random(f"special {seed}")
    at_s = rng.uniform(15.0, trouble_s - 10.0)
    worker = rng.randrange(workers)
    kind = rng.choice((None,) * 7 + ("outage", "deploys", "starts", "reassign", "finish", "finish", "twin", "crossed"))
    if kind is None or (is_mixed and kind != "outage"):
        return [], {}
    return special_of(kind, rng, at_s, worker, workers, trouble_s, failover_s)


def special_of(
    kind: str, rng: Random, at_s: float, worker: int, workers: int, trouble_s: float, failover_s: float
) -> tuple[list[Action], dict[str, float]]:
    """One rare combination: its actions, and the rates that go with them."""
    match kind:
        case "outage":
            seconds = rng.uniform(0.2, 3.0) * failover_s
            return [Action(at_s, Kind.OUTAGE, argument=seconds, text=rng.choice(("throttled", "errors")))], {}
        case "deploys":  # releases whose replies are lost
            return _rolling_deploy(rng, workers, trouble_s), {"dynamo_lost_reply": 0.3}
        case "starts":  # a start, slow replies to its first writes, and then silence
            start = Action(at_s, Kind.CRASH, worker, 2.0, rng.choice(("same", "new")))
            cut_at = at_s + 2.0 + rng.uniform(0.1, 2.0)
            cut = Action(cut_at, Kind.PARTITION, worker, rng.uniform(1.0, 3.0) * failover_s, "dynamo")
            return [start, cut], {"dynamo_slow": 0.3}
        case "old lists":  # streams come while some worker goes on with the old file, and leads some time
            first = Action(at_s, Kind.OLD_LIST, worker, 200.0)
            adds = [Action(at_s + 1.0 + n, Kind.LIST_ADD, rng.randrange(5)) for n in range(3)]
            return [first, *adds, Action(at_s + 30.0, Kind.CRASH, worker + 1, 10.0, "new")], {}
        case "returns":  # a line goes, its stream is made again, and the line comes back
            number, at_s = rng.randrange(5), rng.uniform(15.0, 80.0)
            gone = [Action(at_s, Kind.LIST_REMOVE, number), Action(at_s + 60.0, Kind.REMAKE, number, 3.0)]
            return [*gone, Action(at_s + 70.0, Kind.LIST_ADD, number)], {}
        case "deaf":  # one dies, another is cut off before it can take over, and hears again after that
            dies = Action(at_s, Kind.CRASH, worker + 1, 60.0, "new")
            return [dies, Action(at_s + 2.0, Kind.PARTITION, worker, rng.uniform(1.0, 3.0) * failover_s, "dynamo")], {}
        case "reassign":
            return [Action(rng.uniform(15.0, trouble_s), Kind.REASSIGN_ROW, rng.randrange(64)) for _ in range(3)], {}
        case "finish":
            reshards = [(rng.uniform(15.0, trouble_s - 10.0), rng.randrange(64)) for _ in range(4)]
            kinds = (Kind.SPLIT, Kind.MERGE)
            return [Action(at, rng.choice(kinds), shard, 0.5) for at, shard in reshards] + [
                Action(at + rng.uniform(0.1, 4.0), Kind.FINISH_ROW) for at, _ in reshards
            ], {}
        case "crossed":  # a child of a split merges with its neighbour before the split is known
            actions = []
            for _ in range(4):
                at_s, shard = rng.uniform(15.0, trouble_s - 10.0), rng.randrange(8)
                actions.append(Action(at_s, Kind.SPLIT, shard, 0.5))
                actions.append(Action(at_s + rng.uniform(0.1, 1.0), Kind.MERGE, shard + 1))
            return actions, {}
        case "twin":  # whoever doubts its own writes cannot tell a twin's from them
            twin = Action(at_s, Kind.TWIN, worker, rng.uniform(0.5, 6.0) * failover_s)
            return [twin], {"dynamo_error": 0.0, "dynamo_lost_reply": 0.0, "dynamo_slow": 0.0}
        case "gone":
            return [Action(trouble_s, Kind.DELETE_STREAM)], {}
        case "iterators":  # lost ones, at starts inside aggregates above all
            return [], {"iterator_expired": 0.3, "kinesis_error": 0.3, "child_dies": 0.2, "child_silent": 0.5}
        case "surprises":
            return [], {"surprise": 0.1}
        case "endings":  # children that die when their shard ends, with records they have not checkpointed
            return [Action(at_s, Kind.SPLIT, worker, 0.5)], {"child_dies": 0.2, "child_silent": 0.5}
    raise ValueError(f"no such combination: {kind}")


def in_order(actions: Iterable[Action]) -> tuple[Action, ...]:
    return tuple(sorted(actions, key=lambda action: (action.kind is Kind.DELETE_STREAM, action.at_s)))


_WEIGHTS: tuple[tuple[Kind, int], ...] = (
    (Kind.CRASH, 5),
    (Kind.DEPLOY, 4),
    (Kind.PAUSE, 5),
    (Kind.PARTITION, 5),
    (Kind.WALL_JUMP, 1),
    (Kind.SCALE_OUT, 1),
    (Kind.SCALE_IN, 1),
    (Kind.SPLIT, 4),
    (Kind.MERGE, 4),
    (Kind.DELETE_ROW, 1),
    (Kind.CORRUPT_ROW, 1),
)


def _actions(rng: Random, workers: int, trouble_s: float, failover_s: float) -> tuple[Action, ...]:
    kinds = [kind for kind, weight in _WEIGHTS for _ in range(weight)]
    if rng.random() < 0.6:  # hands off the table in most runs: they blur the other checks
        kinds = [kind for kind in kinds if kind not in (Kind.DELETE_ROW, Kind.CORRUPT_ROW)]
    if rng.random() < 0.15:  # a storm
        kinds += [Kind.SPLIT, Kind.MERGE] * 10
    actions = [
        _action(rng, rng.choice(kinds), rng.uniform(15.0, trouble_s), workers, failover_s)
        for _ in range(rng.randrange(14))
    ]
    if rng.random() < 0.1:
        actions += _rolling_deploy(rng, workers, trouble_s)
    if rng.random() < 0.03:
        actions.append(Action(trouble_s, Kind.DELETE_STREAM))
    return tuple(sorted(actions, key=lambda action: action.at_s))


def _action(rng: Random, kind: Kind, at_s: float, workers: int, failover_s: float) -> Action:
    worker = rng.randrange(workers)
    match kind:
        case Kind.CRASH:
            return Action(at_s, kind, worker, rng.uniform(0.5, 30.0), rng.choice(("same", "new")))
        case Kind.DEPLOY:
            return Action(at_s, kind, worker, rng.uniform(0.5, 20.0), rng.choice(("same", "new")))
        case Kind.PAUSE:
            return Action(at_s, kind, worker, rng.uniform(0.2, 4.0) * failover_s)
        case Kind.PARTITION:
            seconds = rng.uniform(0.2, 4.0) * failover_s
            return Action(at_s, kind, worker, seconds, rng.choice(("dynamo", "kinesis", "both")))
        case Kind.WALL_JUMP:
            return Action(at_s, kind, worker, rng.uniform(-WALL_JUMP_MAX_S, WALL_JUMP_MAX_S))
        case Kind.SPLIT:
            return Action(at_s, kind, rng.randrange(64), rng.uniform(0.1, 0.9))
        case _:
            return Action(at_s, kind, rng.randrange(64))


def _rolling_deploy(rng: Random, workers: int, trouble_s: float) -> list[Action]:
    start, step = rng.uniform(15.0, trouble_s / 2), rng.uniform(5.0, 25.0)
    return [Action(start + n * step, Kind.DEPLOY, n, 2.0, "new") for n in range(workers)]
