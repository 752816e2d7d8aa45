"""Large fleets in virtual time, without a data path: how long leases take to find their places, and what that costs.

`python -m tests.simulation.scale` runs every case, each in a process of its own, and prints the table of the page
docs/lab/scale.md; with `--write` it puts it there. `--case NAME` runs one case in this process.

*The leader's side* is the daemon's code: observations, decider, writes. *The workers* are models, as there are a
thousand of them: each reports its load every 30 s, finds what is assigned to it, finishes what is taken from it, and
renews what it holds. Renewals are not written but worked out when a row is read, so an hour of 10,000 leases costs no
more than its moves. `JavaAssigner` is the same leader with Java's decider and Java's rhythm. Lost workers are noticed
as the daemon does it, by those who look at the table (`mld.fleet.assign.takeover`), and by the leader's runs.

*The table* is a dict of `Lease` values: it makes no requests and evaluates no expressions, `lease_rows` carries out the
writes themselves. That it agrees with the real one is proved by `test_scale`, with the contract suite and with random
histories run on both. Every request takes its time, is applied at the end of it, never fails, and is put on the `Bill`
as DynamoDB would charge it. It must never accept a write that DynamoDB would refuse, nor charge less than it would.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import math
import subprocess
import sys
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from mld.core.clock import LoopClock
from mld.core.periods import LOOK_PERIOD_S, WATCHERS, part_count
from mld.core.positions import TRIM_HORIZON
from mld.core.turns import a_few_at_a_time
from mld.fleet.assign.assigner import Assigner
from mld.fleet.assign.assignment import Plan
from mld.fleet.assign.fleet_load import Move, Why
from mld.fleet.assign.takeover import SECOND_CHANCE_S
from mld.fleet.membership import FleetMembership, spread
from mld.fleet.report import reports
from mld.fleet.report.reports import SUPPORT_CODE, WorkerReport
from mld.leases import writes
from mld.leases.lease import Lease
from mld.leases.rows import LEASE_TABLE_KEY, CorruptRowError, parse_row
from mld.leases.table import AnswerT, IndexStatus, LeaseWrite, TableScan
from mld.leases.table_view import TableView
from tests.simulation.world.java3_lam import Report, VarianceDecider, Worker
from tests.simulation.world.java3_table import Lease3
from tests.simulation.world.loop import run_world
from tests.support.settings import rules
from tests.twins.lease_rows import NotWrittenError, carry_out

# --- the table --------------------------------------------------------------------------------------------------------

ROW_BYTES = 400
"""A lease row with hash range, throughput and names of usual length."""
PAGE_BYTES = 2**20
PAGE_ROWS = PAGE_BYTES // ROW_BYTES
READ_UNIT_BYTES = 4096
EVENTUALLY_CONSISTENT = 0.5
WRITE_S_MIN, WRITE_S_MAX = 0.003, 0.009
PAGE_S_MIN, PAGE_S_MAX = 0.03, 0.06
INDEX_ROW_BYTES = 120
"""Key, owner and their names; other attributes are not in the index."""
COUNTED_AS = {"renew": "renewals", "take": "takes"} | dict.fromkeys(
    ("begin_handoff", "assign", "assign_expired"), "assignments"
)


@dataclass(slots=True)
class Bill:
    """Requests and units since the start. Refused conditional writes cost what accepted ones cost."""

    pages: int = 0
    gets: int = 0
    queries: int = 0
    renewals: int = 0
    takes: int = 0
    assignments: int = 0
    other_writes: int = 0
    refused: int = 0
    read_units: float = 0.0
    write_units: float = 0.0

    def since(self, before: Bill) -> Bill:
        return Bill(*(getattr(self, part.name) - getattr(before, part.name) for part in fields(Bill)))


@dataclass(slots=True)
class LeanLeaseTable:
    """The `LeaseTable` port. `moves` counts accepted changes of owner; the last one was at `moved_at`."""

    rng: Random
    leases: dict[str, Lease] = field(default_factory=dict)
    corrupt: dict[str, str] = field(default_factory=dict)
    others: dict[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """Rows that are no leases."""
    bill: Bill = field(default_factory=Bill)
    moves: int = 0
    moved_at: float = 0.0
    index: LeanIndex = field(init=False)

    def __post_init__(self) -> None:
        self.index = LeanIndex(self)

    # --- reads --------------------------------------------------------------------------------------------------------

    async def ensure(self) -> bool:
        return False

    async def scan(self) -> TableScan:
        """Page after page; each shows its rows as they are when it is read."""
        keys = list(self.leases)
        rows = len(keys) + len(self.others)
        found: list[Lease] = []
        for start in range(0, max(1, rows), PAGE_ROWS):
            await asyncio.sleep(self.rng.uniform(PAGE_S_MIN, PAGE_S_MAX))
            size = min(PAGE_ROWS, rows - start) * ROW_BYTES
            self.bill.pages += 1
            self.bill.read_units += EVENTUALLY_CONSISTENT * max(1, math.ceil(size / READ_UNIT_BYTES))
            found += [lease for lease in map(self.row, keys[start : start + PAGE_ROWS]) if lease is not None]
        return TableScan(tuple(found), tuple(self.corrupt.items()), tuple(self.others.values()))

    async def get(self, key: str, *, consistent: bool = True) -> Lease | None:
        await self.travel()
        self.bill.gets += 1
        self.bill.read_units += 1 if consistent else EVENTUALLY_CONSISTENT
        if key in self.corrupt:
            raise CorruptRowError(key, self.corrupt[key])
        return self.row(key)

    async def get_many(self, keys: Sequence[str]) -> dict[str, Lease]:
        await self.travel()
        self.bill.gets += 1
        self.bill.read_units += len(keys)
        return {key: lease for key in keys if (lease := self.row(key)) is not None}

    def row(self, key: str) -> Lease | None:
        """A row as it is now."""
        return self.leases.get(key)

    # --- writes -------------------------------------------------------------------------------------------------------

    async def apply(self, write: LeaseWrite[AnswerT]) -> AnswerT:
        await self.travel()
        self._charge_write(write.verb)
        row = self.row(write.key)
        try:
            if write.key in self.corrupt:
                raise NotWrittenError
            item = carry_out(write, row)
        except NotWrittenError:
            self.bill.refused += 1
            judged = write.refused(row)
            return await self.apply(judged) if isinstance(judged, LeaseWrite) else judged
        lease = parse_row(item) if item else None
        if row is not None and lease is not None and lease.owner != row.owner:
            self.moves += 1
            self.moved_at = asyncio.get_running_loop().time()
        if lease is None:
            del self.leases[write.key]
        else:
            self.put(lease)
        return write.accepted(item)

    # --- helpers ------------------------------------------------------------------------------------------------------

    async def travel(self) -> None:
        """The time of a request."""
        await asyncio.sleep(self.rng.uniform(WRITE_S_MIN, WRITE_S_MAX))

    def _charge_write(self, verb: str) -> None:
        counted = COUNTED_AS.get(verb, "other_writes")
        setattr(self.bill, counted, getattr(self.bill, counted) + 1)
        self.bill.write_units += 1

    def put(self, row: Lease) -> None:
        """Store a row."""
        self.leases[row.key] = row


class LeanIndex:
    """The `LeaseIndex` port."""

    def __init__(self, table: LeanLeaseTable) -> None:
        self._table = table
        self._status = IndexStatus.MISSING

    async def ensure(self) -> IndexStatus:
        self._status = IndexStatus.ACTIVE
        return self._status

    async def status(self) -> IndexStatus:
        return self._status

    async def keys_owned_by(self, worker: str) -> tuple[str, ...]:
        await self._table.travel()
        keys = tuple(key for key, lease in self._table.leases.items() if lease.owner == worker)
        self._table.bill.queries += 1
        units = max(1, math.ceil(len(keys) * INDEX_ROW_BYTES / READ_UNIT_BYTES))
        self._table.bill.read_units += EVENTUALLY_CONSISTENT * units
        return keys


# --- the fleet --------------------------------------------------------------------------------------------------------

LEASE_DURATION_S = 10.0
RENEWAL_S = 3.308
REPORT_S = 30.0
FIRST_REPORT_S_MIN, FIRST_REPORT_S_MAX = 1.0, 2.0
DISCOVERY_S, JAVA_DISCOVERY_S = 1.0, 9.975
FINISHING_S_MIN, FINISHING_S_MAX = 0.2, 1.0
"""A child's last batch and its answer to shutdownRequested."""
PENDING_POLL_S = 0.5
START_SPREAD_S = 2.0
LOOK_S = 1.0
REST_S = 200.0
"""Longer than three balancing runs of Java's, 60 s apart."""
GIVE_UP_S = 1800.0

