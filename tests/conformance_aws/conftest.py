"""Which endpoint is checked, and helpers that clean up behind each test."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.exceptions import ClientError

from tests.conformance_aws.exclusions import EXCLUSIONS
from tests.support.servers import EmbeddedAws, make_client

SETTLE_TIMEOUT_S = 120.0
_FIRST_PAUSE_S = 0.01
_PAUSE_MAX_S = 2.0


@dataclass
class Target:
    """The endpoint under test; `embedded` has its controls if it is ours."""

    name: str
    endpoint: str | None
    embedded: EmbeddedAws | None = None
    clients: dict[str, Any] = field(default_factory=dict)

    def client(self, service: str) -> Any:
        if service not in self.clients:
            self.clients[service] = (
                botocore.session.Session().create_client(service)
                if self.endpoint is None
                else make_client(service, self.endpoint)
            )
        return self.clients[service]

    def close(self) -> None:
        for client in self.clients.values():
            client.close()


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    if endpoint := os.environ.get("MLD_CONFORMANCE_ENDPOINT", ""):
        name = os.environ.get("MLD_CONFORMANCE_TARGET", "aws" if endpoint == "aws" else "other")
        found = Target(name, None if endpoint == "aws" else endpoint)
    else:
        server: EmbeddedAws = request.getfixturevalue("aws_server")
        found = Target("embedded", server.endpoint, server)
    yield found
    found.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.aws)


@pytest.fixture(autouse=True)
def _leave_out_known_faults(request: pytest.FixtureRequest, target: Target) -> None:
    known = EXCLUSIONS.get(target.name, {})
    for key in (request.node.path.name, request.node.originalname, request.node.name):
        if key in known:
            pytest.skip(f"known fault of {target.name}: {known[key]}")


@pytest.fixture(autouse=True)
def _undo_controls(target: Target) -> Iterator[None]:
    yield
    if target.embedded is not None:
        target.embedded.clear_faults()
        target.embedded.control("POST", "clock", {"offset_s": 0})
        target.embedded.set_delays(create_s=0, update_s=0, delete_s=0, consumer_s=0)
        target.embedded.set_enforce(False)


@pytest.fixture
def kinesis(target: Target) -> Any:
    return target.client("kinesis")


@pytest.fixture
def dynamodb(target: Target) -> Any:
    return target.client("dynamodb")


@pytest.fixture
def dynamodbstreams(target: Target) -> Any:
    return target.client("dynamodbstreams")


@pytest.fixture
def pass_time(target: Target) -> Callable[[float], None]:
    """Let so many seconds pass: by the clock control, or by waiting if that was asked for."""

    def advance(seconds: float) -> None:
        if target.embedded is not None:
            target.embedded.advance_clock(seconds)
        elif seconds <= 5 or os.environ.get("MLD_CONFORMANCE_SLOW") == "1":
            time.sleep(seconds)
        else:
            pytest.skip(f"needs {seconds} s of waiting; MLD_CONFORMANCE_SLOW=1 allows it")

    return advance


def unique(prefix: str = "mld") -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


@dataclass
class TableFeed:
    """A table with a stream, and what its stream says."""

    name: str
    arn: str
    dynamodb: Any
    streams: Any

    def put(self, key: str, **attributes: Any) -> None:
        self.dynamodb.put_item(TableName=self.name, Item={"leaseKey": {"S": key}, **attributes})

    def update(self, key: str, value: str) -> None:
        self.dynamodb.update_item(
            TableName=self.name,
            Key={"leaseKey": {"S": key}},
            UpdateExpression="SET v = :v",
            ExpressionAttributeValues={":v": {"S": value}},
        )

    def delete(self, key: str) -> None:
        self.dynamodb.delete_item(TableName=self.name, Key={"leaseKey": {"S": key}})

    def describe(self, **arguments: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.streams.describe_stream(StreamArn=self.arn, **arguments)["StreamDescription"]
        return found

    def shard_ids(self) -> list[str]:
        return [shard["ShardId"] for shard in self.describe()["Shards"]]

    def iterator(self, shard_id: str, kind: str = "TRIM_HORIZON", **arguments: Any) -> str:
        answer = self.streams.get_shard_iterator(
            StreamArn=self.arn, ShardId=shard_id, ShardIteratorType=kind, **arguments
        )
        return str(answer["ShardIterator"])

    def page(self, shard_id: str, kind: str = "TRIM_HORIZON", **arguments: Any) -> dict[str, Any]:
        page: dict[str, Any] = self.streams.get_records(ShardIterator=self.iterator(shard_id, kind, **arguments))
        return page

    def records(self) -> list[dict[str, Any]]:
        """Of all shards, in order of the shards' ids."""
        return [record for shard_id in self.shard_ids() for record in self.page(shard_id)["Records"]]

    def events(self) -> list[tuple[str, str]]:
        """Name and key of each record."""
        return [(r["eventName"], r["dynamodb"]["Keys"]["leaseKey"]["S"]) for r in self.records()]

    def set_stream(self, view: str | None) -> None:
        """Enable the table's stream, or disable it."""
        wanted = {"StreamEnabled": True, "StreamViewType": view} if view else {"StreamEnabled": False}
        self.dynamodb.update_table(TableName=self.name, StreamSpecification=wanted)

    def table(self) -> dict[str, Any]:
        found: dict[str, Any] = self.dynamodb.describe_table(TableName=self.name)["Table"]
        return found


