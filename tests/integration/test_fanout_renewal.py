"""One reader on real sockets against the embedded AWS: its subscriptions are renewed while records arrive."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from mld.aws.fanout import KinesisFanOut
from mld.aws.kinesis import KinesisStreams
from mld.aws.wire.client import WireService
from mld.core.clock import LoopClock
from mld.core.positions import TRIM_HORIZON, InitialPosition
from mld.retrieval import subscriptions
from mld.retrieval.fanout import FanOutReader
from mld.retrieval.prefetch import Budget
from mld.retrieval.rawbody import page_of, page_of_event
from mld.retrieval.reader import ReaderShares, Records
from mld.retrieval.registration import RegisteredConsumer
from tests.integration.world import MakeWorld, World
from tests.support.fleet import settings_of
from tests.support.patience import PATIENCE_S
from tests.support.services import wire_service

pytestmark = pytest.mark.full

SHARD = "shardId-000000000000"
RENEW_AFTER_S = 6.0  # above the five seconds in which a subscription cannot be taken over
DEADLINE_S = PATIENCE_S
SUBSCRIPTIONS = 3


class NoJitter(Random):
    def random(self) -> float:
        return 0.0


@asynccontextmanager
async def reading(world: World, service: WireService) -> AsyncIterator[FanOutReader]:
    streams = KinesisStreams(service, stream_name=world.stream, page_of=page_of)
    fan_out = KinesisFanOut(service, streams, stream_name=world.stream, page_of=page_of_event)
    rng = NoJitter()
    consumer = RegisteredConsumer(fan_out, LoopClock(), rng, settings_of().fanout, arn=None)
    reader = FanOutReader(fan_out, consumer, ReaderShares(LoopClock(), rng, Budget(10**8)), shard_id=SHARD)
    await reader.start(TRIM_HORIZON, InitialPosition(TRIM_HORIZON))
    try:
        yield reader
    finally:
        await reader.stop()


async def collect(reader: FanOutReader, putting: asyncio.Task[list[str]]) -> list[str]:
    """What comes through a consumer's filter, until it is as much as was put."""
    had = TRIM_HORIZON
    got: list[str] = []
    async with asyncio.timeout(2 * DEADLINE_S):
        while not putting.done() or len(got) < len(putting.result()):
            delivery = await reader.next()
            assert isinstance(delivery, Records)
            batch = delivery.page.after(had)
            had = batch.largest or had
            got += [record["sequenceNumber"] for record in json.loads(b"".join(batch.line()))["records"]]
    return got


async def test_renewals_under_load_lose_and_disorder_nothing(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "RENEW_AFTER_S", RENEW_AFTER_S)
    world = make_world(shards=1)
    service = wire_service(world.aws, "kinesis")
    await service.open()
    world.aws.clear_log()

    def put() -> list[str]:
        end = time.monotonic() + DEADLINE_S
        while world.aws.log().get("kinesis.SubscribeToShard", 0) < SUBSCRIPTIONS and time.monotonic() < end:
            world.put(5)
            time.sleep(0.05)
        return [str(one.sequence) for one in world.puts]

    try:
        async with reading(world, service) as reader:
            putting = asyncio.create_task(asyncio.to_thread(put))
            got = await collect(reader, putting)
            assert got == putting.result()
        assert world.aws.log()["kinesis.SubscribeToShard"] >= SUBSCRIPTIONS
    finally:
        await service.close()
