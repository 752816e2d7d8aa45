"""Random lives of fleets that read the stream of a DynamoDB table, in virtual time.

An hour stands for a day (`short_lives`): shards are succeeded by themselves after ten minutes, and records last an
hour. Shards split, new ones are listed late, pages are empty before those with records, answers fail, workers come,
crash and go. The promises: every change is delivered, those of an item in their order, unless all workers were away for
longer than records last; no shard ends before its last record; and the fleet catches up.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from typing import Any

from mld.aws.dynamo_streams import DynamoDBStreams
from mld.core.streams import StreamKind
from mld.daemon.stream_ports import StreamPorts
from mld.local import change_stream
from mld.properties.settings import Settings
from mld.retrieval.rawbody import page_of
from mld.shards import cleanup, identity
from tests.support.fleet import Fleet
from tests.twins.dynamo import lost_reply, lost_request, throttled
from tests.twins.table_streams import TableStreamsService

EVENTS = ("put", "put", "put", "put", "split", "roll", "start", "crash", "stop", "wait", "wait", "long wait")
WORKERS_MAX = 3
ITEMS = 7
STEPS_MIN, STEPS_MAX = 8, 24
QUIET_S = 900.0
HOUR_OF_A_DAY = 24.0
SHARD_LIFE_S, RETENTION_S = 4 * 3600.0 / HOUR_OF_A_DAY, 24 * 3600.0 / HOUR_OF_A_DAY
AWAY_MAX_S = RETENTION_S / 2
"""A fleet may be away for so long: what it has not read by then is not lost yet."""


@dataclass(frozen=True, slots=True)
class TableStreamPlan:
    """What happens, in this order."""

    seed: int
    steps: tuple[str, ...]
    fault_share: float
    lists_late_s: float
    ends_disabled: bool
    stretch_pages: int


def draw(seed: int) -> TableStreamPlan:
    rng = Random(f"table stream {seed}")
    return TableStreamPlan(
        seed,
        tuple(rng.choice(EVENTS) for _ in range(rng.randint(STEPS_MIN, STEPS_MAX))),
        rng.choice([0.0, 0.0, 0.05, 0.2]),
        rng.choice([0.0, 0.0, 3.0, 30.0]),
        rng.random() < 0.2,
        rng.choice([0, 1, 3]),
    )


class TableStreamFleet(Fleet):
    """Workers that read one stream of one table."""

    def __init__(self, **keys: str) -> None:
        super().__init__(0, streamName="", **{"clientVersionConfig": "CLIENT_VERSION_CONFIG_3X", **keys})
        self.service = TableStreamsService(self.clock)
        self.arn = self.service.enable()
        self.keys["streamArn"] = self.arn
        self.values: dict[str, list[str]] = {}

    def ports(self, settings: Settings) -> StreamPorts:
        port = DynamoDBStreams(self.service, self.clock, stream_arn=self.arn, page_of=page_of)  # type: ignore[arg-type]
        return StreamPorts(port, kind=StreamKind.DYNAMODB)

    def put_items(self, count: int, rng: Random) -> None:
        for _ in range(count):
            item = f"item-{rng.randrange(ITEMS)}"
            values = self.values.setdefault(item, [])
            values.append(f"{item}-{len(values)}")
            self.service.put(self.arn, item, values[-1])

    def delivered(self) -> dict[str, list[str]]:
        """The values of each item in the order in which they were first delivered."""
        found: dict[str, dict[str, None]] = {}
        for one in self.recorder.deliveries:
            image = json.loads(one.data)["dynamodb"]["NewImage"]
            found.setdefault(image["id"]["S"], {})[image["value"]["S"]] = None
        return {item: list(values) for item, values in found.items()}

    def everything_is_delivered(self) -> bool:
        found = self.delivered()
        return all(set(values) <= set(found.get(item, ())) for item, values in self.values.items())

    def check_items(self) -> None:
        for item, values in self.delivered().items():
            assert values == self.values[item], f"{item} came out of order: {values[:20]}"


class TableStreamWorld:
    """Lives through a plan in virtual time."""

    def __init__(self, plan: TableStreamPlan) -> None:
        self.plan = plan
        self.rng = Random(f"table stream life {plan.seed}")
        self.fleet = TableStreamFleet()
        self.workers = 0
        self._away_since: float | None = None  # no worker lives since then

    async def run(self) -> None:
        fleet, plan = self.fleet, self.plan
        fleet.service.fault_share = plan.fault_share
        fleet.service.lists_late_s = plan.lists_late_s
        fleet.service.streams.stretch_pages = plan.stretch_pages
        if plan.fault_share:
            fleet.dynamo.faults = self.fault
        for event in ("start", "start", "put", *plan.steps):
            await self.happen(event)
            await self.do_not_stay_away()
            await fleet.advance(self.rng.uniform(0, 60))
        fleet.dynamo.faults = None
        fleet.service.fault_share = 0.0
        if plan.ends_disabled:
            fleet.service.streams.disable(fleet.arn, now=fleet.clock.wall())
        await self.happen("start")
        await fleet.until(fleet.everything_is_delivered, QUIET_S, f"seed {plan.seed}: everything delivered")
        fleet.check_order()
        fleet.check_items()
        assert not [one for one in fleet.running if one.task.done() and one.worker.failure], "no worker failed"

    async def do_not_stay_away(self) -> None:
        """Records of a time without any worker last only so long."""
        if any(not one.task.done() for one in self.fleet.running):
            self._away_since = None
            return
        now = self.fleet.clock.monotonic()
        self._away_since = now if self._away_since is None else self._away_since
        if now - self._away_since > AWAY_MAX_S:
            await self.happen("start")

    def fault(self, _sender: str, operation: str, _: Any) -> Any:
        if operation in ("CreateTable", "DescribeTable") or self.rng.random() >= self.plan.fault_share / 4:
            return None
        return self.rng.choice([lost_request, lost_reply, throttled])(operation)

    async def happen(self, event: str) -> None:
        fleet = self.fleet
        living = [one for one in fleet.running if not one.task.done()]
        match event:
            case "put":
                fleet.put_items(self.rng.randint(1, 20), self.rng)
            case "start" if len(living) < WORKERS_MAX:
                self.workers += 1
                fleet.start(f"w{self.workers}", seed=self.workers)
            case "crash" if living:
                await self.rng.choice(living).crash()
            case "stop" if living:
                await self.rng.choice(living).stop()
            case "split":
                fleet.service.stream(fleet.arn).split(None, fleet.clock.wall())
            case "roll":
                fleet.service.stream(fleet.arn).roll(fleet.clock.wall())
            case "wait":
                await fleet.advance(self.rng.uniform(1, 120))
            case "long wait":
                if not living:  # else records would be gone
                    await self.happen("start")
                await fleet.until(fleet.everything_is_delivered, QUIET_S, f"seed {self.plan.seed}: before a long wait")
                await fleet.advance(self.rng.uniform(SHARD_LIFE_S, 1.2 * RETENTION_S))


def short_lives(stack: ExitStack) -> None:
    """Let everything of DynamoDB's, and what we know of it, take a 24th of its time."""
    for module, name, value in (
        (change_stream, "SHARD_LIFE_S", SHARD_LIFE_S),
        (change_stream, "RETENTION_S", RETENTION_S),
        (identity, "DYNAMODB_RETENTION_S", RETENTION_S),
        (cleanup, "GARBAGE_INTERVAL_S", 120.0),
    ):
        stack.callback(setattr, module, name, getattr(module, name))
        setattr(module, name, value)


async def live(seed: int) -> TableStreamWorld:
    """Live through a seed; raises AssertionError if a promise is broken."""
    with ExitStack() as stack:
        short_lives(stack)
        world = TableStreamWorld(draw(seed))
        try:
            await world.run()
        finally:
            await world.fleet.close()
        return world
