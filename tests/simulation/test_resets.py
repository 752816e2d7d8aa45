"""Resets of fleets in virtual time: random lives of ours, and both generations of Java's.

Many more seeds: `make campaigns CAMPAIGN_ARGS="--only resets"`.
"""

from __future__ import annotations

import pytest

from mld.operating.plan import Fate
from mld.operating.points import Point, PointKind
from mld.operating.resetting import resolve
from tests.simulation.java_world import JavaWorld, in_world
from tests.simulation.resets import live
from tests.simulation.test_java2 import START_S as START_2_S
from tests.simulation.test_java2 import Java2World
from tests.simulation.test_java3 import START_S as START_3_S
from tests.simulation.test_java3 import Java3World
from tests.support.changes import operator_on
from tests.virtual_time import run_virtual

SEEDS = 12
MORE_SEEDS = 60


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_is_lost_or_skipped_by_a_reset(seed: int) -> None:
    run_virtual(live(seed))


@pytest.mark.full
def test_nothing_is_lost_or_skipped_by_many_resets() -> None:
    for seed in range(SEEDS, SEEDS + MORE_SEEDS):
        run_virtual(live(seed))


async def reset_all(world: JavaWorld) -> None:
    app = operator_on(world)
    seen = await app.require_table()
    wanted = await resolve(app, seen.table, Point(PointKind.TRIM_HORIZON), None)
    outcomes = await app.carry_out(wanted.plan, lambda _: None, seen, stop_fleet=True)
    assert {outcome.fate for outcome in outcomes} == {Fate.DONE}


@in_world(Java2World, 4)
async def test_java_workers_that_steal_leases_read_everything_again(world: Java2World) -> None:
    for name in "ab":
        world.start(name)
    world.records(40)
    await world.clock.sleep(START_2_S)
    world.split(world.open_shards()[0])
    world.records(40)
    await world.clock.sleep(120)
    assert world.notes.seen() == world.put

    world.notes.deliveries.clear()
    await reset_all(world)
    await world.clock.sleep(300)
    assert world.notes.seen() == world.put


@in_world(Java3World, 4)
async def test_a_java_leader_leaves_the_leases_of_an_operator_alone(world: Java3World) -> None:
    for name in "ab":
        world.start(name)
    world.records(40)
    await world.wait(START_3_S + 60)
    assert world.seen() == world.put

    app = operator_on(world)
    async with app.hold(await app.look()) as hold:
        await hold.take((await app.look()).table.scan.leases, by_force=True)
        await world.wait(app.lease_duration_s)
        world.notes.deliveries.clear()
        await world.wait(300)
        assert set(world.owners()) == {hold.me}
        assert not world.notes.deliveries
    await reset_all(world)
    await world.wait(300)
    assert world.seen() == world.put
