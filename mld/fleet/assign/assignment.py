"""Which lease goes to which worker: the deciders of the lease assignment manager. Pure; the shell is `assigner`.

Rules: coordination#balancing-by-variance and coordination#balancing-by-count, on a `View` of leases and
workers. First every lease
without a living owner gets one, then, if asked to, the load is evened out. Differences from Java:

* Workers of equal rank are taken by lease count, then by id.
* A handoff that is past its deadline is completed by assigning the lease to its next owner.
* A recipient that would be loaded above the average goes back into the queue and the next ones are tried, and the
  source's smaller leases still get their chance.
* A worker below the average gives nothing away.
* Nobody gets more than `maxLeasesForWorker`.
* A lease whose owner has fallen silent goes to the leader as long as it has room, as the rule of `takeover` has it:
  given to a worker that has just died, or to a Java worker that looks every ten seconds, it would stand still for as
  long again.

*Coming to rest.* A balancing move takes a lease of weight w from a worker above the average to one that is not above it
even afterwards. In terms of shares s > avg >= r + w, so the sum of squared shares falls by 2w(s - r - w) > 0: constant
loads come to rest after finitely many moves. Leases that weigh nothing would move without end, so they stay. With
measured metrics the same holds as long as a lease costs its new owner no more than the average per weight; a fleet
whose machines differ more than the threshold forgives may keep moving leases of its slowest machines.

Deciders are `Steps`: an answer in pieces of well below 2 ms, for 10,000 leases of 1,000 workers too.

What the view weighs: the leases, the live workers and how loaded each of them is. Rules: coordination#lease-weights.
What differs from Java:

* A lease weighs its `throughputKBps`, one without it the average of those that have it, a complete one nothing. If no
  lease has any throughput, as in a new application, each weighs the same. So there is no 0/0.
* A worker without metrics is measured by its *share*: its weight in percent of the fair one. A metric that is 0 on
  every worker says nothing either, and the share stands in for it. A share has no operating range, only the threshold:
  Java's range of 100 makes every worker a little above the average a source and so moves leases for ever.
* A handoff that is on its way counts as load of its next owner already and as relief of its old one, so that neither
  is decided twice.
* Only open leases count against `maxLeasesForWorker` (leases#load-of-a-worker); Java counts finished ones as well.
* A worker that an operator drains gets a lease only if no other has room for it. A lease that an operator has moved
  stays where it is until the time on its row.
* A worker with a fresh report that renews none of its leases gets no others while somebody else is there: reports are
  believed for a minute, a lease for ten seconds.
* Workers that measure the same processors, *neighbours*, differ in nothing that is measured. So they share one figure,
  the mean of theirs, by which their machine is compared with others; among themselves they are evened out by count, in
  every run.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias, TypeVar

from mld.core.steps import Steps
from mld.fleet.observations import STEP_LEASES, Observations
from mld.fleet.report import reports
from mld.fleet.report.reports import WorkerReport
from mld.leases.lease import Lease
from mld.leases.rows import LEASE_TABLE_KEY, Row
from mld.properties.settings import Settings
from mld.properties.values import AssignmentStrategy

T = TypeVar("T")

SHARE = "T"
"""Metric name of the share, Java's name of its throughput metric."""
FULL_SHARE = 100.0
STEP_REPORTS = 25  # one with ten figures takes some 20 microseconds to read
Order: TypeAlias = Callable[[list[Lease]], Iterable[Lease]]
"""In which order a worker's leases are offered; `shuffling` in production."""

