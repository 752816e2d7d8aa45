"""`decide`: decides which lease goes to which worker, for the leader's assignment runs. Pure; `assigner` does the I/O.

Rules: coordination#balancing-by-variance and coordination#balancing-by-count. The input is a `View` of leases and
workers (`fleet_load`). First every lease without a living owner gets one; then, if asked to, the load is balanced.
Differences from Java:

* Among workers of equal rank, the one with the fewest leases comes first, then the one with the smallest id.
* If a handoff is past its deadline, the lease is assigned to its next owner.
* If a move would load its recipient above the average, the next recipients are tried, and then smaller leases of the
  same source.
* A worker below the average gives no leases away.
* No worker gets more than `maxLeasesForWorker`.
* A lease whose owner has fallen silent goes to the leader, as long as the leader has room, as in `takeover` a worker
  takes such leases only for itself. Another worker may just have died, or be a Java worker that discovers leases only
  every ten seconds; then the lease would be without renewals for as long again.

*Why balancing ends.* A balancing move takes a lease of weight w from a worker above the average, and gives it to a
worker that is not above the average even afterwards. Let s be the load of the giver and r the load of the recipient
before the move, both in the unit of w. The move changes the sum of their squares by -2w(s - r - w). That is negative,
because s > average >= r + w. So each move makes the sum of all squared loads smaller, and with constant loads there are
only finitely many moves. A lease that weighs nothing does not change the sum and could move without end, so it stays.
With measured metrics the same holds as long as a lease adds no more load to its new owner than the fleet's average load
for that weight. If the machines of a fleet differ by more than the threshold allows for, leases of its slowest machines
may keep moving.

The deciding functions are `Steps`: they yield after well below 2 ms, even with 10,000 leases of 1,000 workers.
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
"""Puts a worker's leases into the order in which they are offered to other workers; in production by `shuffling`."""

STEP_MOVES = 50  # moves between two yields; a move costs about 10 microseconds
RECIPIENTS_TRIED_MAX = 8
"""How many workers are tried as recipients of a lease. With one metric, if the first has no room, no other has. With
several metrics, one of the next few may.
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """The moves to write, and the figures of the run that decided them."""

    moves: tuple[Move, ...] = ()
    leases: int = 0
    workers: int = 0
    waiting: int = 0
    """How many leases had no living owner."""
    kept: int = 0
    """How many of the waiting leases stay with their owner, because it is the best worker for them anyway."""
    spillover: int = 0
    """How many of the waiting leases find no worker with room."""
    silent: tuple[str, ...] = ()
    """Workers with a fresh report that renew none of their leases."""

    def count(self, why: Why) -> int:
        return sum(move.why is why for move in self.moves)


def shuffling(rng: random.Random) -> Order:
    """Return an order that shuffles lazily: a random number is drawn only when a lease is taken from it."""

    def order(leases: list[Lease]) -> Iterator[Lease]:
        """Yield the leases in a random order."""
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
    """Return the moves of leases between workers, and the figures of this run (`Plan`).

    First every lease without a living owner gets one. With `balance`, the load of the workers is then balanced: by
    utilization and throughput, or by lease count if the strategy is COUNT. Workers on one machine (`view.neighbours`)
    share its CPUs, so their lease counts are evened out in every run.

    `leases` are those of a scan, which `observations` must have noted already. `workers` are those that may get leases.
    `leader` is the id of this worker. `order` decides which leases of a worker are offered first. `now` is in monotonic
    seconds, `wall_s` in epoch seconds.
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
    """Assign the leases whose handoff is overdue (stuck), and then those without a living owner (waiting), until no
    worker has room. Return how many of the waiting leases stay with their owner, because it is the best worker for them
    anyway.
    """
    _force_stuck(view, queue)
    kept = 0
    for number in range(len(view.waiting)):
        load = _receiver(view, queue, view.waiting[0][2], leader)
        if load is None:
            break  # the leases that stay in `view.waiting` are the spillover
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
    """Return the worker that gets a waiting lease; None if no worker has room.

    A lease of a finished shard needs no room; it goes to the leader, or else to any worker. A lease whose owner has
    fallen silent goes to the leader, unless the leader is full or drained. Every other lease goes to the first worker
    of the queue, which is thereby taken out of the queue.
    """
    leading = view.loads.get(leader)
    if not lease.is_load:
        return leading or next(iter(view.loads.values()), None)
    if lease.actual_owner is not None and leading is not None and not (view.is_full(leading) or leading.is_drained):
        return leading
    return queue.pop()


def _force_stuck(view: View, queue: Queue) -> None:
    """Assign each lease whose handoff is overdue to its next owner, or to the best worker with room if the next owner
    is gone, full or drained.
    """
    for lease in view.stuck:
        load = view.loads.get(lease.owner or "") or queue.pop()
        if load is not None and (view.is_full(load) or load.is_drained):
            load = queue.pop()
        if load is not None:
            _give(view, queue, lease, load, Why.STUCK)


def _give(view: View, queue: Queue, lease: Lease, load: Load, why: Why) -> None:
    """Move a lease to the worker of `load`, and queue that worker and the old owner again, because the ranks of both
    have changed.
    """
    view.move(lease, load, why)
    source = view.loads.get(lease.actual_owner or "")
    if source is not None:
        queue.push(source)
    queue.push(load)


