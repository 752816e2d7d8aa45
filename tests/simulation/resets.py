"""Random lives of fleets that are reset in the middle of them: who starts, dies, splits and merges, and when; how far
the operator is from the table, and whether records keep coming, so that rows move faster than its answers arrive.

A plan is drawn from its own stream of random numbers, apart from those of `world.plan`. The promise: from the
beginning of a reset that succeeds on, every record that arrived at its place or later is delivered again, whatever
workers and operators did meanwhile; and nothing is skipped but what is older than a time that was asked for.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from mld.core.errors import MldError
from mld.operating.application import Application
from mld.operating.plan import Fate
from mld.operating.points import Point, PointKind
from mld.operating.resetting import Reset, resolve
from tests.support.changes import operator_on
from tests.support.fleet import Fleet
from tests.twins.dynamo import Fault, lost_reply, lost_request, throttled

MODES = (
    {"clientVersionConfig": "CLIENT_VERSION_CONFIG_3X"},
    {"clientVersionConfig": "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1"},
)
WORKERS_MAX = 3
SHARDS_MAX = 3
EVENTS = ("put", "put", "split", "merge", "start", "crash", "stop", "wait")
TRIES_MAX = 12
BUSY_SHARE = 0.5
BUSY_EVERY_S = 0.15
FAULTY_TRIES = 8
QUIET_S = 400.0


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """What happens between two looks, in this order; `fault_share` of the operator's writes fail in some way."""

    seed: int
    mode: dict[str, str]
    shards: int
    before: tuple[str, ...]
    meanwhile: tuple[str, ...]
    after: tuple[str, ...]
    back: float
    """Where the reset goes to, as a share of the time that has passed; 0 is the trim horizon."""
    dies_after_s: float | None
    fault_share: float
    away_s: float
    """How long each request of the operator is under way to the table, and its answer back."""
    is_busy: bool
    """Records come all the time while the reset is under way."""


def draw(seed: int) -> ResetPlan:
    rng = Random(f"resets {seed}")
    some = lambda most: tuple(rng.choice(EVENTS) for _ in range(rng.randint(0, most)))  # noqa: E731
    return ResetPlan(
        seed=seed,
        mode=rng.choice(MODES),
        shards=rng.randint(1, SHARDS_MAX),
        before=("start", "put", *some(6), "put"),
        meanwhile=some(3),
        after=some(4),
        back=rng.choice([0.0, 0.0, rng.random(), rng.random()]),
        dies_after_s=rng.choice([None, None, rng.uniform(0, 15)]),
        fault_share=rng.choice([0.0, 0.0, 0.1, 0.3]),
        away_s=rng.choice([0.0, 0.1, 0.3]),
        is_busy=rng.random() < BUSY_SHARE,
    )


