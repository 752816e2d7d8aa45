"""Random lives of fleets whose children die of some records, while a search for those goes on in aggregates of the KPL,
over splits and merges, crashes of workers and children, pauses of shards, and a dead letter that fails at times.

The promises: every record that kills nobody is processed; every record that does is in the dead letter, and nothing
else is; and in the end all of it has a checkpoint.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from random import Random

from mld.leases import writes
from mld.leases.dynamodb import DynamoLeaseTable
from mld.local.kinesis import PutEntry
from tests.support.fleet import STREAM, TABLE, Fleet
from tests.support.kpl import User, aggregate
from tests.twins.children import ChildExit, MemoryChild, Recorder

MODES = (
    {"clientVersionConfig": "CLIENT_VERSION_CONFIG_3X"},
    {"clientVersionConfig": "CLIENT_VERSION_CONFIG_3X", "retrievalMode": "FANOUT"},
    {"clientVersionConfig": "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1"},
)
EVENTS = ("put", "put", "put", "split", "merge", "start", "crash", "stop", "kill", "pause", "resume", "box", "wait")
WORKERS_MAX = 3
SHARDS_MAX = 4
USERS_MAX = 12
BAD_MAX = 5
"""Each costs a shard several lives of children, with growing pauses."""
LOOK_S = 10.0
CALM_S = 20_000.0
POISON = b"poison"


@dataclass(frozen=True, slots=True)
class PoisonPlan:
    """What happens, in this order. `poison_share` of the user records kill the child that gets them."""

    seed: int
    mode: dict[str, str]
    shards: int
    attempts: int
    records_max: int
    poison_share: float
    aggregate_share: float
    checkpoint: str
    """batch: after each; seldom: after some; asked: only when the daemon asks for it; record: at a record inside."""
    dies_late: bool
    """A child does its work up to the poison before it dies, rather than nothing of the batch."""
    events: tuple[str, ...]


def draw(seed: int) -> PoisonPlan:
    rng = Random(f"poison {seed}")
    return PoisonPlan(
        seed=seed,
        mode=rng.choice(MODES),
        shards=rng.randint(1, 2),
        attempts=rng.randint(2, 4),
        records_max=rng.choice([1, 3, 1_000]),
        poison_share=rng.choice([0.02, 0.1, 0.3]),
        aggregate_share=rng.choice([0.0, 0.5, 1.0]),
        checkpoint=rng.choice(["batch", "batch", "seldom", "asked", "record"]),
        dies_late=rng.random() < 0.5,
        events=("start", "put", *(rng.choice(EVENTS) for _ in range(rng.randint(2, 8)))),
    )


class Mortal(Recorder):
    """Children that die of poison."""

    def __init__(self, clock, plan: PoisonPlan, rng: Random) -> None:
        super().__init__(clock)
        self.plan, self.rng = plan, rng

    async def process(self, child: MemoryChild, records) -> None:
        data = [base64.b64decode(record["data"]) for record in records]
        bad = next((number for number, one in enumerate(data) if one.startswith(POISON)), None)
        if bad is not None:
            if self.plan.dies_late:
                await self._do(child, records[:bad], "record")
            raise ChildExit
        await self._do(child, records, self.plan.checkpoint)

    async def _do(self, child: MemoryChild, records, how: str) -> None:
        self.checkpoint_every_batch = how == "batch" or (how == "seldom" and self.rng.random() < 0.2)
        await super().process(child, records)
        if how == "record" and records:
            last = self.rng.choice(records)
            await self.note_error(child, await child.checkpoint(last["sequenceNumber"], last["subSequenceNumber"]))


class PoisonWorld:
    """Lives through a plan in virtual time."""

    def __init__(self, plan: PoisonPlan) -> None:
        self.plan = plan
        self.rng = Random(f"life {plan.seed}")
        keys = {"mld__poisonAttempts": str(plan.attempts), "mld__deadLetter": "letters"}
        keys |= {"maxRecords": str(plan.records_max), "idleTimeBetweenReadsInMillis": "1000"}
        self.fleet = Fleet(plan.shards, **keys, **plan.mode)
        self.fleet.recorder = Mortal(self.fleet.clock, plan, self.rng)
        self.good: set[bytes] = set()
        self.bad: set[bytes] = set()
        self.workers = 0

    async def run(self) -> None:
        for event in self.plan.events:
            await self.happen(event)
            await self.fleet.advance(self.rng.uniform(0, 30))
        await self.happen("resume")
        await self.happen("start")
        deadline = self.fleet.clock.monotonic() + CALM_S
        while not self.is_done():
            assert self.fleet.clock.monotonic() < deadline, f"seed {self.plan.seed}: {self.summary()} after {CALM_S} s"
            await self.fleet.advance(LOOK_S)
        assert self.set_aside() == self.bad, f"seed {self.plan.seed}: {self.set_aside() ^ self.bad}"
        last: dict[int, int] = {}
        for one in self.fleet.recorder.deliveries:  # user records of an aggregate share a number
            assert int(one.sequence) >= last.get(one.child, 0), f"seed {self.plan.seed}: child {one.child} went back"
            last[one.child] = int(one.sequence)

    def is_done(self) -> bool:
        return self.good <= {*self.fleet.recorder.data()} and self.bad <= self.set_aside()

    def set_aside(self) -> set[bytes]:
        return {base64.b64decode(json.loads(letter.body)["data"]) for letter in self.fleet.letters.letters}

    def put_some(self, count: int) -> None:
        shards = [shard.view() for shard in self.fleet.shards() if shard.view().is_open]
        for _ in range(count):
            hash_range = self.rng.choice(shards).hash_range
            key = self.rng.randint(hash_range.start, hash_range.end)
            is_aggregate = self.rng.random() < self.plan.aggregate_share
            data = []
            for _ in range(self.rng.randint(1, USERS_MAX) if is_aggregate else 1):
                is_bad = self.rng.random() < self.plan.poison_share and len(self.bad) < BAD_MAX
                one = b"%b-%d" % (POISON if is_bad else b"good", len(self.good) + len(self.bad))
                (self.bad if is_bad else self.good).add(one)
                data.append(one)
            body = aggregate([User("k", one, explicit_hash_key=str(key)) for one in data]) if is_aggregate else data[0]
            self.fleet.kinesis.put_record(STREAM, PutEntry.of(body, "k", key), now=self.fleet.clock.wall())

    async def happen(self, event: str) -> None:
        fleet, rng = self.fleet, self.rng
        living = [one for one in fleet.running if not one.task.done()]
        match event:
            case "put":
                for _ in range(rng.randint(1, 5)):
                    self.put_some(rng.randint(1, 5))
                    await fleet.advance(rng.uniform(0, 3))
            case "start" if len(living) < WORKERS_MAX:
                self.workers += 1
                fleet.start(f"w{self.workers}", seed=self.workers)
                await fleet.advance(rng.uniform(1, 30))
            case "crash" if living:
                await rng.choice(living).crash()
            case "stop" if living:
                await rng.choice(living).stop()
            case "kill" if living and (children := rng.choice(living).host.living()):
                await rng.choice(children).kill()
            case "box":
                setattr(fleet.letters, rng.choice(["fails", "loses"]), rng.randint(1, 4))
            case "pause" | "resume":
                await self.steer(event)
            case "wait":
                await fleet.advance(rng.uniform(1, 400))
            case "split" | "merge":
                self.reshard(event)

    def reshard(self, event: str) -> None:
        shards = sorted((s for s in self.fleet.shards() if s.view().is_open), key=lambda s: s.view().hash_range.start)
        if event == "split" and len(shards) < SHARDS_MAX:
            self.fleet.split(self.rng.choice(shards).shard_id)
        elif event == "merge" and len(shards) > 1:
            at = self.rng.randrange(len(shards) - 1)
            self.fleet.merge(shards[at].shard_id, shards[at + 1].shard_id)

    async def steer(self, act: str) -> None:
        table = DynamoLeaseTable(self.fleet.dynamo.client("operator"), self.fleet.clock, table_name=TABLE)
        for shard in self.fleet.shards():
            if self.fleet.dynamo.has_table(TABLE) and (lease := await table.get(shard.shard_id)) is not None:
                await table.apply(writes.pause(lease, "by me") if act == "pause" else writes.resume(lease))

    def summary(self) -> str:
        done = len(self.good & {*self.fleet.recorder.data()})
        return f"{done} of {len(self.good)} good, {len(self.set_aside())} of {len(self.bad)} bad"


async def live(seed: int) -> PoisonWorld:
    """Live through a seed; raises AssertionError if a promise is broken."""
    world = PoisonWorld(draw(seed))
    try:
        await world.run()
    finally:
        await world.fleet.close()
    return world