STEP_MOVES = 50  # a move costs about 10 microseconds
RECIPIENTS_TRIED_MAX = 8  # with one metric the best one decides; with several, a few more may have room


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A worker that may get leases. `utilization` (averages by metric, percent) is empty for one without metrics."""

    worker: str
    utilization: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    """Operating ranges by metric, percent; a metric without one has no limit."""
    is_drained: bool = False
    """An operator wants it to have no leases: it gets one only if no other worker has room."""
    meter: str = ""
    """What its figures are of; those with the same one, which is not empty, are neighbours."""


def live_worker(report: WorkerReport, ema_alpha: float) -> LiveWorker:
    """Return an active worker as its report describes it (coordination#report-judgement)."""
    is_drained = reports.is_drained(report)
    if reports.is_default(report):
        return LiveWorker(report.worker, is_drained=is_drained)
    return LiveWorker(
        report.worker,
        {metric: reports.average(samples, ema_alpha) for metric, samples in report.samples.items()},
        {metric: float(ranges[0]) for metric, ranges in report.ranges.items() if ranges},
        is_drained,
        report.mld.get("meter", ""),
    )


def live_workers(active: Iterable[WorkerReport], ema_alpha: float) -> Steps[list[LiveWorker]]:
    workers = []
    for number, report in enumerate(active):
        workers.append(live_worker(report, ema_alpha))
        if number % STEP_REPORTS == STEP_REPORTS - 1:
            yield
    return workers


def reports_among(rows: Sequence[Row]) -> Steps[reports.ReportScan]:
    """Find the worker reports among the rows of the lease table that are no leases."""
    found: list[WorkerReport] = []
    corrupt: list[tuple[str, str]] = []
    for start in range(0, len(rows), STEP_REPORTS):
        part = reports.parse_rows(rows[start : start + STEP_REPORTS], LEASE_TABLE_KEY)
        found += part.reports
        corrupt += part.corrupt
        yield
    return reports.ReportScan(tuple(found), tuple(corrupt))


class Why(Enum):
    """Why a lease moves."""

    FREE = "free"
    EXPIRED = "expired"
    STUCK = "stuck"  # its handoff passed the deadline
    BALANCE = "balance"


@dataclass(frozen=True, slots=True)
class Move:
    """`lease`, as it was read, goes to `to_worker`: by a handoff if `graceful`, else by a plain assignment."""

    lease: Lease
    to_worker: str
    graceful: bool
    why: Why


@dataclass(slots=True)
class Load:
    """A live worker and what it carries; changes while a decider deals."""

    worker: str
    values: dict[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    weight: float = 0.0
    count: int = 0
    """Open leases it holds or is about to get."""
    movable: list[Lease] = field(default_factory=list)
    leaving: int = 0
    leaving_weight: float = 0.0
    arriving_weight: float = 0.0
    held: int = 0
    expired: int = 0
    is_drained: bool = False
    ticket: int = -1
    """Its entry in the queue; -1 if it is not queued."""

    @property
    def is_silent(self) -> bool:
        return 0 < self.held == self.expired

    def limit(self, metric: str) -> float:
        return self.limits.get(metric, math.inf)


@dataclass(slots=True)
class View:
    """Everything a decider looks at, and the moves it has decided."""

    settings: Settings
    loads: dict[str, Load]
    mean_weight: float = 0.0
    has_throughput: bool = False
    averages: dict[str, float] = field(default_factory=dict)
    per_weight: dict[str, float] = field(default_factory=dict)
    """By how much one unit of weight raises a metric."""
    waiting: list[tuple[float, str, Lease]] = field(default_factory=list)
    """Heap of the leases to assign, longest without a living owner first."""
    stuck: list[Lease] = field(default_factory=list)
    silent: tuple[str, ...] = ()
    neighbours: list[list[Load]] = field(default_factory=list)
    """The workers of each machine or container that has several."""
    moves: dict[str, Move] = field(default_factory=dict)

    def weight(self, lease: Lease) -> float:
        if not lease.is_load:
            return 0.0
        if not self.has_throughput:
            return 1.0
        kbps = lease.throughput_kbps
        return kbps if kbps is not None and is_amount(kbps) else self.mean_weight

    def is_full(self, load: Load) -> bool:
        """Return whether a limit of the settings is reached. The limit of throughput may be overshot by one lease."""
        if load.count >= self.settings.leases.held_max:
            return True
        return self.has_throughput and load.weight > self.settings.fleet.throughput_max_kbps

    def move(self, lease: Lease, load: Load, why: Why) -> None:
        hands_off = self.settings.leases.hands_off_gracefully and lease.actual_owner is not None
        self.moves[lease.key] = Move(lease, load.worker, hands_off and why is Why.BALANCE, why)
        source = self.loads.get(lease.actual_owner or "")
        if source is load:
            return
        weight = self.weight(lease)
        if source is not None:
            source.count -= lease.is_load
            source.weight -= weight
        load.count += lease.is_load
        load.weight += weight
        self.raise_values(load, weight)

    def raise_values(self, load: Load, weight: float) -> None:
        for metric in load.values:
            load.values[metric] += weight * self.per_weight[metric]

    def headroom(self, load: Load) -> float:
        """Return how far below the fleet's average the worker is, by its worst metric."""
        return min((self._headroom(metric, value) for metric, value in load.values.items()), default=0.0)

    def _headroom(self, metric: str, value: float) -> float:
        if value > 0:
            return (self.averages[metric] - value) / value
        return math.inf if metric == SHARE else 1.0  # a share of 0 is known exactly, a measured 0 is not


class Queue:
    """The workers that may get leases, best first: undrained ones, then by rank, then fewest leases, then id."""

    def __init__(self, view: View, *, by_headroom: bool) -> None:
        self._view = view
        self._by_headroom = by_headroom
        self._heap: list[tuple[bool, float, int, str, int]] = []
        self._tickets = 0
        for load in view.loads.values():
            self.push(load)

    def push(self, load: Load) -> None:
        """Queue the worker as it is now, in place of an earlier entry; not at all if it is full."""
        load.ticket = -1
        if self._view.is_full(load):
            return
        self._tickets += 1
        load.ticket = self._tickets
        rank = -self._view.headroom(load) if self._by_headroom else 0.0
        heappush(self._heap, (load.is_drained, rank, load.count, load.worker, load.ticket))

    def pop(self) -> Load | None:
        """Return the best worker, out of the queue; None if there is none."""
        while self._heap:
            *_, worker, ticket = heappop(self._heap)
            load = self._view.loads[worker]
            if load.ticket == ticket:
                load.ticket = -1
                return load
        return None


def is_amount(number: float) -> bool:
    """Return whether the number is as it should be: neither negative nor NaN nor infinite."""
    return 0 <= number < math.inf


def survey(
    leases: Sequence[Lease],
    workers: Collection[LiveWorker],
    observations: Observations,
    now: float,
    settings: Settings,
    *,
    wall_s: float,
) -> Steps[View]:
    """Make the view of the leases as scanned and observed. Of several entries of one worker the last counts."""
    by_id = {worker.worker: worker for worker in workers}
    loads = {name: Load(name, is_drained=by_id[name].is_drained) for name in sorted(by_id)}
    view = View(settings, loads)
    yield from _weigh(view, leases)
    total = yield from _sort_out(view, leases, observations, now, wall_s)
    _leave_out_the_silent(view)
    yield
    _measure(view, by_id, total)
    yield
    return view


def _weigh(view: View, leases: Sequence[Lease]) -> Steps[None]:
    total, known = 0.0, 0
    for number, lease in enumerate(leases):
        kbps = lease.throughput_kbps
        if kbps is not None and is_amount(kbps) and not lease.is_complete:
            total += kbps
            known += 1
        if number % STEP_LEASES == STEP_LEASES - 1:
            yield
    view.has_throughput = total > 0
    view.mean_weight = total / known if total > 0 else 1.0


def _sort_out(
    view: View, leases: Sequence[Lease], observations: Observations, now: float, wall_s: float
) -> Steps[float]:
    """Put each lease where it belongs: waiting, stuck, on its way, movable. The answer is the weight of all."""
    total = 0.0
    for number, lease in enumerate(leases):
        weight = view.weight(lease)
        total += weight
        owner = lease.actual_owner
        expired = observations.is_expired(lease, now)
        load = None if owner is None else view.loads.get(owner)
        if load is not None:
            load.weight += weight
            load.count += lease.is_load
            load.held += 1
            load.expired += expired
        if expired:
            moved_at = None if owner is None else observations.moved_at(lease)
            view.waiting.append((-math.inf if moved_at is None else moved_at, lease.key, lease))
        elif lease.checkpoint_owner is not None:
            _sort_out_handoff(view, lease, weight, load, is_blocked=observations.is_blocked(lease, now))
        elif load is not None and not lease.is_complete and not is_pinned(lease, wall_s):
            load.movable.append(lease)
        if number % STEP_LEASES == STEP_LEASES - 1:
            yield
    heapify(view.waiting)
    return total


def is_pinned(lease: Lease, wall_s: float) -> bool:
    return lease.pinned_until_s is not None and wall_s < lease.pinned_until_s


def _sort_out_handoff(view: View, lease: Lease, weight: float, source: Load | None, *, is_blocked: bool) -> None:
    if not is_blocked:
        if not lease.is_complete:
            view.stuck.append(lease)
        return
    if source is not None:
        source.leaving += 1
        source.leaving_weight += weight
    target = view.loads.get(lease.owner or "")
    if target is not None and target is not source:
        target.count += 1
        target.arriving_weight += weight


def _leave_out_the_silent(view: View) -> None:
    silent = tuple(load.worker for load in view.loads.values() if load.is_silent)
    if len(silent) < len(view.loads):
        view.silent = silent
        for worker in silent:
            del view.loads[worker]


def _measure(view: View, workers: Mapping[str, LiveWorker], total: float) -> None:
    """Compute averages over the live workers, each worker's values, and what a unit of weight adds to them."""
    target = total / max(1, len(view.loads))
    share_per_weight = FULL_SHARE / target if target else 0.0
    measured = {worker: workers[worker].utilization for worker in view.loads}
    known = {metric: average for metric, average in _averages(measured.values()).items() if average > 0}
    for load in view.loads.values():
        utilization = measured[load.worker]
        load.values = {metric: _amount(utilization[metric]) for metric in sorted(utilization) if metric in known}
        load.limits = workers[load.worker].limits
        if not load.values:
            load.values = {SHARE: load.weight * share_per_weight}
            load.limits = {}
    _join_neighbours(view, workers)
    view.averages = _averages([load.values for load in view.loads.values()])
    for metric, average in view.averages.items():
        if average <= 0:
            view.averages[metric] = FULL_SHARE  # only the share: nobody who is measured by it has a lease yet
        view.per_weight[metric] = view.averages[metric] / target if target else 0.0
    if SHARE in view.averages:  # known exactly; its average is that of the workers without metrics only
        view.per_weight[SHARE] = share_per_weight
    for load in view.loads.values():
        view.raise_values(load, load.arriving_weight)


def _join_neighbours(view: View, workers: Mapping[str, LiveWorker]) -> None:
    """Find the measured workers that measure the same, and let them share the mean of their figures."""
    by_meter: dict[str, list[Load]] = {}
    for load in view.loads.values():
        if (meter := workers[load.worker].meter) and SHARE not in load.values:
            by_meter.setdefault(meter, []).append(load)
    view.neighbours = [loads for loads in by_meter.values() if len(loads) > 1]
    for loads in view.neighbours:
        shared = _averages([load.values for load in loads])
        for load in loads:
            load.values = {metric: shared[metric] for metric in load.values}


def _averages(measured: Collection[Mapping[str, float]]) -> dict[str, float]:
    by_metric: dict[str, list[float]] = {}
    for values in measured:
        for metric, value in values.items():
            by_metric.setdefault(metric, []).append(_amount(value))
    return {metric: sum(values) / len(values) for metric, values in sorted(by_metric.items())}


def _amount(number: float) -> float:
    return number if is_amount(number) else 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write, and the figures behind it."""

    moves: tuple[Move, ...] = ()
    leases: int = 0
    workers: int = 0
    waiting: int = 0
    """Leases found without a living owner."""
    kept: int = 0
    """Those among them that stay with their owner, which is the best worker for them."""
    spillover: int = 0
    """Those among them for which nobody has room."""
    silent: tuple[str, ...] = ()
    """Workers with a fresh report that renew none of their leases."""

    def count(self, why: Why) -> int:
        return sum(move.why is why for move in self.moves)


def shuffling(rng: random.Random) -> Order:
    """Return a random order, drawn as far as it is asked for."""

    def order(leases: list[Lease]) -> Iterator[Lease]:
        rest = list(leases)
        while rest:
            drawn = rng.randrange(len(rest))
            rest[drawn], rest[-1] = rest[-1], rest[drawn]
            yield rest.pop()

    return order


def decide(
    leases: Sequence[Lease],
    workers: Collection[LiveWorker],
    observations: Observations,
    now: float,
    settings: Settings,
    order: Order,
    *,
    wall_s: float,
    leader: str,
    balance: bool,
) -> Steps[Plan]:
    """Decide the moves: by utilization and throughput, or by the strategy COUNT, to the worker with the fewest leases.

    `observations` know the scan already; `workers` are the active.
    """
    view = yield from survey(leases, workers, observations, now, settings, wall_s=wall_s)
    by_count = settings.fleet.assignment_strategy is AssignmentStrategy.COUNT
    waiting = len(view.waiting)
    queue = Queue(view, by_headroom=not by_count)
    yield
    kept = yield from _assign(view, queue, leader)
    if by_count:
        if balance:
            yield from _even_out(view, view.loads.values(), order)
    else:
        if balance:
            yield from _balance_variance(view, queue, order)
        for neighbours in view.neighbours:
            yield from _even_out(view, neighbours, order)
    return Plan(
        moves=tuple(view.moves.values()),
        leases=len(leases),
        workers=len(view.loads),
        waiting=waiting,
        kept=kept,
        spillover=len(view.waiting),
        silent=view.silent,
    )


# --- leases without a living owner -----------------------------------------------------------------------------------


def _assign(view: View, queue: Queue, leader: str) -> Steps[int]:
    """Give stuck and waiting leases away until nobody has room; how many of them stay with their owner."""
    _force_stuck(view, queue)
    kept = 0
    for number in range(len(view.waiting)):
        load = _receiver(view, queue, view.waiting[0][2], leader)
        if load is None:
            break
        _, _, lease = heappop(view.waiting)
        if lease.actual_owner == load.worker and lease.checkpoint_owner is None:
            kept += 1
            queue.push(load)
        else:
            _give(view, queue, lease, load, Why.FREE if lease.actual_owner is None else Why.EXPIRED)
        if number % STEP_MOVES == STEP_MOVES - 1:
            yield
    return kept


def _receiver(view: View, queue: Queue, lease: Lease, leader: str) -> Load | None:
    """Return who gets a waiting lease, out of the queue; None if nobody has room, unless it needs none."""
    mine = view.loads.get(leader)
    if not lease.is_load:
        return mine or next(iter(view.loads.values()), None)
    if lease.actual_owner is not None and mine is not None and not (view.is_full(mine) or mine.is_drained):
        return mine
    return queue.pop()


def _force_stuck(view: View, queue: Queue) -> None:
    """Complete overdue handoffs. Where the next owner is gone or full, anybody may have the lease."""
    for lease in view.stuck:
        load = view.loads.get(lease.owner or "") or queue.pop()
        if load is not None and (view.is_full(load) or load.is_drained):
            load = queue.pop()
        if load is not None:
            _give(view, queue, lease, load, Why.STUCK)


def _give(view: View, queue: Queue, lease: Lease, load: Load, why: Why) -> None:
    """Move a lease, and queue both workers again: who lost one may have room, or be preferred among its equals."""
    view.move(lease, load, why)
    source = view.loads.get(lease.actual_owner or "")
    if source is not None:
        queue.push(source)
    queue.push(load)


# --- balance by variance ---------------------------------------------------------------------------------------------


def _balance_variance(view: View, queue: Queue, order: Order) -> Steps[None]:
    sources = _sources(view)
    yield
    for take, load in sources:
        yield from _relieve(view, queue, load, take, order)
        queue.push(load)
        yield


def _sources(view: View) -> list[tuple[float, Load]]:
    """Return (weight to take, worker) by the metric with the most to take, the most loaded first."""
    best: list[tuple[float, Load]] = []
    best_total = -1.0
    for metric in view.averages:
        sources = [(take, load) for load in _hot(view, metric) if (take := _take(view, load, metric)) is not None]
        total = sum(take for take, _ in sources)
        if sources and total > best_total:
            best, best_total = sources, total
    return sorted(best, key=lambda source: (-source[0], source[1].worker))


def _hot(view: View, metric: str) -> list[Load]:
    loads = [load for load in view.loads.values() if metric in load.values]
    average = view.averages[metric]
    percent = view.settings.fleet.threshold_percent
    margin = percent / 2 if view.settings.fleet.is_band_fixed else average * percent / 100
    over = [
        load for load in loads if load.values[metric] >= average + margin or load.values[metric] > load.limit(metric)
    ]
    if over:
        return over
    if any(load.values[metric] < average - margin for load in loads):
        return [max(loads, key=lambda load: (load.values[metric], load.worker))]
    return []


def _take(view: View, load: Load, metric: str) -> float | None:
    """Return how much weight the worker should lose besides what is leaving it already; None if it should not lose
    any.
    """
    value, average = load.values[metric], view.averages[metric]
    if value <= average:
        return None
    if load.weight == 0:
        return None if load.leaving else 0.0
    take = load.weight * (value - average) / value * view.settings.fleet.dampening_percent / 100 - load.leaving_weight
    return take if take > 0 else None


def _relieve(view: View, queue: Queue, load: Load, take: float, order: Order) -> Steps[None]:
    """Move leases of less than `take` together, or else the lightest one.

    A lease nobody has room for costs nothing of `take`, so that smaller ones get their chance. A worker that is loaded
    though its leases weigh nothing loses one of them: something on it is hot.
    """
    remaining, too_heavy = take, math.inf
    lightest: Lease | None = None
    for number, lease in enumerate(order(load.movable)):
        if number % STEP_LEASES == STEP_LEASES - 1:
            yield
        if lease.key in view.moves:
            continue
        if load.weight == 0:
            _place(view, queue, load, lease)
            return
        weight = view.weight(lease)
        if weight == 0:
            continue
        if lightest is None or weight < view.weight(lightest):
            lightest = lease
        if remaining - weight <= 0 or weight >= too_heavy:
            continue
        if _place(view, queue, load, lease):
            remaining -= weight
        else:
            too_heavy = weight
    if view.settings.fleet.overshoot and lightest is not None and view.weight(lightest) >= take:
        _place(view, queue, load, lightest)


def _place(view: View, queue: Queue, source: Load, lease: Lease) -> bool:
    recipient = _recipient(view, queue, source, view.weight(lease))
    if recipient is None:
        return False
    view.move(lease, recipient, Why.BALANCE)
    queue.push(recipient)
    return True


def _recipient(view: View, queue: Queue, source: Load, weight: float) -> Load | None:
    """Return the best worker that stays at or below the averages with so much more; the others stay in the queue."""
    passed: list[Load] = []
    found = None
    while found is None and len(passed) < RECIPIENTS_TRIED_MAX:
        load = queue.pop()
        if load is None:
            break
        if load is not source and _fits(view, load, weight):
            found = load
        else:
            passed.append(load)
    for load in passed:
        queue.push(load)
    return found


def _fits(view: View, load: Load, weight: float) -> bool:
    if load.is_drained:
        return False
    for metric, value in load.values.items():
        projected = value + weight * view.per_weight[metric]
        if projected > min(view.averages[metric], load.limit(metric)):
            return False
    return True


# --- balance by count ------------------------------------------------------------------------------------------------


def _even_out(view: View, loads: Collection[Load], order: Order) -> Steps[None]:
    """Move from the worker with the most leases to the one with the fewest, until they differ by at most one.

    Both are compared by what they will have when the handoffs under way are over.
    """
    offered = {load.worker: iter(order(load.movable)) for load in loads}
    fullest = [(load.leaving - load.count, load.worker) for load in loads]
    receiving = [load for load in loads if not (view.is_full(load) or load.is_drained)]
    emptiest = [(load.count - load.leaving, load.worker) for load in receiving]
    heapify(fullest)
    heapify(emptiest)
    moves = 0
    while fullest and emptiest and -fullest[0][0] - emptiest[0][0] > 1:
        size, worker = fullest[0]
        lease = next((lease for lease in offered[worker] if lease.key not in view.moves), None)
        if lease is None:
            heappop(fullest)
            continue
        target = emptiest[0]
        load = view.loads[target[1]]
        view.move(lease, load, Why.BALANCE)
        heapreplace(fullest, (size + 1, worker))
        heappop(emptiest)
        if not view.is_full(load):
            heappush(emptiest, (target[0] + 1, target[1]))
        moves += 1
        if moves % STEP_MOVES == 0:
            yield
