"""A fleet without a data path: real `LeaseTaker`s and `LeaseKeeper`s over one `LeanLeaseTable`, in virtual time.

A worker starts as the daemon does: scan, resume, take, then renew and take for ever. It has no consumers; what it holds
it renews. `Fleet` starts and kills workers and measures how long the leases take to find their places.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import Any

from mld.core.clock import LoopClock
from mld.core.periods import EPSILON_S
from mld.core.positions import TRIM_HORIZON
from mld.leases.keeper import LeaseKeeper
from mld.leases.lease import Lease
from mld.leases.taker import LeaseTaker
from tests.simulation.scale_table import Bill, LeanLeaseTable
from tests.simulation.world.loop import Process
from tests.support.settings import taking

LEASE_DURATION_S = 10.0
TAKER_PERIOD_S = 2 * (LEASE_DURATION_S + EPSILON_S)
RULES = taking(duration_s=LEASE_DURATION_S)
START_SPREAD_S = 2.0
"""The workers of one step start within this time: a deployment that starts all its containers at once."""
LOOK_S = 0.5
"""The state of the table is looked at this often: the resolution of the measured times."""
REST_PERIODS = 4
"""Without a move for so many taker periods the fleet is at rest: every worker has decided several times."""
GIVE_UP_S = 3600.0


@dataclass(frozen=True, slots=True)
class Settling:
    """How the leases found their places after a step. Times are virtual seconds from the step; None is never."""

    workers: int
    shards: int
    held_s: float | None
    """Every lease belongs to a living worker."""
    balanced_s: float | None
    """And no worker has two more than another."""
    rest_s: float | None
    """And the last move was made."""
    moves: int
    bill: Bill
    """From the step until rest."""
    peak_writes: int
    """Most writes within one second."""
    loads: Counter[int]
    """How many workers (values) hold how many leases (keys) at rest."""
    real_s: float


class FleetWorker:
    """One simulated daemon, as far as leases go."""

    def __init__(self, table: LeanLeaseTable, worker_id: str, rng: Random, rules: dict[str, Any]) -> None:
        clock, tokens = LoopClock(), count()
        self.worker_id = worker_id
        self.process = Process(worker_id)
        self.keeper = LeaseKeeper(
            table,
            clock,
            rng,
            worker_id=worker_id,
            settings=rules["settings"],
            new_token=lambda: f"{worker_id}/{next(tokens)}",
            on_change=lambda: None,
        )
        self._taker = LeaseTaker(table, self.keeper, clock, rng, worker_id=worker_id, **rules)
        self._table = table

    def start(self, delay_s: float) -> asyncio.Task[None]:
        return self.process.spawn(self._live(delay_s))

    async def _live(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.keeper.run())
            scan = await self._table.scan()
            await self.keeper.reacquire(scan.leases)
            await self._taker.take_once(scan)
            await self._taker.run()


class Fleet:
    """The world of one case. Must be made inside a `SimulationLoop`."""

    def __init__(self, shards: int, seed: int) -> None:
        self.rng = Random(f"scale {seed}")
        self.table = LeanLeaseTable(Random(f"scale table {seed}"))
        keys = [f"shardId-{number:012d}" for number in range(shards)]
        self.rng.shuffle(keys)  # DynamoDB scans in the order of its hashes
        self.table.leases = {key: Lease(key, TRIM_HORIZON) for key in keys}
        self.workers: dict[str, FleetWorker] = {}
        self._lives: set[asyncio.Task[None]] = set()

    def start(self, number: int, *, cluster: str = "w", rules: dict[str, Any] = RULES) -> list[str]:
        """Start workers at once; their ids, which are random as those of real daemons are."""
        ids = [f"{cluster}-{self.rng.randbytes(8).hex()}" for _ in range(number)]
        for worker_id in ids:
            worker = FleetWorker(self.table, worker_id, Random(f"{worker_id} {self.rng.random()}"), rules)
            self.workers[worker_id] = worker
            self._lives.add(worker.start(self.rng.uniform(0.0, START_SPREAD_S)))
        return ids

    def kill(self, number: int) -> None:
        """kill -9 of so many workers at the same moment."""
        for worker_id in self.rng.sample(sorted(self.workers), number):
            self.workers.pop(worker_id).process.kill()

    def loads(self, workers: Sequence[str] | None = None) -> dict[str, int]:
        """Leases by living worker, as the table says."""
        loads = dict.fromkeys(self.workers if workers is None else workers, 0)
        for lease in self.table.leases.values():
            if lease.owner in loads:
                loads[lease.owner] += 1
        return loads

    async def settle(self, step: Callable[[], object], give_up_s: float = GIVE_UP_S) -> Settling:
        """Do a step and wait until the fleet is at rest again, or for `give_up_s` virtual seconds."""
        real_from, start, moves, bill = time.perf_counter(), self._now(), self.table.moves, replace(self.table.bill)
        held_s = balanced_s = rest_s = None
        bill_of_last_move, last_move = bill, self.table.moved_at
        self.table.peak_writes = 0
        step()
        while rest_s is None and self._now() - start < give_up_s:
            await asyncio.sleep(LOOK_S)
            self._raise_failures()
            loads = self.loads()
            is_held = sum(loads.values()) == len(self.table.leases)
            is_balanced = is_held and max(loads.values()) - min(loads.values()) <= 1
            held_s = (held_s or self._now() - start) if is_held else None
            balanced_s = (balanced_s or self._now() - start) if is_balanced else None
            if self.table.moved_at != last_move:
                last_move, bill_of_last_move = self.table.moved_at, replace(self.table.bill)
            if is_held and self._now() - max(last_move, start) > REST_PERIODS * TAKER_PERIOD_S:
                rest_s = max(0.0, last_move - start)
        self._check_holdings(exactly=rest_s is not None)
        return Settling(
            workers=len(self.workers),
            shards=len(self.table.leases),
            held_s=held_s,
            balanced_s=balanced_s,
            rest_s=rest_s,
            moves=self.table.moves - moves,
            bill=bill_of_last_move.since(bill),
            peak_writes=self.table.peak_writes,
            loads=Counter(self.loads().values()),
            real_s=time.perf_counter() - real_from,
        )

    def _check_holdings(self, *, exactly: bool) -> None:
        """No lease is held twice; at rest, each is held by whom the table names."""
        holders: dict[str, str] = {}
        for worker_id, worker in self.workers.items():
            for key in worker.keeper.held():
                assert not exactly or key not in holders, f"{key} is held by {holders[key]} and {worker_id}"
                holders[key] = worker_id
        if exactly:
            assert holders == {key: lease.owner for key, lease in self.table.leases.items()}

    def _raise_failures(self) -> None:
        for life in [life for life in self._lives if life.done()]:
            life.result()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
