"""Whole workers over KPL aggregates in virtual time (retrieval#hash-range-rule): restarts inside one, and reshards."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from hashlib import md5
from typing import Any

import pytest

from mld.core.positions import Position
from mld.local.kinesis import PutEntry
from mld.retrieval.kpl import SLICE
from tests.support.fleet import STREAM, Fleet, in_fleet
from tests.support.kpl import User, aggregate, field, number, sealed
from tests.twins.children import ChildExit, MemoryChild

SHARD_0 = "shardId-000000000000"
SHARD_1 = "shardId-000000000001"
SHARD_2 = "shardId-000000000002"
MIDDLE = 2**127


def put(world: Fleet, *users: User, hash_key: int = 0) -> str:
    """One aggregate, as the KPL puts it; its sequence number."""
    entry = PutEntry.of(aggregate(users), "a", hash_key)
    return world.kinesis.put_record(STREAM, entry, now=world.clock.wall()).sequence


def users(*names: str, hash_key: int = 0) -> list[User]:
    return [User("key", name.encode(), str(hash_key)) for name in names]


class Halfway:
    """The first child checkpoints its first batch at `sub` of the last aggregate, and then dies or goes on without
    checkpoints; later children are well-behaved.
    """

    def __init__(self, sub: int, *, dies: bool) -> None:
        self.sub = sub
        self.dies = dies
        self.starts: list[tuple[str, int]] = []
        self.got: list[list[tuple[str, int]]] = []
        self.at_end: list[str] = []

    async def __call__(self, child: MemoryChild) -> None:
        number = len(self.starts)
        while True:
            message = await child.receive()
            match message["action"]:
                case "initialize":
                    self.starts.append((message["sequenceNumber"], message["subSequenceNumber"]))
                    self.got.append([])
                case "processRecords":
                    await self._process(child, number, message["records"])
                case "shardEnded":
                    assert await child.checkpoint() is None
                    self.at_end.append(child.shard_id)
            child.done(message)

    async def _process(self, child: MemoryChild, number: int, records: list[dict[str, Any]]) -> None:
        self.got[number] += [(record["sequenceNumber"], record["subSequenceNumber"]) for record in records]
        if number > 0:
            assert await child.checkpoint() is None
        elif len(self.got[0]) == len(records):
            assert await child.checkpoint(records[-1]["sequenceNumber"], self.sub) is None
            if self.dies:
                raise ChildExit


@in_fleet(1)
async def test_another_worker_goes_on_inside_the_aggregate(world):
    script = Halfway(1, dies=False)
    put(world, *users("a", "b"))
    last = put(world, *users("c", "d", "e", "f"))
    first = world.start("w1", script=script)
    await world.until(lambda: bool(script.got and script.got[0]))
    await world.until(lambda: not world.lease(SHARD_0).checkpoint.is_sentinel)
    assert world.lease(SHARD_0).checkpoint == Position(last, 1)
    await first.crash()
    world.start("w2", script=script, seed=2)
    await world.until(lambda: len(script.got) == 2 and len(script.got[1]) == 2)
    assert (script.starts[1], script.got[1]) == ((last, 1), [(last, 2), (last, 3)])


@in_fleet(1)
async def test_a_checkpoint_beyond_the_aggregate_is_refused(world):
    errors: list[str | None] = []

    async def script(child: MemoryChild) -> None:
        while True:
            message = await child.receive()
            if message["action"] == "processRecords":
                sequence = message["records"][-1]["sequenceNumber"]
                errors.extend([await child.checkpoint(sequence, sub) for sub in (3, 2, 1, 2)])
            child.done(message)

    put(world, *users("a", "b", "c"))
    world.start(script=script)
    await world.until(lambda: len(errors) == 4)
    assert errors == ["IllegalArgumentException", None, "IllegalArgumentException", None]


@in_fleet(1)
async def test_an_aggregate_that_ends_a_shard_is_finished_before_the_children_begin(world):
    script = Halfway(1, dies=True)
    last = put(world, *users("a", "b", "c"))
    world.split(SHARD_0)
    world.start(script=script)
    await world.until(lambda: script.at_end == [SHARD_0])
    assert script.got[:2] == [[(last, 0), (last, 1), (last, 2)], [(last, 2)]]
    assert script.starts[1] == (last, 1)
    assert world.lease(SHARD_0).checkpoint.is_shard_end


@in_fleet(1)
async def test_an_aggregate_built_for_the_parent_yields_nothing_in_a_child(world):
    """Its producer sees the other shard id in the answer and sends all its records again."""
    world.start()
    world.split(SHARD_0)
    low, high = users("low"), users("high", hash_key=MIDDLE + 1)
    put(world, *low, *high, hash_key=0)
    put(world, *low, *low, hash_key=0)
    put(world, *high, *high, hash_key=MIDDLE + 1)
    await world.until(lambda: len(world.recorder.deliveries) == 4)
    await world.advance(30)
    got = sorted((d.shard_id, d.data) for d in world.recorder.deliveries)
    assert got == [(SHARD_1, b"low")] * 2 + [(SHARD_2, b"high")] * 2


@pytest.mark.parametrize("mode", ["POLLING", "FANOUT"])
@in_fleet(2)
async def test_misrouted_user_records_are_counted_and_reported_once_a_minute(world, mode, caplog):
    secret = "somebody@example.com"
    low = [User(secret, b"low", "5")]
    astray = [*low, User(secret, b"high", str(MIDDLE + 1)), *low]

    def reports():
        return [r for r in caplog.records if getattr(r, "action", "") == "aggregate_misrouted"]

    caplog.set_level(logging.WARNING)
    running = world.start(retrievalMode=mode)
    await world.until(lambda: len(running.host.living()) == 2)
    first = put(world, *astray)
    await world.until(lambda: bool(reports()))
    for _ in range(100):
        put(world, *astray)
        put(world, *low, *low)
        await world.advance(1.0)
    await world.until(lambda: len(world.recorder.deliveries) == 200)
    await running.host.living()[0].kill()  # what is read again counts once
    await running.host.living()[0].kill()
    await world.advance(120)
    assert [(r.shard, r.user_records_total) for r in reports()][-1] == (SHARD_0, 303)
    assert sum(r.user_records for r in reports()) == 303
    assert len(reports()) == 3  # at once, and after each minute with something new
    assert reports()[-1].aggregates_total == 101
    assert {r.shard for r in reports()} == {SHARD_0}
    text = reports()[0].getMessage()
    assert f"{first}/1" in text and "0x80000000" in text and "0x7fffffff" in text
    put(world, *astray)
    await world.until(lambda: len(reports()) == 4)
    put(world, *astray)
    await world.advance(5)
    assert await running.stop()
    assert sum(r.user_records for r in reports()) == 309, "the rest is told at the end"
    assert secret not in caplog.text


@in_fleet(2)
async def test_of_a_partition_key_only_its_length_and_some_of_its_hash_are_logged(world, caplog):
    key = "somebody@example.com"
    hash_key = int.from_bytes(md5(key.encode(), usedforsecurity=False).digest())
    away = 0 if hash_key >= MIDDLE else MIDDLE
    caplog.set_level(logging.WARNING)
    put(world, User(key, b"x"), hash_key=away)
    running = world.start()
    await world.until(lambda: "aggregate_misrouted" in [getattr(r, "action", "") for r in caplog.records])
    assert await running.stop()
    assert f"0x{hash_key >> 96:08x}… (hash of a partition key of 20 bytes)" in caplog.text
    assert key not in caplog.text and str(hash_key) not in caplog.text


@in_fleet(1)
async def test_malformed_aggregates_are_counted_and_reported_once_a_minute(world, caplog):
    secret = "somebody@example.com"
    broken = aggregate([User(secret * 20, b"x")])

    def reports():
        return [r for r in caplog.records if getattr(r, "action", "") == "aggregate_malformed"]

    caplog.set_level(logging.WARNING)
    running = world.start()
    for count in range(1, 102):
        world.kinesis.put_record(STREAM, PutEntry.of(broken, "a", 0), now=world.clock.wall())
        await world.until(lambda count=count: len(world.recorder.data()) == count)
        await world.advance(1.0)
    assert not world.lease(SHARD_0).checkpoint.is_sentinel
    await running.host.living()[0].kill()  # what is read again counts once
    await world.advance(120)
    assert world.recorder.data() == [broken] * 101
    assert len(reports()) <= 4  # at once, and after each minute with something new
    assert {r.levelname for r in reports()} == {"WARNING"}
    assert sum(r.aggregates for r in reports()) == reports()[-1].aggregates_total == 101
    assert await running.stop()
    assert secret not in caplog.text and "more than 256 characters" in caplog.text


@in_fleet(1)
async def test_a_large_aggregate_leaves_the_loop_to_others(world, monkeypatch):
    entries = 100_000
    hostile = sealed(field(1, b"k") + field(3, number(1, 0) + field(3, b"")) * entries + field(3, b""))
    turns: Counter[float] = Counter()
    once = asyncio.BaseEventLoop._run_once

    def counted(loop: Any) -> None:
        turns[loop.time()] += 1  # virtual time stands while anybody works
        once(loop)

    monkeypatch.setattr(asyncio.BaseEventLoop, "_run_once", counted)
    world.kinesis.put_record(STREAM, PutEntry.of(hostile, "a", 0), now=world.clock.wall())
    world.start()
    await world.until(lambda: world.recorder.data() == [hostile])
    assert max(turns.values()) > entries // SLICE
