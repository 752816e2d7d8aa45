"""Requests, answers and errors of `KinesisStreams` (retrieval#kinesis-requests, shards#listing-pages)."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest

from mld.aws.kinesis import KinesisStreams
from mld.core import errors
from mld.core.streams import (
    HashRange,
    IteratorType,
    Shard,
    ShardFilter,
    ShardFilterType,
    ShardsPage,
    StartingPoint,
    StreamSummary,
)
from mld.retrieval.rawbody import page_of

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/clicks"

T = TypeVar("T")


class ScriptedService:
    """The `RawService` port: one answer or error for all calls, which are noted."""

    def __init__(self, outcome: dict[str, Any] | Exception) -> None:
        self.outcome = outcome
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.timeouts: list[float | None] = []

    async def call(self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        self.calls.append((operation, params))
        self.timeouts.append(timeout_s)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    async def fetch(
        self, operation: str, params: dict[str, Any], read: Callable[[bytes], T], *, timeout_s: float | None = None
    ) -> T:
        return read(json.dumps(await self.call(operation, params, timeout_s=timeout_s)).encode())


def streams_of(service: ScriptedService, arn: str | None = None) -> KinesisStreams:
    return KinesisStreams(service, stream_name="clicks", stream_arn=arn, page_of=page_of)


# --- requests ---------------------------------------------------------------------------------------------------------


async def test_the_first_page_of_shards_is_asked_for_by_name_arn_and_filter() -> None:
    service = ScriptedService({"Shards": []})
    shard_filter = ShardFilter(ShardFilterType.AT_TIMESTAMP, 1.5)
    assert await streams_of(service, ARN).list_shards(shard_filter, None) == ShardsPage(())
    when = datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    expected = {
        "StreamName": "clicks",
        "StreamARN": ARN,
        "ShardFilter": {"Type": "AT_TIMESTAMP", "Timestamp": when},
    }
    assert service.calls == [("ListShards", expected)]


async def test_the_first_page_without_arn_and_filter_is_asked_for_by_name() -> None:
    service = ScriptedService({"Shards": []})
    await streams_of(service).list_shards(None, None)
    assert service.calls == [("ListShards", {"StreamName": "clicks"})]


async def test_following_pages_are_asked_for_by_token_alone() -> None:
    service = ScriptedService({"Shards": [], "NextToken": "second"})
    page = await streams_of(service, ARN).list_shards(ShardFilter(ShardFilterType.AT_LATEST), "first")
    assert service.calls == [("ListShards", {"NextToken": "first"})]
    assert page.next_token == "second"


async def test_an_empty_token_is_the_last_page() -> None:
    page = await streams_of(ScriptedService({"Shards": [], "NextToken": ""})).list_shards(None, None)
    assert page.next_token is None


@pytest.mark.parametrize(
    ("start", "extra"),
    [
        (StartingPoint(IteratorType.LATEST), {}),
        (StartingPoint(IteratorType.TRIM_HORIZON), {}),
        (StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence="7"), {"StartingSequenceNumber": "7"}),
        (StartingPoint(IteratorType.AFTER_SEQUENCE_NUMBER, sequence="7"), {"StartingSequenceNumber": "7"}),
        (
            StartingPoint(IteratorType.AT_TIMESTAMP, timestamp_s=0.0),
            {"Timestamp": datetime(1970, 1, 1, tzinfo=UTC)},
        ),
    ],
)
async def test_an_iterator_is_asked_for_with_what_its_type_needs(start: StartingPoint, extra: dict[str, Any]) -> None:
    service = ScriptedService({"ShardIterator": "iterator"})
    assert await streams_of(service, ARN).shard_iterator("shard-0", start) == "iterator"
    expected = {"StreamName": "clicks", "StreamARN": ARN, "ShardId": "shard-0", "ShardIteratorType": start.type.value}
    assert service.calls == [("GetShardIterator", {**expected, **extra})]


async def test_records_are_asked_for_with_limit_and_arn() -> None:
    service = ScriptedService({"Records": []})
    await streams_of(service, ARN).get_records("iterator", 500)
    assert service.calls == [("GetRecords", {"ShardIterator": "iterator", "Limit": 500, "StreamARN": ARN})]


async def test_records_without_limit_and_arn_are_asked_for_by_iterator_alone() -> None:
    service = ScriptedService({"Records": []})
    await streams_of(service).get_records("iterator", None)
    assert service.calls == [("GetRecords", {"ShardIterator": "iterator"})]


async def test_every_call_is_bounded() -> None:
    service = ScriptedService(errors.AwsUnreachableError("X", "scripted"))
    streams = streams_of(service)
    for call in (
        streams.list_shards(None, None),
        streams.describe(),
        streams.shard_iterator("shard-0", StartingPoint(IteratorType.LATEST)),
        streams.get_records("iterator", None),
    ):
        with pytest.raises(errors.StreamUnavailableError):
            await call
    assert service.timeouts == [60.0, 60.0, 30.0, 30.0]


# --- answers ----------------------------------------------------------------------------------------------------------


async def test_a_shard_is_read_with_parents_and_ranges() -> None:
    answer = {
        "Shards": [
            {
                "ShardId": "child",
                "ParentShardId": "left",
                "AdjacentParentShardId": "right",
                "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "340282366920938463463374607431768211455"},
                "SequenceNumberRange": {"StartingSequenceNumber": "10", "EndingSequenceNumber": "20"},
            },
            {
                "ShardId": "open",
                "HashKeyRange": {"StartingHashKey": "5", "EndingHashKey": "5"},
                "SequenceNumberRange": {"StartingSequenceNumber": "10"},
            },
        ]
    }
    page = await streams_of(ScriptedService(answer)).list_shards(None, None)
    assert page.shards == (
        Shard("child", HashRange(0, 2**128 - 1), "10", "20", "left", "right"),
        Shard("open", HashRange(5, 5), "10"),
    )


async def test_a_stream_is_described() -> None:
    summary = {"StreamName": "clicks", "StreamARN": ARN, "StreamStatus": "UPDATING", "OpenShardCount": 4}
    streams = streams_of(ScriptedService({"StreamDescriptionSummary": summary}))
    assert await streams.describe() == StreamSummary("clicks", ARN, "UPDATING")


async def test_a_stream_says_when_it_was_made() -> None:
    made = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    summary = {"StreamName": "s", "StreamARN": ARN, "StreamStatus": "ACTIVE", "StreamCreationTimestamp": made}
    streams = streams_of(ScriptedService({"StreamDescriptionSummary": summary}))
    assert (await streams.describe()).created_ms == round(made.timestamp() * 1000)


async def test_an_answer_that_is_not_as_documented_is_an_error_not_a_loss() -> None:
    with pytest.raises(errors.InvalidStreamResponseError, match="stream clicks: GetRecords: the answer is not as docu"):
        await streams_of(ScriptedService({})).get_records("iterator", None)


async def test_an_answer_without_iterator_is_an_error() -> None:
    with pytest.raises(errors.InvalidStreamResponseError, match="GetShardIterator"):
        await streams_of(ScriptedService({})).shard_iterator("shard-0", StartingPoint(IteratorType.LATEST))


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ResourceNotFoundException", errors.StreamNotFoundError),
        ("ResourceInUseException", errors.StreamInUseError),
        ("LimitExceededException", errors.StreamThrottledError),
        ("ProvisionedThroughputExceededException", errors.StreamThrottledError),
        ("KMSThrottlingException", errors.StreamThrottledError),
        ("ThrottlingException", errors.StreamThrottledError),
        ("ExpiredIteratorException", errors.IteratorExpiredError),
        ("ExpiredNextTokenException", errors.IteratorExpiredError),
        ("InvalidArgumentException", errors.InvalidStreamArgumentError),
        ("ValidationException", errors.InvalidStreamArgumentError),
        ("ParamValidationError", errors.InvalidStreamArgumentError),
        ("AccessDeniedException", errors.StreamUnavailableError),
        ("KMSAccessDeniedException", errors.StreamUnavailableError),
        ("InternalFailureException", errors.StreamUnavailableError),
        ("500", errors.StreamUnavailableError),
        ("SomethingNew", errors.StreamUnavailableError),
    ],
)
async def test_a_refusal_becomes_an_error_of_ours(code: str, kind: type[errors.StreamError]) -> None:
    service = ScriptedService(errors.AwsError("GetRecords", code, "because"))
    with pytest.raises(errors.StreamError, match=f"stream clicks: GetRecords: {code}: because") as caught:
        await streams_of(service).get_records("iterator", None)
    assert type(caught.value) is kind


async def test_no_answer_is_an_unavailable_stream() -> None:
    service = ScriptedService(errors.AwsUnreachableError("DescribeStreamSummary", "no route"))
    with pytest.raises(errors.StreamUnavailableError, match="no route"):
        await streams_of(service).describe()
