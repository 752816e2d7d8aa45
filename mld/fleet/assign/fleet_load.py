"""`View`: the leases, the live workers, and the load of each worker, as an assignment run sees them. Pure.

Rules: coordination#lease-weights. Differences from Java:

* A lease weighs its `throughputKBps`. A lease without a throughput weighs the average of those that have one, and a
  lease of a finished shard weighs nothing. If no lease has a throughput, as in a new application, all leases weigh the
  same, so that there is no 0/0.
* A worker without metrics is measured by its *share*: the weight of its leases in percent of the fair weight. The share
  also replaces a metric that is 0 on every worker, because that gives no information. A share is limited only by the
  threshold, and by no operating range: in Java the range ends at 100, which is the fair share itself, so each worker
  slightly above it gives leases away, for ever.
* A lease that is being handed off already counts for its next owner, and as given away by its old owner, so that the
  same move is not decided twice.
* Only leases of open shards count towards `maxLeasesForWorker` (leases#load-of-a-worker); Java counts finished ones as
  well.
* A worker that an operator drains gets a lease only if no other has room. A lease that an operator has moved stays
  where it is until the time in its row.
* If a worker has a fresh report but renews none of its leases, it gets no others while there is another worker. It may
  be dead: a report counts for a minute, a lease only for ten seconds.
* Workers that measure the same CPUs (*neighbours*) cannot really differ in their figures. So each of them is given the
  mean of their figures, by which their machine is compared with others. Among themselves neighbours are balanced by
  lease count, in every run.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappop, heappush

from mld.core.steps import Steps
from mld.core.stillness import NEVER
from mld.fleet.observations import STEP_LEASES, Observations
from mld.fleet.report import reports
from mld.fleet.report.reports import WorkerReport
from mld.leases.lease import Lease
from mld.leases.own_attribute import Row
from mld.leases.rows import LEASE_TABLE_KEY
from mld.properties.settings import Settings

SHARE = "T"
"""The name of the share among the metrics. Java gives it to its throughput metric."""
FULL_SHARE = 100.0
STEP_REPORTS = 25  # reports read between two yields; one with ten figures takes some 20 microseconds


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A worker that may get leases. `utilization` has its averages in percent, by metric; it is empty without
    metrics.
    """

    worker: str
    utilization: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    """Operating ranges in percent, by metric; a metric that is not in it has no limit."""
    is_drained: bool = False
    """An operator drains the worker: it gets a lease only if no other worker has room."""
    meter: str = ""
    """Identifies the CPUs that it measures (`LoadSource.meter`). Workers with the same meter, if it is not empty,
    are neighbours.
    """


def live_worker(report: WorkerReport, ema_alpha: float) -> LiveWorker:
    """Return the worker that a report describes, with the average load by which it is judged
    (coordination#report-judgement). A default worker (`reports.is_default`) has no figures of its own.
    """
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
    """Return the workers that the reports `active` describe, in steps."""
    workers = []
    for number, report in enumerate(active):
        workers.append(live_worker(report, ema_alpha))
        if number % STEP_REPORTS == STEP_REPORTS - 1:
            yield
    return workers


def reports_among(rows: Sequence[Row]) -> Steps[reports.ReportScan]:
    """Find the worker reports among `rows`, the rows of the lease table that are no leases."""
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
    STUCK = "stuck"  # its handoff is past the deadline
    BALANCE = "balance"


@dataclass(frozen=True, slots=True)
class Move:
    """`lease`, as it was read, goes to `to_worker`: by a handoff if `graceful`, else by a plain assignment. `why` is
    for the log and the counters.
    """

    lease: Lease
    to_worker: str
    graceful: bool
    why: Why


@dataclass(slots=True)
class Load:
    """A live worker and its load. The load changes while a decider makes moves."""

    worker: str
    values: dict[str, float] = field(default_factory=dict)
    """Its utilization in percent, by metric; only its share if it reports no metric that gives information."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Its operating ranges in percent, by metric (`LiveWorker.limits`)."""
    weight: float = 0.0
    """The weight of all its leases (see the module's header)."""
    count: int = 0
    """How many leases of open shards it owns or is about to get."""
    movable: list[Lease] = field(default_factory=list)
    """The leases that balancing may take from it."""
    leaving: int = 0
    """How many of its leases it is handing off to other workers; their weight is `leaving_weight`."""
    leaving_weight: float = 0.0
    arriving_weight: float = 0.0
    """The weight of the leases that other workers are handing off to it."""
    held: int = 0
    """How many leases it owns now, including those of finished shards. Of these, it does not renew `expired`."""
    expired: int = 0
    is_drained: bool = False
    ticket: int = -1
    """The number of its valid entry in the `Queue`; -1 if it is not queued."""

    @property
    def is_silent(self) -> bool:
        """Whether the worker owns leases, and renews none of them."""
        return 0 < self.held == self.expired

    def limit(self, metric: str) -> float:
        """Return the worker's limit of this metric; infinite if it has none."""
        return self.limits.get(metric, math.inf)