IDLE_PERCENT, FAIR_PERCENT = 5.0, 45.0
"""Processor load without leases, and what a fair share of the throughput adds on a machine of speed 1."""
SPEEDS = (1.0, 1.0, 1.0, 0.7, 1.4)
SKEW = 0.7
"""Sigma of the leases' lognormal throughput: one in ten has 2.5 times the median or more."""
RING = 10
THRESHOLD = 0.10
"""reBalanceThresholdPercentage."""
METRIC = "C"
WALL_S = 1_700_000_000.0


@dataclass(slots=True)
class FleetWorker:
    worker_id: str
    speed: float
    started_at: float
    died_at: float | None = None
    kbps: float = 0.0
    """Of what it holds."""
    ring: deque[float] = field(default_factory=lambda: deque(maxlen=RING))
    next_report_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Settling:
    """How the leases found their places after a step. Times are virtual seconds from the step; None is never."""

    workers: int
    leases: int
    held_s: float | None
    rest_s: float | None
    moves: int
    bill: Bill
    load_max: float
    """Of the average load over all workers."""
    load_min: float
    within: float
    """Share of the workers whose load is within the threshold of the average."""
    counts: tuple[int, int]


class LazyTable(LeanLeaseTable):
    """Renewals happen when a row is looked at: as many as its holder has sent since the row was written last."""

    fleet: Fleet3x

    def row(self, key: str) -> Lease | None:
        lease = self.leases.get(key)
        since = self.fleet.holding.get(key)
        if lease is None or since is None:
            return lease
        worker = self.fleet.workers[lease.actual_owner or ""]
        until = self.fleet.now() if worker.died_at is None else worker.died_at
        beats = int((until - since) / RENEWAL_S)
        if beats <= 0:
            return lease
        return replace(lease, counter=lease.counter + beats, throughput_kbps=self.fleet.kbps[key])

    def put(self, row: Lease) -> None:
        before = self.leases.get(row.key)
        LeanLeaseTable.put(self, row)
        self.fleet.on_write(before, row)


