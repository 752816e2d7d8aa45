"""Who listens to a child hears all of it in order, or how much is missing; and nobody waits for him."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mld.consumer import protocol_trace
from mld.consumer.lifecycle import StopReason
from mld.consumer.protocol_trace import (
    FROM_CHILD,
    TO_CHILD,
    ProtocolTrace,
    ProtocolTraces,
    TooManyListenersError,
    TraceListener,
)
from tests.support.fleet import in_fleet
from tests.twins.children import ChildExit, Recorder
from tests.twins.streams import VirtualClock
from tests.virtual_time import virtual

SHARD_0 = "shardId-000000000000"


def trace_with() -> tuple[ProtocolTrace, TraceListener]:
    traces = ProtocolTraces()
    trace = traces.begin(SHARD_0, VirtualClock())
    return trace, traces.listen(trace)


async def rest_of(trace: ProtocolTrace, listener: TraceListener) -> list[dict[str, Any]]:
    trace.close("over")
    return [value async for value in listener.values()]


def send(trace: ProtocolTrace, *pieces: bytes) -> None:
    assert b"".join(trace.copied(pieces)) == b"".join(pieces)


@virtual
async def test_a_listener_hears_all_children_of_a_shard_by_their_numbers():
    trace, listener = trace_with()
    assert trace.running is None
    first, second = trace.of_child(0), trace.of_child(1)
    second.started("pid 8")
    first.started("pid 7")
    assert trace.running == "child 0: pid 7, child 1: pid 8"
    send(second, b'{"action":"initialize"}\n')
    first.ended("pid 7 exited with status 0")
    assert trace.running == "child 1: pid 8"
    again = trace.of_child(0)
    again.started("pid 9")
    assert trace.running == "child 0: pid 9, child 1: pid 8"
    heard = await rest_of(trace, listener)
    assert heard[0]["words"] == "child started: pid 8 (child 1)"
    assert [value["child"] for value in heard if "line" in value] == [1]


@virtual
async def test_both_directions_are_heard_in_order_with_the_children_and_the_end():
    trace, listener = trace_with()
    trace.started("pid 7")
    send(trace, b'{"action":"init', b'ialize"}\n')
    trace.heard('{"action":"stätus"}')
    trace.ended("pid 7 exited with status 0")
    first, there, back, ended, over = await rest_of(trace, listener)
    assert (first["event"], first["words"]) == ("childStarted", "child started: pid 7")
    assert (there["way"], there["line"], there["bytes"]) == (TO_CHILD, '{"action":"initialize"}', 24)
    assert (back["way"], back["line"], back["bytes"]) == (FROM_CHILD, '{"action":"stätus"}', 20)
    assert ended["words"] == "child ended: pid 7 exited with status 0"
    assert (over["event"], over["words"]) == ("leaseEnded", "over")


@virtual
async def test_what_is_not_taken_in_time_is_counted_at_its_place(monkeypatch):
    monkeypatch.setattr(protocol_trace, "EVENTS_WAITING_MAX", 3)
    trace, listener = trace_with()
    for number in range(10):
        trace.heard(str(number))
    values = listener.values()
    seen = [await anext(values) for _ in range(4)]
    trace.heard("after")
    seen.append(await anext(values))
    assert [value.get("line", value.get("lost")) for value in seen] == ["0", "1", "2", 7, "after"]


@virtual
async def test_memory_is_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(protocol_trace, "WAITING_BYTES_MAX", 10_000)
    trace, listener = trace_with()
    for _ in range(100):
        trace.heard("x" * 3_000)
    lines = await rest_of(trace, listener)
    assert [value.get("lost") for value in lines] == [None, None, None, 97, None]


@virtual
async def test_a_line_that_the_child_did_not_take_whole_says_so():
    trace, listener = trace_with()
    copied = trace.copied([b'{"action":', b'"initialize"}\n'])
    next(iter(copied))
    del copied
    (line, _) = await rest_of(trace, listener)
    assert line["isCut"] is True and line["line"] == '{"action":'


@virtual
async def test_listeners_are_few_and_one_that_leaves_makes_room():
    traces = ProtocolTraces()
    trace = traces.begin(SHARD_0, VirtualClock())
    listeners = [traces.listen(trace) for _ in range(protocol_trace.LISTENERS_MAX)]
    with pytest.raises(TooManyListenersError):
        traces.listen(trace)
    traces.leave(trace, listeners[0])
    traces.listen(trace)


@virtual
async def test_the_trace_of_a_lease_that_came_back_outlives_the_old_one():
    traces = ProtocolTraces()
    old = traces.begin(SHARD_0, VirtualClock())
    new = traces.begin(SHARD_0, VirtualClock())
    traces.end(old, StopReason.LEASE_LOST, is_complete=False)
    assert traces.find(SHARD_0) is new and traces.shards == [SHARD_0]
    traces.end(new, None, is_complete=True)
    assert traces.find(SHARD_0) is None


# --- in a worker ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def listening(worker: Any, shard: str = SHARD_0) -> AsyncIterator[list[dict[str, Any]]]:
    """What is heard of a shard, as it comes."""
    traces = worker.worker.parts.traces
    trace = traces.find(shard)
    listener = traces.listen(trace)
    heard: list[dict[str, Any]] = []

    async def hear() -> None:
        async for value in listener.values():
            heard.append(value)

    task = asyncio.ensure_future(hear())
    try:
        yield heard
    finally:
        task.cancel()
        traces.leave(trace, listener)


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
    await world.until(lambda: worker.worker.parts.traces.find(SHARD_0) and world.recorder.actions)
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
async def test_a_trace_goes_on_with_the_next_child(world):
    world.recorder = DiesOnce(world.clock)
    worker = world.start()
    await world.until(lambda: worker.worker.parts.traces.find(SHARD_0) and worker.host.children)
    async with listening(worker) as heard:
        world.put(3)
        await world.until(world.all_delivered, 60)
    said = conversation(heard)
    died = said.index("childEnded")
    assert said[died - 1] == ">processRecords"
    assert said[died + 1 : died + 4] == ["childStarted", ">initialize", "<status"]
