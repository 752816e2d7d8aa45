"""Who listens to a child hears all of it in order, or how much is missing; and nobody waits for him."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mld.consumer import taps as tapping
from mld.consumer.lifecycle import StopReason
from mld.consumer.taps import FROM_CHILD, TO_CHILD, ShardTap, TapListener, Taps, TooManyListenersError
from tests.support.fleet import in_fleet
from tests.twins.children import ChildExit, Recorder
from tests.twins.streams import VirtualClock
from tests.virtual_time import virtual

SHARD_0 = "shardId-000000000000"


def tap_with(*, is_full: bool = False) -> tuple[ShardTap, TapListener]:
    taps = Taps()
    tap = taps.begin(SHARD_0, VirtualClock())
    return tap, taps.listen(tap, is_full=is_full)


async def rest_of(tap: ShardTap, listener: TapListener) -> list[dict[str, Any]]:
    tap.close("over")
    return [value async for value in listener.values()]


def send(tap: ShardTap, *pieces: bytes) -> None:
    assert b"".join(tap.copied(pieces)) == b"".join(pieces)


@virtual
async def test_both_directions_are_heard_in_order_with_the_children_and_the_end():
    tap, listener = tap_with()
    tap.started("pid 7")
    send(tap, b'{"action":"init', b'ialize"}\n')
    tap.heard('{"action":"status"}')
    tap.ended("pid 7 exited with status 0")
    first, there, back, ended, over = await rest_of(tap, listener)
    assert (first["event"], first["words"]) == ("childStarted", "child started: pid 7")
    assert (there["way"], there["line"], there["bytes"]) == (TO_CHILD, '{"action":"initialize"}', 24)
    assert (back["way"], back["line"]) == (FROM_CHILD, '{"action":"status"}')
    assert ended["words"] == "child ended: pid 7 exited with status 0"
    assert (over["event"], over["words"]) == ("leaseEnded", "over")


@virtual
async def test_what_is_not_taken_in_time_is_counted_at_its_place(monkeypatch):
    monkeypatch.setattr(tapping, "EVENTS_WAITING_MAX", 3)
    tap, listener = tap_with()
    for number in range(10):
        tap.heard(str(number))
    values = listener.values()
    seen = [await anext(values) for _ in range(4)]
    tap.heard("after")
    seen.append(await anext(values))
    assert [value.get("line", value.get("lost")) for value in seen] == ["0", "1", "2", 7, "after"]


@virtual
async def test_memory_is_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(tapping, "WAITING_BYTES_MAX", 10_000)
    tap, listener = tap_with()
    for _ in range(100):
        tap.heard("x" * 3_000)
    lines = await rest_of(tap, listener)
    assert [value.get("lost") for value in lines] == [None, None, None, 97, None]


@virtual
async def test_a_whole_line_comes_in_its_pieces_and_a_torn_one_is_lost(monkeypatch):
    monkeypatch.setattr(tapping, "WAITING_FULL_BYTES_MAX", 2_000)
    tap, listener = tap_with(is_full=True)
    send(tap, b"a" * 100, b"b" * 100, b"\n")
    values = listener.values()
    pieces = [await anext(values) for _ in range(4)]
    assert "".join(piece["line"] for piece in pieces) == "a" * 100 + "b" * 100
    assert [piece["isMore"] for piece in pieces] == [True, True, True, False]
    send(tap, b"c" * 1_000, b"d" * 5_000, b"e" * 10)
    torn = await rest_of(tap, listener)
    assert [value.get("line", "")[:1] or value.get("lost") for value in torn] == ["c", 1, None]


@virtual
async def test_a_line_that_the_child_did_not_take_whole_says_so():
    tap, listener = tap_with()
    copied = tap.copied([b'{"action":', b'"initialize"}\n'])
    next(iter(copied))
    del copied
    (line, _) = await rest_of(tap, listener)
    assert line["isCut"] is True and line["line"] == '{"action":'


@virtual
async def test_listeners_are_few_and_one_that_leaves_makes_room():
    taps = Taps()
    tap = taps.begin(SHARD_0, VirtualClock())
    listeners = [taps.listen(tap, is_full=False) for _ in range(tapping.LISTENERS_MAX)]
    with pytest.raises(TooManyListenersError):
        taps.listen(tap, is_full=False)
    taps.leave(tap, listeners[0])
    taps.listen(tap, is_full=False)


@virtual
async def test_the_tap_of_a_lease_that_came_back_outlives_the_old_one():
    taps = Taps()
    old = taps.begin(SHARD_0, VirtualClock())
    new = taps.begin(SHARD_0, VirtualClock())
    taps.end(old, StopReason.LEASE_LOST, is_complete=False)
    assert taps.find(SHARD_0) is new and taps.shards == [SHARD_0]
    taps.end(new, None, is_complete=True)
    assert taps.find(SHARD_0) is None


# --- in a worker ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def listening(worker: Any, shard: str = SHARD_0) -> AsyncIterator[list[dict[str, Any]]]:
    """What is heard of a shard, as it comes."""
    taps = worker.worker.taps
    tap = taps.find(shard)
    listener = taps.listen(tap, is_full=False)
    heard: list[dict[str, Any]] = []

    async def hear() -> None:
        async for value in listener.values():
            heard.append(value)

    task = asyncio.ensure_future(hear())
    try:
        yield heard
    finally:
        task.cancel()
        taps.leave(tap, listener)


def conversation(heard: list[dict[str, Any]]) -> list[str]:
    """The actions said, with `>` before those of the daemon; and the events."""
    said = []
    for value in heard:
        if "line" in value:
            mark = ">" if value["way"] == TO_CHILD else "<"
            said.append(mark + json.loads(value["line"])["action"])
        else:
            said.append(value.get("event", "lost"))
    return said


@in_fleet(1)
async def test_a_batch_its_checkpoint_and_the_stop_are_heard(world):
    worker = world.start()
    await world.until(lambda: worker.worker.taps.find(SHARD_0) and world.recorder.actions)
    async with listening(worker) as heard:
        world.put(5)
        await world.until(world.all_delivered)
        await world.until(lambda: len(heard) >= 4)
        assert conversation(heard)[:4] == [">processRecords", "<checkpoint", ">checkpoint", "<status"]
        assert heard[0]["records"] == 5 or json.loads(heard[0]["line"])["records"]
        assert await worker.stop()
        await world.until(lambda: heard[-1].get("event") == "leaseEnded")
    assert conversation(heard)[-8:] == [
        ">shutdownRequested",
        "<checkpoint",
        ">checkpoint",
        "<status",
        ">leaseLost",
        "<status",
        "childEnded",
        "leaseEnded",
    ]
    assert heard[-1]["words"] == "this worker gives the lease back"


class DiesOnce(Recorder):
    """Dies of its first batch."""

    died = False

    async def process(self, child, records):
        if not self.died:
            self.died = True
            raise ChildExit
        await super().process(child, records)


@in_fleet(1)
async def test_a_tap_goes_on_with_the_next_child(world):
    world.recorder = DiesOnce(world.clock)
    worker = world.start()
    await world.until(lambda: worker.worker.taps.find(SHARD_0) and worker.host.children)
    async with listening(worker) as heard:
        world.put(3)
        await world.until(world.all_delivered, 60)
    said = conversation(heard)
    died = said.index("childEnded")
    assert said[died - 1] == ">processRecords"
    assert said[died + 1 : died + 4] == ["childStarted", ">initialize", "<status"]


@in_fleet(1)
async def test_without_listeners_lines_pass_as_they_are(world):
    worker = world.start()
    world.put(3)
    await world.until(world.all_delivered)
    tap = worker.worker.taps.find(SHARD_0)
    assert tap.listeners == []
    assert tap.child is not None