# --- balance by variance ---------------------------------------------------------------------------------------------


def _balance_variance(view: View, queue: Queue, order: Order) -> Steps[None]:
    """Move leases away from the workers whose load is too far above the average, to workers below it. The worker that
    has to give the most weight comes first.
    """
    sources = _sources(view)
    yield
    for take, load in sources:
        yield from _relieve(view, queue, load, take, order)
        queue.push(load)  # its rank has changed
        yield


def _sources(view: View) -> list[tuple[float, Load]]:
    """Return the workers to relieve, each with the weight to take from it, the largest weight first. Only one metric
    decides: the one by which the most weight has to move.
    """
    best: list[tuple[float, Load]] = []
    best_total = -1.0
    for metric in view.averages:
        sources = [
            (take, load)
            for load in _overloaded(view, metric)
            if (take := _weight_to_take(view, load, metric)) is not None
        ]
        total = sum(take for take, _ in sources)
        if sources and total > best_total:
            best, best_total = sources, total
    return sorted(best, key=lambda source: (-source[0], source[1].worker))


def _overloaded(view: View, metric: str) -> list[Load]:
    """Return the workers that are above the average of this metric by at least the configured margin, or above their
    limit. If there are none, but a worker is below the average by more than the margin, return the worker with the
    highest value.
    """
    loads = [load for load in view.loads.values() if metric in load.values]
    average = view.averages[metric]
    percent = view.settings.fleet.threshold_percent
    # A fixed band is `percent` points wide, half of it above the average. Otherwise `percent` is of the average.
    margin = percent / 2 if view.settings.fleet.is_band_fixed else average * percent / 100
    over = [
        load for load in loads if load.values[metric] >= average + margin or load.values[metric] > load.limit(metric)
    ]
    if over:
        return over
    if any(load.values[metric] < average - margin for load in loads):
        return [max(loads, key=lambda load: (load.values[metric], load.worker))]
    return []


def _weight_to_take(view: View, load: Load, metric: str) -> float | None:
    """Return how much weight to take from the worker by this metric, in addition to the handoffs under way; None if
    nothing is to be taken. 0 stands for one lease of a worker whose leases weigh nothing.
    """
    value, average = load.values[metric], view.averages[metric]
    if value <= average:
        return None
    if load.weight == 0:
        return None if load.leaving else 0.0
    excess = load.weight * (value - average) / value  # the weight that stands for the load above the average
    take = excess * view.settings.fleet.dampening_percent / 100 - load.leaving_weight
    return take if take > 0 else None


def _relieve(view: View, queue: Queue, load: Load, take: float, order: Order) -> Steps[None]:
    """Move leases of a worker that together weigh less than `take`. If every lease weighs at least `take`, move the
    lightest one, provided that the settings allow that (`overshoot`).

    If no worker has room for a lease, lighter leases are still tried. If a worker has a high load although its leases
    weigh nothing, one of them is moved, because something must keep that worker busy.
    """
    remaining = take
    too_heavy = math.inf  # the lightest weight for which no worker had room
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
    """Move a lease from the worker `source` to the best worker that has room for it. Return False if there is none."""
    recipient = _recipient(view, queue, source, view.weight(lease))
    if recipient is None:
        return False
    view.move(lease, recipient, Why.BALANCE)
    queue.push(recipient)
    return True


def _recipient(view: View, queue: Queue, source: Load, weight: float) -> Load | None:
    """Take from the queue the best worker that stays at or below all averages with `weight` added, and return it; None
    if none of the workers tried does. The others stay in the queue.
    """
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
    """Return whether balancing may give the worker leases of this weight: it is not drained, and with the weight added
    it stays at or below all averages and limits.
    """
    if load.is_drained:
        return False
    for metric, value in load.values.items():
        projected = value + weight * view.per_weight[metric]
        if projected > min(view.averages[metric], load.limit(metric)):
            return False
    return True


# --- balance by count ------------------------------------------------------------------------------------------------


def _even_out(view: View, loads: Collection[Load], order: Order) -> Steps[None]:
    """Move leases from the worker with the most to the worker with the fewest, until their numbers of leases differ by
    at most one.

    A worker's number is how many leases it will have after all handoffs that are under way. In the heap `fullest` the
    numbers are negative, so that the largest comes first.
    """
    offered = {load.worker: iter(order(load.movable)) for load in loads}
    fullest = [(load.leaving - load.count, load.worker) for load in loads]
    receiving = [load for load in loads if not (view.is_full(load) or load.is_drained)]
    emptiest = [(load.count - load.leaving, load.worker) for load in receiving]
    heapify(fullest)
    heapify(emptiest)
    moves = 0
    while fullest and emptiest and -fullest[0][0] - emptiest[0][0] > 1:
        negative_count, giver = fullest[0]
        lease = next((lease for lease in offered[giver] if lease.key not in view.moves), None)
        if lease is None:  # none of its leases may move
            heappop(fullest)
            continue
        count, receiver = emptiest[0]
        load = view.loads[receiver]
        view.move(lease, load, Why.BALANCE)
        heapreplace(fullest, (negative_count + 1, giver))
        heappop(emptiest)
        if not view.is_full(load):
            heappush(emptiest, (count + 1, receiver))
        moves += 1
        if moves % STEP_MOVES == 0:
            yield
