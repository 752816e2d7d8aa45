"""`maxLeasesForWorker` in whole fleets, in virtual time: where there is room for the open shards, all are read."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import pytest

from mld.leases.rows import LEASE_TABLE_KEY, Place
from mld.operating.steering import plan_drain, plan_move
from tests.support.fleet import TABLE, Fleet, Running, fleet, in_fleet
from tests.support.operators import act
from tests.support.tiers import sliced
from tests.virtual_time import virtual

V3X = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_3X"}
V2X = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1"}
modes = pytest.mark.parametrize("mode", [V2X, V3X], ids=["2.x", "3.x"])


def open_leases(world: Fleet, running: Running) -> set[str]:
    """The open shards that a worker reads."""
    return {key for key in running.worker.held() if not world.lease(key).is_complete}


def unread(world: Fleet, *workers: Running) -> set[str]:
    read = set().union(*(open_leases(world, one) for one in workers))
    return {shard.shard_id for shard in world.shards() if shard.view().is_open} - read


async def settled(world: Fleet, seconds: float = 60.0) -> dict[str, Running]:
    """Three workers that have read all shards for a while."""
    workers = {name: world.start(name, seed=number) for number, name in enumerate("abc")}
    await world.until(lambda: not unread(world, *workers.values()), 60)
    await world.advance(seconds)
    return workers


async def drain_least(world: Fleet, workers: dict[str, Running]) -> str:
    """Drain the worker with the fewest leases, of workers that may have two."""
    drained = min(workers, key=lambda name: len(workers[name].worker.held()))
    place = Place(TABLE, LEASE_TABLE_KEY)
    await act(world, lambda seen: plan_drain(seen, drained, place, "by me", 2, is_3x=True))
    return drained


@modes
@virtual
async def test_a_finished_parent_takes_no_room_from_its_children(mode: dict[str, str]) -> None:
    async with fleet(2, maxLeasesForWorker="3", **mode) as world:
        worker = world.start("w1")
        await world.until(lambda: len(worker.worker.held()) == 2)
        world.split(world.shards()[0].shard_id)
        world.put(40)
        await world.until(world.all_delivered, 60)


@modes
@virtual
async def test_splits_at_exact_room_leave_every_shard_with_a_reader_and_nobody_above_its_limit(
    mode: dict[str, str],
) -> None:
    keys = {"maxLeasesForWorker": "4", "cleanupLeasesUponShardCompletion": "false"}
    async with fleet(4, **keys, **mode) as world:
        workers = [world.start(f"w{number}", seed=number) for number in (1, 2)]
        await world.until(lambda: not unread(world, *workers), 60)
        for _ in range(4):
            world.split(next(shard.shard_id for shard in world.shards() if shard.view().is_open))
            for _ in range(600):
                await world.advance(0.1)
                assert max(len(open_leases(world, one)) for one in workers) <= 4
        world.put(60)
        await world.until(world.all_delivered, 60)
        assert not unread(world, *workers)


@modes
@virtual
async def test_a_shard_without_a_worker_with_room_is_an_error_a_metric_and_over_once_there_is_room(
    mode: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet(3, maxLeasesForWorker="2", **mode) as world:
        first = world.start("w1")
        await world.advance(50)
        errors = [record for record in caplog.records if getattr(record, "action", "") == "no_room"]
        assert not errors
        assert not first.metrics.worker.table.without_room
        await world.advance(100)
        (error,) = [record for record in caplog.records if getattr(record, "action", "") == "no_room"]
        assert error.levelno == logging.ERROR
        assert unread(world, first).pop() in error.getMessage()
        assert first.metrics.worker.table.without_room == 1
        second = world.start("w2", seed=2)
        await world.until(lambda: not unread(world, first, second), 60)
        await world.until(lambda: first.metrics.worker.table.without_room == 0, 60)


@in_fleet(5, maxLeasesForWorker="2", **V3X)
async def test_a_drain_fills_nobody_beyond_the_limit_and_leaves_what_has_no_other_place(world: Fleet) -> None:
    workers = await settled(world)
    await drain_least(world, workers)
    for _ in range(900):
        await world.advance(0.1)
        assert max(len(one.worker.held()) for one in workers.values()) <= 2
    assert not unread(world, *workers.values())


@in_fleet(6, maxLeasesForWorker="3", varianceBalancingFrequency="1000", **V3X)
async def test_a_worker_above_its_limit_keeps_what_was_moved_to_it_and_hands_as_much_on(world: Fleet) -> None:
    workers = await settled(world)
    had = len(workers["a"].worker.held())
    moved = sorted({shard.shard_id for shard in world.shards()} - workers["a"].worker.held())[: 4 - had]
    for key in moved:
        await act(world, lambda seen, key=key: plan_move(seen, key, "a", is_3x=True, now_s=world.clock.wall()))
    await world.until(lambda: len(workers["a"].worker.held()) == 4, 15)
    await world.until(lambda: len(workers["a"].worker.held()) == 3, 60)
    await world.until(lambda: not unread(world, *workers.values()), 5)
    assert {world.lease(key).owner for key in moved} == {"a"}


@in_fleet(4, maxLeasesForWorker="2", **V3X)
async def test_a_drained_worker_takes_what_nobody_else_has_room_for(world: Fleet) -> None:
    workers = await settled(world)
    drained = await drain_least(world, workers)
    await world.until(lambda: not workers[drained].worker.held(), 60)
    await workers.pop(next(name for name in workers if name != drained)).crash()
    assert await world.until(lambda: not unread(world, *workers.values()), 60) <= 12.0


@in_fleet(4, maxLeasesForWorker="2", **V3X)
async def test_a_leaving_worker_gives_to_drained_ones_what_no_other_has_room_for(world: Fleet) -> None:
    workers = await settled(world)
    drained = await drain_least(world, workers)
    await world.until(lambda: not workers[drained].worker.held(), 60)
    await workers.pop(next(name for name in workers if name != drained)).stop()
    counts = Counter(world.lease(shard.shard_id).owner for shard in world.shards())
    assert counts == dict.fromkeys(workers, 2)


@pytest.mark.parametrize("waited_s", sliced([0.0, 2.0, 4.0, 6.0, 8.0], 0.0, 6.0))
@in_fleet(10, maxLeasesForWorker="2", **V3X)
async def test_where_those_that_look_often_are_full_others_with_room_look_in_their_place(
    world, waited_s: float
) -> None:
    workers = {f"w2-{number}": world.start(f"w2-{number}", seed=200 + number) for number in range(6)}
    await world.until(lambda: not unread(world, *workers.values()), 60)
    await world.advance(60 + waited_s)
    victim = next(name for name, one in workers.items() if len(one.worker.held()) == 2)
    await workers.pop(victim).crash()
    assert await world.until(lambda: not unread(world, *workers.values()), 60) <= 12.0


@pytest.mark.parametrize("late_s", sliced([0.0, 20.0, 60.0], 20.0))
@virtual
async def test_newcomers_have_work_within_a_lease_duration_of_a_leader_seen_dead(late_s: float) -> None:
    """Its lock is void after 120 s. They report 5 s after their start, and a handoff is found within a second."""

    async with fleet(12, **V3X) as world:
        workers = {name: world.start(name, seed=number) for number, name in enumerate("abcd")}
        await world.until(lambda: sorted(len(one.worker.held()) for one in workers.values()) == [3] * 4, 300)
        leader = world.dynamo.row(TABLE, "Leader")["ownerName"]["S"]
        await workers.pop(leader).crash()
        await world.advance(late_s)
        newcomers = [world.start(f"new{number}", seed=10 + number) for number in range(2)]
        until_seen_s = max(0.0, 10.0 - late_s)  # that the leader is dead
        await world.until(lambda: all(one.worker.held() for one in newcomers), 5 + until_seen_s + 10 + 1)
        assert world.dynamo.row(TABLE, "Leader")["ownerName"]["S"] == leader, "nobody leads yet"
        await world.advance(1)
        assert not unread(world, *workers.values(), *newcomers)


@in_fleet(6, **V3X)
async def test_while_a_leader_lives_nobody_else_hands_leases_to_newcomers(world: Fleet) -> None:
    await settled(world, 90)
    leader = world.dynamo.row(TABLE, "Leader")["ownerName"]["S"]
    begun: list[str] = []

    def note(sender: str, operation: str, params: Any) -> None:
        if operation == "UpdateItem" and "checkpointOwner = :" in params["UpdateExpression"].replace("#", ""):
            begun.append(sender)

    world.dynamo.faults = note
    new = world.start("new", seed=9)
    await world.until(lambda: bool(new.worker.held()), 90)
    assert set(begun) == {leader}
