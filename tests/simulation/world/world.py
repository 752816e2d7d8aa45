"""One run: builds the world of a plan, lets it live, troubles it, calms it, and asks the checkers."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from mld.core.clock import Clock
from mld.core.errors import MldError
from mld.core.positions import AT_TIMESTAMP, LATEST, TRIM_HORIZON, InitialPosition
from mld.daemon.assembly import assemble
from mld.daemon.group_rules import FENCE_S, restart_pause_s
from mld.daemon.stream_ports import SourcePorts, StreamPorts
from mld.daemon.worker import Worker
from mld.leases.dynamodb import DynamoLeaseTable
from mld.local.kinesis import Kinesis, KinesisError, PutEntry, StateDelays
from mld.metrics.registry import Metrics
from mld.operating.plan import ActRefusedError
from mld.properties.settings import Settings
from tests.simulation.checkers import OPERATOR, SHARD_END, JudgedMoves, Ledger, Violation
from tests.simulation.fleet_checkers import FleetLedger
from tests.simulation.liveness import Liveness
from tests.simulation.lives import Lives
from tests.simulation.operators import Operators
from tests.simulation.steadiness import Steadiness
from tests.simulation.world.children import DrawnProcessor, SimulatedHost
from tests.simulation.world.fanout import FanOutDoor, Traffic, deregister
from tests.simulation.world.fleet3x import (
    DrawnLoad,
    create_legacy_tables,
    delete_index,
    forbid_index,
    holds_lock,
    is_lease,
    leader_of,
    report_of_another,
)
from tests.simulation.world.loop import Process, in_world
from tests.simulation.world.migrations import BY_TABLE, check_versions, redeploy_as, to_single_table, tool
from tests.simulation.world.network import CALM, DynamoDoor, KinesisDoor, SimulatedDynamo
from tests.simulation.world.parsing import parsed_once
from tests.simulation.world.plan import Action, Kind, Plan, Rates, WorkerSpec
from tests.simulation.world.producer import KEYS, Producer, keys_for_all
from tests.simulation.world.sources import Sources, StreamDoors, settings_of_streams
from tests.simulation.world.surprises import MARK, Surprises
from tests.support.fleet import STREAM, TABLE, settings_of
from tests.support.sources import one_stream

EPOCH_S = 1_700_000_000.0
SUPERVISOR_DELAY_S = 5.0  # systemd's RestartSec
GRACE_S = 25.0
RESTART_PAUSE_MAX_S = 10.0  # of children; the daemon's 5 minutes are longer than what is left of most plans
KEY_SPACE = 2**128
WATCH_S = 1.0
PRICE_TURNS = 5
CALLS_PER_LEASE_S = 4.0
CALLS_PER_WORKER_S = 20.0

NUMBERS = ("0", "1", "9" * 56, str((2 << 184) + 1))  # the last one might be of an older stream
ODD = (*(("checkpoint", number) for number in NUMBERS), ("startingHashKey", ""))
"""What a person may write into a row: attribute and value; the hash keys become the upper half of them."""
ODD_SHARDS_MIN = 4
OPERATOR_LOOKS_S = 5.0
LEADER_KINDS = (Kind.LEADER_CRASH, Kind.LEADER_PAUSE, Kind.LEADER_CUT)

Trace = Callable[[str], None]


class WorkerClock:
    """The clock of one machine: runs at its own rate, and its wall time may jump."""

    def __init__(self, drift: float) -> None:
        self._rate = 1.0 + drift
        self.wall_offset_s = 0.0
        self._time = asyncio.get_running_loop().time

    def monotonic(self) -> float:
        return self._time() * self._rate

    def wall(self) -> float:
        return EPOCH_S + self._time() * self._rate + self.wall_offset_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._rate)


class WorldClock:
    """The world's own, exact time."""

    def __init__(self) -> None:
        self.monotonic = asyncio.get_running_loop().time

    def wall(self) -> float:
        return EPOCH_S + self.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Machine:
    """One worker slot: the process that runs in it now, its doors, and its supervisor."""

    def __init__(self, world: World, number: int, spec: WorkerSpec) -> None:
        self.world = world
        self.number = number
        self.spec = spec
        self.worker_id = f"w{number}"
        self.is_grouped = spec.kind == "mld" and number < world.plan.group
        self.clock = world.machines[0].clock if self.is_grouped and number else WorkerClock(spec.drift)
        self.wanted = True
        self.incarnation = 0
        self.process: Process | None = None
        self.worker: Any = None
        self.task: asyncio.Task[Any] | None = None
        self.host: SimulatedHost | None = None
        self.processor: DrawnProcessor | None = None
        self.dynamo: DynamoDoor | None = None
        self.kinesis: KinesisDoor | None = None
        self.fan_out: FanOutDoor | None = None
        """The same, where records are read by subscriptions."""
        self.rates = CALM
        self.paused = False
        self.pauses = 0
        """How often it was stopped (SIGSTOP) so far."""
        self.load: DrawnLoad | None = None
        self.config = "" if world.plan.fleet is None else world.plan.fleet.config
        """clientVersionConfig, without its prefix."""
        self.migrates = False
        """Whether everything is to go into one table."""
        self.next_spec: WorkerSpec | None = None
        self.next_config = self.config

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        world, plan = self.world, self.world.plan
        self.spec, self.config = self.next_spec or self.spec, self.next_config
        self.incarnation += 1
        name = f"{self.worker_id}#{self.incarnation}"
        rng = world.rng(f"machine {self.number} {self.incarnation}")
        self.process = Process(name)
        self.dynamo = DynamoDoor(world.dynamo, name, world.rng(f"dynamo {name}"), self.spec.latency_s, self.number)
        self.dynamo.on_answer = partial(world.write_answered, name)
        self.dynamo.on_refusal = partial(world.ledger.write_refused, name)
        kinesis_rng = world.rng(f"kinesis {name}")
        # The service answers by its own clock, whatever this machine's says.
        self.kinesis = self.fan_out = None
        if world.traffic is not None:
            self.kinesis = self.fan_out = FanOutDoor(
                world.kinesis, STREAM, world.clock, kinesis_rng, self.spec.latency_s, world.traffic
            )
        else:
            kinds = KinesisDoor if world.sources is None else StreamDoors
            self.kinesis = kinds(world.kinesis, STREAM, world.clock, kinesis_rng, self.spec.latency_s)
            self.kinesis.on_tip = world.ledger.read_from_tip
        self.set_rates(self.rates)
        if self.spec.kind != "mld":
            self._start_java(rng)
        else:
            self._start_ours(plan, rng)
        world.trace(f"{name} starts ({self.spec.kind})")

    def _start_ours(self, plan: Plan, rng: Random) -> None:
        assert self.process and self.dynamo and self.kinesis
        name = self.process.name
        self.world.ledger.ours.add(name)
        self.processor = DrawnProcessor(
            self.worker_id, name, self.world.ledger, self.world.clock, self.world.rng(f"children {name}")
        )
        self.processor.rates = self.rates
        self.host = SimulatedHost(self.processor, self.world.rng(f"host {self.process.name}"))
        self.dynamo.surprises = self.kinesis.surprises = Surprises(self.world.rng(f"surprises {name}"))
        self.host.surprises = self.dynamo.surprises
        self.task = self.process.spawn(self._main(rng))
        self.task.add_done_callback(self._on_end)

    async def _main(self, rng: Random) -> bool:
        assert self.process and self.dynamo and self.kinesis and self.host
        settings = self.world.settings_with(self.config, migrates=self.migrates)
        table = DynamoLeaseTable(self.dynamo, self.clock, table_name=TABLE)
        metrics = Metrics()
        metrics.worker.lease_moves = JudgedMoves(self.world.ledger, self.process.name)
        worker = assemble(
            settings,
            self.worker_id,
            self._ports(settings),
            table,
            self.dynamo,
            self.host,
            self.clock,
            rng,
            detect_load=self._detect_load,
            metrics=metrics,
        )
        self.worker = worker
        worker.adjust(
            replace(settings.child, restart_pause_max_s=RESTART_PAUSE_MAX_S, children_per_shard=self.children)
        )
        return await worker.run(GRACE_S)

    @property
    def children(self) -> int:
        """How many children each shard has in the process that runs now."""
        drawn = self.world.plan.children or (1,)
        return drawn[(self.number + self.incarnation) % len(drawn)]

    def _ports(self, settings: Settings) -> SourcePorts:
        assert self.kinesis is not None
        if self.world.sources is not None and isinstance(self.kinesis, StreamDoors):
            return self.world.sources.ports(self.number, self.kinesis)
        return one_stream(StreamPorts(self.kinesis, self.fan_out, settings.fanout.consumer_arn))

    async def _detect_load(self) -> DrawnLoad | None:
        fleet = self.world.plan.fleet
        load = fleet.loads[self.number % len(fleet.loads)] if fleet is not None else None
        self.load = None
        if load is not None:
            rng = self.world.rng(f"load {self.number} {self.incarnation}")
            self.load = DrawnLoad(load, rng, self._leases_held, self.world.is_calm)
        return self.load

    def _java_load(self) -> Callable[[], float | None]:
        fleet = self.world.plan.fleet
        load = fleet.loads[self.number % len(fleet.loads)] if fleet is not None else None
        rng = self.world.rng(f"load {self.number} {self.incarnation}")
        if load is None:
            return lambda: None
        drawn = self.load = DrawnLoad(load, rng, self._leases_held, self.world.is_calm)
        return drawn.now

    def _leases_held(self) -> int:
        return 0 if self.worker is None else len(self.worker.held())

    async def fail_load(self, seconds: float) -> None:
        load = self.load
        if load is not None:
            load.fails = True
            await asyncio.sleep(seconds)
            load.fails = False

    def _start_java(self, rng: Random) -> None:
        from tests.simulation.world.java2 import JavaWorker
        from tests.simulation.world.java3 import JavaWorker3

        assert self.process and self.dynamo and self.kinesis
        plan = self.world.plan
        more: dict[str, Any] = {}
        kind: type[JavaWorker] = JavaWorker
        if self.spec.kind != "java2":
            kind = JavaWorker3
            more = {"tagged": self.spec.kind == "java3", "load": self._java_load()}
            more |= {"config": self.config, "migrate": self.migrates and self.spec.kind == "java3"}
        self.worker = kind(
            self.worker_id,
            self.dynamo,
            self.kinesis,
            self.world.ledger,
            self.clock,
            rng,
            table=TABLE,
            failover_s=plan.failover_s,
            steals_max=int(plan.settings.get("maxLeasesToStealAtOneTime", "1")),
            initial=self.world.initial,
            idle_s=plan.idle_s,
            child_numbers=self.world.java_children,
            rates=self.rates,
            **more,
        )
        self.task = self.process.spawn(self.worker.run())
        self.task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[Any]) -> None:
        """The process ended by itself: its supervisor starts it again, unless it was told to stop for good."""
        if self.task is not task or task.cancelled():
            return
        error = task.exception()
        if error is not None and type(error).__name__ not in ("StartupError",):
            self.world.bug(f"{self.worker_id} ended by {error!r}", error)
        if "another stream" in str(error) and any(action.kind is Kind.ODD_ROW for action in self.world.plan.actions):
            self.world.bug(f"checker 6 at {self.world.now():.2f} s: {self.worker_id} does not start: {error}", None)
        failure = getattr(self.worker, "failure", None)
        if failure is not None and failure.startswith("internal error"):
            self.world.bug(f"{self.worker_id}: {failure}", None)
        self.world.trace(f"{self.worker_id} ended: {error or failure or 'stopped'}")
        if self.spec.kind == "mld" and self.process is not None:
            self.world.event(self.world.lives.ended(self.process, self))
        self.process = self.task = None
        self._leave_things()
        if self.wanted:
            in_world(self.start_later(SUPERVISOR_DELAY_S, new_id=False))

    def _leave_things(self) -> None:
        """What a process that has ended leaves: children that read on, sockets that are closed."""
        if self.host is not None:
            self.host.orphan()
        if self.fan_out is not None:
            self.fan_out.gone()
        if self.is_grouped:
            self.world.group_lost(self)

    def hear_of_end(self, ended: Machine) -> None:
        """The supervisor has waited for the end of another one; a stopped process reads that when it goes on."""
        worker, until = self.worker, self.clock.monotonic() + FENCE_S

        async def hear() -> None:
            worker.fleet.ended(ended.worker_id, until)

        if self.process is not None and isinstance(worker, Worker):
            self.process.spawn(hear())

    async def start_later(self, seconds: float, *, new_id: bool) -> None:
        if self.is_grouped:
            seconds, new_id = max(seconds, restart_pause_s(1)), False
        await asyncio.sleep(seconds)
        if self.wanted and self.process is None:
            if new_id:
                self.worker_id = f"w{self.number}.{self.incarnation}"
            self.start()

    def set_rates(self, rates: Rates) -> None:
        self.rates = rates
        for part in (self.dynamo, self.kinesis, self.processor):
            if part is not None:
                part.rates = rates
        if self.spec.kind != "mld" and self.worker is not None:
            self.worker.rates = rates

    # --- what can happen to it ----------------------------------------------------------------------------------------

    def crash(self, restart_s: float, *, new_id: bool) -> None:
        if self.process is None:
            return
        self.process.kill()
        self.world.graves.append((self.task, self.worker))
        self.process = self.task = self.worker = None
        self._leave_things()
        in_world(self.start_later(restart_s, new_id=new_id))

    def deploy(self, restart_s: float, *, new_id: bool) -> None:
        if self.process is not None and self.worker is not None:
            in_world(self._redeploy(restart_s, new_id=new_id))

    async def _redeploy(self, restart_s: float, *, new_id: bool) -> None:
        task, self.wanted = self.task, False
        await self.stop()
        if self.task is not None and self.task is not task:
            return
        self.wanted = True
        await self.start_later(restart_s, new_id=new_id)

    async def stop_in_start(self, seconds: float, *, new_id: bool, cut: bool) -> None:
        """A deploy whose new process, which may be cut off, is told to stop `seconds` after it began to start."""
        await self._redeploy(1.0, new_id=new_id)
        if cut and self.dynamo is not None:
            self.dynamo.cut, self.world.cut_at = True, self.world.now() + seconds + GRACE_S
        await asyncio.sleep(seconds)
        await self._redeploy(1.0, new_id=new_id)

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL after a while, as a supervisor does it."""
        task, process = self.task, self.process
        if task is None or process is None or self.worker is None:
            return
        self.world.trace(f"{process.name} is told to stop")
        self.worker.request_stop()
        await self.world.lives.stop(self, asyncio.wait({task}, timeout=GRACE_S + 15.0))
        if not task.done() and self.process is process:
            process.kill()
            self.world.graves.append((task, self.worker))
            self.process = self.task = self.worker = None
            self._leave_things()

    async def pause(self, seconds: float) -> None:
        process = self.process
        if process is None or self.paused:
            return
        self.paused = True
        self.pauses += 1
        process.stop()
        await asyncio.sleep(seconds)
        self.paused = False
        self.world.ledger.paused_s[self.worker_id] = self.world.now()
        if not process.dead:
            process.resume()

    async def partition(self, seconds: float, what: str) -> None:
        dynamo, kinesis, fan_out = self.dynamo, self.kinesis, self.fan_out
        if dynamo is None or kinesis is None:
            return
        self.world.cut_at = self.world.now() + seconds
        dynamo.cut = dynamo.cut or what in ("dynamo", "both")
        kinesis.cut = kinesis.cut or what in ("kinesis", "both")
        if fan_out is not None and what != "dynamo":
            fan_out.partitioned()
        await asyncio.sleep(seconds)
        dynamo.cut = kinesis.cut = False
        self.world.cut_at = self.world.now()
        if fan_out is not None and what != "dynamo":
            fan_out.healed()

    async def twin(self, seconds: float) -> None:
        """By mistake somebody starts a second process with this worker's id."""
        world = self.world
        twin = Machine(world, len(world.machines), self.spec)
        twin.worker_id, twin.incarnation, twin.rates = self.worker_id, 100 * (twin.number + 1), self.rates
        world.machines.append(twin)
        twin.start()
        await asyncio.sleep(seconds)
        twin.wanted = False
        twin.crash(0.0, new_id=False)

    def leads(self) -> bool:
        """Whether it would act as leader now. Nobody acts who is stopped; when he goes on, he looks at the clock."""
        if self.process is None or self.paused or self.worker is None or self.spec.kind == "java2":
            return False
        return holds_lock(self.worker) if isinstance(self.worker, Worker) else bool(self.worker.leads())

    def believes(self, key: str) -> bool:
        if self.process is None or self.spec.kind != "mld" or not isinstance(self.worker, Worker):
            return False
        return key in self.worker.held()


