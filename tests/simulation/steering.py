"""Random lives of fleets that operators steer: shards are moved, released and paused, workers are drained, children
started again and single records left out.

A plan is drawn from its own stream of random numbers, apart from those of `world.plan`. The promises: nothing is lost
or skipped, whatever is done and whatever dies meanwhile; nothing is delivered of a shard that is paused; a drained
worker ends up empty; and once every pause is over the fleet catches up.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from mld.local.kinesis import PutEntry
from mld.operating.plan import ActRefusedError
from tests.simulation.operators import Operators
from tests.support.fleet import STREAM, Fleet, settings_of
from tests.twins.dynamo import Fault, lost_reply, lost_request, throttled

EVENTS = ("put", "put", "put", "split", "merge", "start", "crash", "stop", "wait")
ACTS = ("move", "move", "release", "drain", "undo", "pause", "pause", "resume")
WISHES = ("", "", "restart", "leave out")
WORKERS_MAX = 3
SHARDS_MAX = 4
STEPS_MIN, STEPS_MAX = 6, 16
PAUSE_SEEN_S = 30.0
"""Two renewals, a handoff that began before, and a batch under way."""
DRAINED_WITHIN_S = 300.0
QUIET_S = 600.0


@dataclass(frozen=True, slots=True)
class SteeringPlan:
    """What happens, in this order; `fault_share` of an operator's writes fail in some way."""

    seed: int
    shards: int
    steps: tuple[str, ...]
    fault_share: float
    wishes: tuple[str, ...]
    """What is asked of a holder after each step; empty for nothing."""


def draw(seed: int) -> SteeringPlan:
    rng = Random(f"steering {seed}")
    steps = rng.randint(STEPS_MIN, STEPS_MAX)
    return SteeringPlan(
        seed,
        rng.randint(1, SHARDS_MAX),
        tuple(rng.choice(ACTS if rng.random() < 0.5 else EVENTS) for _ in range(steps)),
        rng.choice([0.0, 0.0, 0.2]),
        tuple(rng.choice(WISHES) for _ in range(steps)),
    )