@pytest.fixture
def make_feed(make_table: Callable[..., str], dynamodb: Any, dynamodbstreams: Any) -> Callable[..., TableFeed]:
    def make(view: str = "NEW_AND_OLD_IMAGES") -> TableFeed:
        name = make_table(StreamSpecification={"StreamEnabled": True, "StreamViewType": view})
        arn = str(dynamodb.describe_table(TableName=name)["Table"]["LatestStreamArn"])
        return TableFeed(name, arn, dynamodb, dynamodbstreams)

    return make


def code_of(call: Callable[..., Any], **arguments: Any) -> str:
    """The error code with which a call is refused; empty if it is not."""
    try:
        call(**arguments)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""


def settle(done: Callable[[], bool]) -> None:
    """Ask until it is so, with growing pauses; the embedded AWS is settled at the first question."""
    deadline, pause = time.monotonic() + SETTLE_TIMEOUT_S, _FIRST_PAUSE_S
    while not done():
        assert time.monotonic() < deadline, "the service did not settle"
        time.sleep(pause)
        pause = min(2 * pause, _PAUSE_MAX_S)


class StreamHandle:
    """One stream of a test."""

    def __init__(self, client: Any, name: str) -> None:
        self.client = client
        self.name = name
        self.settle()
        self.arn = str(self.summary()["StreamARN"])

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.describe_stream_summary(StreamName=self.name)["StreamDescriptionSummary"]
        return found

    def settle(self) -> None:
        settle(lambda: self.summary()["StreamStatus"] == "ACTIVE")

    def shards(self, **arguments: Any) -> list[dict[str, Any]]:
        """All pages."""
        answer = self.client.list_shards(StreamName=self.name, **arguments)
        found = list(answer["Shards"])
        while token := answer.get("NextToken"):
            answer = self.client.list_shards(NextToken=token)
            found += answer["Shards"]
        return found

    def ids(self, **arguments: Any) -> set[str]:
        return {shard["ShardId"] for shard in self.shards(**arguments)}

    def open_ids(self) -> list[str]:
        """In order of their hash ranges."""
        open_shards = [s for s in self.shards() if "EndingSequenceNumber" not in s["SequenceNumberRange"]]
        return [s["ShardId"] for s in sorted(open_shards, key=lambda s: int(s["HashKeyRange"]["StartingHashKey"]))]

    def shard(self, shard_id: str) -> dict[str, Any]:
        return next(s for s in self.shards() if s["ShardId"] == shard_id)

    def put(self, data: bytes = b"x", key: str = "k", **arguments: Any) -> dict[str, Any]:
        put: dict[str, Any] = self.client.put_record(StreamName=self.name, Data=data, PartitionKey=key, **arguments)
        return put

    def put_into(self, shard_id: str, data: bytes) -> dict[str, Any]:
        start = self.shard(shard_id)["HashKeyRange"]["StartingHashKey"]
        return self.put(data, ExplicitHashKey=start)

    def iterator(self, shard_id: str, kind: str = "TRIM_HORIZON", **arguments: Any) -> str:
        answer = self.client.get_shard_iterator(
            StreamName=self.name, ShardId=shard_id, ShardIteratorType=kind, **arguments
        )
        return str(answer["ShardIterator"])

    def page(self, shard_id: str, kind: str = "TRIM_HORIZON", **arguments: Any) -> dict[str, Any]:
        page: dict[str, Any] = self.client.get_records(ShardIterator=self.iterator(shard_id, kind, **arguments))
        return page

    def read(self, shard_id: str, kind: str = "TRIM_HORIZON", **arguments: Any) -> list[dict[str, Any]]:
        """All records from there to the tip or the end, page by page."""
        iterator: str | None = self.iterator(shard_id, kind, **arguments)
        found: list[dict[str, Any]] = []
        while iterator is not None:
            page = self.client.get_records(ShardIterator=iterator)
            found += page["Records"]
            if page["MillisBehindLatest"] == 0:
                break
            iterator = page.get("NextShardIterator")
        return found

    def data(self, shard_id: str, kind: str = "TRIM_HORIZON", **arguments: Any) -> list[bytes]:
        return [record["Data"] for record in self.read(shard_id, kind, **arguments)]

    def split(self, shard_id: str) -> list[str]:
        """In the middle; the ids of the children, lower one first."""
        before = self.ids()
        keys = self.shard(shard_id)["HashKeyRange"]
        middle = (int(keys["StartingHashKey"]) + int(keys["EndingHashKey"])) // 2 + 1
        self.client.split_shard(StreamName=self.name, ShardToSplit=shard_id, NewStartingHashKey=str(middle))
        self.settle()
        return [i for i in self.open_ids() if i not in before]

    def merge(self, shard_id: str, adjacent_id: str) -> str:
        before = self.ids()
        self.client.merge_shards(StreamName=self.name, ShardToMerge=shard_id, AdjacentShardToMerge=adjacent_id)
        self.settle()
        return next(i for i in self.open_ids() if i not in before)

    def scale(self, target: int) -> None:
        self.client.update_shard_count(StreamName=self.name, TargetShardCount=target, ScalingType="UNIFORM_SCALING")
        self.settle()

    def consumer(self, name: str) -> str:
        """Register one and wait until it is ACTIVE; its ARN."""
        arn = str(
            self.client.register_stream_consumer(StreamARN=self.arn, ConsumerName=name)["Consumer"]["ConsumerARN"]
        )
        settle(
            lambda: (
                self.client.describe_stream_consumer(ConsumerARN=arn)["ConsumerDescription"]["ConsumerStatus"]
                == "ACTIVE"
            )
        )
        return arn


