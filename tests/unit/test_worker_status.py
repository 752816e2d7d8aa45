"""Whole workers in virtual time: what a scan of the table tells of every shard, and that telling it costs nothing."""

from __future__ import annotations

import pytest

from mld.leases.lease import Lease
from mld.operating.fleet_status import FleetStatus
from mld.operating.shard_view import Verdict
from tests.support.fleet import TABLE, Fleet, fleet, in_fleet
from tests.support.operators import look
from tests.twins.children import Recorder
from tests.twins.dynamo import MemoryDynamo
from tests.twins.dynamo_prices import item_bytes
from tests.virtual_time import run_virtual, virtual

V3X = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_3X"}
MODES = pytest.mark.parametrize("keys", [{}, V3X], ids=["2.x", "3.x"])
TWO_RENEWALS_S = 20 / 3
USUAL_ID_LENGTH = 36


async def until_known(world: Fleet, shards: int) -> FleetStatus:
    for _ in range(600):
        seen = await look(world)
        if len(seen.shards) == shards and all(shard.behind_s is not None for shard in seen.shards):
            return seen
        await world.advance(0.5)
    raise AssertionError(f"not known: {[(shard.key, shard.verdict) for shard in seen.shards]}")


class HangsOnDemand(Recorder):
    hangs = False

    async def process(self, child, records):
        while self.hangs:
            await self.clock.sleep(1.0)
        await super().process(child, records)


@MODES
@virtual
async def test_one_scan_tells_the_lag_of_a_fleet_and_never_makes_one_up(keys: dict[str, str]) -> None:
    async with fleet(4, **keys) as world:
        world.recorder = recorder = HangsOnDemand(world.clock)
        first, _ = world.start("w1"), world.start("w2", seed=2)
        world.put(40)
        await world.until(world.all_delivered)
        await world.advance(300.0)
        seen = await until_known(world, 4)
        assert {shard.verdict for shard in seen.shards} == {Verdict.OK}
        assert {shard.owner for shard in seen.shards} == {"w1", "w2"}
        assert seen.behind_s == 0.0

        recorder.hangs = True
        for _ in range(40):
            world.put(20)
            await world.advance(5.0)
        seen = await look(world)
        assert all(shard.behind_s is not None and shard.behind_s > 180.0 for shard in seen.shards)
        assert {shard.verdict for shard in seen.shards} == {Verdict.STALLED}

        theirs = {shard.key for shard in seen.shards if shard.owner == "w1"}
        await first.crash()
        await world.advance(TWO_RENEWALS_S + 1.5)
        silent = {shard.key: shard for shard in (await look(world)).shards if shard.owner == "w1"}
        assert silent.keys() <= theirs
        assert {shard.behind_s for shard in silent.values()} <= {None}, "unknown, and never zero"


@pytest.mark.parametrize("leases", [3, pytest.param(40, marks=pytest.mark.full)])
def test_telling_it_costs_no_write_unit_and_no_request(leases: int) -> None:
    async def bill(tells: bool) -> tuple[float, int, list[int]]:
        async with fleet(leases, **V3X) as world:
            world.dynamo = MemoryDynamo(world.clock, priced=True)
            running = world.start("w".ljust(USUAL_ID_LENGTH, "-"))
            if not tells:
                running.tell_nothing()
            world.put(100)
            await world.until(world.all_delivered)
            await world.advance(400.0)
            world.dynamo.forget_usage()
            await world.advance(300.0)
            usage = world.dynamo.usage()
            told = [row for row in world.dynamo.rows(TABLE).values() if "mldState" in row]
            assert bool(told) is tells
            return usage.write_units, usage.requests, [item_bytes(row) for row in world.dynamo.rows(TABLE).values()]

    units, requests, sizes = run_virtual(bill(True))
    plain_units, plain_requests, _ = run_virtual(bill(False))
    assert (units, requests) == (plain_units, plain_requests)
    assert max(sizes) <= 1024


@pytest.mark.full
@in_fleet(4, **V3X)
async def test_the_others_say_that_a_worker_died_and_who_took_its_leases(world: Fleet) -> None:
    world.start("w1")
    second = world.start("w2", seed=2)
    await world.until(lambda: world.dynamo.has_table(TABLE))
    await until_known(world, 4)
    await world.until(lambda: {row.owner for row in leases_of(world)} == {"w1", "w2"}, 300.0)
    await second.crash()
    await world.advance(90.0)
    seen = {worker.worker: worker for worker in (await look(world)).workers}
    assert seen["w1"].is_alive is True
    assert seen["w2"].is_alive is False
    assert "by w1, which took leases of it" in (seen["w2"].why or "")
    await world.advance(3700.0)
    assert {worker.worker for worker in (await look(world)).workers} == {"w1"}


def leases_of(world: Fleet) -> list[Lease]:
    found = (world.lease(shard.shard_id) for shard in world.shards())
    return [lease for lease in found if lease is not None]
