"""Random lives of jobs that run until they have caught up (`mld run --until-caught-up`), on Kinesis and on the stream
of a DynamoDB table, whose pages may be empty in the middle of a shard and tell nothing of its tip.

One run follows another; between them and meanwhile records come, shards split and merge, requests fail, runs die and
daemons live beside them. The promises: a run that says that it is caught up has done all that was there when it began,
so that no later run or daemon gets any of it again; one that finds a daemon at work leaves its leases alone; and
without faults every run catches up.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import Any

from mld.core.errors import MldError
from mld.daemon.until_tip import UntilTip
from tests.simulation.table_streams import TableStreamFleet
from tests.support.fleet import Fleet
from tests.twins.dynamo import Fault, lost_reply, lost_request, throttled

EVENTS = ("put", "put", "put", "split", "merge", "wait", "wait")
RUNS_MIN, RUNS_MAX = 2, 5
SHARDS_MAX = 4
QUIET_S = 600.0
DAEMON_SETTLES_S = 60.0
NOT_FAULTY = ("CreateTable", "DescribeTable", "UpdateTable")


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run: what happens before it and beside it, and how it may be disturbed."""

    before: tuple[str, ...]
    meanwhile: tuple[str, ...]
    dies_after_s: float | None
    beside_daemon: bool


@dataclass(frozen=True, slots=True)
class CatchUpPlan:
    seed: int
    is_table: bool
    is_3x: bool
    shards: int
    fault_share: float
    stretch_pages: int
    work_s: float
    runs: tuple[RunPlan, ...]


def draw(seed: int) -> CatchUpPlan:
    rng = Random(f"catch ups {seed}")

    def some(least: int, most: int) -> tuple[str, ...]:
        return tuple(rng.choice(EVENTS) for _ in range(rng.randint(least, most)))

    def run() -> RunPlan:
        return RunPlan(
            ("put", *some(0, 5)),
            some(0, 3),
            rng.choice((None, None, None, rng.uniform(0.0, 30.0))),
            rng.random() < 0.15,
        )

    return CatchUpPlan(
        seed,
        rng.random() < 0.5,
        rng.random() < 0.7,
        rng.randint(1, SHARDS_MAX),
        rng.choice((0.0, 0.0, 0.05, 0.2)),
        rng.choice((0, 1, 3)),
        rng.choice((0.0, 0.0, 0.5)),
        (*(run() for _ in range(rng.randint(RUNS_MIN, RUNS_MAX))), RunPlan(("put",), (), None, False)),
    )


class CatchUpWorld:
    """Lives through a plan in virtual time."""

    def __init__(self, plan: CatchUpPlan) -> None:
        self.plan = plan
        self.rng = Random(f"catching up {plan.seed}")
        config = "CLIENT_VERSION_CONFIG_" + ("3X" if plan.is_3x else "COMPATIBLE_WITH_2X_PHASE1")
        self.fleet = Fleet(plan.shards, clientVersionConfig=config)
        self.table: TableStreamFleet | None = None
        if plan.is_table:
            self.fleet = self.table = TableStreamFleet(clientVersionConfig=config)
            self.table.service.streams.stretch_pages = plan.stretch_pages
        self.fleet.recorder.work_s = plan.work_s
        self.caught_up = 0
        """How many runs said so."""
        self.done: set[str] = set()
        """What nobody is to get again."""
        self.looked_to = 0

    async def run(self) -> None:
        self.set_faults(self.plan.fault_share)
        for number, run in enumerate(self.plan.runs):
            for event in run.before:
                await self.happen(event)
            is_last = number == len(self.plan.runs) - 1
            if is_last:
                self.set_faults(0.0)
            wanted = self.wanted()
            if run.beside_daemon:
                daemon = self.fleet.start(f"d{number}", seed=number)
                await self.fleet.advance(DAEMON_SETTLES_S)
                await self.one_run(number, run, wanted, may_fail=True)
                assert daemon.task.done() or not self.fleet.running[-1].host.children, f"{self}: {number} reads, too"
                await daemon.stop()
            else:
                await self.one_run(number, run, wanted, may_fail=bool(self.plan.fault_share) and not is_last)
        assert self.wanted() <= set(self.delivered()), f"{self}: the last run has not caught up"

    def __str__(self) -> str:
        return f"seed {self.plan.seed}"

    async def one_run(self, number: int, plan: RunPlan, wanted: set[str], *, may_fail: bool) -> None:
        fleet = self.fleet
        run = fleet.start(f"c{number}", seed=100 + number, until_tip=UntilTip())
        for event in plan.meanwhile:
            await fleet.advance(self.rng.uniform(0.0, 10.0))
            await self.happen(event)
        if plan.dies_after_s is not None:
            await fleet.advance(plan.dies_after_s)
            if not run.task.done():
                await run.crash()
                return
        await fleet.until(run.task.done, QUIET_S, f"{self}: run {number} ends")
        try:
            await run.task
        except MldError as error:
            assert may_fail, f"{self}: run {number} fails without faults: {error}"
            return
        self.nothing_comes_again()
        if run.worker.failure is None and run.host.children:
            self.caught_up += 1
            self.done |= wanted
        assert may_fail or run.worker.failure is None, (
            f"{self}: run {number} fails without faults: {run.worker.failure}"
        )

    def nothing_comes_again(self) -> None:
        """Look at what was delivered since the last look."""
        delivered = self.delivered()
        again = self.done & set(delivered[self.looked_to :])
        assert not again, f"{self}: a run was caught up, and these come again: {sorted(again)[:3]}"
        self.looked_to = len(delivered)

    def set_faults(self, share: float) -> None:
        def fault(_sender: str, operation: str, _: Any) -> Fault | None:
            if operation in NOT_FAULTY or self.rng.random() >= share / 4:
                return None
            return self.rng.choice([lost_request, lost_reply, throttled])(operation)

        self.fleet.dynamo.faults = fault if share else None
        if self.table is not None:
            self.table.service.fault_share = share

    # --- the stream ---------------------------------------------------------------------------------------------------

    def wanted(self) -> set[str]:
        if self.table is not None:
            return {value for values in self.table.values.values() for value in values}
        return {data.decode() for data in self.fleet.put_data}

    def delivered(self) -> list[str]:
        found = [one.data for one in self.fleet.recorder.deliveries]
        if self.table is None:
            return [data.decode() for data in found]
        return [json.loads(data)["dynamodb"]["NewImage"]["value"]["S"] for data in found]

    async def happen(self, event: str) -> None:
        match event:
            case "put" if self.table is not None:
                self.table.put_items(self.rng.randint(1, 20), self.rng)
            case "put":
                self.fleet.put(self.rng.randint(1, 20))
            case "wait":
                await self.fleet.advance(self.rng.uniform(1, 120))
            case _ if self.table is not None:
                self.table.service.stream(self.table.arn).split(None, self.fleet.clock.wall())
            case _:
                self.reshard(event)

    def reshard(self, event: str) -> None:
        shards = sorted((s for s in self.fleet.shards() if s.view().is_open), key=lambda s: s.view().hash_range.start)
        at = self.rng.randrange(len(shards))
        if event == "split":
            self.fleet.split(shards[at].shard_id)
        elif len(shards) > 1:
            at = min(at, len(shards) - 2)
            self.fleet.merge(shards[at].shard_id, shards[at + 1].shard_id)


async def live(seed: int) -> CatchUpWorld:
    """Live through a seed; raises AssertionError if a promise is broken."""
    world = CatchUpWorld(draw(seed))
    try:
        await world.run()
        world.nothing_comes_again()
    finally:
        await world.fleet.close()
    return world
