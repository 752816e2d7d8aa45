"""Resets of fleets in virtual time: random lives of ours, and both generations of Java's.

Many more seeds: `make campaigns CAMPAIGN_ARGS="--only resets"`.
"""

from __future__ import annotations

import pytest

from mld.operating.plan import Fate
from mld.operating.points import Point, PointKind
from mld.operating.resetting import resolve
from tests.simulation.java_world import STREAM, TABLE, JavaWorld, in_world
from tests.simulation.resets import live
from tests.simulation.world.java2 import JavaWorker
from tests.simulation.world.java3 import JavaWorker3
from tests.support.changes import operator_on
from tests.support.tiers import sliced
from tests.virtual_time import run_virtual

SEEDS = 12
MORE_SEEDS = 60
START_2_S, START_3_S = 100.0, 150.0
"""Until Java workers of 2.x and 3.x have all leases of a new application."""


@pytest.mark.parametrize("seed", sliced(range(SEEDS + MORE_SEEDS), *range(SEEDS)))
def test_nothing_is_lost_or_skipped_by_a_reset(seed: int) -> None:
    run_virtual(live(seed))


async def reset_all(world: JavaWorld) -> None:
    app = operator_on(world)
    seen = await app.require_table()
    wanted = await resolve(app, seen.table, Point(PointKind.TRIM_HORIZON), None)
    outcomes = await app.carry_out(wanted.plan, lambda _: None, seen, stop_fleet=True)
    assert {outcome.fate for outcome in outcomes} == {Fate.DONE}


@in_world(JavaWorld, 4)
async def test_java_workers_that_steal_leases_read_everything_again(world: JavaWorld) -> None:
    for name in "ab":
        world.run(JavaWorker, name)
    world.records(40)
    await world.clock.sleep(START_2_S)
    world.kinesis.split_shard(STREAM, world.open_shards()[0], 2**125, now=world.clock.wall())
    world.records(40)
    await world.clock.sleep(120)
    assert world.notes.seen() == world.put

    world.notes.deliveries.clear()
    await reset_all(world)
    await world.clock.sleep(300)
    assert world.notes.seen() == world.put


@in_world(JavaWorld, 4)
async def test_a_java_leader_leaves_the_leases_of_an_operator_alone(world: JavaWorld) -> None:
    for name in "ab":
        world.run(JavaWorker3, name, load=lambda: 5.0)
    world.records(40)
    await world.clock.sleep(START_3_S + 60)
    assert world.notes.seen() == world.put

    app = operator_on(world)
    async with app.hold(await app.look()) as hold:
        await hold.take((await app.look()).table.scan.leases, by_force=True)
        await world.clock.sleep(app.lease_duration_s)
        world.notes.deliveries.clear()
        await world.clock.sleep(300)
        rows = [row for row in world.dynamo.rows(TABLE).values() if "leaseCounter" in row]
        assert {row["leaseOwner"]["S"] for row in rows} == {hold.me}
        assert not world.notes.deliveries
    await reset_all(world)
    await world.clock.sleep(300)
    assert world.notes.seen() == world.put
