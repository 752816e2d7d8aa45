"""A clock that is off: every kind of call works after one refusal for all, whichever client makes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import formatdate
from typing import Any

import pytest

from mld.aws import service_time
from mld.aws.client_factory import ClientFactory, client_factory
from mld.aws.service_factory import AwsService, service_of
from mld.aws.service_time import SKEW_MIN_S, ServiceTime
from mld.aws.wire.client import WireService
from mld.core.errors import AwsError
from mld.local.event_frames import initial_response
from tests.support.strict_aws import StrictAws
from tests.support.tiers import sliced
from tests.unit.aws.conftest import Configure

ROLE = "arn:aws:iam::123456789012:role/reader"
STREAM = "arn:aws:kinesis:eu-west-1:123456789012:stream/s"
CONSUMER = f"{STREAM}/consumer/a:1"
KEY = {"leaseKey": {"S": "shardId-0"}}
KINESIS: dict[str, dict[str, Any]] = {
    "ListShards": {"StreamName": "s"},
    "DescribeStreamSummary": {"StreamName": "s"},
    "GetShardIterator": {"StreamName": "s", "ShardId": "i", "ShardIteratorType": "LATEST"},
    "DescribeStreamConsumer": {"ConsumerARN": CONSUMER},
    "RegisterStreamConsumer": {"StreamARN": STREAM, "ConsumerName": "a"},
    "DeregisterStreamConsumer": {"ConsumerARN": CONSUMER},
}
DYNAMO: dict[str, dict[str, Any]] = {
    "DescribeTable": {"TableName": "t"},
    "BatchGetItem": {"RequestItems": {"t": {"Keys": [KEY]}}},
    "UpdateContinuousBackups": {
        "TableName": "t",
        "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True},
    },
    "GetItem": {"TableName": "t", "Key": KEY},
    "PutItem": {"TableName": "t", "Item": KEY},
    "UpdateItem": {"TableName": "t", "Key": KEY},
    "DeleteItem": {"TableName": "t", "Key": KEY},
    "Query": {"TableName": "t"},
    "Scan": {"TableName": "t"},
}
SUBSCRIBE = {"ConsumerARN": CONSUMER, "ShardId": "shardId-0", "StartingPosition": {"Type": "LATEST"}}
DOCUMENTS = {"SubscribeToShard": initial_response()}
SECRETS = {"AKENV": "SKENV"}
AHEAD_S = 3600.0
CREDENTIALS = ("EnvironmentVariableCredentialsProvider", f"StsAssumeRoleCredentialsProvider|{ROLE}|me")


@pytest.fixture(autouse=True)
def keys(no_aws_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SKENV")


@asynccontextmanager
async def services(factory: ClientFactory, *, lean: bool) -> AsyncIterator[tuple[AwsService, AwsService]]:
    """Kinesis and DynamoDB, open."""
    kinesis, dynamo = (
        service_of(factory, name, label=name, threads_max=4, read_timeout_s=5, calls_max=4 if lean else None)
        for name in ("kinesis", "dynamodb")
    )
    try:
        await kinesis.open()
        await dynamo.open()
        yield kinesis, dynamo
    finally:
        await kinesis.close()
        await dynamo.close()


def factory_for(
    aws: StrictAws, configure: Configure, monkeypatch: pytest.MonkeyPatch, credentials: str
) -> ClientFactory:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", aws.url)
    endpoints = (f"kinesisEndpoint={aws.url}", f"dynamoDBEndpoint={aws.url}")
    return client_factory(configure(credentials, *endpoints))


@pytest.mark.parametrize("ahead_s", [AHEAD_S, pytest.param(-AHEAD_S, marks=pytest.mark.full)])
@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("credentials", CREDENTIALS)
async def test_every_kind_of_call_works_after_one_refusal_for_all(
    configure: Configure, monkeypatch: pytest.MonkeyPatch, credentials: str, lean: bool, ahead_s: float
) -> None:
    with StrictAws(ahead_s=ahead_s, secrets=SECRETS, documents=DOCUMENTS) as aws:
        async with services(factory_for(aws, configure, monkeypatch, credentials), lean=lean) as (kinesis, dynamo):
            for service, calls in ((kinesis, KINESIS), (dynamo, DYNAMO)):
                for operation, params in calls.items():
                    await service.call(operation, params)
            await kinesis.fetch("GetRecords", {"ShardIterator": "i"}, bytes)
            wanted = {*KINESIS, *DYNAMO, "GetRecords"}
            if isinstance(kinesis, WireService):
                (await kinesis.open_stream("SubscribeToShard", SUBSCRIBE)).close()
                wanted.add("SubscribeToShard")
        assert set(aws.served) - {"AssumeRole"} == wanted
        assert len(aws.refused) == 1


@pytest.mark.parametrize("operation", sliced([*KINESIS, *DYNAMO, "GetRecords"], "ListShards", "GetItem", "GetRecords"))
@pytest.mark.parametrize("lean", [True, False])
async def test_each_kind_of_call_finds_out_by_itself(
    configure: Configure, monkeypatch: pytest.MonkeyPatch, lean: bool, operation: str
) -> None:
    with StrictAws(ahead_s=AHEAD_S, secrets=SECRETS) as aws:
        async with services(factory_for(aws, configure, monkeypatch, CREDENTIALS[0]), lean=lean) as (kinesis, dynamo):
            if operation in DYNAMO:
                await dynamo.call(operation, DYNAMO[operation])
            elif operation == "GetRecords":
                await kinesis.fetch(operation, {"ShardIterator": "i"}, bytes)
            else:
                await kinesis.call(operation, KINESIS[operation])
        assert (aws.refused, aws.served) == ([operation], [operation])


async def test_a_subscription_finds_out_by_itself(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    with StrictAws(ahead_s=AHEAD_S, secrets=SECRETS, documents=DOCUMENTS) as aws:
        async with services(factory_for(aws, configure, monkeypatch, CREDENTIALS[0]), lean=True) as (kinesis, _):
            assert isinstance(kinesis, WireService)
            (await kinesis.open_stream("SubscribeToShard", SUBSCRIBE)).close()
        assert (aws.refused, aws.served) == (["SubscribeToShard"], ["SubscribeToShard"])


@pytest.mark.parametrize("lean", [True, False])
async def test_calls_refused_together_all_work(
    configure: Configure, monkeypatch: pytest.MonkeyPatch, lean: bool
) -> None:
    with StrictAws(ahead_s=AHEAD_S, secrets=SECRETS) as aws:
        async with services(factory_for(aws, configure, monkeypatch, CREDENTIALS[0]), lean=lean) as (_, dynamo):
            await asyncio.gather(*(dynamo.call("GetItem", DYNAMO["GetItem"]) for _ in range(20)))
        assert len(aws.served) == 20


@pytest.mark.parametrize("lean", [True, False])
async def test_a_clock_that_is_set_right_meanwhile_is_measured_anew(
    configure: Configure, monkeypatch: pytest.MonkeyPatch, lean: bool
) -> None:
    with StrictAws(ahead_s=AHEAD_S, secrets=SECRETS) as aws:
        async with services(factory_for(aws, configure, monkeypatch, CREDENTIALS[0]), lean=lean) as (kinesis, dynamo):
            await kinesis.call("ListShards", KINESIS["ListShards"])
            aws.ahead_s = 0.0
            await dynamo.call("GetItem", DYNAMO["GetItem"])
            await kinesis.call("ListShards", KINESIS["ListShards"])
        assert aws.refused == ["ListShards", "GetItem"]


@pytest.mark.parametrize("operation", ["GetItem", "DescribeTable"])
async def test_a_wrong_key_is_no_matter_of_time(
    configure: Configure, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    with StrictAws(ahead_s=0.0, secrets={"AKENV": "another"}) as aws:
        async with services(factory_for(aws, configure, monkeypatch, CREDENTIALS[0]), lean=True) as (_, dynamo):
            with pytest.raises(AwsError, match="InvalidSignatureException"):
                await dynamo.call(operation, DYNAMO[operation])
        assert aws.refused == [operation]


def test_a_service_whose_dates_never_agree_is_given_up(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    with StrictAws(ahead_s=AHEAD_S, secrets={"AKENV": "another"}) as aws:
        monkeypatch.setattr(aws, "now", lambda: time.time() + AHEAD_S * (1 + len(aws.refused)))
        client = factory_for(aws, configure, monkeypatch, CREDENTIALS[0]).create_client(
            "dynamodb", read_timeout_s=5, connect_timeout_s=5, pool_connections_max=1
        )
        with pytest.raises(client.exceptions.ClientError):
            client.describe_table(TableName="t")  # type: ignore[attr-defined]
        assert len(aws.refused) == 5


class Clocks:
    """This machine's two clocks, and the header of an answer that AWS gives now, or gave `late_s` ago."""

    def __init__(self, off_s: float = 0.0) -> None:
        self.aws_s, self.off_s, self.drift = 1_000_000.0, off_s, 0.0
        self.known = ServiceTime(lambda: self.aws_s - self.off_s, lambda: (self.aws_s - 900_000.0) * (1 + self.drift))

    def answer(self, late_s: float = 0.0, *, by_s: float = 0.0) -> None:
        self.known.saw(formatdate(int(self.aws_s - late_s + by_s), usegmt=True).encode())

    @property
    def error_s(self) -> float:
        return self.known.now() - self.aws_s