@dataclass(slots=True)
class View:
    """The leases and workers about which moves are decided, and the moves that were decided so far."""

    settings: Settings
    loads: dict[str, Load]
    """The load of each worker that may get leases, by its id."""
    mean_weight: float = 0.0
    """What a lease without a throughput weighs."""
    has_throughput: bool = False
    """Whether any lease has a throughput above 0."""
    averages: dict[str, float] = field(default_factory=dict)
    """The average of each metric over the workers that have it."""
    per_weight: dict[str, float] = field(default_factory=dict)
    """How much one unit of weight adds to each metric of a worker."""
    waiting: list[tuple[float, str, Lease]] = field(default_factory=list)
    """Heap of the leases to assign, first the one that has been without a living owner for the longest time."""
    stuck: list[Lease] = field(default_factory=list)
    """The leases whose handoffs are past their deadlines."""
    silent: tuple[str, ...] = ()
    """The workers that were left out because they renew none of their leases."""
    neighbours: list[list[Load]] = field(default_factory=list)
    """For each machine or container with several workers, these workers."""
    moves: dict[str, Move] = field(default_factory=dict)

    def weight(self, lease: Lease) -> float:
        """Return the weight of a lease: its throughput, or the mean throughput if it has none; 1 if no lease has any.
        A lease of a finished shard weighs nothing.
        """
        if not lease.is_load:
            return 0.0
        if not self.has_throughput:
            return 1.0
        kbps = lease.throughput_kbps
        return kbps if kbps is not None and is_amount(kbps) else self.mean_weight

    def is_full(self, load: Load) -> bool:
        """Return whether the worker may get no more leases, because it has reached the limit of leases, or is above the
        limit of throughput. So the last lease that it gets may take it above the limit of throughput.
        """
        if load.count >= self.settings.leases.held_max:
            return True
        return self.has_throughput and load.weight > self.settings.fleet.throughput_max_kbps

    def move(self, lease: Lease, load: Load, why: Why) -> None:
        """Note that a lease is to move to the worker of `load`, and change the loads of both workers accordingly. A
        move that balances the load is a handoff, if the settings allow handoffs.
        """
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
        """Raise a worker's metrics by what leases of this weight add to them."""
        for metric in load.values:
            load.values[metric] += weight * self.per_weight[metric]

    def headroom(self, load: Load) -> float:
        """Return how far the worker is below the fleet's average, as a fraction of its own value, by the metric for
        which this is least.
        """
        return min((self._headroom(metric, value) for metric, value in load.values.items()), default=0.0)

    def _headroom(self, metric: str, value: float) -> float:
        """Return how far `value` is below the fleet's average of this metric, as a fraction of `value`."""
        if value > 0:
            return (self.averages[metric] - value) / value
        return math.inf if metric == SHARE else 1.0  # a share is exact; a measured 0 may stand for a small value


class Queue:
    """The workers that may get leases, the best first. Drained ones come last. The rest of the order is by headroom (if
    `by_headroom`), then by the number of leases, then by id.
    """

    def __init__(self, view: View, *, by_headroom: bool) -> None:
        self._view = view
        self._by_headroom = by_headroom
        self._heap: list[tuple[bool, float, int, str, int]] = []
        self._tickets = 0  # the number of the newest entry; older entries of the same worker are not valid
        for load in view.loads.values():
            self.push(load)

    def push(self, load: Load) -> None:
        """Queue the worker with its present rank; an earlier entry of it is not valid any more. A full worker is not
        queued.
        """
        load.ticket = -1
        if self._view.is_full(load):
            return
        self._tickets += 1
        load.ticket = self._tickets
        rank = -self._view.headroom(load) if self._by_headroom else 0.0
        heappush(self._heap, (load.is_drained, rank, load.count, load.worker, load.ticket))

    def pop(self) -> Load | None:
        """Take the best worker out of the queue and return it; None if there is none. Entries that are not valid any
        more are dropped.
        """
        while self._heap:
            *_, worker, ticket = heappop(self._heap)
            load = self._view.loads[worker]
            if load.ticket == ticket:
                load.ticket = -1
                return load
        return None


