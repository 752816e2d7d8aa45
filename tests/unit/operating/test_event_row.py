"""The row of events: who makes it, who adds to it, at what price, and that it never disturbs a worker."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

from mld.aws.table_calls import TableCalls
from mld.leases.rows import EntityType
from mld.metrics.events import TEXT_CHARACTERS_MAX, Event, EventBuffer, EventKind
from mld.operating.acting import note_act
from mld.operating.events import (
    ATTEMPTS_MAX,
    KEY,
    WRITE_PERIOD_S,
    EventRecorder,
    EventsTable,
    events_in,
    recording,
)
from mld.operating.plan import ActPlan, Fate, Outcome
from mld.properties.scrubber import Scrubber
from tests.support.fleet import TABLE, Fleet, Running, in_fleet
from tests.unit.operating.test_acting import CHANGE

START = "mld 0.3.0 on ip-10-0-1-23, pid 4711"

IN_3X = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_3X"}


def table_of(world: Fleet, worker: str, seed: int = 1) -> EventsTable:
    return EventsTable(TableCalls(world.dynamo.client(worker), TABLE, 10.0), world.clock, Random(seed))


def recorder_of(world: Fleet, running: Running, seed: int = 1) -> EventRecorder:
    """As a daemon has it, beside the worker."""
    worker = running.worker_id
    fleet = running.worker.fleet
    scrub = Scrubber(["s3cret-of-the-file"])
    return EventRecorder(
        running.metrics.events, table_of(world, worker, seed), world.clock, worker, scrub, lambda: fleet.keeps_events
    )


async def recorded(world: Fleet, worker: str, **keys: str) -> tuple[Running, asyncio.Task[None]]:
    """A worker that runs and is recorded until it ends."""
    running = world.start(worker, **keys)

    async def life() -> None:
        signals = running.worker.signals
        async with recording(
            recorder_of(world, running), signals.initialized, START, lambda: running.worker.failure or ""
        ):
            await running.task

    return running, asyncio.create_task(life())


def told(world: Fleet, *kinds: EventKind) -> list[tuple[str, str, str]]:
    """(worker, shard's number, text) of events of these kinds."""
    events = events_in(world.dynamo.row(TABLE, KEY))
    return [(one.worker, one.shard[-1:], one.text) for one in events if one.kind in kinds]


def usage(world: Fleet, operation: str, sender: str) -> int:
    return world.dynamo.usage(operation=operation, table=TABLE, sender=sender).requests


@in_fleet(2, **IN_3X)
async def test_a_shard_that_goes_from_one_worker_to_another_is_told_once(world: Fleet) -> None:
    first, ending = await recorded(world, "w1")
    await world.until(lambda: len(first.worker.held()) == 2)
    await world.advance(10)
    second, ending_too = await recorded(world, "w2", seed=2)
    await world.until(lambda: bool(second.worker.held()))
    await world.advance(30)
    (mine,) = second.worker.held()
    moves = [one for one in told(world, EventKind.MOVED) if one[1] == mine[-1]]
    assert [worker for worker, _, _ in moves] == ["w1", "w2"]
    assert moves[1][2].startswith("from w1")
    await second.stop()
    await ending_too
    assert told(world, EventKind.STARTED, EventKind.ENDED)[-1][0] == "w2"
    assert [one for one in told(world, EventKind.MOVED) if one[1] == mine[-1]][-1][0] == "w1"
    await first.stop()
    await ending
    assert [worker for worker, _, _ in told(world, EventKind.ENDED)] == ["w2", "w1"]


@in_fleet(1, **IN_3X)
async def test_at_rest_nothing_is_read_or_written(world: Fleet) -> None:
    running, _ = await recorded(world, "w1")
    await world.until(lambda: bool(running.worker.held()))
    await world.advance(60)
    assert told(world, EventKind.STARTED) == [("w1", "", START)]
    before = world.dynamo.row(TABLE, KEY)
    kind = (before or {})["entityType"]["S"]
    assert kind in {one.value for one in EntityType} - {"LEASE"}, "a type that readers of KCL 3.5 know"
    recorder = recorder_of(world, running)
    recorder.table = table_of(world, "events")
    for _ in range(100):
        await recorder.write()
    assert usage(world, "GetItem", "events") == usage(world, "UpdateItem", "events") == 0
    assert world.dynamo.row(TABLE, KEY) == before


@in_fleet(1)
async def test_a_fleet_of_2x_gets_no_row_and_its_worker_remembers(world: Fleet) -> None:
    running = world.start("w1")
    recorder = recorder_of(world, running)
    await world.until(lambda: bool(running.worker.held()))
    await recorder.write()
    assert world.dynamo.row(TABLE, KEY) is None
    assert [one.kind for one in recorder.recent] == [EventKind.MOVED]


@in_fleet(1, **IN_3X)
async def test_who_writes_at_the_same_time_loses_nothing(world: Fleet) -> None:
    running, _ = await recorded(world, "w1")
    await world.until(lambda: bool(running.worker.held()))
    await world.advance(10)
    tables = [table_of(world, f"w{number}", number) for number in range(3)]
    now_s = int(world.clock.wall())
    adding = [
        table.append([Event(EventKind.ACT, f"act {n}", at_s=now_s)], makes=True) for n, table in enumerate(tables)
    ]
    assert all(await asyncio.gather(*adding))
    assert sorted(text for _, _, text in told(world, EventKind.ACT)) == ["act 0", "act 1", "act 2"]


@in_fleet(1, **IN_3X)
async def test_a_table_that_refuses_costs_the_events_and_nothing_else(world: Fleet) -> None:
    running = world.start("w1")
    await world.until(lambda: bool(running.worker.held()))
    recorder = recorder_of(world, running)
    recorder.table = table_of(world, "events")
    world.dynamo.forbidden.add("UpdateItem")
    running.metrics.events.note(EventKind.FAILED, "x")
    await recorder.write()
    world.dynamo.forbidden.clear()
    assert world.dynamo.row(TABLE, KEY) is None
    assert EventKind.FAILED in [one.kind for one in recorder.recent], "the page of this worker has it"
    running.metrics.events.note(EventKind.RECOVERED, "y")
    await recorder.write()
    assert told(world, EventKind.FAILED, EventKind.RECOVERED) == [("w1", "", "y")]


@in_fleet(1, **IN_3X)
async def test_no_secret_and_no_control_character_is_stored(world: Fleet) -> None:
    running = world.start("w1")
    await world.until(lambda: bool(running.worker.held()))
    recorder = recorder_of(world, running)
    text = "s3cret-of-the-file and password=hunter22\x1b[2J" + "x" * 1000
    running.metrics.events.note(EventKind.FAILED, text, lines=[text, "Bearer abcdefgh"])
    await recorder.write()
    [event] = [one for one in events_in(world.dynamo.row(TABLE, KEY)) if one.kind is EventKind.FAILED]
    for shown in (event.text, *event.lines):
        assert "s3cret" not in shown and "hunter22" not in shown and "abcdefgh" not in shown
        assert shown.isprintable()
        assert len(shown) <= TEXT_CHARACTERS_MAX


@in_fleet(1, **IN_3X)
async def test_an_act_is_told_with_what_became_of_it_and_makes_no_row(world: Fleet) -> None:
    running = world.start("w1")
    await world.until(lambda: bool(running.worker.held()))
    calls = TableCalls(world.dynamo.client("ops"), TABLE, 10.0)
    plan = ActPlan("pause shardId-0", (CHANGE, CHANGE))
    outcomes = [Outcome(CHANGE, Fate.DONE), Outcome(CHANGE, Fate.REFUSED)]
    await note_act(calls, world.clock, plan, outcomes)
    assert world.dynamo.row(TABLE, KEY) is None
    await recorder_of(world, running).write()
    await note_act(calls, world.clock, plan, outcomes)
    [(who, _, text)] = told(world, EventKind.ACT)
    assert text == "pause shardId-0 (1 of 2 rows written)"
    assert "@" in who
    await note_act(calls, world.clock, plan, outcomes[1:])
    assert len(told(world, EventKind.ACT)) == 1, "nothing was done"
    world.dynamo.forbidden.add("GetItem")
    await note_act(calls, world.clock, plan, outcomes)
    world.dynamo.forbidden.clear()
    await note_act(None, world.clock, plan, outcomes)  # type: ignore[arg-type]


@in_fleet(2, **IN_3X)
async def test_the_leader_speaks_and_under_a_java_leader_the_first_of_ours(world: Fleet) -> None:
    workers = [world.start(name, seed=number) for number, name in enumerate(("w1", "w2"), start=1)]
    await world.until(lambda: all(one.worker.held() for one in workers))
    await world.advance(120)
    fleets = [one.worker.fleet for one in workers]
    assert [fleet.raises_alerts for fleet in fleets] == [fleet.leader.leads for fleet in fleets]
    assert sum(fleet.raises_alerts for fleet in fleets) == 1
    elections = [fleet.leader for fleet in fleets]
    for fleet in fleets:
        fleet._membership.java = frozenset({"java"})
        fleet.leader = SimpleNamespace(leader="java", leads=False)  # type: ignore[assignment]
    assert [fleet.raises_alerts for fleet in fleets] == [True, False]
    for fleet, election in zip(fleets, elections, strict=True):
        fleet.leader = election


@in_fleet(1, **IN_3X)
async def test_a_storm_of_events_is_a_write_in_five_seconds(world: Fleet) -> None:
    running = world.start("w1")
    await world.until(lambda: bool(running.worker.held()))
    buffer = EventBuffer()
    recorder = EventRecorder(buffer, table_of(world, "events"), world.clock, "w1", Scrubber(), lambda: True)
    writing = asyncio.create_task(recorder.run())
    for number in range(600):
        buffer.note(EventKind.FAILED, f"{number}", shard=f"shardId-{number % 7}")
        await world.advance(0.1)
    writing.cancel()
    assert usage(world, "UpdateItem", "events") <= 60 / WRITE_PERIOD_S
    assert len(told(world, EventKind.FAILED)) == 14


@in_fleet(1, **IN_3X)
async def test_who_meets_others_each_time_gives_up(world: Fleet) -> None:
    running = world.start("w1")
    await world.until(lambda: bool(running.worker.held()))
    table = table_of(world, "events")
    event = Event(EventKind.ACT, at_s=int(world.clock.wall()))
    assert await table.append([event], makes=True)
    read = table.read

    async def read_and_be_overtaken() -> Any:
        row = await read()
        world.dynamo.put_row(TABLE, {**(row or {}), "events": {"B": b"others"}})
        world.dynamo.put_row(TABLE, {**(row or {}), "events": {"B": bytes([len(overtaken)])}})
        overtaken.append(1)
        return row

    overtaken: list[int] = []
    table.read = read_and_be_overtaken  # type: ignore[method-assign]
    assert not await table.append([event], makes=True)
    assert len(overtaken) == ATTEMPTS_MAX
