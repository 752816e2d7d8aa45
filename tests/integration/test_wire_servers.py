"""The wire client against servers we did not write (and our own): what it reads and writes is what botocore does."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mld.aws.kinesis import KinesisStreams
from mld.aws.service import RawService
from mld.core.errors import IteratorExpiredError, StreamError, StreamNotFoundError
from mld.core.positions import LATEST
from mld.core.streams import IteratorType, StartingPoint
from mld.retrieval.rawbody import page_of
from tests.integration.world import ENVIRONMENT, ONLY_BOTOCORE, MakeWorld
from tests.support.bodies import plain_page
from tests.support.kpl import User, aggregate
from tests.support.pages import records_of
from tests.support.servers import ServerProcess
from tests.support.services import boto_service, wire_service

SHARD = "shardId-000000000000"
HORIZON = StartingPoint(IteratorType.TRIM_HORIZON)
_numbers = itertools.count(1)


@pytest.fixture(
    params=[pytest.param("aws_server", id="embedded"), pytest.param("kinesis_local", marks=pytest.mark.node)]
)
def server(request: pytest.FixtureRequest) -> ServerProcess:
    server: ServerProcess = request.getfixturevalue(request.param)
    return server


class TestKinesis:
    @pytest.fixture
    def stream(self, server: ServerProcess) -> str:
        name = f"wire-{os.getpid()}-{next(_numbers)}"
        client = server.client("kinesis")
        client.create_stream(StreamName=name, ShardCount=1)
        while client.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]["StreamStatus"] != "ACTIVE":
            time.sleep(0.02)
        datas = [b"", b"\xff", bytes(1000), aggregate([User("a", b"1"), User("b", b"2")]), os.urandom(50_000), b"last"]
        keys = ["k", "\u00e9\u4e2d\U0001f600", 'q"\\/', "tab\t", "plain", "z" * 256]
        for data, key in zip(datas, keys, strict=True):
            client.put_record(StreamName=name, Data=data, PartitionKey=key)
        return name

    @pytest.fixture(params=["wire", "botocore"])
    async def service(self, server: ServerProcess, request: pytest.FixtureRequest) -> AsyncIterator[RawService]:
        service: Any = (wire_service if request.param == "wire" else boto_service)(server, "kinesis")
        await service.open()
        yield service
        await service.close()

    async def test_pages_are_those_of_the_plain_path(
        self, server: ServerProcess, stream: str, service: RawService
    ) -> None:
        client = server.client("kinesis")
        at = client.get_shard_iterator(StreamName=stream, ShardId=SHARD, ShardIteratorType="TRIM_HORIZON")
        theirs = plain_page(client.get_records(ShardIterator=at["ShardIterator"]))
        streams = streams_of(service, stream)
        ours = await streams.get_records(await streams.shard_iterator(SHARD, HORIZON), None)
        assert len(theirs.records) == ours.count == 6
        assert ours.data_bytes == theirs.values()["data_bytes"]
        assert records_of(ours.after(LATEST)) == theirs.after(LATEST, None).records

    async def test_a_time_reaches_the_service(self, stream: str, service: RawService) -> None:
        streams = streams_of(service, stream)
        for ahead_s, count in ((-3600.0, 6), (-3600.25, 6)):
            start = StartingPoint(IteratorType.AT_TIMESTAMP, timestamp_s=time.time() + ahead_s)
            page = await streams.get_records(await streams.shard_iterator(SHARD, start), None)
            assert page.count == count

    async def test_errors_are_told_apart(self, stream: str, service: RawService) -> None:
        streams = streams_of(service, stream)
        with pytest.raises(StreamNotFoundError):
            await streams.shard_iterator("shardId-000000000009", HORIZON)
        with pytest.raises(StreamError) as caught:
            await streams.get_records("no iterator", None)
        assert not isinstance(caught.value, IteratorExpiredError)


def streams_of(service: RawService, stream: str) -> KinesisStreams:
    return KinesisStreams(service, stream_name=stream, page_of=page_of)


def test_a_daemon_reads_through_botocore_as_well(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    put = world.put(300)
    daemon = world.daemon(process={"environment": {**ENVIRONMENT, **ONLY_BOTOCORE}})
    for service in ("Kinesis", "DynamoDB"):
        daemon.wait_for_event("wire_client", service=service, reason="the header x-amzn-trace-id")
    world.until_delivered(put)
    assert daemon.stop() == 0
