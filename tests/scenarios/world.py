"""The world of one story: whole workers over the pure Kinesis model and the in-memory DynamoDB, in virtual time.

Beside what a story prints, three things are checked at the end of every one: each child got its shard's records in
order; no checkpoint was accepted before the records up to it were delivered; none went backwards.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from bisect import bisect_right
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, cast

from mld.core.errors import MldError
from mld.core.positions import TRIM_HORIZON, InitialPosition
from mld.daemon.assembly import assemble
from mld.daemon.stream_ports import StreamPorts
from mld.daemon.worker import Worker
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.lease import Lease
from mld.leases.rows import CorruptRowError, EntityType, parse_row
from mld.local.kinesis import Kinesis, PutEntry
from mld.local.records import PutResult
from tests.scenarios.children import Life, Troupe, TroupeHost
from tests.scenarios.naming import readable, short
from tests.scenarios.network import Network
from tests.simulation.world.fleet3x import COORDINATOR, REPORTS
from tests.simulation.world.java2 import JavaWorker
from tests.simulation.world.java3 import JavaWorker3
from tests.simulation.world.loop import _PROCESS, Process
from tests.simulation.world.plan import Rates
from tests.support.fleet import STREAM, TABLE, settings_of
from tests.support.kpl import User, aggregate
from tests.support.sources import one_stream
from tests.twins.dynamo import MemoryDynamo
from tests.twins.streams import VirtualClock

SEED = 1
POLL_S = 0.05
STOP_MAX_S = 120.0
LOAD_OF_A_LEASE = 10.0
LEGACY = ", in the legacy table"
JAVA_BAKE_S = 600.0
"""The last wait of the move to a single table; Java takes no less than an hour."""

Due = tuple[tuple[int, int], float, int]
"""A record's place; when it and all before it in its shard were delivered; and the number of the last of these."""

load_settings = cache(lambda pairs: settings_of(**dict(pairs)))


class StoryError(Exception):
    """The story asks for something that cannot be done, or expects what is not so."""


@dataclass(slots=True)
class Record:
    """One record put: where it is, and when it was first delivered."""

    shard_id: str
    sequence: int
    sub: int = 0
    wanted: bool = True
    delivered_at_s: float | None = None
    deliveries: int = 0


@dataclass(slots=True)
class Machine:
    """A worker process. `state` is what an operator would say of it."""

    name: str
    worker_id: str
    process: Process
    worker: Worker | JavaWorker
    task: asyncio.Task[bool]
    host: TroupeHost | None
    state: str = "running"

    @property
    def is_up(self) -> bool:
        return self.state in ("running", "paused")


@dataclass(frozen=True, slots=True)
class Line:
    """One log line of a worker."""

    at_s: float
    worker: str
    level: int
    action: str
    shard: str
    text: str


class Journal(logging.Handler):
    """Keeps what the workers log; the process whose code runs tells which worker it is."""

    def __init__(self, clock: VirtualClock, number_of: dict[str, int]) -> None:
        super().__init__(logging.INFO)
        self.lines: list[Line] = []
        self._clock = clock
        self._number_of = number_of

    def emit(self, record: logging.LogRecord) -> None:
        process = _PROCESS.get()
        fields = vars(record)
        shard = short(str(fields.get("shard", "")))
        more = [f"{name} {fields[name]}" for name in ("checkpoint", "parent") if fields.get(name)]
        text = readable(" ".join([record.getMessage(), *more]), self._number_of)
        action = str(fields.get("action", ""))
        name = process.name if process else "-"
        self.lines.append(Line(self._clock.monotonic(), name, record.levelno, action, shard, text))

    def forget(self, lines: list[Line]) -> None:
        shown = set(map(id, lines))
        self.lines = [line for line in self.lines if id(line) not in shown]


