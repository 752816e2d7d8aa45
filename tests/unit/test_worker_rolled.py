"""Whole workers in virtual time beside one of an earlier version that renews no leases (leases#marked-rows): a fleet
is rolled from one version to the next.
"""

from __future__ import annotations

import pytest

from tests.support.fleet import TABLE, Fleet, in_fleet
from tests.twins.marking_worker import MarkingWorker

V3X = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_3X"}
DURATION_S = 10.0
NOTICED_WITHIN_S = DURATION_S + 2.0


async def begun_by(world: Fleet, old: MarkingWorker) -> None:
    """A table all of whose leases are with a worker of an earlier version."""
    first = world.start("first")
    world.put(20)
    await world.until(world.all_delivered)
    assert await first.stop()
    await old.start(shard.shard_id for shard in world.shards())


def marks(world: Fleet) -> set[str]:
    return {key for key, row in world.dynamo.rows(TABLE).items() if "mldHeartbeat" in row and "leaseCounter" in row}


def old_worker(world: Fleet, worker_id: str = "old") -> MarkingWorker:
    return MarkingWorker(world.dynamo, world.clock, worker_id, TABLE, DURATION_S)


@pytest.mark.parametrize("workers", [1, 2])
@in_fleet(6, **V3X)
async def test_a_worker_that_marks_its_leases_keeps_them_while_it_lives_and_hands_on_what_it_is_asked_for(
    world: Fleet, workers: int
) -> None:
    old = old_worker(world)
    await begun_by(world, old)
    for number in range(workers):
        world.start(f"new{number}", seed=number)
    await world.advance(400.0)
    assert not old.taken, "nothing was taken from it"
    assert len(old.held) == 6 // (workers + 1), "its share, the rest was handed on"
    assert marks(world) == old.held


@in_fleet(4, **V3X)
async def test_the_leases_of_a_dead_worker_that_marked_them_are_taken_in_time_and_the_marks_go(world: Fleet) -> None:
    old = old_worker(world)
    await begun_by(world, old)
    new = world.start("new")
    await world.until(lambda: len(new.worker.held()) == 2, 200.0)
    world.put(40)
    old.crash()
    assert await world.until(lambda: len(new.worker.held()) == 4, 60.0) <= NOTICED_WITHIN_S
    await world.until(world.all_delivered)
    assert not marks(world)
    assert "old" not in world.dynamo.rows(TABLE), "its report is deleted, so a heartbeat that comes late is refused"


@in_fleet(4, **V3X)
async def test_restarted_as_this_version_under_its_id_a_worker_goes_on_with_its_leases_at_once(world: Fleet) -> None:
    old = old_worker(world, "w1")
    await begun_by(world, old)
    await world.advance(60.0)
    old.crash()
    new = world.start("w1")
    world.put(40)
    assert await world.until(lambda: len(new.worker.held()) == 4, 60.0) < DURATION_S
    await world.until(world.all_delivered)
    assert not marks(world)
    await world.advance(60.0)
    assert len(new.worker.held()) == 4
