"""The lease assignment manager of a Java 3.x leader, flaws included (NaN among them). Part of `java3`.

Rules: coordination#report-judgement and the section on assignment, with coordination#what-java-does-differently.
Written from a description of Java alone.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.world.java2_table import END, TROUBLE, Item
from tests.simulation.world.java3_table import Lease3

if TYPE_CHECKING:
    from tests.simulation.world.java3 import JavaWorker3

REPORT_EXPIRES_S = 60.0
SUPPORT_EXPIRES_S = 90.0
STALE_S = 86_400.0
ALPHA = 0.5
DAMPENING, THRESHOLD = 60.0, 10.0
BALANCE_EVERY = 3
HANDOFF_TIMEOUT_S = 30.0
THREADS = 2
FAILURES_MAX = 3
SHARE = "T"


@dataclass(eq=False, slots=True)
class Worker:
    """An active worker: its metrics' values and limits, its leases as the decider sees them."""

    name: str
    values: dict[str, float]
    limits: dict[str, float]
    is_default: bool
    leases: list[Lease3] = field(default_factory=list)
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """A worker-metrics row."""

    worker: str
    lut: float | None
    samples: dict[str, list[float]]
    limits: dict[str, list[float]]
    support: int | None
    support_at: float | None
    legacy: bool

    @property
    def is_default(self) -> bool:
        return (not self.samples and not self.limits) or "THROUGHPUT" in self.samples

    @property
    def is_valid(self) -> bool:
        if self.lut is None:
            return False
        if self.is_default:
            return True
        return all(self.limits.get(name) and self.limits[name][0] != 0 for name in self.samples)

    @property
    def is_failing(self) -> bool:
        return not self.is_default and any(values and values[-1] == -1 for values in self.samples.values())


def read_report(row: Item, key: str) -> Report:
    """Raises KeyError, ValueError: a row that Java cannot read."""

    def lists(name: str) -> dict[str, list[float]]:
        return {metric: [float(n["N"]) for n in one["L"]] for metric, one in row.get(name, {"M": {}})["M"].items()}

    return Report(
        worker=row[key]["S"],
        lut=int(row["lut"]["N"]) if "lut" in row else None,
        samples=lists("sts"),
        limits=lists("opr"),
        support=int(row["sup"]["N"]) if "sup" in row else None,
        support_at=int(row["slu"]["N"]) if "slu" in row else None,
        legacy=key == "wid",
    )


def ema(values: Iterable[float]) -> float:
    average: float | None = None
    for value in values:
        if value != -1:
            average = value if average is None else ALPHA * value + (1 - ALPHA) * average
    return average or 0.0


def ratio(a: float, b: float) -> float:
    """As doubles divide in Java."""
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a)
    return a / b


def compare(a: float, b: float) -> int:
    """Double.compare: NaN equals itself and is greater than all else."""
    if math.isnan(a) or math.isnan(b):
        return int(math.isnan(a)) - int(math.isnan(b))
    return (a > b) - (a < b)


