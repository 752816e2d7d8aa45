"""What a worker tells of shards that it cannot read, and of records that are not done."""

from __future__ import annotations

import logging

import pytest

from mld.core.errors import StreamError
from mld.metrics.activity import ShardActivity
from mld.metrics.identity import Identity
from mld.metrics.registry import Metrics
from mld.metrics.shard import UNREADABLE_AFTER_S
from mld.operating.shard_view import Verdict, known_here
from mld.protocol.messages import Record
from mld.serving.daemon_status import DaemonStatus
from tests.support.fleet import STREAM, TABLE, Fleet, Running, fleet, in_fleet
from tests.support.operators import look, reader_at
from tests.support.pages import page_with
from tests.twins.children import Recorder
from tests.twins.streams import VirtualClock
from tests.virtual_time import virtual

READS = frozenset({"GetRecords", "SubscribeToShard"})
HOUR_S = 3600.0
LONG_S = HOUR_S / 4


def forbid(running: Running, operations: frozenset[str] = READS) -> None:
    running.streams.faults = lambda name: StreamError(f"{name}: AccessDeniedException") if name in operations else None


def allow(running: Running) -> None:
    running.streams.faults = lambda _: None


def status_of(world: Fleet, running: Running) -> DaemonStatus:
    """What the daemon of this worker would serve."""
    return DaemonStatus(
        identity=Identity(TABLE, STREAM, "w1", "0.2.0"),
        metrics=running.metrics,
        reader=reader_at(world, "w1"),
        clock=world.clock,
        reach=running.reach,
        mode=lambda: "mode",
        is_ready=lambda: True,
    )


