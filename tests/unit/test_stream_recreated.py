"""A stream that is deleted and made again under its name while a worker reads it: named, parked, nothing ended."""

import logging

import pytest

from mld.core.positions import TRIM_HORIZON
from mld.core.streams import HashRange
from mld.operating.application import application_with
from mld.operating.plan import ActRefusedError
from mld.operating.points import Point, PointKind
from mld.operating.resetting import resolve
from tests.support.fleet import STREAM, TABLE, fleet, in_fleet, settings_of
from tests.twins.kinesis_model import ModelFanOut
from tests.virtual_time import virtual

SHARD_0 = "shardId-000000000000"
SHARD_1 = "shardId-000000000001"


def streams_of(world) -> ModelFanOut:
    return ModelFanOut(world.kinesis, STREAM, world.clock)


def sentences(caplog) -> list[tuple[str, str]]:
    """Each time the log says what happened: shard and sentence."""
    return [
        (record.shard, record.getMessage())
        for record in caplog.records
        if getattr(record, "action", "") == "shard_parked" and "belongs to another stream" in record.getMessage()
    ]


@pytest.mark.parametrize("mode", ["POLLING", "FANOUT"])
@pytest.mark.parametrize("gone_s", [0.0, 120.0])
@pytest.mark.parametrize("checkpoints", [True, False])
@virtual
async def test_a_stream_recreated_under_a_running_worker_is_named_and_parked(mode, gone_s, checkpoints, caplog) -> None:
    caplog.set_level(logging.INFO)
    async with fleet(1, retrievalMode=mode) as world:
        world.recorder.checkpoint_every_batch = checkpoints
        worker = world.start()
        world.put(5)
        await world.until(world.all_delivered)
        before = len(world.recorder.deliveries)
        checkpoint = world.lease(SHARD_0).checkpoint
        await world.advance(10)
        await world.recreate_stream(gone_s=gone_s)
        world.put(5)
        await world.advance(600)
        [(shard, sentence)] = sentences(caplog)
        assert shard == SHARD_0
        assert "mld reset --to trim-horizon" in sentence
        assert len(world.recorder.deliveries) == before
        assert world.recorder.actions_of(SHARD_0) == ["initialize"]
        lease = world.lease(SHARD_0)
        assert (lease.checkpoint, lease.owner) == (checkpoint, "w1")
        # The remedy that the sentence names.
        app = application_with(settings_of(), world.dynamo.client("operator"), streams_of(world), world.clock)
        seen = await app.require_table()
        reset = await resolve(app, seen.table, Point(PointKind.TRIM_HORIZON), None)
        assert any("all rows are replaced" in note for note in reset.plan(seen.table, "").notes) is checkpoints
        await app.carry_out(reset.plan, lambda _: None, seen, stop_fleet=True)
        await world.until(world.all_delivered, 600)
        assert await worker.stop()


@pytest.mark.parametrize("mode", ["POLLING", "FANOUT"])
@virtual
async def test_a_child_that_starts_on_the_recreated_stream_is_parked_too(mode, caplog) -> None:
    caplog.set_level(logging.INFO)
    async with fleet(2, retrievalMode=mode) as world:
        world.start()
        world.put(20)
        await world.until(world.all_delivered)
        checkpoints = {shard: world.lease(shard).checkpoint for shard in (SHARD_0, SHARD_1)}
        await world.recreate_stream(2)
        await world.running[0].host.living()[0].kill()
        before = len(world.recorder.deliveries)
        world.put(20)
        await world.advance(600)
        assert sorted(shard for shard, _ in sentences(caplog)) == [SHARD_0, SHARD_1]
        assert {shard: world.lease(shard).checkpoint for shard in (SHARD_0, SHARD_1)} == checkpoints
        assert len(world.recorder.deliveries) == before
        assert "shardEnded" not in [action for _, action in world.recorder.actions]


@pytest.mark.parametrize("mode", ["POLLING", "FANOUT"])
@virtual
async def test_an_application_without_any_progress_reads_the_new_stream(mode, caplog) -> None:
    caplog.set_level(logging.INFO)
    async with fleet(1, retrievalMode=mode) as world:
        world.start()
        await world.advance(60)
        await world.recreate_stream()
        world.put(5)
        await world.until(world.all_delivered, 120)
        assert sentences(caplog) == []


@in_fleet(1)
async def test_a_reset_makes_the_rows_of_another_number_of_shards_anew(world) -> None:
    worker = world.start()
    world.put(20)
    await world.until(world.all_delivered)
    world.split(SHARD_0)
    world.put(20)
    await world.until(world.all_delivered)
    assert await worker.stop()
    await world.recreate_stream(4)

    app = application_with(settings_of(), world.dynamo.client("operator"), streams_of(world), world.clock)
    seen = await app.require_table()
    reset = await resolve(app, seen.table, Point(PointKind.TRIM_HORIZON), None)
    await app.carry_out(reset.plan, lambda _: None, seen)

    leases = (await app.look()).table.scan.leases
    assert {(lease.key, lease.checkpoint, lease.parents) for lease in leases} == {
        (shard.shard_id, TRIM_HORIZON, frozenset()) for shard in world.shards()
    }
    assert {lease.key: lease.hash_range for lease in leases} == {
        shard.shard_id: HashRange(shard.hash_range.start, shard.hash_range.end) for shard in world.shards()
    }
    world.start()
    world.put(20)
    await world.until(world.all_delivered)


@in_fleet(2)
async def test_a_stream_that_is_older_than_the_table_was_not_made_again(world, caplog) -> None:
    world.start()
    world.put(20)
    await world.until(world.all_delivered)
    for shard in (SHARD_0, SHARD_1):
        world.dynamo.put_row(TABLE, {**world.dynamo.row(TABLE, shard), "startingHashKey": {"S": "7"}})
    app = application_with(settings_of(), world.dynamo.client("operator"), streams_of(world), world.clock)
    with pytest.raises(ActRefusedError, match=r"another stream: .*nothing shows that this stream was made again"):
        await resolve(app, (await app.look()).table, Point(PointKind.TRIM_HORIZON), None)