class SteeredWorld:
    """Lives through a plan in virtual time."""

    def __init__(self, plan: SteeringPlan) -> None:
        self.plan = plan
        self.rng = Random(f"steered life {plan.seed}")
        self.wish_rng = Random(f"wishes {plan.seed}")
        self.fleet = Fleet(plan.shards, clientVersionConfig="CLIENT_VERSION_CONFIG_3X")
        self.workers = 0
        self.done: dict[str, int] = {}
        """How many acts were carried out, by name."""
        self.paused_at: dict[str, float] = {}
        self.operators = Operators(
            self.fleet.dynamo.client("operator"), settings_of(), self.fleet.clock, self.rng, self.put_extra, is_3x=True
        )

    async def run(self) -> None:
        fleet = self.fleet
        self.fleet.dynamo.faults = self.fault if self.plan.fault_share else None
        for event in ("start", "start", "put"):
            await self.happen(event)
        await fleet.advance(60)
        for step, wish in zip(self.plan.steps, self.plan.wishes, strict=True):
            await self.wish(wish)
            if step in ACTS:
                await self.act(step)
            else:
                await self.happen(step)
            await fleet.advance(self.rng.uniform(0, 30))
            await self.nothing_comes_of_the_paused()
        fleet.dynamo.faults = None
        await self.happen("start")
        await self.drained_workers_are_empty()
        await self.operators.resume_all()
        self.paused_at = {}
        self.fleet.put(10)
        await fleet.until(fleet.all_delivered, QUIET_S, f"seed {self.plan.seed}: everything delivered")
        fleet.check_order()

    def fault(self, sender: str, operation: str, _: Any) -> Fault | None:
        if sender != "operator" or operation != "UpdateItem" or self.rng.random() >= self.plan.fault_share:
            return None
        return self.rng.choice([lost_request, lost_reply, throttled])(operation)

    # --- what operators do --------------------------------------------------------------------------------------------

    async def act(self, name: str) -> None:
        seen = await self.operators.reader.look()
        try:
            plan = self.operators.plan(name, seen)
        except ActRefusedError:
            return
        if self.rng.random() < 0.3:
            await self.fleet.advance(self.rng.uniform(0, 10))  # a plan may be old by the time it is carried out
        if await self.operators.carry_out(plan):
            self.done[name] = self.done.get(name, 0) + 1
        if name in ("pause", "resume"):
            await self.note_pauses()

    async def wish(self, name: str) -> None:
        """Ask a holder for a new child, or to leave out a record that is none of those that must be delivered."""
        if not name:
            return
        try:
            plan = self.operators.plan_wish(name, await self.operators.reader.look(), self.wish_rng)
        except ActRefusedError:
            return
        await self.operators.carry_out(plan)

    def put_extra(self) -> tuple[str, str]:
        entry = PutEntry.of(b"left out", str(self.wish_rng.random()))
        put = self.fleet.kinesis.put_record(STREAM, entry, now=self.fleet.clock.wall())
        return put.shard_id, put.sequence

    async def note_pauses(self) -> None:
        """The table says what is paused: an answer may have been lost."""
        now = self.fleet.clock.monotonic()
        seen = await self.operators.reader.look()
        paused = {view.key for view in seen.shards if view.lease.paused is not None}
        self.paused_at = {key: self.paused_at.get(key, now) for key in paused}

    # --- promises -----------------------------------------------------------------------------------------------------

    async def nothing_comes_of_the_paused(self) -> None:
        now = self.fleet.clock.monotonic()
        for one in self.fleet.recorder.deliveries:
            since = self.paused_at.get(one.shard_id)
            if since is not None and one.at_s > since + PAUSE_SEEN_S:
                raise AssertionError(f"seed {self.plan.seed}: {one.shard_id} is paused since {since}, {one} at {now}")

    async def drained_workers_are_empty(self) -> None:
        async def holders() -> list[str]:
            seen = await self.operators.reader.look()
            drained = {one.worker for one in seen.workers if one.is_alive and one.drained is not None}
            if not any(one.is_alive and one.drained is None for one in seen.workers):
                return []
            return [view.key for view in seen.open_shards if view.owner in drained]

        for _ in range(int(DRAINED_WITHIN_S)):
            if not await holders():
                return
            await self.fleet.advance(1)
        raise AssertionError(f"seed {self.plan.seed}: a drained worker holds {await holders()}")

    # --- what happens to them -----------------------------------------------------------------------------------------

    async def happen(self, event: str) -> None:
        fleet = self.fleet
        living = [one for one in fleet.running if not one.task.done()]
        match event:
            case "put":
                fleet.put(self.rng.randint(1, 20))
            case "start" if len(living) < WORKERS_MAX:
                self.workers += 1
                fleet.start(f"w{self.workers}", seed=self.workers)
            case "crash" if living:
                await self.rng.choice(living).crash()
            case "stop" if living:
                await self.rng.choice(living).stop()
            case "wait":
                await fleet.advance(self.rng.uniform(1, 120))
            case "split" | "merge":
                self.reshard(event)

    def reshard(self, event: str) -> None:
        shards = sorted((s for s in self.fleet.shards() if s.view().is_open), key=lambda s: s.view().hash_range.start)
        if event == "split":
            self.fleet.split(self.rng.choice(shards).shard_id)
        elif len(shards) > 1:
            at = self.rng.randrange(len(shards) - 1)
            self.fleet.merge(shards[at].shard_id, shards[at + 1].shard_id)


async def live(seed: int) -> SteeredWorld:
    """Live through a seed; raises AssertionError if a promise is broken."""
    world = SteeredWorld(draw(seed))
    try:
        await world.run()
    finally:
        await world.fleet.close()
    return world
