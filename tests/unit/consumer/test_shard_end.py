"""An end of a shard whose children do not fit: read again, looked up, handed on; never checkpointed out of doubt."""

from dataclasses import replace

import pytest

from tests.support.fleet import fleet, in_fleet
from tests.virtual_time import virtual

SHARD_0 = "shardId-000000000000"
SHARD_1 = "shardId-000000000001"
SHARD_2 = "shardId-000000000002"


def one_child(page):
    """The end names one child of a split only."""
    return replace(page, child_shards=page.child_shards[:1])


def foreign_children(page):
    """The end names children of another shard."""
    others = tuple(replace(child, parents=frozenset({"shardId-000000000077"})) for child in page.child_shards)
    return replace(page, child_shards=others)


def no_children(page):
    return replace(page, child_shards=())


def ends(page) -> bool:
    return page.next_iterator is None


def shown_open(shard):
    return replace(shard, ending_sequence=None)


def bent(transform, *, times=None):
    """Bends the pages that end the shard, the first so many or all of them."""
    left = [10**9 if times is None else times]

    def bend(page):
        if not ends(page) or not left[0]:
            return page
        left[0] -= 1
        return transform(page)

    return bend


async def split_and_read(world, within_s=300.0):
    """Read everything up to a split and beyond it."""
    world.put(10)
    await world.until(world.all_delivered)
    world.split(SHARD_0)
    world.put(20)
    await world.until(world.all_delivered, within_s)
    assert world.lease(SHARD_0).checkpoint.is_shard_end
    assert world.lease(SHARD_0).children == {SHARD_1, SHARD_2}
    assert world.lease(SHARD_1).parents == world.lease(SHARD_2).parents == {SHARD_0}
    world.check_order()


@pytest.mark.parametrize("mode", ["POLLING", "FANOUT"])
@pytest.mark.parametrize("transform", [one_child, foreign_children])
@virtual
async def test_an_end_whose_children_do_not_fit_is_read_again(transform, mode) -> None:
    async with fleet(1, retrievalMode=mode) as world:
        worker = world.start()
        worker.streams.bend_page = bent(transform, times=2)
        worker.streams.bend_listing = shown_open  # of no help
        await split_and_read(world)
        assert len([d for d in world.recorder.deliveries if d.shard_id == SHARD_0]) == 10
        assert world.recorder.actions_of(SHARD_0) == ["initialize", "shardEnded"]


@pytest.mark.parametrize("transform", [one_child, no_children])
@in_fleet(1)
async def test_an_end_that_stays_unfit_is_looked_up_in_the_listing(world, transform) -> None:
    worker = world.start()
    worker.streams.bend_page = bent(transform)
    await split_and_read(world)


@in_fleet(1)
async def test_an_end_that_the_listing_denies_is_read_again(world) -> None:
    worker = world.start()
    worker.streams.bend_page = bent(no_children, times=7)  # five are asked again, the rest is believed
    worker.streams.bend_listing = shown_open
    await split_and_read(world)


@in_fleet(1)
async def test_an_end_that_one_worker_cannot_prepare_is_handed_on(world, caplog) -> None:
    first = world.start("w1")
    first.streams.bend_page = bent(one_child)
    first.streams.bend_listing = shown_open
    world.put(10)
    await world.until(world.all_delivered)
    world.start("w2", seed=2)
    await split_and_read(world)
    told = [r for r in caplog.records if getattr(r, "action", "") == "shard_end_handed_on"]
    assert told and {r.shard for r in told} == {SHARD_0}
    assert world.recorder.actions_of(SHARD_0).count("shardEnded") == 1
    assert world.recorder.actions_of(SHARD_0)[:3] == ["initialize", "shutdownRequested", "leaseLost"]


@in_fleet(1)
async def test_an_end_without_evidence_ends_nothing_however_long_it_stays(world) -> None:
    worker = world.start()
    worker.streams.bend_page = bent(no_children)
    worker.streams.bend_listing = shown_open
    world.put(10)
    await world.until(world.all_delivered)
    world.split(SHARD_0)
    await world.advance(1800)
    assert not world.lease(SHARD_0).checkpoint.is_shard_end
    assert "shardEnded" not in world.recorder.actions_of(SHARD_0)
    starts = world.recorder.actions_of(SHARD_0).count("initialize")
    assert 2 <= starts < 1800 / 30
    worker.streams.bend_page = worker.streams.bend_listing = lambda answer: answer
    world.put(20)
    await world.until(world.all_delivered, 300)
    assert world.lease(SHARD_0).checkpoint.is_shard_end
