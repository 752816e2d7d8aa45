"""What children are told of the stream that others of its name are not."""

from __future__ import annotations

import asyncio
import sys

from mld.consumer.child import ChildCommand, PipeHost
from mld.consumer.ports import ShardAddress
from mld.core.clock import LoopClock
from mld.core.errors import StreamThrottledError, StreamUnavailableError
from mld.protocol.fork_requests import OF_SHARD
from mld.retrieval.stream_naming import ATTEMPTS_MAX, NAMING_FRESH_S, StreamNaming
from tests.support.patience import PATIENCE_S
from tests.twins.streams import ARN, HangError, MemoryStreams
from tests.virtual_time import run_virtual, virtual

DESCRIBE = "DescribeStreamSummary"
NAMED = {"MLD_STREAM_ARN": ARN, "MLD_STREAM_CREATED": "2026-01-02T03:04:05.678Z"}


@virtual
async def test_children_that_start_together_share_one_answer_and_a_later_one_asks_again():
    streams = MemoryStreams(latency_s=0.5)
    naming = StreamNaming(streams, streams.clock)

    assert await asyncio.gather(*(naming.variables() for _ in range(64))) == [NAMED] * 64
    assert len(streams.times(DESCRIBE)) == 1
    streams.created_ms += 1000
    await asyncio.sleep(NAMING_FRESH_S)
    assert (await naming.variables())["MLD_STREAM_CREATED"] == "2026-01-02T03:04:06.678Z"


def test_a_throttled_question_is_asked_again():
    streams = MemoryStreams()
    streams.fail(DESCRIBE, *[StreamThrottledError("slow down")] * (ATTEMPTS_MAX - 1))
    assert run_virtual(StreamNaming(streams, streams.clock).variables()) == NAMED


def test_without_an_answer_nothing_is_said_and_the_log_says_why(caplog):
    for faults, why in [([StreamUnavailableError("AccessDenied")], "AccessDenied"), ([HangError()], "no answer")]:
        streams = MemoryStreams()
        streams.fail(DESCRIBE, *faults * ATTEMPTS_MAX)
        assert run_virtual(StreamNaming(streams, streams.clock).variables()) == {}
        assert why in caplog.text


def test_a_stand_in_that_does_not_say_when_is_asked_once():
    streams = MemoryStreams()
    streams.created_ms = None
    assert run_virtual(StreamNaming(streams, streams.clock).variables()) == {}
    assert len(streams.times(DESCRIBE)) == 1


async def test_a_child_has_it_in_its_environment():
    streams = MemoryStreams()
    code = "import os; print(os.environ['MLD_STREAM_ARN'], os.environ['MLD_STREAM_CREATED'])"
    command = ChildCommand([sys.executable, "-c", code], StreamNaming(streams, streams.clock))
    host = PipeHost([], LoopClock(), stop_timeout_s=PATIENCE_S, environment={}, of_stream=lambda _: command)
    child = await host.start(ShardAddress("shardId-000000000000", "shardId-000000000000"))
    assert await child.read_line() == " ".join(NAMED.values())
    await child.end()


async def test_a_child_is_told_what_its_shard_follows_and_never_what_another_one_does(monkeypatch):
    monkeypatch.setenv("MLD_ANCESTOR_SHARD_IDS", "shardId-of-another-child")
    code = "import os; print(os.environ['MLD_ANCESTOR_SHARD_IDS'] or 'nothing')"
    host = PipeHost([sys.executable, "-c", code], LoopClock(), stop_timeout_s=PATIENCE_S, environment={})
    for ancestors, told in [(("shardId-1", "shardId-0"), "shardId-1 shardId-0"), ((), "nothing")]:
        child = await host.start(ShardAddress("shardId-2", "shardId-2", ancestors=ancestors))
        assert await child.read_line() == told
        await child.end()


def test_one_fork_server_serves_all_shards_of_a_stream():
    of_shard = ShardAddress("key", "shard", ancestors=("parent",)).variables()
    assert {name.encode() for name in of_shard} <= OF_SHARD
