"""Random lives of fleets that pause for longer than their stream keeps records: shards that an operator pauses,
children that hang or are slow, outages of Kinesis, of workers and of the whole fleet, quiet shards, splits.

The promises: a record that no child ever gets is between the two records of a loss that was reported for its shard; no
loss is reported while the record that was asked for is still there; and after all of it reading goes on.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from random import Random

from mld.core.errors import StreamUnavailableError
from mld.leases import writes
from mld.leases.dynamodb import DynamoLeaseTable
from mld.local.kinesis import PutEntry
from tests.support.fleet import STREAM, TABLE, Fleet
from tests.support.kpl import User, aggregate
from tests.twins.children import MemoryChild, Recorder
from tests.twins.kinesis_model import ModelFanOut

WORKERS_MAX = 2
EVENTS = (
    "put",
    "put",
    "put",
    "quiet",
    "pause",
    "resume",
    "hang",
    "slow",
    "fast",
    "start",
    "crash",
    "stop",
    "outage",
    "split",
)
SLOW_PACE = {
    "clientVersionConfig": "CLIENT_VERSION_CONFIG_3X",
    "failoverTimeMillis": "60000",
    "idleTimeBetweenReadsInMillis": "20000",
}
PUT_EVERY_S = 20.0
CALM_S = 1_000.0
AGGREGATED = 3


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What happens, in this order. `records_max` is the Limit of a read: 1 keeps the buffers of readers small."""

    seed: int
    mode: str
    retention_s: float
    records_max: int
    shards: int
    aggregate_share: float
    checkpoint_share: float
    """How many batches a child checkpoints."""
    events: tuple[str, ...]


def draw(seed: int) -> RetentionPlan:
    rng = Random(f"retention {seed}")
    return RetentionPlan(
        seed=seed,
        mode=rng.choice(["POLLING", "POLLING", "POLLING", "FANOUT"]),
        retention_s=rng.choice([420.0, 600.0, 900.0]),
        records_max=rng.choice([1, 1, 5, 1_000]),
        shards=rng.randint(1, 2),
        aggregate_share=rng.choice([0.0, 0.0, 0.5]),
        checkpoint_share=rng.choice([1.0, 1.0, 0.3]),
        events=("start", "put", *(rng.choice(EVENTS) for _ in range(rng.randint(3, 7)))),
    )


@dataclass(frozen=True, slots=True)
class Put:
    shard_id: str
    number: int
    at_s: float
    data: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Loss:
    shard_id: str
    after: int
    before: int | None
    """The first record that was left, None if none was."""


class MoodyRecorder(Recorder):
    """Children that take `work_s` over each batch, or `hold_s` over one; they checkpoint a share of the batches."""

    hold_s = 0.0
    rng = Random(0)
    checkpoint_share = 1.0

    async def process(self, child: MemoryChild, records) -> None:
        hold_s, self.hold_s = self.hold_s, 0.0
        if hold_s:
            await self.clock.sleep(hold_s)
        self.checkpoint_every_batch = self.rng.random() < self.checkpoint_share
        await super().process(child, records)


