"""Whole workers in 3.x mode, in virtual time: leader, assignment, hand-over, watch, resharding."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from random import Random
from typing import Any

import pytest

from mld.fleet.report import reports
from mld.retrieval.prefetch import PrefetchBuffer
from mld.retrieval.reader import ShardReader
from tests.support.fleet import STREAM, TABLE, Fleet, fleet, in_fleet
from tests.twins.children import MemoryChild, Recorder
from tests.twins.dynamo import Fault, lost_reply, lost_request, throttled
from tests.virtual_time import run_virtual

V3X = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_3X"}


def owners(world: Fleet) -> dict[str, str | None]:
    return {key: world.lease(key).owner for key in keys(world)}


def keys(world: Fleet) -> list[str]:
    if not world.dynamo.has_table(TABLE):
        return []
    return [shard.shard_id for shard in world.shards() if world.lease(shard.shard_id) is not None]


@in_fleet(2, gracefulLeaseHandoffTimeoutMillis="5000", **V3X)
async def test_a_handoff_is_completed_by_force_after_the_time_of_the_settings(world) -> None:
    async def never_ready_to_go(child: MemoryChild) -> None:
        while True:
            message = await child.receive()
            if message["action"] == "shutdownRequested":
                await asyncio.get_running_loop().create_future()
            child.done(message)

    def pending() -> list[str]:
        return [key for key in keys(world) if world.lease(key).checkpoint_owner is not None]

    world.start("w1", never_ready_to_go)
    await world.until(lambda: list(owners(world).values()) == ["w1"] * 2)
    world.start("w2", seed=2)
    await world.until(lambda: bool(pending()), 200)
    took = await world.until(lambda: not pending(), 60)
    assert 5.0 <= took <= 10.0, took
    assert sorted(owners(world).values()) == ["w1", "w2"]


@pytest.mark.parametrize("phase_s", range(5))
@in_fleet(1, **V3X)
async def test_a_lease_that_the_only_worker_hands_over_to_a_dead_one_comes_back_within_the_bound(
    world, phase_s: int
) -> None:
    """It looks every five seconds as long as nobody else is there: the handoff may begin and end in between."""

    world.start("w1")
    await world.until(lambda: list(owners(world).values()) == ["w1"])
    await world.advance(60 + phase_s)
    (key,) = keys(world)
    row = world.dynamo.row(TABLE, key)
    world.dynamo.put_row(TABLE, {**row, "leaseOwner": {"S": "dead"}, "checkpointOwner": {"S": "w1"}})
    await world.until(lambda: world.lease(key).checkpoint_owner is None, 10)
    assert world.lease(key).owner == "dead"
    took = await world.until(lambda: world.lease(key).owner == "w1", 60)
    assert took <= 12.0, took


@in_fleet(6, **V3X)
async def test_nobody_gives_leases_to_a_worker_known_by_one_report_while_others_show_life(world) -> None:
    """The report of a dead worker whose clock was fast looks fresh for as long as the clock was fast."""

    first = world.start("w1")
    world.start("w2", seed=2)
    await world.until(lambda: sorted(owners(world).values()) == ["w1"] * 3 + ["w2"] * 3, 200)
    await world.advance(60)
    ghost = reports.own_report("ghost", {}, int(world.clock.wall()) + 3600, "1")
    world.dynamo.put_row(TABLE, {"leaseKey": {"S": "ghost"}, **reports.attributes(ghost)})
    await first.stop()
    assert set(owners(world).values()) == {"w2"}


@in_fleet(1, failoverTimeMillis="1000", idleTimeBetweenReadsInMillis="200", **V3X)
async def test_a_lease_lost_while_its_worker_leaves_ends_its_deliveries(world) -> None:
    """DynamoDB hangs from the stop on: the lease runs out while the worker still looks for receivers."""

    world.recorder.checkpoint_every_batch = False  # a child that waits for an answer gets no batch anyway
    world.put(1)
    first = world.start("w1")
    await world.until(world.all_delivered, 10)
    world.dynamo.faults = lambda _sender, _operation, _params: Fault(delay_before_s=60.0)
    stopping = asyncio.ensure_future(first.stop())
    stopped_at = world.clock.monotonic()
    for _ in range(25):
        world.put(1)
        await world.advance(0.1)
    late = [one for one in world.recorder.deliveries if one.at_s > stopped_at + 1.3]
    assert late == []
    world.dynamo.faults = None
    await stopping


@pytest.mark.parametrize("workers", [1, 2])
@in_fleet(2, **V3X)
async def test_a_lease_whose_counter_a_stranger_has_raised_is_read_again_after_its_duration(world, workers) -> None:
    """Its owner takes that for a process with its own worker id, and waits for it to fall silent."""

    for number in range(workers):
        world.start(f"w{number}", seed=number)
    await world.advance(60)
    for key in keys(world):
        row = dict(world.dynamo.row(TABLE, key))
        world.dynamo.put_row(TABLE, row | {"leaseCounter": {"N": str(int(row["leaseCounter"]["N"]) + 1)}})
    await world.advance(6)
    world.put(20)
    took = await world.until(world.all_delivered, 60)
    assert took <= 10 + 2


class Busy(Recorder):
    """A child that does not come to an end with its first batch."""

    async def process(self, child: MemoryChild, records: list[Any]) -> None:
        await self.clock.sleep(3600)


@pytest.mark.full
def test_a_hundred_moves_leave_one_reader_and_one_buffer() -> None:
    """Not even where the figures of all of them wait for a publisher."""

    def living() -> list[object]:
        gc.collect()
        return [found for found in gc.get_objects() if isinstance(found, ShardReader | PrefetchBuffer)]

    async def story() -> tuple[int, int, int]:
        of_others = living()
        async with fleet(1, **V3X) as world:
            world.recorder = Busy(world.clock)
            world.put(60)
            one = world.start("w1")
            key = world.shards()[0].shard_id
            shards, before = one.metrics.shards, 0.0

            def is_begun_anew() -> bool:
                return key in shards and before < shards[key].since < (shards[key].busy_since or 0.0)

            await world.until(is_begun_anew)
            for _ in range(100):
                before = shards[key].since
                row = world.dynamo.row(TABLE, key)
                del row["leaseOwner"]  # an operator, or a balance run
                world.dynamo.put_row(TABLE, {**row, "leaseCounter": {"N": str(world.lease(key).counter + 1)}})
                await world.until(is_begun_anew)
            ours = [found for found in living() if all(found is not other for other in of_others)]
            readers = sum(isinstance(found, ShardReader) for found in ours)
            return readers, len(ours) - readers, len(one.metrics.ended)

    assert run_virtual(story()) == (1, 1, 100)


SLOW = {**V3X, "maxLeaseRenewalThreads": "6"}


@in_fleet(90, **SLOW)
async def test_a_table_slower_than_the_renewals_costs_no_shard_and_accuses_nobody(world, caplog) -> None:
    """27 writes a second are due for 90 leases, and 14 are served, one after the other."""
    caplog.set_level("INFO", logger="mld")
    served_at = 0.0

    def in_turn(_sender: str, operation: str, _params: object) -> Fault | None:
        nonlocal served_at
        if operation != "UpdateItem":
            return None
        now = world.clock.monotonic()
        served_at = max(served_at, now) + 1 / 14
        return Fault(delay_before_s=served_at - now)

    world.dynamo.faults = in_turn
    one = world.start("w1")
    await world.until(lambda: len(one.worker.held()) == 90, 40)
    await world.advance(120)
    said = Counter(getattr(record, "action", "") for record in caplog.records)
    assert (said["worker_id_twin"], said["own_leases_taken"], said["lease_expired"]) == (0, 0, 0)
    (warning,) = (record for record in caplog.records if getattr(record, "action", "") == "renewals_slow")
    assert "failoverTimeMillis" in warning.getMessage()


@in_fleet(6, **V3X)
async def test_a_lone_worker_is_never_accused_of_a_twin(world, caplog) -> None:
    """Requests are lost, refused and answered late for 40 s."""
    caplog.set_level("INFO", logger="mld")
    rng = Random(14)
    one = world.start("w0", seed=14)
    await world.until(lambda: len(one.worker.held()) == 6)
    await world.advance(40 + rng.uniform(0, 10))
    began_at = world.clock.monotonic()

    def trouble(_sender: str, operation: str, _params: object) -> Fault | None:
        passed_s = world.clock.monotonic() - began_at
        if operation == "UpdateItem" and passed_s < 40.0:
            kind = rng.choice((lost_request, throttled, lost_reply, None))
            if kind is not None:
                return kind(operation)
        slow = Fault(delay_before_s=rng.uniform(0.1, 1.0), delay_after_s=rng.uniform(0.1, 1.0))
        return slow if passed_s < 60.0 else None

    world.dynamo.faults = trouble
    await world.advance(120)
    assert len(one.worker.held()) == 6
    assert "another process" not in caplog.text


# --- a stream that becomes many times as wide at once


@in_fleet(1, **V3X)
async def test_a_leader_that_is_alone_takes_child_shards_whatever_a_scan_shows(world) -> None:
    """A scan shows the table as it was a moment before; here it cannot be read at all."""
    world.start("w1")
    await world.until(lambda: owners(world) == {"shardId-000000000000": "w1"})
    await world.advance(70)  # the looks of a leader that is alone are a minute apart
    world.dynamo.faults = lambda _sender, operation, _params: throttled() if operation == "Scan" else None
    world.kinesis.update_shard_count(STREAM, 2, now=world.clock.wall())
    took_s = await world.until(lambda: Counter(owners(world).values())["w1"] == 3, 60)
    assert took_s < 10.0


COMPLETE_WITHIN_S = 60.0
TARGET = 128


@pytest.mark.parametrize("keys", [{}, V3X], ids=["2.x", "3.x"])
@in_fleet(4)
async def test_four_shards_become_128_at_once_and_nothing_is_lost(world, keys):
    world.put(100)
    for number in range(2):
        world.start(f"w{number}", seed=number, **keys)
    await world.until(world.all_delivered)
    began = world.clock.monotonic()
    target = 8
    while target <= TARGET:
        world.kinesis.update_shard_count(STREAM, target, now=world.clock.wall())
        world.put(200)
        target *= 2

    def is_complete() -> bool:
        is_open = {shard.shard_id for shard in world.shards() if shard.is_open}
        begun = {shard for shard in is_open if world.recorder.actions_of(shard)}
        return len(begun) == TARGET and world.all_delivered()

    await world.until(is_complete, 10 * COMPLETE_WITHIN_S)
    took_s = world.clock.monotonic() - began
    assert took_s < COMPLETE_WITHIN_S
    world.check_order()