def is_amount(number: float) -> bool:
    """Return whether a number can be an amount: it is not negative, not NaN and not infinite."""
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
    """Make the view for one run from the leases of a scan and what was observed of them: the leases that wait for an
    owner, those that may be moved, and the load of each worker. If `workers` has a worker twice, its last entry counts.
    """
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
    """Find out whether any lease has a throughput, and what leases with a throughput weigh on average."""
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
    """Sort the leases into those that wait for an owner, those that are stuck or being handed off, and those that may
    be moved. Add each to its owner's load. Return the weight of all leases.
    """
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
            moved_at = NEVER if owner is None else observations.moved_at(lease.key)
            view.waiting.append((moved_at, lease.key, lease))
        elif lease.checkpoint_owner is not None:
            _sort_out_handoff(view, lease, weight, load, is_blocked=observations.is_blocked(lease, now))
        elif load is not None and not lease.is_complete and not is_pinned(lease, wall_s):
            load.movable.append(lease)
        if number % STEP_LEASES == STEP_LEASES - 1:
            yield
    heapify(view.waiting)
    return total


def is_pinned(lease: Lease, wall_s: float) -> bool:
    """Return whether an operator's pin keeps the lease where it is."""
    return lease.pinned_until_s is not None and wall_s < lease.pinned_until_s


def _sort_out_handoff(view: View, lease: Lease, weight: float, source: Load | None, *, is_blocked: bool) -> None:
    """Note a lease that is being handed off. While its deadline has not passed (`is_blocked`), it is leaving its old
    owner (`source`) and arriving at its next owner; afterwards it is stuck.
    """
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
    """Remove the workers that renew none of their leases, unless these are all the workers."""
    silent = tuple(load.worker for load in view.loads.values() if load.is_silent)
    if len(silent) < len(view.loads):
        view.silent = silent
        for worker in silent:
            del view.loads[worker]


def _measure(view: View, workers: Mapping[str, LiveWorker], total: float) -> None:
    """Compute each worker's values, their averages over the live workers, and how much a unit of weight adds to them.
    `total` is the weight of all leases.

    A worker without metrics gets its share of the weight as its only value, in percent of an equal share (SHARE).
    """
    fair_weight = total / max(1, len(view.loads))
    share_per_weight = FULL_SHARE / fair_weight if fair_weight else 0.0
    measured = {worker: workers[worker].utilization for worker in view.loads}
    informative = {metric: average for metric, average in _averages(measured.values()).items() if average > 0}
    for load in view.loads.values():
        utilization = measured[load.worker]
        load.values = {metric: _amount(utilization[metric]) for metric in sorted(utilization) if metric in informative}
        load.limits = workers[load.worker].limits
        if not load.values:
            load.values = {SHARE: load.weight * share_per_weight}
            load.limits = {}
    _join_neighbours(view, workers)
    view.averages = _averages([load.values for load in view.loads.values()])
    for metric, average in view.averages.items():
        if average <= 0:
            view.averages[metric] = FULL_SHARE  # this is the share, and no worker measured by it has a lease yet
        view.per_weight[metric] = view.averages[metric] / fair_weight if fair_weight else 0.0
    if SHARE in view.averages:  # computed from all weight; the average covers only the workers without metrics
        view.per_weight[SHARE] = share_per_weight
    for load in view.loads.values():
        view.raise_values(load, load.arriving_weight)


def _join_neighbours(view: View, workers: Mapping[str, LiveWorker]) -> None:
    """Find the workers that measure the same CPUs (`LiveWorker.meter`), and give each of them the mean of their
    figures. A worker without metrics measures nothing (SHARE), so it is left as it is.
    """
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
    """Return the average of each metric over the workers that measured it."""
    by_metric: dict[str, list[float]] = {}
    for values in measured:
        for metric, value in values.items():
            by_metric.setdefault(metric, []).append(_amount(value))
    return {metric: sum(values) / len(values) for metric, values in sorted(by_metric.items())}


def _amount(number: float) -> float:
    """Return a reported figure, or 0 if it is negative, NaN or infinite."""
    return number if is_amount(number) else 0.0
