"""Acts on a living fleet, in virtual time: real workers of both modes, an operator, and what goes wrong."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from mld.core.errors import TableError
from mld.core.positions import TRIM_HORIZON, Position
from mld.leases.lease import Lease
from mld.leases.rows import OWNER
from mld.operating.application import Application
from mld.operating.held_writes import rewrite
from mld.operating.operator_hold import PAUSE_S, TRIES_MAX, operator_hold
from mld.operating.operator_id import OPERATOR_PREFIX
from mld.operating.plan import (
    ActPlan,
    ActRefusedError,
    Change,
    Fate,
    RawTable,
)
from mld.operating.points import Point, PointKind
from mld.operating.resetting import resolve
from mld.operating.restoring import as_new
from tests.support.changes import operator_on
from tests.support.fleet import TABLE, Fleet, in_fleet
from tests.twins.dynamo import Fault, lost_reply, lost_request, throttled
from tests.twins.marking_worker import MarkingWorker

SHARD_0, SHARD_1 = "shardId-000000000000", "shardId-000000000001"
MODES = ["CLIENT_VERSION_CONFIG_3X", "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1"]
HORIZON = Point(PointKind.TRIM_HORIZON)
LATER = Position("9" * 56)


async def reset(app: Application, point: Point, shard: str | None = None, *, stop_fleet: bool = True) -> list[Any]:
    seen = await app.require_table()
    await app.require_nobody(seen, stop_fleet=stop_fleet)
    wanted = await resolve(app, seen.table, point, shard)
    return await app.carry_out(wanted.plan, lambda _: None, seen, stop_fleet=stop_fleet)


FAR = Fault(delay_before_s=0.1, delay_after_s=0.1)


async def keep_putting(world: Fleet) -> None:
    while True:
        world.put(4)
        await world.advance(0.1)


async def processed(world: Fleet, count: int = 30) -> None:
    world.put(count)
    await world.until(world.all_delivered)
    await world.advance(15)


@pytest.mark.parametrize("mode", MODES)
@in_fleet(3)
async def test_a_running_fleet_reads_everything_again(world: Fleet, mode: str) -> None:
    for number in (1, 2):
        world.start(f"w{number}", seed=number, clientVersionConfig=mode)
    await processed(world)
    world.split(SHARD_0)
    await processed(world)
    world.recorder.deliveries.clear()

    outcomes = await reset(operator_on(world), HORIZON)

    assert {outcome.fate for outcome in outcomes} == {Fate.DONE}
    await world.until(world.all_delivered, 200)
    await world.until(lambda: _owners(world) <= {"w1", "w2"}, 200)


@in_fleet(3)
async def test_no_worker_reads_while_the_rows_are_written(world: Fleet) -> None:
    for number in (1, 2):
        world.start(f"w{number}", seed=number, clientVersionConfig=MODES[0])
    await processed(world)
    app = operator_on(world)
    async with operator_hold(app.leases, app.clock, app.me, app.lease_duration_s) as hold:
        await hold.take((await app.look()).table.scan.leases, by_force=True)
        await world.advance(app.lease_duration_s)
        world.recorder.deliveries.clear()
        world.put(30)
        await world.advance(300)
        assert not world.recorder.deliveries
        assert _owners(world) == {hold.me}
    await world.until(lambda: set(world.recorder.data()) >= set(world.put_data[30:]))


@pytest.mark.parametrize("mode", MODES)
@in_fleet(2, idleTimeBetweenReadsInMillis="200")
async def test_leases_whose_rows_move_faster_than_the_table_answers_are_taken(world: Fleet, mode: str) -> None:
    world.start("w1", clientVersionConfig=mode)
    await processed(world)
    world.dynamo.faults = lambda sender, *_: FAR if sender == "operator" else None
    app = operator_on(world)
    producing = asyncio.create_task(keep_putting(world))
    seen = await app.look()
    await world.advance(1)
    assert all(_counter(world, lease.key) > lease.counter + 2 for lease in seen.table.scan.leases), "a busy fleet"

    async with operator_hold(app.leases, app.clock, app.me, app.lease_duration_s) as hold:
        await hold.take((await app.look()).table.scan.leases, by_force=True)
        assert _owners(world) == {hold.me}
        await hold.until_noticed()
        world.recorder.deliveries.clear()
        await world.advance(1)
        assert not world.recorder.deliveries, "the former owner believes no longer"
    await world.advance(60)
    assert {outcome.fate for outcome in await reset(app, HORIZON)} == {Fate.DONE}
    producing.cancel()
    await asyncio.wait({producing})
    await world.until(world.all_delivered)


@in_fleet(3)
async def test_an_operator_that_dies_leaves_a_fleet_that_goes_on(world: Fleet) -> None:
    world.start("w1")
    await processed(world)
    acting = asyncio.create_task(reset(operator_on(world), HORIZON))
    await world.until(lambda: any(owner.startswith(OPERATOR_PREFIX) for owner in _owners(world)))
    world.dynamo.faults = lambda sender, *_: lost_request() if sender == "operator" else None  # as kill -9
    acting.cancel()
    await asyncio.wait({acting})
    world.dynamo.faults = None
    world.put(30)
    await world.until(world.all_delivered, 200)

    world.recorder.deliveries.clear()
    await reset(operator_on(world, "another"), HORIZON)
    await world.until(world.all_delivered, 200)


@in_fleet(2)
async def test_two_operators_are_not_at_work_at_once(world: Fleet) -> None:
    worker = world.start("w1")
    await processed(world)
    await worker.stop()
    results = await asyncio.gather(
        *(reset(operator_on(world, name), HORIZON) for name in ("one", "two")), return_exceptions=True
    )
    refused = [one for one in results if isinstance(one, ActRefusedError)]
    assert len(refused) <= 1
    for one in refused:
        assert "somebody else is at work" in str(one)
    assert {lease.checkpoint for lease in _leases(world)} == {TRIM_HORIZON}

    app = operator_on(world)
    async with operator_hold(app.leases, app.clock, app.me, app.lease_duration_s) as hold:
        await hold.take((await app.look()).table.scan.leases, by_force=False)
        with pytest.raises(ActRefusedError, match="another operator is at work on this table"):
            await app.require_nobody(await app.look(), stop_fleet=True)
        with pytest.raises(ActRefusedError, match="another operator is at work on this table"):
            await reset(operator_on(world, "two"), HORIZON)


@in_fleet(2)
async def test_a_worker_that_starts_after_the_look_is_not_pushed_aside(world: Fleet) -> None:
    worker = world.start("w1")
    await processed(world)
    await worker.stop()
    app = operator_on(world)
    seen = await app.require_table()
    await app.require_nobody(seen, stop_fleet=False)
    wanted = await resolve(app, seen.table, HORIZON, None)
    world.start("w2")
    await world.until(lambda: _owners(world) == {"w2"})

    with pytest.raises(ActRefusedError, match="somebody else is at work"):
        await app.carry_out(wanted.plan, lambda _: None, seen)
    assert TRIM_HORIZON not in {lease.checkpoint for lease in _leases(world)}


@in_fleet(2)
async def test_living_owners_are_named_and_dead_ones_are_not_waited_for_twice(world: Fleet) -> None:
    worker = world.start("w1")
    await processed(world)
    app = operator_on(world)
    with pytest.raises(ActRefusedError, match=r"workers are alive: w1 \(2 leases\); stop them"):
        await app.require_nobody(await app.look(), stop_fleet=False)
    await worker.crash()
    await world.advance(1)
    began_s = world.clock.monotonic()
    await app.require_nobody(await app.look(), stop_fleet=False)
    assert world.clock.monotonic() - began_s < app.lease_duration_s + 4


@in_fleet(1)
async def test_a_worker_without_a_lease_is_known_by_its_reports(world: Fleet) -> None:
    world.start("w1", clientVersionConfig=MODES[0])
    await processed(world)
    idle = world.start("w2", clientVersionConfig=MODES[0])
    await world.advance(60)
    await world.running[0].crash()
    await world.until(lambda: world.lease(SHARD_0).owner == "w2", 200)
    third = world.start("w3", clientVersionConfig=MODES[0])
    await world.advance(60)
    await idle.crash()
    await world.dynamo.call("DeleteItem", {"TableName": TABLE, "Key": {"leaseKey": {"S": SHARD_0}}})
    app = operator_on(world)
    with pytest.raises(ActRefusedError, match=r"workers are alive: w3 \(0 leases\); stop them"):
        await app.require_no_workers(await app.look(), "stop them")
    await third.crash()
    await world.advance(1)
    await app.require_no_workers(await app.look(), "stop them")


@in_fleet(2, clientVersionConfig=MODES[0])
async def test_a_worker_of_an_earlier_version_whose_heartbeat_stands_for_its_leases_is_alive(world: Fleet) -> None:
    first = world.start("w1")
    await processed(world)
    assert await first.stop()
    old = MarkingWorker(world.dynamo, world.clock, "old", TABLE, 10.0)
    await old.start((SHARD_0, SHARD_1))
    app = operator_on(world)
    with pytest.raises(ActRefusedError, match="workers are alive: old"):
        await app.require_nobody(await app.look(), stop_fleet=False)
    old.crash()
    await app.require_nobody(await app.look(), stop_fleet=False)


@in_fleet(2)
async def test_a_stolen_lease_is_taken_back(world: Fleet) -> None:
    worker = world.start("w1")
    await processed(world)
    await worker.stop()
    app = operator_on(world)
    seen = await app.require_table()
    wanted = await resolve(app, seen.table, HORIZON, None)
    thefts = iter(["thief"])

    def plan(table: RawTable, me: str) -> ActPlan:
        for thief in thefts:  # as a taker of a 2.x fleet does, between the plan and its first write
            row = world.dynamo.row(TABLE, SHARD_0)
            counter = {"N": str(int(row["leaseCounter"]["N"]) + 1)}
            world.dynamo.put_row(TABLE, {**row, "leaseOwner": {"S": thief}, "leaseCounter": counter})
        return wanted.plan(table, me)

    outcomes = await app.carry_out(plan, lambda _: None, seen)
    assert {outcome.fate for outcome in outcomes} == {Fate.DONE}
    assert {lease.checkpoint for lease in _leases(world)} == {TRIM_HORIZON}
    assert _owners(world) == set()


@pytest.mark.parametrize("fault", [lost_reply, lost_request])
@in_fleet(2)
async def test_lost_requests_and_replies_change_nothing(world: Fleet, fault: Any) -> None:
    worker = world.start("w1")
    await processed(world)
    world.split(SHARD_0)
    await processed(world)
    await worker.stop()
    seen: dict[str, int] = {}

    def every_second(sender: str, operation: str, _: Any) -> Any:
        seen[operation] = seen.get(operation, 0) + 1
        writes = operation in ("PutItem", "DeleteItem", "UpdateItem")
        is_change = writes and sender == "operator" and seen[operation] > 4 and seen[operation] % 2
        return fault(operation) if is_change else None

    world.dynamo.faults = every_second
    for _ in range(4):
        try:
            outcomes = await reset(operator_on(world), HORIZON)
        except Exception as error:
            assert "lost" in str(error) or "no answer" in str(error)
        else:
            if all(outcome.fate is Fate.DONE for outcome in outcomes):
                break
    world.dynamo.faults = None
    await reset(operator_on(world), HORIZON)
    assert {lease.key: lease.checkpoint for lease in _leases(world)} == {SHARD_0: TRIM_HORIZON, SHARD_1: TRIM_HORIZON}


@in_fleet(2)
async def test_without_permission_nothing_is_changed(world: Fleet) -> None:
    worker = world.start("w1")
    await processed(world)
    await worker.stop()
    before = world.dynamo.rows(TABLE)
    for operation in ("UpdateItem", "Scan"):
        world.dynamo.forbidden = {operation}
        with pytest.raises(TableError, match=f"{operation}: AccessDenied"):
            await reset(operator_on(world), HORIZON)
    world.dynamo.forbidden = set()
    assert world.dynamo.rows(TABLE) == before


# --- one shard --------------------------------------------------------------------------------------------------------


@in_fleet(2)
async def test_a_worker_that_gets_its_lease_back_at_once_works_on_it_at_once(world: Fleet) -> None:
    world.recorder.checkpoint_every_batch = False
    world.start("w1", clientVersionConfig=MODES[0], leaseAssignmentIntervalMillis="1000")
    await processed(world, 20)
    for number in range(4):
        await reset(operator_on(world), HORIZON, SHARD_0)
        began = len(world.recorder.deliveries)
        world.put(10)
        await world.until(lambda n=began: len(world.recorder.deliveries) > n + 10, 25)  # the whole shard comes again
        await world.advance(number + 0.7)


# --- outcomes that nobody knows ---------------------------------------------------------------------------------------


async def _stopped_before(world: Fleet, count: int) -> Application:
    worker = world.start("w1")
    await processed(world, 5)
    await worker.stop()
    world.put(count)
    return operator_on(world)


@in_fleet(1)
async def test_a_change_whose_outcome_is_unknown_is_tried_again_after_a_pause(world: Fleet) -> None:
    app = await _stopped_before(world, 5)
    async with operator_hold(app.leases, app.clock, app.me, app.lease_duration_s) as hold:
        await hold.take((await app.look()).table.scan.leases, by_force=False)
        world.dynamo.faults = lambda _, operation, params: lost_request() if LATER.sequence in str(params) else None
        lease = world.lease(SHARD_0)
        change = Change("", rewrite(lease, as_new(replace(lease, checkpoint=LATER)), hold.me))
        began_s = world.clock.monotonic()
        assert (await hold.write(change)).fate is Fate.UNKNOWN
        assert world.clock.monotonic() - began_s > (TRIES_MAX - 1) * PAUSE_S


@in_fleet(1)
async def test_a_change_that_may_be_written_is_not_refused_by_a_later_attempt(world: Fleet) -> None:
    app, attempts = await _stopped_before(world, 5), iter([lost_reply()])
    async with operator_hold(app.leases, app.clock, app.me, app.lease_duration_s) as hold:
        await hold.take((await app.look()).table.scan.leases, by_force=False)
        world.dynamo.faults = lambda _, __, params: (
            next(attempts, throttled()) if LATER.sequence in str(params) else None
        )
        lease = world.lease(SHARD_0)
        change = Change("", rewrite(lease, as_new(replace(lease, checkpoint=LATER)), hold.me))
        assert (await hold.write(change)).fate is Fate.UNKNOWN
    assert world.lease(SHARD_0).checkpoint == LATER


def _leases(world: Fleet) -> list[Lease]:
    found = [world.lease(key) for key in world.dynamo.rows(TABLE)]
    return [lease for lease in found if lease is not None]


def _owners(world: Fleet) -> set[str]:
    return {row[OWNER]["S"] for row in world.dynamo.rows(TABLE).values() if OWNER in row and "checkpoint" in row}


def _counter(world: Fleet, key: str) -> int:
    return int(world.dynamo.row(TABLE, key)["leaseCounter"]["N"])
