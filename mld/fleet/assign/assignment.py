"""Which lease goes to which worker: the decisions of the lease assignment manager. Pure; the shell is `assigner`.

Rules: coordination#balancing-by-variance and coordination#balancing-by-count, on a `View` of leases and workers
(`fleet_load`). First every lease without a living owner gets one; then, if asked to, the load is evened out.
Differences from Java:

* Workers of equal rank are taken by lease count, then by id.
* A handoff that is past its deadline is completed by assigning the lease to its next owner.
* A recipient that would be loaded above the average goes back into the queue, the next ones are tried, and the source's
  smaller leases still get their chance.
* A worker below the average gives nothing away.
* No worker gets more than `maxLeasesForWorker`.
* A lease whose owner has fallen silent goes to the leader as long as it has room, by the rule of `takeover`: given to a
  worker that has just died, or to a Java worker that looks every ten seconds, it would stand still for as long again.

*Coming to rest.* A balancing move takes a lease of weight w from a worker above the average to one that is not above it
even afterwards. In terms of shares s > avg >= r + w, so the sum of squared shares falls by 2w(s - r - w) > 0: constant
loads come to rest after finitely many moves. Leases that weigh nothing would move without end, so they stay. With
measured metrics the same holds as long as a lease costs its new owner no more than the average per weight; a fleet
whose machines differ more than the threshold forgives may keep moving leases of its slowest machines.

Deciders are `Steps`: they yield after well below 2 ms, with 10,000 leases of 1,000 workers too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias

from mld.core.steps import Steps
from mld.fleet.assign.fleet_load import LiveWorker, Load, Move, Queue, View, Why, survey
from mld.fleet.observations import STEP_LEASES, Observations
from mld.leases.lease import Lease
from mld.properties.settings import Settings
from mld.properties.values import AssignmentStrategy

Order: TypeAlias = Callable[[list[Lease]], Iterable[Lease]]
"""In which order a worker's leases are offered; `shuffling` in production."""

STEP_MOVES = 50  # a move costs about 10 microseconds
RECIPIENTS_TRIED_MAX = 8  # with one metric the best one decides; with several, a few more may have room


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
