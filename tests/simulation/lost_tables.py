"""Random lives of fleets whose lease table is deleted, made again or restored from a backup, on machines whose clocks
disagree by minutes.

A plan is drawn from its own stream of random numbers, apart from those of `world.plan`. The promises: nothing that was
put is lost; once the table is back every open shard is held within the bound of its mode, and from then on no lease
goes without a holder for as long; nobody that lives is taken for dead, or for a twin; the fleet is balanced in the end.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from random import Random
from typing import Any

from mld.core.positions import SHARD_END_NAME
from mld.daemon.stream_ports import StreamPorts
from tests.support.fleet import TABLE, Fleet, Running
from tests.twins.dynamo_expressions import Item
from tests.twins.kinesis_model import ModelFanOut
from tests.twins.streams import VirtualClock

FAILOVER_S = 10.0
BOUNDS_S = {
    "CLIENT_VERSION_CONFIG_3X": FAILOVER_S + 2.0,
    "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1": 4 * FAILOVER_S + 4.0,
}
"""Takers of 2.x look every two lease durations: one look sees a row that was restored, and the next one takes it."""
EVENTS = ("lost", "lost", "emptied", "restored", "restored")
CLOCKS_OFF_S = (0.0, 0.0, -600.0, 600.0)
MOMENT_S = 0.25
WATCHED_S = 45.0
SETTLED_S = 240.0
ACCUSED = ("worker_silent", "worker_id_twin")


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What befalls the table, in this order; `clocks_s` are the workers', `pauses_s` the time before each event."""

    seed: int
    version: str
    shards: int
    clocks_s: tuple[float, ...]
    events: tuple[str, ...]
    pauses_s: tuple[float, ...]
    backup_age_s: float


def draw(seed: int) -> TablePlan:
    rng = Random(f"lost tables {seed}")
    version = rng.choice([*BOUNDS_S, "CLIENT_VERSION_CONFIG_3X"])
    events = tuple(rng.choice(EVENTS) for _ in range(rng.randint(1, 2)))
    return TablePlan(
        seed,
        version,
        rng.randint(2, 5),
        tuple(rng.choice(CLOCKS_OFF_S) for _ in range(rng.randint(2, 3))),
        events,
        tuple(rng.uniform(20.0, 120.0) for _ in events),
        rng.uniform(1.0, 60.0),
    )


class Accusations(logging.Handler):
    """Hears of workers that are taken for dead, or for twins."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "action", "") in ACCUSED:
            self.heard.append(record.getMessage())


class SkewedFleet(Fleet):
    """Each worker has a clock of its own; AWS's is right."""

    def start_at(self, worker_id: str, off_s: float, seed: int) -> Running:
        right, self.clock = self.clock, VirtualClock(off_s)
        self._right = right
        try:
            return self.start(worker_id, seed=seed)
        finally:
            self.clock = right

    def ports(self, settings: Any) -> StreamPorts:
        return StreamPorts(ModelFanOut(self.kinesis, settings.stream_name, self._right), None, None)


class TableWorld:
    """One life."""

    def __init__(self, plan: TablePlan) -> None:
        self.plan = plan
        self.bound_s = BOUNDS_S[plan.version]
        keys = {"clientVersionConfig": plan.version, "mld__leaseAssignmentStrategy": "count"}
        self.fleet = SkewedFleet(plan.shards, **keys)
        self.accusations = Accusations()
        self.backup: dict[str, Item] = {}

    async def run(self) -> None:
        logger = logging.getLogger("mld")
        before = logger.level, logger.propagate, logging.root.manager.disable
        logger.addHandler(self.accusations)
        logger.setLevel(logging.WARNING)
        logger.propagate = False
        logging.disable(logging.NOTSET)
        try:
            await self._live()
        finally:
            logger.removeHandler(self.accusations)
            logger.setLevel(before[0])
            logger.propagate = before[1]
            logging.disable(before[2])
            await self.fleet.close()

    async def _live(self) -> None:
        fleet = self.fleet
        for number, off_s in enumerate(self.plan.clocks_s):
            fleet.start_at(f"w{number}", off_s, number)
            await fleet.advance(1.0)
        await fleet.until(self.all_held, 120, "the start")
        for event, pause_s in zip(self.plan.events, self.plan.pauses_s, strict=True):
            fleet.put(10)
            await fleet.advance(pause_s)
            self.backup = {key: dict(row) for key, row in fleet.dynamo.rows(TABLE).items()}
            fleet.put(10)
            await fleet.advance(self.plan.backup_age_s)
            self.accusations.heard.clear()
            await self.happen(event)
            await self.watch(event)
        fleet.put(10)
        await fleet.until(fleet.all_delivered, 120, "what was put is delivered")
        await fleet.until(self.is_balanced, SETTLED_S, "the fleet is balanced again")

    async def happen(self, event: str) -> None:
        """Do to the table what somebody does, until there is one again."""
        fleet = self.fleet
        match event:
            case "lost":
                await fleet.dynamo.call("DeleteTable", {"TableName": TABLE})
                await fleet.until(lambda: fleet.dynamo.has_table(TABLE), 2 * FAILOVER_S, "the table is made again")
            case "emptied" | "restored":
                for key in [*fleet.dynamo.rows(TABLE)]:
                    fleet.dynamo.delete_row(TABLE, key)
                await fleet.advance(1.0 if event == "emptied" else 0.0)
                for row in self.backup.values():
                    fleet.dynamo.put_row(TABLE, row)

    async def watch(self, event: str) -> None:
        unheld_s = 0.0
        for _ in range(int((self.bound_s + WATCHED_S) / MOMENT_S)):
            await self.fleet.advance(MOMENT_S)
            unheld_s = 0.0 if self.all_held() else unheld_s + MOMENT_S
            assert unheld_s <= self.bound_s, f"{self.plan}: {event}: {self.bound_s} s without a holder"
        assert not self.accusations.heard, f"{self.plan}: {event}: {self.accusations.heard}"

    def held(self) -> list[frozenset[str]]:
        return [frozenset(one.worker.held()) for one in self.fleet.running]

    def all_held(self) -> bool:
        held = frozenset().union(*self.held())
        rows = self.fleet.dynamo.rows(TABLE) if self.fleet.dynamo.has_table(TABLE) else {}
        ended = {key for key, row in rows.items() if row.get("checkpoint", {}).get("S") == SHARD_END_NAME}
        return all(shard.shard_id in held or shard.shard_id in ended for shard in self.fleet.shards())

    def is_balanced(self) -> bool:
        loads = [len(keys) for keys in self.held()]
        return self.all_held() and max(loads) - min(loads) <= 1


async def live(seed: int) -> TableWorld:
    """Live through a seed; raises AssertionError if a promise is broken."""
    world = TableWorld(draw(seed))
    await world.run()
    return world