@pytest.mark.parametrize("off_s", [-600.0, 0.0, 600.0])
def test_any_answer_tells_the_time_whatever_this_machines_clock_says(off_s: float) -> None:
    clocks = Clocks(off_s)
    assert (clocks.error_s, clocks.known.is_measured, clocks.known.offset_s) == (-off_s, False, 0.0)
    clocks.answer()
    assert -1.0 <= clocks.error_s <= 0.0
    assert clocks.known.offset_s == pytest.approx(off_s, abs=1.0)
    assert clocks.known.was_off is (off_s != 0.0)
    clocks.off_s += 3600.0  # somebody sets the clock
    assert -1.0 <= clocks.error_s <= 0.0


def test_slow_answers_and_fractions_of_a_second_change_nothing() -> None:
    clocks = Clocks()
    for number in range(200):
        clocks.aws_s += 3.37
        clocks.answer(late_s=20.0 * (number % 2))
        assert -1.0 <= clocks.error_s <= 0.0
    assert clocks.error_s > -0.1, "some answer came at the beginning of a second"


def test_a_clock_that_runs_fast_is_followed() -> None:
    clocks = Clocks()
    clocks.drift = 50e-6
    for _ in range(3000):
        clocks.aws_s += 3.37
        clocks.answer()
    assert -1.0 <= clocks.error_s <= 0.1