@pytest.fixture
def make_stream(kinesis: Any) -> Iterator[Callable[..., StreamHandle]]:
    """Make streams of unique names; they are deleted after the test."""
    names: list[str] = []

    def make(shards: int = 1, **arguments: Any) -> StreamHandle:
        name = unique()
        if "StreamModeDetails" not in arguments:
            arguments["ShardCount"] = shards
        kinesis.create_stream(StreamName=name, **arguments)
        names.append(name)
        return StreamHandle(kinesis, name)

    yield make
    for name in names:
        with contextlib.suppress(ClientError):
            kinesis.delete_stream(StreamName=name, EnforceConsumerDeletion=True)


@pytest.fixture
def make_table(dynamodb: Any) -> Iterator[Callable[..., str]]:
    """Make tables with the string key ``leaseKey``; they are deleted after the test."""
    names: list[str] = []

    def make(**arguments: Any) -> str:
        name = unique()
        attributes = arguments.pop("more_attributes", [])
        dynamodb.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}, *attributes],
            BillingMode="PAY_PER_REQUEST",
            **arguments,
        )
        names.append(name)
        settle(lambda: dynamodb.describe_table(TableName=name)["Table"]["TableStatus"] == "ACTIVE")
        return name

    yield make
    for name in names:
        with contextlib.suppress(ClientError):
            dynamodb.update_table(TableName=name, DeletionProtectionEnabled=False)
        with contextlib.suppress(ClientError):
            dynamodb.delete_table(TableName=name)
