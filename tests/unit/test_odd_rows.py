"""A row that cannot be of its shard, as a person or a careless child may write it: that shard alone waits, and the
remedy that is named makes it whole.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from mld.local.kinesis import PutEntry
from mld.operating.exporting import export_tables
from mld.operating.restoring import restore_from
from tests.support.fleet import STREAM, TABLE, Fleet, in_fleet
from tests.support.kpl import User, aggregate
from tests.unit.operating.test_acts_shown import Acts

SHARD_0, SHARD_1 = "shardId-000000000000", "shardId-000000000001"
ODD = {
    "a zero": {"checkpoint": "0"},
    "a one": {"checkpoint": "1"},
    "too long a number": {"checkpoint": str(10**56 - 1)},
    "a number before the shard": {"checkpoint": str((2 << 184) + 1)},
    "a wrong hash range": {"startingHashKey": "7"},
}


def parked(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The sentences about parked shards."""
    return [record.getMessage() for record in caplog.records if getattr(record, "action", "") == "shard_parked"]


def make_odd(world: Fleet, odd: dict[str, str], shard: str = SHARD_1) -> None:
    row = world.dynamo.row(TABLE, shard)
    world.dynamo.put_row(TABLE, row | {name: {"S": value} for name, value in odd.items()})


async def read_and_stopped(world: Fleet) -> None:
    worker = world.start()
    world.put(20)
    await world.until(world.all_delivered)
    assert await worker.stop()


def delivered(world: Fleet, shard: str) -> int:
    return sum(one.shard_id == shard for one in world.recorder.deliveries)


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@in_fleet(2)
async def test_an_odd_row_parks_its_shard_and_the_remedy_makes_it_whole(
    world: Fleet,
    odd: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.ERROR)
    await read_and_stopped(world)
    make_odd(world, odd)
    before = {shard: delivered(world, shard) for shard in (SHARD_0, SHARD_1)}
    row = world.dynamo.row(TABLE, SHARD_1)
    worker = world.start("w2")
    world.put(20)
    await world.until(lambda: delivered(world, SHARD_0) > before[SHARD_0])
    await world.advance(120)
    [sentence] = parked(caplog)
    assert f"`mld reset --shard {SHARD_1} --to trim-horizon`" in sentence
    assert delivered(world, SHARD_1) == before[SHARD_1]
    assert world.dynamo.row(TABLE, SHARD_1)["checkpoint"] == row["checkpoint"]
    assert world.recorder.actions_of(SHARD_1).count("initialize") == 1, "no child starts in vain"
    assert await worker.stop()

    await Acts(world, tmp_path, capsys).reset(shard=SHARD_1)
    world.start("w3")
    await world.until(world.all_delivered, 120)


@in_fleet(2)
async def test_the_whole_application_can_be_reset_too(
    world: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await read_and_stopped(world)
    make_odd(world, ODD["a zero"])
    await Acts(world, tmp_path, capsys).reset()
    world.start("w2")
    world.put(20)
    await world.until(world.all_delivered, 120)


@in_fleet(2)
async def test_a_saved_row_can_be_put_back(world: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await read_and_stopped(world)
    acts, saved, row = Acts(world, tmp_path, capsys), tmp_path / "saved", world.dynamo.row(TABLE, SHARD_1)
    assert await export_tables(acts.app(), saved) == 0
    for odd in ODD.values():
        make_odd(world, odd)
        asked = acts.asked(execute=True)
        options = {"from_another": False, "may_skip": False, "stop_fleet": False}
        assert await restore_from(acts.app(), asked, saved, None, **options) == 0
        restored = world.dynamo.row(TABLE, SHARD_1)
        assert all(restored[name] == row[name] for name in ("checkpoint", "startingHashKey", "endingHashKey"))


@in_fleet(2)
async def test_a_parked_shard_moves_and_stops_with_its_worker(world: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    await read_and_stopped(world)
    make_odd(world, ODD["a zero"])
    first = world.start("w2")
    await world.advance(30)
    second = world.start("w3", seed=2)
    await world.advance(60)
    assert await first.stop()
    world.put(20)
    await world.advance(60)
    assert await second.stop()
    assert "leaseOwner" not in world.dynamo.row(TABLE, SHARD_1)


@in_fleet(2)
async def test_hash_keys_that_become_odd_while_the_shard_is_held_cost_the_next_child_no_record(world: Fleet) -> None:
    worker = world.start()
    await world.advance(30)
    make_odd(world, {"startingHashKey": str(3 * 2**126)})
    await world.advance(30)
    [child] = [one for one in worker.host.living() if one.shard_id == SHARD_1]
    await child.kill()
    keys = (2**127, 2**128 - 1)
    world.put_data += [f"user {key}".encode() for key in keys]
    body = aggregate([User("k", f"user {key}".encode(), str(key)) for key in keys])
    world.kinesis.put_record(STREAM, PutEntry.of(body, "k", keys[0]), now=world.clock.wall())
    await world.until(world.all_delivered, 60)