class World:
    """Everything of one run."""

    def __init__(self, plan: Plan, trace: Trace | None = None) -> None:
        self.plan = plan
        self.clock: Clock = WorldClock()
        self._trace = trace
        self.ledger = Ledger(self.now, plan.failover_s, self._believers)
        self.ledger.trace = self.trace
        self.ledger.starts_at_latest = plan.initial == "LATEST"
        self.ledger.retention_s = plan.retention_s
        self.ledger.has_twins = any(action.kind is Kind.TWIN for action in plan.actions)
        self.kinesis = Kinesis(enforce=True)
        self.producer = Producer(
            self.kinesis, self.clock, self.ledger, plan.aggregated, Random(f"{plan.seed}:producer")
        )
        self.sources = None if plan.streams is None else Sources(self, plan.streams)
        self.traffic: Traffic | None = None
        if plan.fan_out is not None:
            self.traffic = Traffic(plan.fan_out)
            self.producer.on_put = self.traffic.changed
            self.kinesis.delays = StateDelays(consumer_s=plan.fan_out.consumer_s)
        self.dynamo = SimulatedDynamo(self.clock, self.rng("stale"), stale_s=plan.stale_reads_s)
        self.dynamo.on_applied.append(self._applied)
        self.dynamo.slowness = plan.slow
        self.steadiness = Steadiness(self, plan.slow) if plan.slow is not None and plan.slow.is_steady else None
        if plan.fleet is not None:
            if plan.fleet.is_legacy:
                create_legacy_tables(self.dynamo)
            self.dynamo.index_creation_s = plan.fleet.index_creation_s
            self.dynamo.index_lag_max_s = plan.fleet.index_lag_max_s
        self.fleet_ledger: FleetLedger | None = None
        if plan.fleet is not None:
            slow_s = 0.0 if plan.slow is None else plan.slow.most_s
            self.fleet_ledger = FleetLedger(
                self.ledger, self.now, plan.failover_s, takes=plan.fleet.takes, slow_s=slow_s
            )
            self.ledger.on_batch = self._batch_begins
        is_judged = plan.fleet is not None and not plan.fleet.takes and not self.ledger.has_twins
        self.liveness = Liveness(self) if is_judged else None
        self.lives = Lives(self)
        self.java_children: Iterator[int] = itertools.count(1_000_000)
        self.machines: list[Machine] = []
        self.graves: list[Any] = []
        self.failures: list[str] = []
        self.ledger.on_violation = self.failures.append
        self.settings: Settings = settings_of(**self._settings())
        if plan.streams is not None:
            shards = replace(self.settings.shards, former_streams_wait_s=plan.streams.former_wait_s)
            self.settings = replace(self.settings, shards=shards)
        self.initial = _initial(plan)
        self._operator_rng = self.rng("operator")
        self._operator_door = DynamoDoor(self.dynamo, OPERATOR, self._operator_rng, 0.01)
        self.operators = Operators(
            self._operator_door,
            self.settings,
            self.clock,
            self._operator_rng,
            self._put_extra,
            is_3x=plan.fleet is not None,
            leases_max=self.settings.leases.held_max,
        )
        self._settings_by_config: dict[tuple[str, bool], Settings] = {}
        self._rows_to_repair: dict[str, Any] = {}
        self._odd_rows: dict[str, tuple[str, Any, Any]] = {}
        self._events: set[asyncio.Task[None]] = set()
        self._stream_deleted = False
        self.cut_at = -math.inf
        """When a partition was there last."""
        self._quiet_from_s = 0.0
        self.calls_at_quiet = (0, 0)
        self.worst_price = 0.0
        self._rows_before = 0
        self._checkpoints_before = 0
        self.parked: set[str] = set()
        """Shards of which nothing proves that they were of the stream; the log asks for their rows to be deleted."""

    def rng(self, purpose: str) -> Random:
        return Random(f"{self.plan.seed} {purpose}")

    def now(self) -> float:
        return self.clock.monotonic()

    def trace(self, text: str) -> None:
        if self._trace is not None:
            self._trace(f"{self.now():8.2f}  {text}")

    def write_answered(self, process: str, key: str, sent_at: float, waiting: Sequence[float]) -> None:
        """A process hears that its write of a lease was accepted. `waiting`: when those were sent that it waits for."""
        self.ledger.write_answered(process, key, sent_at, waiting)
        if self.fleet_ledger is not None:
            self.fleet_ledger.answered(process, key, sent_at)

    def bug(self, text: str, error: BaseException | None) -> None:
        self.failures.append(text)
        if error is not None:
            logging.getLogger(__name__).error("%s", text, exc_info=error)

    def settings_with(self, config: str, *, migrates: bool) -> Settings:
        """Those of a worker in a fleet on its way from one mode to the other."""
        if not self.plan.fleet or not self.plan.fleet.takes:
            return self.settings
        if (config, migrates) not in self._settings_by_config:
            more = {"clientVersionConfig": "" if config == BY_TABLE else f"CLIENT_VERSION_CONFIG_{config}"}
            if migrates:
                more["migrateAllEntitiesToLeaseTable"] = "true"
            self._settings_by_config[config, migrates] = settings_of(**{**self._settings(), **more})
        return self._settings_by_config[config, migrates]

    def _settings(self) -> dict[str, str]:
        plan = self.plan
        position = (
            {"initialPositionInStreamExtended": str(int(EPOCH_S) - 10)}
            if plan.initial == "AT_TIMESTAMP"
            else {"initialPositionInStream": plan.initial}
        )
        return {
            "failoverTimeMillis": str(round(plan.failover_s * 1000)),
            "idleTimeBetweenReadsInMillis": str(round(plan.idle_s * 1000)),
            "timeoutInSeconds": "45",
            "schedulerInitializationBackoffTimeMillis": "1000",
            **position,
            **plan.settings,
            **({} if plan.streams is None else settings_of_streams(plan.streams)),
        }

    # --- the run ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """The whole plan; raises Violation."""
        ears = _Ears(self)
        logger = logging.getLogger("mld")
        logger.addHandler(ears)
        was_disabled, was_propagating = logging.root.manager.disable, logger.propagate
        logging.disable(logging.WARNING)
        logger.propagate = False
        try:
            with self.lives.counted(), parsed_once():
                await self._live()
        finally:
            logging.disable(was_disabled)
            logger.propagate = was_propagating
            logger.removeHandler(ears)

    async def _live(self) -> None:
        self.producer.record_bytes = self.plan.record_bytes
        for producer in (self.producer, *(self.sources.producers.values() if self.sources is not None else ())):
            producer.keys = KEYS if self.plan.children else producer.keys
        if self.sources is not None:
            self.sources.begin()
        else:
            self.kinesis.create_stream(STREAM, now=self.clock.wall(), shard_count=self.plan.shards)
        if self.plan.retention_s:
            self.kinesis.stream(STREAM, self.clock.wall()).retention_h = self.plan.retention_s / 3600
        self._learn_shards()
        for number, spec in enumerate(self.plan.workers):
            self.machines.append(Machine(self, number, spec))
            self.machines[-1].start()
        producing = in_world(self._produce())
        acting = in_world(self._act())
        watching = in_world(self._watch())
        await asyncio.sleep(3.0)
        self._set_rates(self.plan.rates)
        await self._sleep_until(self.plan.trouble_s)
        await acting
        await self._calm()
        await self._sleep_until(max(self.plan.end_s, self._quiet_from_s + self.plan.quiet_s))
        _end(producing)
        if not self._stream_deleted:
            await self._finish()
        _end(watching)
        self._raise_failures()

    async def _watch(self) -> None:
        """What the ledger is not told of: beliefs, and how much is asked of DynamoDB."""
        calls: dict[str, int] = {}
        turn = 0
        while True:
            await asyncio.sleep(WATCH_S)
            turn += 1
            running = [m for m in self.machines if m.process is not None and isinstance(m.worker, Worker)]
            try:
                self.ledger.check_beliefs((m.process.name, m.worker.held()) for m in running if not m.paused)
                if self.fleet_ledger is not None:
                    self.fleet_ledger.check_leaders(m.process.name for m in self.machines if m.leads())
                    self.fleet_ledger.check_pending(self.sources.known_since if self.sources else lambda _: 0.0)
                if self.liveness is not None and not self._stream_deleted:
                    self.liveness.check()
                if self.sources is not None:
                    self.sources.check()
                if self.steadiness is not None:
                    self.steadiness.check()
                for machine in running:
                    if not machine.paused:
                        self.ledger.shared.check_following(machine.process.name, machine.worker.held())
                self.lives.note()
                if turn % PRICE_TURNS == 0:
                    self.lives.check()
                    calls = self._check_price(calls)
            except Violation as violation:
                self.failures.append(str(violation))

    def _check_price(self, before: dict[str, int]) -> dict[str, int]:
        """Checker 8 in trouble: nobody hammers a table that does not answer."""
        now = {m.dynamo.sender: m.dynamo.calls for m in self.machines if m.dynamo is not None and m.spec.kind == "mld"}
        rows_now = len(self.lease_rows())
        rows, self._rows_before = max(rows_now, self._rows_before), rows_now  # a clean-up asks for what it deletes
        stored, self._checkpoints_before = self.ledger.checkpoints - self._checkpoints_before, self.ledger.checkpoints
        most = stored + PRICE_TURNS * WATCH_S * (
            CALLS_PER_LEASE_S * rows + CALLS_PER_WORKER_S
        )  # children ask for those
        for sender, count in now.items():
            self.worst_price = max(self.worst_price, (count - before.get(sender, 0)) / most)
            if count - before.get(sender, 0) > most:
                text = f"{count - before.get(sender, 0)} DynamoDB requests of {sender} for {rows} leases"
                raise Violation(
                    f"checker 8 at {self.now():.2f} s: {text} in {PRICE_TURNS * WATCH_S:.0f} s, over {most:.0f}"
                )
        return now

    async def _sleep_until(self, at_s: float) -> None:
        while self.now() < at_s:
            await asyncio.sleep(min(5.0, at_s - self.now() + 0.001))
            self._raise_failures()

    def _raise_failures(self) -> None:
        if self.failures:
            raise Violation(self.failures[0])

    async def _produce(self) -> None:
        rng = self.rng("producer")
        while True:
            await asyncio.sleep(rng.expovariate(self.plan.records_per_s / 3))
            if self._stream_deleted:
                return
            self._put(rng.randrange(1, 6), rng)

    def _put(self, count: int, rng: Random) -> None:
        if self.sources is not None:
            self.sources.put(count, rng)
            return
        hot = self.plan.fleet.hot if self.plan.fleet is not None else 0.0
        for _ in range(count):
            space = KEY_SPACE // 16 if hot and rng.random() < hot else KEY_SPACE
            self.producer.put(rng.randrange(space))

    async def _act(self) -> None:
        for action in self.plan.actions:
            await asyncio.sleep(max(0.0, action.at_s - self.now()))
            self.trace(f"--- {action}")
            self._perform(action)

    def _perform(self, action: Action) -> None:
        machine = self.machines[action.worker % len(self.machines)]
        if action.kind in LEADER_KINDS:
            machine = self._leader() or machine
        match action.kind:
            case Kind.LEADER_CRASH:
                machine.crash(action.argument, new_id=action.text == "new")
            case Kind.LEADER_PAUSE:
                self.event(machine.pause(action.argument))
            case Kind.LEADER_CUT:
                self.event(machine.partition(action.argument, "dynamo"))
            case Kind.INDEX_GONE:
                delete_index(self.dynamo)
            case Kind.INDEX_FORBIDDEN:
                self.event(forbid_index(self.dynamo, action.argument))
            case Kind.REDEPLOY_AS:
                redeploy_as(machine, action.argument, action.text)
            case Kind.TOOL_BACK | Kind.TOOL_FORWARD:
                self.event(tool(self, back=action.kind is Kind.TOOL_BACK))
            case Kind.SINGLE_TABLE:
                self.event(to_single_table(self))
            case Kind.OTHER_APPLICATION:
                self.event(report_of_another(self.dynamo, self.clock, action.argument))
            case Kind.LOAD_FAILS:
                self.event(machine.fail_load(action.argument))
            case Kind.CRASH:
                machine.crash(action.argument, new_id=action.text == "new")
            case Kind.DEPLOY:
                machine.deploy(action.argument, new_id=action.text == "new")
            case Kind.STOP_ALL:
                self.event(self._stop_all(action))
            case Kind.STOP_IN_START:
                new_id, cut = action.text.startswith("new"), action.text.endswith("cut")
                self.event(machine.stop_in_start(action.argument, new_id=new_id, cut=cut))
            case Kind.PAUSE:
                self.event(machine.pause(action.argument))
            case Kind.PARTITION:
                self.event(machine.partition(action.argument, action.text))
            case Kind.WALL_JUMP:
                machine.clock.wall_offset_s += action.argument
            case Kind.SCALE_OUT:
                extra = Machine(self, len(self.machines), WorkerSpec("mld"))
                extra.rates = self.plan.rates
                self.machines.append(extra)
                extra.start()
            case Kind.SCALE_IN:
                if sum(m.wanted and m.spec.kind == "mld" for m in self.machines) > 1:
                    machine.wanted = machine.spec.kind != "mld" and machine.wanted
                    if not machine.wanted:
                        self.event(machine.stop())
            case Kind.SPLIT | Kind.MERGE:
                self._reshard(action)
            case Kind.DELETE_ROW | Kind.CORRUPT_ROW:
                self._edit_row(action)
            case Kind.ODD_ROW:
                self._make_row_odd(action)
            case Kind.REASSIGN_ROW:
                self._reassign_row(action)
            case Kind.FINISH_ROW:
                self._finish_row()
            case Kind.TWIN:
                if machine.spec.kind == "mld":
                    self.event(machine.twin(action.argument))
            case Kind.OUTAGE:
                throttled = "ProvisionedThroughputExceededException"
                self.dynamo.outage_code = throttled if action.text == "throttled" else "InternalServerError"
                self.dynamo.outage_until = self.now() + action.argument
            case Kind.DELETE_STREAM:
                self._stream_deleted = self.ledger.frozen_end = True
                self.kinesis.delete_stream(STREAM, now=self.clock.wall(), with_consumers=self.traffic is not None)
                self._tell_subscribers()
            case (
                Kind.LIST_ADD
                | Kind.LIST_REMOVE
                | Kind.REMAKE
                | Kind.OLD_LIST
                | Kind.LIST_ROW_GONE
                | Kind.LIST_ROW_DAMAGED
            ):
                assert self.sources is not None
                self.sources.perform(action, machine.number)
            case Kind.OPERATE:
                self.event(self._operate(action))
            case Kind.DEREGISTER:
                deregister(self.kinesis, STREAM, self.clock)
                self._tell_subscribers()

    def group_lost(self, ended: Machine) -> None:
        if self.fleet_ledger is not None:
            self.fleet_ledger.known_to_end(ended.worker_id)
        for machine in self.machines:
            if machine.is_grouped and machine is not ended:
                machine.hear_of_end(ended)

    async def _stop_all(self, action: Action) -> None:
        """As `compose down` does, or a scaling to nothing, and then everybody comes back."""
        machines = [machine for machine in self.machines if machine.wanted]
        apart_s = action.argument / max(1, len(machines))

        async def stop(number: int, machine: Machine) -> None:
            machine.wanted = False
            await asyncio.sleep(number * apart_s)
            await machine.stop()

        with self.lives.all_stop(machines):
            await asyncio.gather(*(stop(number, machine) for number, machine in enumerate(machines)))
        await asyncio.sleep(action.worker)
        for number, machine in enumerate(machines):
            machine.wanted = True
            self.event(machine.start_later(number * apart_s, new_id=action.text == "new"))

    async def _operate(self, action: Action) -> None:
        try:
            seen = await self.operators.reader.look()
            if action.text in ("restart", "leave out"):
                plan = self.operators.plan_wish(action.text, seen, self._operator_rng)
            else:
                plan = self.operators.plan(action.text, seen)
        except MldError as error:
            self.trace(f"refused: {error}")
            return
        await asyncio.sleep(action.argument)
        is_done = await self.operators.carry_out(plan)
        self.trace(f"operator: {plan.title}: {'done' if is_done else 'failed'}")

    def _put_extra(self) -> tuple[str, str]:
        """A record of which an operator knows only that it must not be delivered; it still may be, before he asks."""
        entry = PutEntry.of(b"left out", "key", self._operator_rng.randrange(KEY_SPACE))
        try:
            placed = self.kinesis.put_record(STREAM, entry, now=self.clock.wall())
        except KinesisError as error:
            raise ActRefusedError(str(error)) from None
        self.ledger.shard(placed.shard_id).extra.add((int(placed.sequence), 0))
        self._tell_subscribers()
        return placed.shard_id, placed.sequence

    async def _end_acts(self) -> None:
        """All pauses end, and the drains in one run of two."""
        await self._sleep_until(self.dynamo.outage_until)
        if self._has_table():
            await self.operators.resume_all()
            if self._operator_rng.random() < 0.5:
                await self.operators.undrain_all()
        self.ledger.calm_at = self.now()

    def is_led_by_java(self) -> bool:
        leader = self._leader()
        return leader is not None and leader.spec.kind != "mld"

    def _leader(self) -> Machine | None:
        leader = leader_of(self.dynamo)
        return next((m for m in self.machines if m.worker_id == leader and m.process is not None), None)

    def is_calm(self) -> bool:
        """Whether the faults have stopped."""
        return self.now() >= self.ledger.calm_at

    def lease_rows(self) -> dict[str, Any]:
        """The rows of leases, by key."""
        rows = self.dynamo.rows(TABLE) if self._has_table() else {}
        return {key: row for key, row in rows.items() if is_lease(row)}

    def event(self, work: Any) -> None:
        task = in_world(work)
        self._events.add(task)
        task.add_done_callback(self._on_event_ended)

    def _on_event_ended(self, task: asyncio.Task[None]) -> None:
        self._events.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.bug(f"an event ended by {error!r}", error)

    # --- the stream ---------------------------------------------------------------------------------------------------

    def _open_shards(self) -> list[Any]:
        if self.sources is not None:
            return self.sources.open_shards()
        shards = self.kinesis.list_shards(STREAM, now=self.clock.wall()).shards
        return sorted((s for s in shards if s.is_open), key=lambda shard: shard.hash_range.start)

    def _reshard(self, action: Action) -> None:
        if self.sources is not None:
            self.sources.reshard(action)
            return
        shards = self._open_shards()
        index = action.worker % len(shards)
        shard = shards[index]
        span = shard.hash_range.end - shard.hash_range.start
        try:
            if action.kind is Kind.SPLIT:
                middle = shard.hash_range.start + max(1, int(span * action.argument))
                self.kinesis.split_shard(STREAM, shard.shard_id, middle, now=self.clock.wall())
            elif len(shards) > 1:
                neighbour = shards[(index + 1) % len(shards)] if index + 1 < len(shards) else shards[index - 1]
                self.kinesis.merge_shards(STREAM, shard.shard_id, neighbour.shard_id, now=self.clock.wall())
        except KinesisError as error:
            self.trace(f"reshard refused: {error}")
        self._tell_subscribers()
        self._learn_shards()

    def _tell_subscribers(self) -> None:
        if self.traffic is not None:
            self.traffic.changed()

    def _learn_shards(self) -> None:
        if self.sources is not None:
            return
        for shard in self.kinesis.list_shards(STREAM, now=self.clock.wall()).shards:
            record = self.ledger.shard(shard.shard_id)
            record.parents, record.closed = tuple(sorted(shard.view().parents)), not shard.is_open

    # --- the table ----------------------------------------------------------------------------------------------------

    def _applied(self, applied: Any, sent_at: float) -> None:
        if self.liveness is not None:
            self.liveness.applied(applied)
        if self.fleet_ledger is not None:
            try:
                self.fleet_ledger.applied(applied, sent_at)
            except Violation as violation:
                self.failures.append(str(violation))
        if self.sources is not None:
            try:
                self.sources.applied(applied)
            except Violation as violation:
                self.failures.append(str(violation))
        if applied.table != TABLE or not is_lease(applied.after or applied.before):
            return
        try:
            self.ledger.applied(applied, sent_at)
        except Violation as violation:
            self.failures.append(str(violation))

    def _believers(self, key: str) -> list[tuple[str, str]]:
        return [(m.worker_id, m.process.name) for m in self.machines if m.process is not None and m.believes(key)]

    def _edit_row(self, action: Action) -> None:
        """Only rows of open shards without children: other edits lose data by the operator's own hand."""
        shards = self._open_shards()
        key = shards[action.worker % len(shards)].shard_id
        row = self.dynamo.row(TABLE, key) if self._has_table() else None
        if row is None or key in self._rows_to_repair:
            return
        self.ledger.edited_by_hand(key)
        if self.fleet_ledger is not None:
            self.fleet_ledger.edited_by_hand(key)
        if action.kind is Kind.DELETE_ROW:
            self.dynamo.delete_row(TABLE, key)
        else:
            self._rows_to_repair[key] = row
            self.dynamo.put_row(TABLE, {**row, "leaseCounter": {"S": "corrupt"}})

    def _make_row_odd(self, action: Action) -> None:
        """At most one row of a few: most of them fit."""
        shards = self._open_shards()
        key = shards[action.worker % len(shards)].shard_id
        row = self.dynamo.row(TABLE, key) if self._has_table() else None
        name, odd = ODD[int(action.argument)]
        if row is None or len(shards) < ODD_SHARDS_MIN or self._odd_rows or "startingHashKey" not in row:
            return
        odd = odd or str((int(row["startingHashKey"]["S"]) + int(row["endingHashKey"]["S"])) // 2)
        self.ledger.edited_by_hand(key)
        if self.fleet_ledger is not None:
            self.fleet_ledger.edited_by_hand(key)
        if name == "checkpoint":
            self.ledger.shard(key).odd_checkpoint = odd
        self.trace(f"{key} gets the odd {name} {odd} by hand")
        self._odd_rows[key] = (name, row[name], {"S": odd})
        self.dynamo.put_row(TABLE, {**row, name: {"S": odd}})

    def _mend_odd_rows(self) -> None:
        """What is still odd becomes what it was. Nobody may go on by a copy of the row: the counter jumps."""
        for key, (name, before, odd) in self._odd_rows.items():
            row = self.dynamo.row(TABLE, key)
            if row is not None and row[name] == odd:
                self.trace(f"{key} is mended by hand")
                self.ledger.mended_at = self.now()
                is_ended = name != "checkpoint" and row["checkpoint"]["S"] == SHARD_END
                self.ledger.edited_by_hand(key)
                self.ledger.shard(key).ended = is_ended
                counter = {"N": str(int(row["leaseCounter"]["N"]) + 1000)}
                self.dynamo.put_row(TABLE, {**row, name: before, "leaseCounter": counter})

    def _reassign_row(self, action: Action) -> None:
        shards = self._open_shards()
        key = shards[action.worker % len(shards)].shard_id
        row = self.dynamo.row(TABLE, key) if self._has_table() else None
        owner = row.get("leaseOwner", {}).get("S") if row else None
        others = sorted({m.worker_id for m in self.machines} - {owner})
        if row is None or owner is None or key in self._rows_to_repair or not others or "checkpointOwner" in row:
            return
        self.ledger.owner_changed_by_hand(key, owner)
        if self.fleet_ledger is not None:
            self.fleet_ledger.edited_by_hand(key)
        self.dynamo.put_row(TABLE, {**row, "leaseOwner": {"S": others[action.worker % len(others)]}})

    def _finish_row(self) -> None:
        closed = [r for r in self.ledger.shards.values() if r.closed and not r.ended and not r.edited and r.checkpoint]
        if not closed:
            return
        key = closed[-1].shard_id
        row = self.dynamo.row(TABLE, key)
        assert row is not None
        self.ledger.finished_by_hand(key)
        self.trace(f"{key} is finished by hand")
        self.dynamo.put_row(TABLE, {**row, "checkpoint": {"S": SHARD_END}, "checkpointSubSequenceNumber": {"N": "0"}})

    def _batch_begins(self, process: str, worker: str, shard: str) -> None:
        assert self.fleet_ledger is not None
        self.fleet_ledger.batch_begins(process, worker, shard, self.dynamo.rows(TABLE).get(shard))

    def _has_table(self) -> bool:
        return self.dynamo.has_table(TABLE)

    # --- calm and the end ---------------------------------------------------------------------------------------------

    def _set_rates(self, rates: Rates) -> None:
        self._operator_door.rates = rates
        for machine in self.machines:
            machine.set_rates(rates)

    async def _calm(self) -> None:
        """The faults stop: partitions heal, the stopped resume, the broken rows are mended, everybody wanted runs."""
        self.trace("--- calm")
        self.ledger.calm_at = self.now()
        self._set_rates(CALM)
        self.dynamo.slowness = None
        while self._events:
            await asyncio.wait(set(self._events))
        for row in self._rows_to_repair.values():
            self.ledger.mended_at = self.now()
            counter = int(row["leaseCounter"]["N"]) + 1000
            self.dynamo.put_row(TABLE, {**row, "leaseCounter": {"N": str(counter)}})
        self._mend_odd_rows()
        if any(action.kind is Kind.OPERATE for action in self.plan.actions):
            await asyncio.sleep(self.plan.stale_reads_s)  # else a look may not show what was done last
            await self._end_acts()
        self._quiet_from_s = self.now()
        if self.sources is not None:
            in_world(self.sources.change_in_calm())
        if self.plan.retention_s:
            in_world(self._tend_parked_rows())
        mixed = any(spec.kind != "mld" for spec in self.plan.workers)  # may leave rows out when its start is cut short
        if (self.plan.touches_rows or mixed) and not self._stream_deleted:  # a start makes the table true to the stream
            ours = next((m for m in self.machines if m.spec.kind == "mld" and m.wanted), None)
            if ours is not None:  # else the only one is being deployed anyhow
                ours.deploy(1.0, new_id=True)
            self._quiet_from_s = self.now()

    async def _tend_parked_rows(self) -> None:
        """An operator looks every few seconds: what was paused until now may be parked only in the calm."""
        while True:
            self._delete_parked_rows()
            await asyncio.sleep(OPERATOR_LOOKS_S)

    def _delete_parked_rows(self) -> None:
        """An operator does as the log says where a shard and all its descendants up to the open ones have gone."""
        listed = {shard.shard_id for shard in self.kinesis.list_shards(STREAM, now=self.clock.wall()).shards}
        for key in sorted(self.parked - listed):
            row = self.dynamo.row(TABLE, key)
            if row is not None and row["checkpoint"]["S"] != SHARD_END:
                self.trace(f"the row of {key} is deleted by hand")
                self.ledger.finished_by_hand(key)
                self.dynamo.delete_row(TABLE, key)

    async def _finish(self) -> None:
        """Checkers 1, 6 and 7 at the end: a last record for every shard, then everything must be at rest."""
        from tests.simulation.rest import check_rest

        for shard in self._open_shards():
            producer = self.producer if self.sources is None else self.sources.producers[shard.stream]
            for key in keys_for_all(self.plan.children) or [""]:  # each child may have records without a checkpoint
                producer.put_one(shard.hash_range.start, key)
        await check_rest(self)
        if self.plan.fleet is not None and self.plan.fleet.takes:
            await check_versions(self)


class _Ears(logging.Handler):
    """Hears of internal errors that the daemon survives: each of them is a bug."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        is_told = getattr(record, "action", "") in ("unexpected", "unexpected_error")  # by a loop, by a port
        if is_told and MARK in text:
            return  # ours, and survived
        if getattr(record, "action", "") == "shard_parked":
            self._world.parked.add(record.shard)  # type: ignore[attr-defined]
        if record.exc_info and record.exc_info[1] is not None:
            self._world.bug(f"internal error: {text}: {record.exc_info[1]!r}", None)
        elif is_told:
            self._world.bug(f"internal error: {text}", None)


def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task that runs until the end. Raise the error that has ended it before, which would be a bug of ours."""
    if task.done():
        task.result()
    task.cancel()


def _initial(plan: Plan) -> InitialPosition:
    match plan.initial:
        case "LATEST":
            return InitialPosition(LATEST)
        case "AT_TIMESTAMP":
            return InitialPosition(AT_TIMESTAMP, EPOCH_S - 10)
        case _:
            return InitialPosition(TRIM_HORIZON)