class JavaLedger:
    """Notes what the processors of a Java worker get; of their bytes nothing is simulated."""

    def __init__(self, world: StoryWorld, name: str) -> None:
        self._world = world
        self._name = name
        self._lives: dict[int, Life] = {}

    def batch_begins(self, worker: str, shard: str, *, is_ours: bool = True) -> None:
        """Nobody asks."""

    def delivered(self, worker: str, child: int, shard: str, places: list[tuple[int, int]]) -> None:
        lives = self._world.troupe.lives
        if child not in self._lives:
            self._lives[child] = Life(len(lives) + 1, self._name, shard, cast("Any", None))
            lives.append(self._lives[child])
        self._world.delivered(self._lives[child], [f"{at}/{sub}" if sub else str(at) for at, sub in places])


class StoryWorld:
    """Everything a story can touch."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.kinesis = Kinesis()
        self.dynamo = MemoryDynamo(self.clock)
        self.network = Network(self.clock, self.dynamo)
        self.troupe = Troupe(self)
        self.keys: dict[str, str] = {}
        self.keys_of: dict[str, dict[str, str]] = {}
        self.machines: dict[str, Machine] = {}
        self.records: list[Record] = []
        self.number_of: dict[str, int] = {}
        self.journal = Journal(self.clock, self.number_of)
        self.deliveries: list[tuple[Life, list[int]]] = []
        self._started = 0

    # --- workers ------------------------------------------------------------------------------------------------------

    def start(self, name: str) -> Machine:
        self._check_down(name)
        pairs = {**self.keys, **self.keys_of.get(name, {})}
        worker_id = pairs.pop("id", name)
        settings = load_settings(tuple(sorted(pairs.items())))
        self._started += 1
        host = TroupeHost(self.troupe, name)
        streams = self.network.kinesis_door(self.kinesis, settings.stream_name, name)
        dynamo = self.network.dynamo_door(name)
        table = DynamoLeaseTable(dynamo, self.clock, table_name=TABLE)
        rng = Random(SEED * 1000 + self._started)
        worker = assemble(settings, worker_id, one_stream(StreamPorts(streams)), table, dynamo, host, self.clock, rng)
        process = Process(name)
        return self._started_as(name, worker_id, worker, host, process, worker.run(settings.shutdown_grace_s))

    def start_java(
        self,
        name: str,
        version: str,
        *,
        config: str = "3X",
        migrate: bool = False,
        ahead_s: float = 0.0,
        load: float | None = None,
    ) -> Machine:
        """A Java worker of the simulation: 3.5, 3.4 (any from 3.0 on) or 2.x; `load` is that without leases."""
        self._check_down(name)
        more: dict[str, Any] = (
            {}
            if version == "2.x"
            else {
                "tagged": version == "3.5",
                "config": config,
                "migrate": migrate,
                "complete_bake_s": JAVA_BAKE_S,
            }
        )
        self._started += 1
        worker = (JavaWorker3 if more else JavaWorker)(
            name,
            self.network.dynamo_door(name),
            self.network.kinesis_door(self.kinesis, STREAM, name),
            cast("Any", JavaLedger(self, name)),
            VirtualClock(ahead_s),
            Random(SEED * 1000 + self._started),
            table=TABLE,
            failover_s=10.0,
            steals_max=1,
            initial=InitialPosition(TRIM_HORIZON),
            idle_s=1.0,
            child_numbers=itertools.count(1),
            rates=Rates(),
            **cast("Any", more),
        )

        if isinstance(worker, JavaWorker3) and load is not None:
            worker.load = lambda: load + LOAD_OF_A_LEASE * len(worker.held())

        async def run() -> bool:
            return await worker.run() == 0

        return self._started_as(name, name, worker, None, Process(name), run())

    def _check_down(self, name: str) -> None:
        old = self.machines.get(name)
        if old is not None and old.is_up:
            raise StoryError(f"{name} is {old.state}")

    def _started_as(
        self,
        name: str,
        worker_id: str,
        worker: Worker | JavaWorker,
        host: TroupeHost | None,
        process: Process,
        work: Coroutine[Any, Any, bool],
    ) -> Machine:
        task = process.spawn(work)
        machine = Machine(name, worker_id, process, worker, task, host)
        task.add_done_callback(lambda ended: self._on_ended(machine, ended))
        self.machines[name] = machine
        return machine

    def _on_ended(self, machine: Machine, task: asyncio.Task[bool]) -> None:
        if task.cancelled() or not machine.is_up:
            return
        error = task.exception()
        if error is not None and not isinstance(error, MldError):
            raise error
        why = str(error) if error else getattr(machine.worker, "failure", None)
        if why is not None:
            machine.state = "failed: " + readable(why, self.number_of)
        else:
            machine.state = "stopped gracefully" if task.result() else "stopped by force"

    async def stop(self, name: str) -> float:
        machine, began = self.machine(name), self.clock.monotonic()
        machine.worker.request_stop()
        await asyncio.wait({machine.task}, timeout=STOP_MAX_S)
        if not machine.task.done():
            raise StoryError(f"{name} does not stop within {STOP_MAX_S:g} s")
        await asyncio.sleep(0)
        return self.clock.monotonic() - began

    def crash(self, name: str) -> None:
        """As kill -9: no last words; requests under way still arrive, children see the end of their input."""
        machine = self.machine(name)
        machine.process.kill()
        if machine.host is not None:
            machine.host.orphan()
        machine.state = "crashed"

    def pause(self, name: str) -> None:
        machine = self.machine(name)
        machine.process.stop()
        machine.state = "paused"

    def resume(self, name: str) -> None:
        machine = self.machine(name)
        machine.state = "running"
        machine.process.resume()

    def machine(self, name: str) -> Machine:
        machine = self.machines.get(name)
        if machine is None or not machine.is_up:
            raise StoryError(f"{name} is not running")
        return machine

    def holders(self) -> dict[str, list[str]]:
        """For each lease row the running workers that believe they hold it."""
        found: dict[str, list[str]] = {key: [] for key in self.row_keys()}
        for machine in self.machines.values():
            if machine.state == "running":
                for key in found.keys() & machine.worker.held():
                    found[key].append(machine.name)
        return found

    # --- the stream ---------------------------------------------------------------------------------------------------

    def put(self, shard_id: str | None = None) -> int:
        """One record, to the open shards in turn or to one of them; its number."""
        number = len(self.records)
        placed = self._place(shard_id, lambda hash_key: (f"record {number}".encode(), f"key {number}"))
        self.records.append(Record(placed.shard_id, int(placed.sequence)))
        self.number_of[placed.sequence] = number
        return number

    def put_aggregate(self, count: int, shard_id: str | None = None) -> int:
        """So many user records in one KPL aggregate; the number of the first."""
        first = len(self.records)

        def payload(hash_key: int) -> tuple[bytes, str]:
            return aggregate([User("key", f"record {first + n}".encode(), str(hash_key)) for n in range(count)]), "a"

        placed = self._place(shard_id, payload)
        for sub in range(count):
            self.records.append(Record(placed.shard_id, int(placed.sequence), sub))
            self.number_of[f"{placed.sequence}/{sub}" if sub else placed.sequence] = first + sub
        return first

    def _place(self, shard_id: str | None, payload: Callable[[int], tuple[bytes, str]]) -> PutResult:
        number = len(self.records)
        open_shards = self.kinesis.stream(STREAM, self.clock.wall()).open_shards
        if shard_id is not None:
            chosen = [shard for shard in open_shards if shard.shard_id == shard_id]
            if not chosen:
                raise StoryError(f"{short(shard_id)} is not open")
        else:
            chosen = [open_shards[number % len(open_shards)]]
        hash_key = chosen[0].hash_range.start
        return self.kinesis.put_record(STREAM, PutEntry.of(*payload(hash_key), hash_key), now=self.clock.wall())

    def delivered(self, life: Life, places: list[str]) -> None:
        numbers = [self.number_of[place] for place in places]
        for number in numbers:
            record = self.records[number]
            record.deliveries += 1
            if record.delivered_at_s is None:
                record.delivered_at_s = self.clock.monotonic()
        self.deliveries.append((life, numbers))

    # --- the table ----------------------------------------------------------------------------------------------------

    def row_keys(self) -> list[str]:
        """The keys of the lease rows, in order."""
        table = self.dynamo._tables.get(TABLE)
        return sorted(key for key, row in table.items.items() if "leaseCounter" in row) if table else []

    def rows(self) -> dict[str, Lease | None]:
        """Every lease row by key, in order; None for one that cannot be read."""
        found: dict[str, Lease | None] = {}
        for key in self.row_keys():
            try:
                found[key] = parse_row(self.dynamo._tables[TABLE].items[key])
            except CorruptRowError:
                found[key] = None
        return found

    def fleet_row(self, key: str) -> Any:
        """A row that is no lease, of the lease table or else of the legacy one, as it would stand there; or empty."""
        for table in (TABLE, COORDINATOR):
            if self.dynamo.has_table(table) and (row := self.dynamo.row(table, key)):
                return row
        return {}

    def reporting(self) -> list[str]:
        """The workers with a report, in order; behind each of the legacy table it says so."""
        tables = {name: table.items for name, table in self.dynamo._tables.items()}
        kind = {"S": EntityType.WORKER_METRIC_STATS.value}
        found = [key for key, row in tables.get(TABLE, {}).items() if row.get("entityType") == kind]
        return sorted(
            [f"{key} reports" for key in found] + [f"{key} reports{LEGACY}" for key in tables.get(REPORTS, {})]
        )

    # --- time ---------------------------------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], bool], within_s: float) -> float:
        began = self.clock.monotonic()
        while not condition():
            if self.clock.monotonic() - began > within_s:
                raise StoryError(f"not within {within_s:g} s")
            await asyncio.sleep(POLL_S)
        return self.clock.monotonic() - began

    # --- checks that hold in every story ------------------------------------------------------------------------------

    def check(self) -> None:
        self._check_order()
        due = self._undelivered_until()
        for write in self.dynamo.history:
            if write.sender and write.before and write.after and write.operation == "UpdateItem":
                self._check_checkpoint(write.before, write.after, write.at, due)

    def _undelivered_until(self) -> dict[str, list[Due]]:
        """The records of each shard that are wanted, in order; with each, when it and all before it were delivered."""
        found: dict[str, list[Due]] = {}
        for number, record in sorted(enumerate(self.records), key=lambda one: (one[1].sequence, one[1].sub)):
            if not record.wanted:
                continue
            due = found.setdefault(record.shard_id, [])
            at_s = math.inf if record.delivered_at_s is None else record.delivered_at_s
            latest = max(due[-1][1:] if due else (-math.inf, number), (at_s, number), key=lambda one: one[0])
            due.append(((record.sequence, record.sub), *latest))
        return found

    def _check_order(self) -> None:
        last: dict[int, int] = {}
        for life, numbers in self.deliveries:
            for number in numbers:
                if number <= last.get(life.number, -1):
                    raise StoryError(f"child {life.number} got #{number} after #{last[life.number]}")
                last[life.number] = number

    def _check_checkpoint(self, before: Any, after: Any, at_s: float, due: dict[str, list[Due]]) -> None:
        try:
            old, new = parse_row(before), parse_row(after)
        except CorruptRowError:
            return
        if old is None or new is None or old.checkpoint == new.checkpoint:
            return
        if new.checkpoint < old.checkpoint:
            raise StoryError(f"the checkpoint of {short(new.key)} went back at {at_s:.1f}")
        records = due.get(new.key, [])
        bound, sub = new.checkpoint.number, new.checkpoint.sub
        covered = len(records) if bound is None else bisect_right(records, (bound, sub), key=lambda one: one[0])
        if covered and records[covered - 1][1] > at_s:
            number = records[covered - 1][2]
            raise StoryError(f"{short(new.key)} was checkpointed at {at_s:.1f} before #{number} was delivered")