@pytest.mark.parametrize("mode", ["POLLING", "FANOUT"])
@virtual
async def test_a_read_outage_is_a_state_with_its_error_its_beginning_and_a_lag_that_counts_on(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet(4, retrievalMode=mode) as world:
        world.counts_requests = True
        running = world.start("w1")
        world.put(20)
        await world.until(world.all_delivered)
        await world.advance(60.0)
        status = status_of(world, running)
        assert status.why_not_ready() is None
        assert {shard.verdict for shard in (await look(world)).shards} == {Verdict.OK}

        forbid(running)
        if mode == "FANOUT":
            await world.advance(300.0)  # a subscription lives for five minutes
        await world.advance(130.0)
        seen = await look(world)
        assert {shard.verdict for shard in seen.shards} == {Verdict.UNREADABLE}
        assert all("since 20" in (shard.why or "") and "AccessDenied" in (shard.why or "") for shard in seen.shards)
        assert all(100.0 < (shard.behind_s or 0.0) < 500.0 for shard in seen.shards), "it counts on"
        assert (status.why_not_ready() or "").startswith("none of its 4 shards can be read: since 20")
        assert status.why_not_alive() is None, "a restart mends nothing"
        parts, at = status.metrics.shards.values(), status.instant()
        assert {part.activity_at(at.wall_s) for part in parts} == {ShardActivity.UNREADABLE}
        assert all(part.unread_s(at) > 100.0 for part in parts)

        allow(running)
        await world.advance(30.0)
        assert {shard.verdict for shard in (await look(world)).shards} == {Verdict.OK}
        assert status.why_not_ready() is None


@in_fleet(1)
async def test_an_outage_is_logged_at_growing_intervals(world: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    running = world.start("w1")
    world.put(1)
    await world.until(world.all_delivered)
    forbid(running)
    await world.advance(130 * 60)
    said = [record for record in caplog.records if getattr(record, "action", "") == "reader_failed"]
    assert running.metrics.shards["shardId-000000000000"].failed_reads.count > 1000
    assert 7 <= len(said) <= 9, "at once, after 1, 3, 7, 15, 31 and 63 minutes, and then every hour"


@in_fleet(1)
async def test_a_shard_that_could_never_be_read_says_why(world: Fleet) -> None:
    running = world.start("w1")
    forbid(running, READS | {"GetShardIterator"})
    await world.until(lambda: bool(running.metrics.shards))
    await world.advance(UNREADABLE_AFTER_S + 30.0)
    (shard,) = (await look(world)).shards
    assert (shard.verdict, shard.behind_s) == (Verdict.UNREADABLE, None)
    assert "AccessDenied" in (shard.why or "")


@pytest.mark.parametrize("mode", ["POLLING", "FANOUT"])
@virtual
async def test_a_shard_that_is_refused_at_its_start_says_why_before_it_counts_as_unreadable(mode: str) -> None:
    async with fleet(1, retrievalMode=mode) as world:
        running = world.start("w1")
        forbid(running, READS | {"GetShardIterator"})
        await world.until(lambda: any(part.failed_reads.count for part in running.metrics.shards.values()))
        (part,) = running.metrics.shards.values()
        assert part.activity_at(world.clock.wall()) is ShardActivity.IDLE
        assert "AccessDenied" in (part.why_at(world.clock.wall()) or "")
        status = status_of(world, running)
        (shard,) = [known_here(one, part, world.clock.wall(), 60.0) for one in (await look(world)).shards]
        assert shard.verdict is Verdict.UNKNOWN and (shard.why or "").startswith("not read yet: since ")
        assert status.why_not_ready() is None


@in_fleet(1)
async def test_a_single_error_of_kinesis_changes_no_state(world: Fleet) -> None:
    running = world.start("w1")
    world.put(1)
    await world.until(world.all_delivered)
    forbid(running)
    await world.advance(UNREADABLE_AFTER_S / 2)
    allow(running)
    (part,) = running.metrics.shards.values()
    for _ in range(40):
        assert part.activity_at(world.clock.wall()) is ShardActivity.IDLE
        await world.advance(0.5)


class Hangs(Recorder):
    """Keeps every batch for ever."""

    async def process(self, child, records):
        await self.clock.sleep(100 * HOUR_S)


@in_fleet(1)
async def test_a_new_owner_says_how_old_the_oldest_record_is_not_how_near_the_tip_it_has_read(world: Fleet) -> None:
    world.recorder = Hangs(world.clock)
    first = world.start("w1")
    world.put(5)
    await world.advance(LONG_S)
    (shard,) = (await look(world)).shards
    assert shard.verdict is Verdict.STALLED
    assert "neither answers nor checkpoints" in (shard.why or "")
    assert (shard.behind_s or 0.0) > LONG_S - 30
    await first.crash()
    world.start("w2", seed=2)
    known: list[float] = []
    for _ in range(60):
        await world.advance(1.0)
        known += [one.behind_s for one in (await look(world)).shards if one.owner == "w2" and one.behind_s is not None]
    assert known
    assert min(known) > LONG_S - 30


@pytest.mark.parametrize(("arrived_s_ago", "lag_ms"), [(40.0, 70_000), (-3600.0, 30_000)])
@virtual
async def test_records_in_hand_are_as_old_as_their_arrival_and_never_younger_than_their_taking(
    arrived_s_ago: float, lag_ms: int
) -> None:
    """The second arrival is by the clock of Kinesis, an hour ahead of ours."""

    clock, metrics = VirtualClock(), Metrics()
    part = metrics.begin("a", clock.monotonic())
    record = Record(b"x", "k", "1", 0, round(1000 * (clock.wall() - arrived_s_ago)))
    part.took(page_with((record,), "next", 0), record.approximate_arrival_ms, clock.wall())
    await clock.sleep(30.0)
    assert part.lag_ms(clock.wall()) == lag_ms


@in_fleet(1)
async def test_the_record_of_the_checkpoint_is_done_however_old_when_a_new_one_is_in_hand(world: Fleet) -> None:
    first = world.start("w1")
    world.put(1)
    await world.until(world.all_delivered)
    await world.advance(LONG_S)
    await first.stop()
    world.recorder = Hangs(world.clock)
    world.put(1)
    second = world.start("w2", seed=2)
    await world.until(lambda: any(part.busy_since is not None for part in second.metrics.shards.values()))
    (part,) = second.metrics.shards.values()
    assert (part.lag_ms(world.clock.wall()) or 0) < 60_000
