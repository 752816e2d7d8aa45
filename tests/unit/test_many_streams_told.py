"""What a worker of several streams tells of them: holes, counts of streams, and the stream of each line of the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from mld.logging.logs import TextFormatter
from mld.metrics.declaring import Instant
from mld.properties.scrubber import Scrubber
from mld.tracking.list_follower import WantedStream
from tests.support.many import ManyFleet, in_many_fleet


class Lines(logging.Handler):
    """The lines of `mld.shards`, as the log has them."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(TextFormatter(Scrubber()))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def lines() -> Iterator[list[str]]:
    handler, logger = Lines(), logging.getLogger("mld.shards")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler.lines
    logger.setLevel(before)
    logger.removeHandler(handler)


@in_many_fleet("orders", "clicks", shard_count=2)
async def test_holes_are_the_sum_over_the_streams_that_are_consumed(world: ManyFleet) -> None:
    table = world.start("w1").metrics.worker.table
    await world.until(lambda: len(world.rows()) == 4)
    await world.until(lambda: len(table.holes_of) == 2)
    assert table.holes(Instant(0.0, 0.0)) == 0
    orders, clicks = world.stream_id("orders"), world.stream_id("clicks")
    table.holes_of.update({orders: 1, clicks: 2})
    assert table.holes(Instant(0.0, 0.0)) == 3
    world.wanted = [WantedStream("orders")]
    await world.until(lambda: clicks not in table.holes_of, 60.0)
    assert sum(table.holes_of.values()) < 3


@in_many_fleet("orders", "clicks", shard_count=2)
async def test_the_leader_counts_streams_as_kcl_does(world: ManyFleet) -> None:
    running = world.start("w1")
    await world.until(lambda: len(world.rows()) == 4)
    world.wanted = [WantedStream("orders")]
    counts = running.metrics.worker.operations.stream_tracking
    await world.until(lambda: counts.pending_deletion.greatest == 1, 120.0)
    assert counts.active.greatest == 1


@in_many_fleet("orders", "clicks", shard_count=2)
async def test_parts_of_a_shard_know_its_stream_by_the_label(world: ManyFleet) -> None:
    shards = world.start("w1").metrics.shards
    await world.until(lambda: len(shards) == 4)
    assert {part.stream_label for part in shards.values()} == {"orders", "clicks"}
    assert {part.shard_id for part in shards.values()} == {"shardId-000000000000", "shardId-000000000001"}


@in_many_fleet("orders", "clicks")
async def test_lines_about_shards_name_their_stream(world: ManyFleet, lines: list[str]) -> None:
    world.start("w1")
    await world.until(lambda: len(world.rows()) == 2)
    world.put_in("orders", 5)
    await world.until(world.all_delivered)
    world.kinesis.split_shard("orders", "shardId-000000000000", 2**127, now=world.clock.wall())
    world.put_in("orders", 5)
    await world.until(world.all_delivered, 120.0)
    ids = {name: world.stream_id(name) for name in ("orders", "clicks")}
    for name in ("orders", "clicks"):
        assert any(f"stream={ids[name]}" in line for line in lines), lines
    assert all("stream=" in line for line in lines)