class PriorityQueue:
    """java.util.PriorityQueue: equal elements come in the order that its heap happens to give."""

    def __init__(self, compare: Callable[[Worker, Worker], int]) -> None:
        self._compare = compare
        self._heap: list[Worker] = []

    def offer(self, worker: Worker) -> None:
        heap, place = self._heap, len(self._heap)
        heap.append(worker)
        while place and self._compare(worker, heap[(place - 1) // 2]) < 0:
            heap[place] = heap[(place - 1) // 2]
            place = (place - 1) // 2
        heap[place] = worker

    def poll(self) -> Worker | None:
        heap = self._heap
        if not heap:
            return None
        first, last = heap[0], heap.pop()
        if heap:
            place = 0
            while (child := 2 * place + 1) < len(heap):
                if child + 1 < len(heap) and self._compare(heap[child], heap[child + 1]) > 0:
                    child += 1
                if self._compare(last, heap[child]) <= 0:
                    break
                heap[place], place = heap[child], child
            heap[place] = last
        return first


class VarianceDecider:
    """One run's decisions. `moves` maps lease keys to new owners."""

    def __init__(
        self, leases: list[Lease3], reports: list[Report], expired: Callable[[Lease3], bool], rng: Random
    ) -> None:
        self.moves: dict[str, tuple[Lease3, str]] = {}
        self._rng = rng
        self._expired = expired
        self._leases = leases
        known = [lease.kbps for lease in leases if lease.kbps is not None]
        self._mean = sum(known) / len(known) if known else 0.0
        self._target = self._mean * len(leases) / max(1, len(reports))
        self._target_leases = max(1, len(leases) // max(1, len(reports)))
        self.workers = [self._worker(report) for report in reports]
        self._by_name = {worker.name: worker for worker in self.workers}
        metrics = sorted({metric for worker in self.workers for metric in worker.values})
        self._averages = {metric: self._average(metric) for metric in metrics}
        self._queue = PriorityQueue(lambda a, b: compare(self._headroom(b), self._headroom(a)))
        for worker in self.workers:
            self._queue.offer(worker)

    def throughput(self, lease: Lease3) -> float:
        return self._mean if lease.kbps is None else lease.kbps

    def _worker(self, report: Report) -> Worker:
        mine = [lease for lease in self._leases if lease.actual_owner == report.worker]
        total = sum(self.throughput(lease) for lease in mine)
        if report.is_default:
            values, limits = {SHARE: 100 * ratio(total, self._target)}, {SHARE: 100.0}
        else:
            values = {metric: ema(samples) for metric, samples in report.samples.items()}
            limits = {metric: limit[0] for metric, limit in report.limits.items()}
        return Worker(report.worker, values, limits, report.is_default, mine, total)

    def _average(self, metric: str) -> float:
        values = [worker.values[metric] for worker in self.workers if metric in worker.values]
        return sum(values) / len(values)

    def _headroom(self, worker: Worker) -> float:
        rooms = [
            1.0 if value == 0 else ratio(self._averages[metric] - value, value)
            for metric, value in worker.values.items()
        ]
        best = math.nan
        for room in rooms:
            if compare(room, best) < 0:
                best = room
        return best

    def assign_waiting(self, waiting: list[Lease3]) -> None:
        for lease in waiting:
            worker = self._queue.poll()
            if worker is None:
                return
            self._assign(lease, worker)

    def _assign(self, lease: Lease3, worker: Worker) -> None:
        if lease.actual_owner != worker.name or (self._expired(lease) and lease.is_pending):
            for metric in worker.values:
                average = self._averages[metric]
                if self._target > 0:
                    worker.values[metric] += self.throughput(lease) * average / self._target
                else:
                    worker.values[metric] += average / self._target_leases
            source = self._by_name.get(lease.actual_owner or "")
            if source is not None and lease in source.leases:
                source.leases.remove(lease)
                source.total -= self.throughput(lease)
            worker.leases.append(lease)
            worker.total += self.throughput(lease)
            self.moves[lease.key] = (lease, worker.name)
        self._queue.offer(worker)

    def balance(self) -> None:
        best: dict[Worker, float] = {}
        best_total = -math.inf
        for metric in self._averages:
            takes = {worker: self._take(worker, metric) for worker in self._sources(metric)}
            if takes and sum(takes.values()) > best_total:
                best, best_total = takes, sum(takes.values())
        for worker, take in sorted(best.items(), key=lambda pair: -pair[1] if pair[1] == pair[1] else 0.0):
            for lease in self._to_take(worker, take):
                other = self._queue.poll()
                if other is None:
                    return
                if self._overshoots(other, lease):
                    break  # the flaw: it does not come back into the queue
                self._assign(lease, other)

    def _sources(self, metric: str) -> list[Worker]:
        workers = [worker for worker in self.workers if metric in worker.values]
        average = self._averages[metric]
        upper, lower = average * (1 + THRESHOLD / 100), average * (1 - THRESHOLD / 100)
        values = [(worker, worker.values[metric], worker.limits.get(metric, 100.0)) for worker in workers]
        if not any(value > upper or value < lower or value > limit for _, value, limit in values):
            return []
        sources = [worker for worker, value, limit in values if value >= upper or value > limit]
        return sources or [max(workers, key=lambda worker: worker.values[metric])]

    def _take(self, worker: Worker, metric: str) -> float:
        value = worker.values[metric]
        return worker.total * ratio(value - self._averages[metric], value) * DAMPENING / 100

    def _to_take(self, worker: Worker, take: float) -> list[Lease3]:
        if not worker.leases:
            return []
        if worker.total == 0:
            return [worker.leases[0]]
        taken, rest = [], take
        for lease in self._rng.sample(worker.leases, len(worker.leases)):
            if rest - self.throughput(lease) > 0:
                taken.append(lease)
                rest -= self.throughput(lease)
        return taken or [min(worker.leases, key=self.throughput)]

    def _overshoots(self, worker: Worker, lease: Lease3) -> bool:
        for metric, value in worker.values.items():
            average = self._averages[metric]
            more = (
                self.throughput(lease) * average / self._target if self._target > 0 else average / self._target_leases
            )
            if value + more > average or value + more > worker.limits.get(metric, 100.0):
                return True
        return False


class AssignmentManager:
    """Runs on every worker; acts as leader only."""

    def __init__(self, worker: JavaWorker3) -> None:
        self._worker = worker
        self._took_over = False
        self._failures = 0
        self._runs = 0
        self._seen: dict[str, tuple[int, float]] = {}
        self._deadlines: dict[str, tuple[str | None, str | None, float]] = {}

    async def run_once(self) -> None:
        worker = self._worker
        if not await worker.is_leader():
            self._took_over = False
            return
        if not self._took_over:
            self._took_over = True
            self._seen.clear()
            self._deadlines.clear()
            self._failures = self._runs = 0
        try:
            await self._run()
            self._failures = 0
        except (*TROUBLE, KeyError, ValueError):
            self._failures += 1
            if self._failures >= FAILURES_MAX:
                await worker.decider.release()

    async def _twice(self, load: Callable[[], Any]) -> Any:
        try:
            return await load()
        except TROUBLE:
            return await load()

    async def _run(self) -> None:
        worker = self._worker
        leases, others = await self._twice(worker.rows.everything)
        reports = []
        for row in others:
            if row.get("entityType", {}).get("S") == "WORKER_METRIC_STATS":
                try:
                    reports.append(read_report(row, "leaseKey"))
                except (KeyError, ValueError):
                    continue
        legacy = worker.tables.legacy_reports()
        if legacy is not None:  # one bad row fails the run
            reports += [
                read_report(row, "wid") for row in await self._twice(lambda: worker.rows.scan(TableName=legacy))
            ]
        wall = worker.clock.wall()
        reports = [r for r in reports if r.is_valid and r.lut is not None and wall - r.lut <= REPORT_EXPIRES_S]
        worker.tables.summarise(leases, reports, wall)
        active = [report for report in reports if not report.is_failing]
        now = worker.clock.monotonic()
        self._track(leases, now)
        decider = VarianceDecider(leases, active, lambda lease: self._is_expired(lease, now), worker.rng)
        waiting = [lease for lease in leases if self._is_expired(lease, now)]
        waiting.sort(key=lambda lease: self._seen[lease.key][1])
        decider.assign_waiting(waiting)
        if self._runs == 0:
            decider.balance()
        self._runs = (self._runs + 1) % BALANCE_EVERY
        await self._write(decider.moves, {lease.key for lease in waiting})

    def _track(self, leases: list[Lease3], now: float) -> None:
        seen: dict[str, tuple[int, float]] = {}
        deadlines: dict[str, tuple[str | None, str | None, float]] = {}
        for lease in leases:
            before = self._seen.get(lease.key)
            if before is None:
                seen[lease.key] = (lease.counter, -math.inf if lease.actual_owner is None else now)
            else:
                seen[lease.key] = (lease.counter, now if lease.counter > before[0] else before[1])
            if lease.is_pending:
                known = self._deadlines.get(lease.key)
                if known is None or known[:2] != (lease.owner, lease.checkpoint_owner):
                    known = (lease.owner, lease.checkpoint_owner, self._deadline(now))
                deadlines[lease.key] = known
        self._seen, self._deadlines = seen, deadlines

    def _deadline(self, now: float) -> float:
        return now + HANDOFF_TIMEOUT_S + self._worker.failover_s

    def _is_expired(self, lease: Lease3, now: float) -> bool:
        return lease.actual_owner is None or now - self._seen[lease.key][1] > self._worker.failover_s

    async def _write(self, moves: dict[str, tuple[Lease3, str]], marked: set[str]) -> None:
        pool = asyncio.Semaphore(THREADS)
        errors: list[Exception] = []

        async def write(lease: Lease3, to: str) -> None:
            async with pool:
                try:
                    await self._write_one(lease, to, lease.key in marked)
                except TROUBLE as error:
                    errors.append(error)

        await asyncio.gather(*(write(lease, to) for lease, to in moves.values()))
        if errors:
            raise errors[0]

    async def _write_one(self, lease: Lease3, to: str, is_marked: bool) -> None:
        rows, now = self._worker.rows, self._worker.clock.monotonic()
        is_free = is_marked or lease.checkpoint == END or not lease.is_pending
        if not is_free and now <= self._deadlines[lease.key][2]:
            return
        if not is_marked and lease.checkpoint != END and not lease.is_pending:
            if await rows.begin_handoff(lease, to):
                self._deadlines[lease.key] = (to, lease.owner, self._deadline(self._worker.clock.monotonic()))
            return
        counter = await rows.assign(lease, to)
        if counter is not None:
            self._seen[lease.key] = (counter, self._worker.clock.monotonic())