class Fleet3x:
    """The world of one case. Must be made inside a `SimulationLoop`."""

    def __init__(self, leases: int, seed: int, *, java: bool = False) -> None:
        self.java = java
        self.rng = Random(f"scale 3.x {seed}")
        self.clock = _Clock()
        self.table = LazyTable(Random(f"scale 3.x table {seed}"))
        self.table.fleet = self
        keys = [f"shardId-{number:012d}" for number in range(leases)]
        self.kbps = {key: 50.0 * self.rng.lognormvariate(0.0, SKEW) for key in keys}
        self.rng.shuffle(keys)
        self.table.leases = {key: Lease(key, TRIM_HORIZON) for key in keys}
        self.total_kbps = sum(self.kbps.values())
        self.workers: dict[str, FleetWorker] = {}
        self.holding: dict[str, float] = {}
        """Since when the actual owner of a lease renews it."""
        self.leader: Assigner | None = None
        self._owned: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failures: list[BaseException] = []
        self._parsed: dict[str, tuple[int, WorkerReport]] = {}

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    # --- steps --------------------------------------------------------------------------------------------------------

    def start(self, number: int) -> None:
        """Start workers at once; the first one of all leads for ever."""
        for place in range(number):
            worker_id = f"w-{self.rng.randbytes(8).hex()}"
            delay_s = self.rng.uniform(0.0, START_SPREAD_S) if self.workers or place else 0.0
            first_report_s = self.rng.uniform(FIRST_REPORT_S_MIN, FIRST_REPORT_S_MAX)
            worker = FleetWorker(worker_id, self.rng.choice(SPEEDS), self.now() + delay_s)
            worker.next_report_at = worker.started_at + first_report_s
            self.workers[worker_id] = worker
            if self.leader is None:
                self._lead(worker_id)
                self._do(self._report_forever())

    def kill(self, number: int) -> None:
        """kill -9 of so many workers at the same moment, the leader not among them."""
        living = [worker for worker in sorted(self.living()) if worker != self._leader_id]
        dead = self.rng.sample(living, number)
        for worker_id in dead:
            self.workers[worker_id].died_at = self.now()
        if not self.java:
            parts = part_count(len(self.table.leases))
            for part in range(parts):
                self._do(self._take_over(frozenset(dead), part, parts))

    def living(self) -> dict[str, FleetWorker]:
        return {worker_id: worker for worker_id, worker in self.workers.items() if worker.died_at is None}

    def _lead(self, worker_id: str) -> None:
        self._leader_id = worker_id
        kind = JavaAssigner if self.java else Assigner
        settings = rules(duration_s=LEASE_DURATION_S)
        self.leader = kind(
            self.table,
            TableView(self.table, self.clock),
            worker_id,
            self.clock,
            Random("leader"),
            settings,
            leader=_Leads(),
            membership=FleetMembership(worker_id, settings),
            stored_reports=_NoOthers(),
            on_gave=lambda: None,
            on_assigned=lambda _keys: None,
            due=asyncio.Event(),
        )
        self._do(self.leader.run())

    def _do(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failures.append(error)

    # --- workers ------------------------------------------------------------------------------------------------------

    def on_write(self, before: Lease | None, row: Lease) -> None:
        """A row was written: who holds it, who has to look for it, who has to finish it."""
        old = before.actual_owner if before is not None else None
        new = row.actual_owner
        if old == new:
            if row.key in self.holding:
                self.holding[row.key] = self.now()
            if row.checkpoint_owner is not None:
                self._do(self._finish(row))
            return
        if self.holding.pop(row.key, None) is not None and old is not None:
            self.workers[old].kbps -= self.kbps[row.key]
        if old is not None:
            self._owned[old] -= 1
        if new is not None:
            self._owned[new] += 1
            is_awaited = before is not None and before.checkpoint_owner is not None
            period_s = PENDING_POLL_S if is_awaited else JAVA_DISCOVERY_S if self.java else DISCOVERY_S
            asyncio.get_running_loop().call_later(self.rng.uniform(0.0, period_s), self._discover, row.key, new)

    def _discover(self, key: str, worker_id: str) -> None:
        worker, lease = self.workers[worker_id], self.table.leases[key]
        if worker.died_at is None and lease.actual_owner == worker_id and key not in self.holding:
            self.table.bill.gets += 1
            self.table.bill.read_units += 1
            self.holding[key] = self.now() - RENEWAL_S  # it is renewed at once
            worker.kbps += self.kbps[key]

    async def _finish(self, row: Lease) -> None:
        """The owner learns of a handoff by its renewal, lets its child finish, and completes it."""
        await asyncio.sleep(self.rng.uniform(0.0, RENEWAL_S) + self.rng.uniform(FINISHING_S_MIN, FINISHING_S_MAX))
        owner, next_owner = row.checkpoint_owner or "", row.owner or ""
        now = self.table.leases[row.key]
        if self.workers[owner].died_at is None and (now.owner, now.checkpoint_owner) == (next_owner, owner):
            await self.table.apply(writes.assign(now, next_owner))

    async def _report_forever(self) -> None:
        """All workers' reports, each at its own time to the second."""
        while True:
            await asyncio.sleep(1.0)
            for worker in self.workers.values():
                if worker.died_at is None and worker.next_report_at <= self.now():
                    self._report(worker)

    def _report(self, worker: FleetWorker) -> None:
        worker.next_report_at += REPORT_S
        worker.ring.append(round(self.load(worker), 6))
        report = reports.own_report(worker.worker_id, {METRIC: tuple(worker.ring)}, self.clock.wall(), "scale")
        attributes = reports.attributes(report)
        self.table.others[worker.worker_id] = {LEASE_TABLE_KEY: {"S": worker.worker_id}, **attributes}
        self._parsed[worker.worker_id] = (int(self.now()), report)
        self.table.bill.other_writes += 1
        self.table.bill.write_units += 1

    def load(self, worker: FleetWorker) -> float:
        """Percent of its processors, with what it holds now."""
        fair_kbps = self.total_kbps / max(1, len(self.living()))
        return min(100.0, IDLE_PERCENT + FAIR_PERCENT * worker.kbps / fair_kbps / worker.speed)

    # --- taking over --------------------------------------------------------------------------------------------------

    async def _take_over(self, dead: frozenset[str], part: int, parts: int) -> None:
        """What the watchers of one part do about dead workers' leases (`fleet.assign.failover_watcher`)."""
        watchers = self.rng.sample(sorted(self.living()), min(WATCHERS, len(self.living())))
        in_part = [key for key in self.table.leases if zlib.crc32(key.encode()) % parts == part]
        theirs = [row for key in in_part if (row := self.table.row(key)) and row.actual_owner in dead]
        held = Counter(lease.actual_owner for lease in self.table.leases.values())
        takers = spread(theirs, {watcher: held[watcher] for watcher in watchers})

        async def take(row: Lease) -> None:
            await self.table.apply(writes.assign_expired(row, takers[row.key]))

        last_renewal_s = self.rng.uniform(-RENEWAL_S, 0.0)
        seen_s = self.rng.uniform(0.0, LOOK_PERIOD_S)
        await asyncio.sleep(LEASE_DURATION_S + last_renewal_s + seen_s + SECOND_CHANCE_S)
        await a_few_at_a_time(take, theirs)
        for worker in dead & self.table.others.keys():
            del self.table.others[worker]
            self._parsed.pop(worker, None)
            self.table.bill.other_writes += 1
            self.table.bill.write_units += 1

    # --- measuring ----------------------------------------------------------------------------------------------------

    async def settle(self, step: Callable[[], object], give_up_s: float = GIVE_UP_S) -> Settling:
        """Do a step and wait until the fleet is at rest again, or for `give_up_s` virtual seconds."""
        start, moves, bill = self.now(), self.table.moves, replace(self.table.bill)
        bill_of_last_move, last_move = bill, self.table.moved_at
        held_s = rest_s = None
        step()
        while rest_s is None and self.now() - start < give_up_s:
            await asyncio.sleep(LOOK_S)
            if self._failures:
                raise self._failures[0]
            is_held = self._is_held()
            held_s = (held_s or self.now() - start) if is_held else held_s
            if self.table.moved_at != last_move:
                last_move, bill_of_last_move = self.table.moved_at, replace(self.table.bill)
            if is_held and self.now() - max(last_move, start) > REST_S:
                rest_s = max(0.0, last_move - start)
        loads = [self.load(worker) for worker in self.living().values()]
        mean = sum(loads) / len(loads)
        counts = [self._owned[worker] for worker in self.living()]
        return Settling(
            workers=len(loads),
            leases=len(self.table.leases),
            held_s=held_s,
            rest_s=rest_s,
            moves=self.table.moves - moves,
            bill=bill_of_last_move.since(bill),
            load_max=max(loads) / mean,
            load_min=min(loads) / mean,
            within=sum(abs(load / mean - 1) <= THRESHOLD for load in loads) / len(loads),
            counts=(min(counts), max(counts)),
        )

    def _is_held(self) -> bool:
        """Every lease is renewed by a living worker."""
        if len(self.holding) < len(self.table.leases):
            return False
        dead = {worker_id for worker_id, worker in self.workers.items() if worker.died_at is not None}
        return not any(self._owned[worker_id] for worker_id in dead)


class JavaAssigner(Assigner):
    """The same leader with Java's decider, flaws included, and without what Java has not: early runs, a first guess."""

    def wake(self) -> None:
        return None

    async def _decide(
        self, leases: Sequence[Lease], active: Iterable[WorkerReport], now: float, *, balance: bool
    ) -> Plan:
        known = list(active)
        if not known:
            return Plan()
        due = self._leadership is not None and self._leadership.runs % self.settings.fleet.balance_every == 0
        by_key = {lease.key: lease for lease in leases}
        expired = {lease.key for lease in leases if self._observations.is_expired(lease, now)}
        rows = [_java_lease(lease) for lease in leases]
        decider = _GroupedDecider(rows, [_java_report(report) for report in known], expired, self.rng)
        waiting = [row for row in rows if row.key in expired]
        waiting.sort(key=lambda row: self._observations.moved_at(row.key))
        decider.assign_waiting(waiting)
        if due:
            decider.balance()
        moves = []
        for key, (_, to) in decider.moves.items():
            lease = by_key[key]
            if key in expired:
                why = Why.FREE if lease.actual_owner is None else Why.EXPIRED
                moves.append(Move(lease, to, False, why))
            elif lease.checkpoint_owner is None:
                moves.append(Move(lease, to, True, Why.BALANCE))
            elif not (lease.is_complete or self._observations.is_blocked(lease, now)):
                moves.append(Move(lease, to, False, Why.STUCK))
        return Plan(tuple(moves), leases=len(leases), workers=len(known), waiting=len(waiting))


class _GroupedDecider(VarianceDecider):
    """Finds a worker's leases without walking through all of them for each."""

    def __init__(self, leases: list[Lease3], found: list[Report], expired: set[str], rng: Random) -> None:
        self._grouped: dict[str, list[Lease3]] = {}
        for lease in leases:
            self._grouped.setdefault(lease.actual_owner or "", []).append(lease)
        super().__init__(leases, found, lambda lease: lease.key in expired, rng)

    def _worker(self, report: Report) -> Worker:
        mine = self._grouped.get(report.worker, [])
        everything, self._leases = self._leases, mine
        try:
            return super()._worker(report)
        finally:
            self._leases = everything


def _java_lease(lease: Lease) -> Lease3:
    made: Lease3 = object.__new__(Lease3)
    made.key, made.counter, made.owner = lease.key, lease.counter, lease.owner
    made.checkpoint_owner, made.kbps = lease.checkpoint_owner, lease.throughput_kbps
    return made


def _java_report(report: WorkerReport) -> Report:
    return Report(
        worker=report.worker,
        lut=report.updated_at_s,
        samples={metric: list(values) for metric, values in report.samples.items()},
        limits={metric: [float(value) for value in values] for metric, values in report.ranges.items()},
        support=SUPPORT_CODE,
        support_at=report.updated_at_s,
        legacy=False,
    )


class _Leads:
    """The leader of this world leads for ever."""

    leads = True

    async def is_leader(self) -> bool:
        return True

    async def step_down(self, hold_off_s: float) -> None:
        raise AssertionError(f"the leader steps down for {hold_off_s} s")

    async def close(self) -> None:
        return None


class _NoOthers:
    """Nothing but the table and its leader is in this world: no legacy reports, no failover watcher."""

    async def legacy(self) -> Sequence[WorkerReport]:
        return ()

    async def delete_stale(self, stale: Iterable[WorkerReport]) -> None:
        return None


class _Clock(LoopClock):
    """Wall time follows the loop."""

    def wall(self) -> float:
        return WALL_S + asyncio.get_running_loop().time()


# --- the cases --------------------------------------------------------------------------------------------------------

SEED = 1
CASE_REAL_S_MAX = 3600.0
PAGE = Path("docs/lab/scale.md")
HEAD = (
    "| Decider | Workers | Leases | Step | All renewed after s | At rest after s | Moves | Leases per worker "
    "| Lowest load | Highest load | Workers within 10 % | Read units | Write units |"
)
BEGIN, END = "<!-- measured 3.x: begin -->", "<!-- measured 3.x: end -->"
CASES = {
    "100x1000": (100, 1000, False),
    "100x1000-java": (100, 1000, True),
    "1000x10000": (1000, 10_000, False),
    "1000x10000-java": (1000, 10_000, True),
}
"""By name: workers, leases, whether Java's decider gives them."""
Print: TypeAlias = Callable[[str], None]


async def given(say: Print, workers: int, leases: int, java: bool) -> None:
    """A cold start, then 10 % more workers, then a third of them lost at the same moment."""
    fleet = Fleet3x(leases, SEED, java=java)
    for name, step in (
        ("cold start", lambda: fleet.start(workers)),
        ("10 % more workers", lambda: fleet.start(workers // 10)),
        ("a third lost at once", lambda: fleet.kill(len(fleet.living()) // 3)),
    ):
        say(_row("Java's" if java else "mld's", name, await fleet.settle(step)))


def _row(decider: str, step: str, seen: Settling) -> str:
    cells = [
        decider,
        f"{seen.workers:,}",
        f"{seen.leases:,}",
        step,
        *map(_seconds, (seen.held_s, seen.rest_s)),
        f"{seen.moves:,}",
        f"{seen.counts[0]} to {seen.counts[1]}",
        f"{seen.load_min:.2f}",
        f"{seen.load_max:.2f}",
        f"{seen.within:.0%}",
        *(f"{value:,.0f}" for value in (seen.bill.read_units, seen.bill.write_units)),
    ]
    return f"| {' | '.join(cells)} |"


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:,.0f}"


# --- running ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def lean() -> Iterator[None]:
    """No log, no garbage collection, and not a word about the tasks of killed workers."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    logging.disable(logging.CRITICAL)
    gc.disable()
    try:
        yield
        gc.collect()
    finally:
        gc.enable()
        logging.disable(logging.NOTSET)
        sys.unraisablehook = hook


def run_case(name: str, say: Print) -> None:
    """Run one case in this process and say its rows."""
    with lean():
        run_world(given(say, *CASES[name]))


def run_all() -> str:
    """Run every case, one after another, each in a fresh process; the table."""
    table = f"{HEAD}\n|{'---|' * (HEAD.count('|') - 1)}\n"
    for name in CASES:
        print(f"running {name}", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", __spec__.name, "--case", name]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=CASE_REAL_S_MAX)
        print(done.stdout, end="", file=sys.stderr, flush=True)
        table += done.stdout
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES, help="run this case only, in this process")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE}")
    options = parser.parse_args()
    if options.case:
        run_case(options.case, partial(print, flush=True))
        return
    table = run_all()
    print(table)
    if options.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