class ResetWorld:
    """Lives through a plan in virtual time."""

    def __init__(self, plan: ResetPlan) -> None:
        self.plan = plan
        self.rng = Random(f"life {plan.seed}")
        self.fleet = Fleet(plan.shards, idleTimeBetweenReadsInMillis="250", **plan.mode)
        self.arrivals: list[tuple[float, bytes]] = []
        self.workers = 0
        self.refusals: list[str] = []
        self.since = 0
        """Deliveries from here on count as those that the reset asked for."""
        self.faults_are_over = False

    async def run(self) -> None:
        fleet = self.fleet
        began_s = fleet.clock.wall()
        for event in self.plan.before:
            await self.happen(event)
        await fleet.advance(self.rng.uniform(0, 30))
        place = Point(PointKind.TRIM_HORIZON)
        if self.plan.back:
            place = Point(PointKind.TIME, began_s + self.plan.back * (fleet.clock.wall() - began_s))
        busy = asyncio.create_task(self.keep_putting())
        await asyncio.gather(self.reset_until_done(place), self.happen_all(self.plan.meanwhile))
        busy.cancel()
        await asyncio.wait({busy})
        for event in self.plan.after:
            await self.happen(event)
        await self.happen("start")
        wanted = {data for at_s, data in self.arrivals if place.time_s is None or at_s >= place.time_s}
        await fleet.until(
            lambda: wanted <= {one.data for one in fleet.recorder.deliveries[self.since :]},
            QUIET_S,
            f"seed {self.plan.seed}: everything since {place} delivered again",
        )
        if place.time_s is None:  # to a time, what is older and was not processed is skipped, as was asked for
            assert fleet.all_delivered(), f"seed {self.plan.seed}: a record was never delivered"
        fleet.check_order()

    async def reset_until_done(self, place: Point) -> None:
        """As an operator would: the same command again until it says that all is done."""
        dies_after_s = self.plan.dies_after_s
        for attempt in range(TRIES_MAX):
            app = self.operator(attempt)
            if attempt >= FAULTY_TRIES:
                self.faults_are_over = True
            try:
                async with asyncio.timeout(dies_after_s):
                    if await self.reset(app, place):
                        return
            except TimeoutError:
                dies_after_s = None
            except MldError as error:
                self.refusals.append(str(error))
            await self.fleet.advance(15)
        raise AssertionError(f"seed {self.plan.seed}: {self.refusals}")

    async def reset(self, app: Application, place: Point) -> bool:
        seen = await app.require_table()
        wanted: Reset = await resolve(app, seen.table, place, None)
        await app.require_nobody(seen, stop_fleet=True)
        # What is delivered before the first row is written is no answer to the reset. Former owners are silent by then.
        written: list[int] = []
        outcomes = await app.carry_out(
            wanted.plan, lambda _: written.append(len(self.fleet.recorder.deliveries)), seen, stop_fleet=True
        )
        self.since = written[0] if written else self.since
        return all(outcome.fate is Fate.DONE for outcome in outcomes)

    def operator(self, number: int) -> Application:
        name = f"operator-{number}"

        def fault(sender: str, operation: str, _: Any) -> Fault | None:
            if sender != name:
                return None
            failing = not self.faults_are_over and self.rng.random() < self.plan.fault_share
            kind = self.rng.choice([lost_request, lost_reply, throttled])(operation) if failing else Fault()
            return replace(kind, delay_before_s=self.plan.away_s, delay_after_s=self.plan.away_s)

        self.fleet.dynamo.faults = fault
        return operator_on(self.fleet, name)

    async def keep_putting(self) -> None:
        while self.plan.is_busy:
            self.put(self.rng.randint(1, 2))
            await self.fleet.advance(BUSY_EVERY_S)

    def put(self, count: int) -> None:
        self.fleet.put(count)
        self.arrivals += [(self.fleet.clock.wall(), one) for one in self.fleet.put_data[len(self.arrivals) :]]

    async def happen_all(self, events: tuple[str, ...]) -> None:
        for event in events:
            await self.fleet.advance(self.rng.uniform(0, 10))
            await self.happen(event)

    async def happen(self, event: str) -> None:
        fleet = self.fleet
        living = [one for one in fleet.running if not one.task.done()]
        match event:
            case "put":
                for _ in range(self.rng.randint(1, 8)):
                    self.put(self.rng.randint(1, 3))
                    await fleet.advance(self.rng.uniform(0, 3))
            case "start" if len(living) < WORKERS_MAX:
                self.workers += 1
                fleet.start(f"w{self.workers}", seed=self.workers)
                await fleet.advance(self.rng.uniform(1, 30))
            case "crash" if living:
                await self.rng.choice(living).crash()
            case "stop" if living:
                await self.rng.choice(living).stop()
            case "wait":
                await fleet.advance(self.rng.uniform(1, 60))
            case "split" | "merge":
                self.reshard(event)

    def reshard(self, event: str) -> None:
        shards = sorted((s for s in self.fleet.shards() if s.view().is_open), key=lambda s: s.view().hash_range.start)
        if event == "split":
            self.fleet.split(self.rng.choice(shards).shard_id)
        elif len(shards) > 1:
            at = self.rng.randrange(len(shards) - 1)
            self.fleet.merge(shards[at].shard_id, shards[at + 1].shard_id)


async def live(seed: int) -> ResetWorld:
    """Live through a seed; raises AssertionError if a promise is broken."""
    world = ResetWorld(draw(seed))
    try:
        await world.run()
    finally:
        await world.fleet.close()
    return world