def test_a_far_date_is_believed_when_the_next_one_agrees() -> None:
    clocks = Clocks()
    clocks.answer()
    clocks.answer(by_s=3600.0)  # of a proxy
    assert abs(clocks.error_s) <= 1.0
    clocks.aws_s += 2.0
    clocks.answer()
    assert abs(clocks.error_s) <= 1.0
    clocks.answer(by_s=3600.0)
    clocks.aws_s += 2.0
    clocks.answer(by_s=3600.0)  # this machine was asleep, and its monotonic clock with it
    assert clocks.error_s == pytest.approx(3600.0, abs=1.0)


def test_the_same_text_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks, read = Clocks(), []
    monkeypatch.setattr(service_time, "_epoch_s", lambda date: read.append(date) or 1.0)
    for _ in range(100):
        clocks.answer()
    assert len(read) == 1


def test_what_a_refusal_says_of_the_time_counts_at_once() -> None:
    known = ServiceTime(lambda: 1_000_000.0, lambda: 5.0)
    assert not known.learn("yesterday")
    assert not known.learn(None)
    assert not known.is_measured
    assert not known.learn(formatdate(1_000_000 + SKEW_MIN_S - 1, usegmt=True)), "that was not why"
    assert known.correction_s == 0.0
    assert known.learn(formatdate(1_000_000 + 2 * SKEW_MIN_S, usegmt=True))
    assert (known.now(), known.correction_s) == (1_000_000 + 2 * SKEW_MIN_S, 2 * SKEW_MIN_S)


@pytest.mark.parametrize("lean", [True, False])
async def test_each_answer_of_either_client_tells_the_time(
    configure: Configure, monkeypatch: pytest.MonkeyPatch, lean: bool
) -> None:
    with StrictAws(ahead_s=200.0, secrets=SECRETS) as aws:
        factory = factory_for(aws, configure, monkeypatch, CREDENTIALS[0])
        async with services(factory, lean=lean) as (_, dynamo):
            await dynamo.call("GetItem", DYNAMO["GetItem"])
        assert aws.refused == []
        assert factory.service_time.offset_s == pytest.approx(200.0, abs=2.0)