class RetentionWorld(logging.Handler):
    """Lives through a plan in virtual time, and listens to what is logged."""

    def __init__(self, plan: RetentionPlan) -> None:
        super().__init__(logging.DEBUG)
        self.plan = plan
        self.rng = Random(f"life {plan.seed}")
        self.fleet = Fleet(plan.shards, retrievalMode=plan.mode, maxRecords=str(plan.records_max), **SLOW_PACE)
        self.recorder = MoodyRecorder(self.fleet.clock)
        self.recorder.rng, self.recorder.checkpoint_share = self.rng, plan.checkpoint_share
        self.fleet.recorder = self.recorder
        self.put: list[Put] = []
        self.losses: list[Loss] = []
        self.stream.retention_h = plan.retention_s / 3_600.0
        self.down = False
        self.workers = 0

    @property
    def stream(self):
        return self.fleet.kinesis.stream(STREAM, self.fleet.clock.wall())

    def emit(self, record: logging.LogRecord) -> None:
        if record.__dict__.get("action") != "checkpoint_trimmed" or record.levelno < logging.ERROR:
            return
        asked, first, shard = record.__dict__["checkpoint"], record.__dict__["first"], record.__dict__["shard"]
        after = int(asked) if asked.isdigit() else 0
        self.losses.append(Loss(shard, after, None if first is None else int(first)))
        there = [one for one in self.put if one.shard_id == shard and one.number == after and self.is_kept(one)]
        assert not there, f"seed {self.plan.seed}: a loss after {after}, which is there"

    def is_kept(self, one: Put) -> bool:
        return one.at_s > self.fleet.clock.wall() - self.plan.retention_s

    async def run(self) -> None:
        for event in self.plan.events:
            await self.happen(event)
        self.down = False
        self.recorder.work_s = self.recorder.hold_s = 0.0
        await self.happen("resume")
        await self.happen("start")
        await self.fleet.advance(CALM_S)
        before = len(self.put)
        self.put_some(6)
        last = {data for one in self.put[before:] for data in one.data}
        deadline = self.fleet.clock.monotonic() + CALM_S
        while not last <= {*self.recorder.data()}:
            assert self.fleet.clock.monotonic() < deadline, f"seed {self.plan.seed}: does not read again"
            await self.fleet.advance(PUT_EVERY_S)
        self.check()

    def check(self) -> None:
        delivered = {*self.recorder.data()}
        first: dict[str, int] = {}
        for one in self.recorder.deliveries:
            first.setdefault(one.shard_id, int(one.sequence))
        for one in self.put:
            for data in one.data:
                # What was in a shard before its first record was read, nobody knows: there is none to ask for.
                is_unknown = one.number < first.get(one.shard_id, one.number + 1)
                assert data in delivered or is_unknown or self.is_reported(one), (
                    f"seed {self.plan.seed}: {data!r} of {one.shard_id} is lost, and nobody says so"
                )

    def is_reported(self, one: Put) -> bool:
        return any(
            loss.shard_id == one.shard_id
            and loss.after <= one.number  # the rest of an aggregate that was checkpointed in part
            and (loss.before is None or one.number < loss.before)
            for loss in self.losses
        )

    def put_some(self, count: int) -> None:
        for _ in range(count):
            number = len(self.put)
            key = str(self.rng.getrandbits(128))
            data = [b"%d.%d" % (number, sub) for sub in range(AGGREGATED)]
            if self.rng.random() < self.plan.aggregate_share:
                body = aggregate([User("k", one, explicit_hash_key=key) for one in data])
            else:
                data = data[:1]
                body = data[0]
            now = self.fleet.clock.wall()
            put = self.fleet.kinesis.put_record(STREAM, PutEntry.of(body, "k", int(key)), now=now)
            self.put.append(Put(put.shard_id, int(put.sequence), now, tuple(data)))

    async def happen(self, event: str) -> None:
        fleet, rng = self.fleet, self.rng
        living = [one for one in fleet.running if not one.task.done()]
        match event:
            case "put":
                for _ in range(round(rng.uniform(0.2, 2.0) * self.plan.retention_s / PUT_EVERY_S)):
                    self.put_some(rng.randint(0, 3))
                    await fleet.advance(PUT_EVERY_S)
            case "quiet":
                await fleet.advance(rng.uniform(0.2, 2.0) * self.plan.retention_s)
            case "pause" | "resume":
                await self.steer(event)
            case "hang":
                self.recorder.hold_s = rng.uniform(0.5, 2.0) * self.plan.retention_s
            case "slow":
                self.recorder.work_s = rng.choice([10.0, 60.0, 200.0])
            case "fast":
                self.recorder.work_s = 0.0
            case "start" if len(living) < WORKERS_MAX:
                self.workers += 1
                worker = fleet.start(f"w{self.workers}", seed=self.workers)
                assert isinstance(worker.streams, ModelFanOut)
                worker.streams.faults = lambda _: StreamUnavailableError("down") if self.down else None
                await fleet.advance(rng.uniform(1, 60))
            case "crash" if living:
                await rng.choice(living).crash()
            case "stop" if living:
                await rng.choice(living).stop()
            case "outage":
                self.down = not self.down
            case "split":
                shards = [one for one in fleet.shards() if one.view().is_open]
                if len(shards) < 2 * self.plan.shards:
                    fleet.split(rng.choice(shards).shard_id)

    async def steer(self, act: str) -> None:
        table = DynamoLeaseTable(self.fleet.dynamo.client("operator"), self.fleet.clock, table_name=TABLE)
        found = (await table.scan(consistent=True)).leases if self.fleet.dynamo.has_table(TABLE) else ()
        for lease in found:  # also of shards that the stream no longer lists
            await table.apply(writes.pause(lease, "by me") if act == "pause" else writes.resume(lease))


async def live(seed: int) -> RetentionWorld:
    """Live through a seed; raises AssertionError if a promise is broken."""
    world = RetentionWorld(draw(seed))
    logger = logging.getLogger("mld.retrieval.losses")
    disabled, level, logging.root.manager.disable = logging.root.manager.disable, logger.level, logging.NOTSET
    logger.setLevel(logging.DEBUG)
    logger.addHandler(world)
    try:
        await world.run()
    finally:
        logger.removeHandler(world)
        logger.setLevel(level)
        logging.root.manager.disable = disabled
        await world.fleet.close()
    return world
