"""`DynamoDBStreams` over a scripted service: listings, children of a closed shard, positions, pages, errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from mld.aws.dynamo_streams import QUIET_PAGES, QUIET_S, RECORDS_MAX, UNKNOWN_END, DynamoDBStreams
from mld.core.errors import (
    AwsError,
    InvalidStreamResponseError,
    IteratorExpiredError,
    StreamNotFoundError,
    StreamThrottledError,
)
from mld.core.positions import Position
from mld.core.streams import IteratorType, ShardFilter, ShardFilterType, StartingPoint
from mld.retrieval.rawbody import page_of
from tests.twins.streams import VirtualClock
from tests.virtual_time import virtual

ARN = "arn:aws:dynamodb:eu-west-1:123456789012:table/orders/stream/2026-11-23T00:00:00.000"
OLD, YOUNG, OTHER = (
    "shardId-00000001795400000000-aaaa",
    "shardId-00000001795414400000-bbbb",
    "shardId-00000001795414400000-cccc",
)
SINCE_S = 1_795_420_000


def shard(name: str, first: str, last: str | None = None, parent: str | None = None) -> dict[str, Any]:
    numbers = {"StartingSequenceNumber": first} | ({} if last is None else {"EndingSequenceNumber": last})
    return {"ShardId": name, "SequenceNumberRange": numbers} | ({} if parent is None else {"ParentShardId": parent})


def described(*shards: dict[str, Any], status: str = "ENABLED", last: str | None = None) -> dict[str, Any]:
    found = {"StreamArn": ARN, "StreamStatus": status, "Shards": list(shards), "TableName": "orders"}
    return {"StreamDescription": found | ({} if last is None else {"LastEvaluatedShardId": last})}


def record(number: int, created_s: float) -> dict[str, Any]:
    change = {"ApproximateCreationDateTime": created_s, "SequenceNumber": str(number), "Keys": {"id": {"S": "a"}}}
    return {"eventID": f"{number:032x}", "eventName": "INSERT", "dynamodb": change}


class ScriptedService:
    """Answers each operation from its list, in order; an answer may be an error. Pages are made in a thread, as those
    of the real services are on a new connection.
    """

    def __init__(self, **answers: list[Any]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def call(self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        self.asked.append((operation, params))
        answer = self.answers[operation].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def fetch(self, operation: str, params: dict[str, Any], read: Callable[[bytes], Any], **_: Any) -> Any:
        body = json.dumps(await self.call(operation, params)).encode()
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(read, body).result()


def streams_over(service: ScriptedService) -> tuple[DynamoDBStreams, VirtualClock]:
    clock = VirtualClock()
    return DynamoDBStreams(service, clock, stream_arn=ARN, page_of=page_of), clock


@virtual
async def test_all_pages_of_shards_are_one_listing_and_a_listed_child_closes_its_parent() -> None:
    service = ScriptedService(
        DescribeStream=[described(shard(OLD, "100"), last=OLD), described(shard(YOUNG, "300", parent=OLD))]
    )
    streams, _ = streams_over(service)
    page = await streams.list_shards(None, None)
    assert [(one.shard_id, one.ending_sequence, sorted(one.parents)) for one in page.shards] == [
        (OLD, UNKNOWN_END, []),
        (YOUNG, None, [OLD]),
    ]
    assert service.asked[1][1]["ExclusiveStartShardId"] == OLD
    assert page.next_token is None


@virtual
async def test_the_latest_shards_are_those_that_are_open() -> None:
    service = ScriptedService(DescribeStream=[described(shard(OLD, "1", "2"), shard(YOUNG, "3", parent=OLD))])
    page = await streams_over(service)[0].list_shards(ShardFilter(ShardFilterType.AT_LATEST), None)
    assert [one.shard_id for one in page.shards] == [YOUNG]


@virtual
async def test_a_page_has_the_form_of_kinesis_and_lags_behind_its_newest_record() -> None:
    streams, clock = streams_over(
        ScriptedService(
            GetShardIterator=[{"ShardIterator": "it"}],
            GetRecords=[{"Records": [record(7, 0), record(9, 0)], "NextShardIterator": "next"}],
        )
    )
    service: Any = streams._service
    for one in service.answers["GetRecords"][0]["Records"]:
        one["dynamodb"]["ApproximateCreationDateTime"] = clock.wall() - 30
    iterator = await streams.shard_iterator(OLD, StartingPoint(IteratorType.TRIM_HORIZON))
    page = await streams.get_records(iterator, 10_000)
    assert service.asked[1][1] == {"ShardIterator": "it", "Limit": RECORDS_MAX}
    assert (page.count, page.first_sequence, page.last_sequence) == (2, "7", "9")
    assert page.millis_behind_latest == 30_000
    line = json.loads(b"".join(page.after(Position("7")).line()))
    assert [one["sequenceNumber"] for one in line["records"]] == ["9"]


EMPTY = {"Records": [], "NextShardIterator": "next"}


async def lags(streams: DynamoDBStreams, clock: VirtualClock, iterator: str, count: int, apart_s: float) -> list[Any]:
    """What the next pages, so far apart, tell of the lag."""
    found = []
    for _ in range(count):
        page = await streams.get_records(iterator, None)
        found.append(page.millis_behind_latest)
        assert page.next_iterator is not None
        iterator = page.next_iterator
        await clock.sleep(apart_s)
    return found


@virtual
async def test_an_empty_page_does_not_tell_whether_it_is_the_tip() -> None:
    streams, _ = streams_over(ScriptedService(GetRecords=[EMPTY]))
    assert (await streams.get_records(f"{OLD} it", None)).millis_behind_latest is None


@pytest.mark.parametrize(
    ("apart_s", "first"), [(1.5, 20), (0.1, 300), (10.0, QUIET_PAGES - 1)], ids=["usual", "fast", "slow"]
)
@virtual
async def test_a_shard_is_at_its_tip_after_enough_pages_over_enough_time(apart_s: float, first: int) -> None:
    streams, clock = streams_over(ScriptedService(GetRecords=[EMPTY] * (first + 5)))
    found = await lags(streams, clock, f"{OLD} it", first + 5, apart_s)
    start = found.index(0)
    assert found == [None] * start + [0] * (len(found) - start)
    assert abs(start - first) <= 1
    assert start * apart_s >= QUIET_S - apart_s and start >= QUIET_PAGES - 1


@virtual
async def test_a_record_ends_the_quiet() -> None:
    with_record = {"Records": [record(7, 0)], "NextShardIterator": "next"}
    streams, clock = streams_over(ScriptedService(GetRecords=[EMPTY] * 15 + [with_record] + [EMPTY] * 15))
    found = await lags(streams, clock, f"{OLD} it", 31, 2.0)
    assert found[:15] == [None] * 15 and found[16:] == [None] * 15
    assert found[15] > 0


@virtual
async def test_a_page_with_records_is_never_the_tip_whatever_the_clocks_say() -> None:
    streams, clock = streams_over(ScriptedService(GetRecords=[]))
    service: Any = streams._service
    service.answers["GetRecords"] = [{"Records": [record(7, clock.wall() + 3)], "NextShardIterator": "next"}]
    assert (await streams.get_records(f"{OLD} it", None)).millis_behind_latest == 1


@virtual
async def test_reading_from_latest_begins_at_the_tip() -> None:
    service = ScriptedService(GetShardIterator=[{"ShardIterator": "it"}], GetRecords=[EMPTY, EMPTY])
    streams, clock = streams_over(service)
    iterator = await streams.shard_iterator(OLD, StartingPoint(IteratorType.LATEST))
    assert await lags(streams, clock, iterator, 2, 1.0) == [0, 0]


@virtual
async def test_a_time_is_remembered_through_empty_pages() -> None:
    service = ScriptedService(
        GetShardIterator=[{"ShardIterator": "it"}],
        GetRecords=[EMPTY, EMPTY, {"Records": [record(1, SINCE_S - 2), record(2, SINCE_S)], "NextShardIterator": "c"}],
    )
    streams, _ = streams_over(service)
    iterator = await streams.shard_iterator(OLD, StartingPoint(IteratorType.AT_TIMESTAMP, timestamp_s=SINCE_S))
    for _ in range(3):
        page = await streams.get_records(iterator, None)
        assert page.next_iterator is not None
        iterator = page.next_iterator
    assert page.first_sequence == "2"
    assert [params["ShardIterator"] for name, params in service.asked if name == "GetRecords"] == ["it", "next", "next"]


@virtual
async def test_the_end_of_a_shard_names_its_children_as_soon_as_they_are_listed() -> None:
    service = ScriptedService(
        GetRecords=[{"Records": []}],
        DescribeStream=[described(), described(shard(YOUNG, "300", parent=OLD))],
    )
    streams, _ = streams_over(service)
    page = await streams.get_records(f"{OLD} it", None)
    assert page.next_iterator is None
    assert [(child.shard_id, sorted(child.parents)) for child in page.child_shards] == [(YOUNG, [OLD])]
    assert service.asked[1][1]["ShardFilter"] == {"Type": "CHILD_SHARDS", "ShardId": OLD}


@virtual
async def test_where_the_filter_is_not_known_the_whole_list_tells_the_children() -> None:
    service = ScriptedService(
        GetRecords=[{"Records": []}],
        DescribeStream=[
            AwsError("DescribeStream", "ValidationException", "unknown parameter ShardFilter"),
            described(shard(OLD, "1", "2"), shard(YOUNG, "3", parent=OLD), shard(OTHER, "3", parent=OLD)),
        ],
    )
    page = await streams_over(service)[0].get_records(f"{OLD} it", None)
    assert {child.shard_id for child in page.child_shards} == {YOUNG, OTHER}


@virtual
async def test_a_shard_of_a_disabled_stream_ends_without_children() -> None:
    service = ScriptedService(GetRecords=[{"Records": []}], DescribeStream=[described(status="DISABLED")])
    page = await streams_over(service)[0].get_records(f"{OLD} it", None)
    assert (page.next_iterator, page.child_shards) == (None, ())
    assert len(service.asked) == 2, "nothing is waited for"


@virtual
async def test_a_time_is_read_from_the_oldest_record_on_without_older_ones() -> None:
    service = ScriptedService(
        GetShardIterator=[{"ShardIterator": "it"}],
        GetRecords=[
            {"Records": [record(1, SINCE_S - 2)], "NextShardIterator": "b"},
            {"Records": [record(2, SINCE_S - 1), record(3, SINCE_S)], "NextShardIterator": "c"},
            {"Records": [record(4, SINCE_S - 1)], "NextShardIterator": "d"},
        ],
    )
    streams, _ = streams_over(service)
    iterator = await streams.shard_iterator(OLD, StartingPoint(IteratorType.AT_TIMESTAMP, timestamp_s=SINCE_S))
    assert service.asked[0][1]["ShardIteratorType"] == "TRIM_HORIZON"
    counts = []
    for _ in range(3):
        page = await streams.get_records(iterator, None)
        assert page.next_iterator is not None
        iterator = page.next_iterator
        counts.append(page.count)
    assert counts == [0, 1, 1], "after the first record of the time nothing is left out any more"


@virtual
async def test_a_trimmed_position_leads_to_the_oldest_record() -> None:
    trimmed = AwsError("GetShardIterator", "TrimmedDataAccessException", "gone")
    service = ScriptedService(GetShardIterator=[trimmed, {"ShardIterator": "oldest"}])
    streams, _ = streams_over(service)
    start = StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence="17")
    assert await streams.shard_iterator(OLD, start) == f"{OLD} oldest"
    assert [params["ShardIteratorType"] for _, params in service.asked] == ["AT_SEQUENCE_NUMBER", "TRIM_HORIZON"]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ResourceNotFoundException", StreamNotFoundError),
        ("LimitExceededException", StreamThrottledError),
        ("ExpiredIteratorException", IteratorExpiredError),
        ("TrimmedDataAccessException", IteratorExpiredError),
    ],
)
@virtual
async def test_errors_are_those_of_the_port(code: str, kind: type[Exception]) -> None:
    streams, _ = streams_over(ScriptedService(GetRecords=[AwsError("GetRecords", code, "no")]))
    with pytest.raises(kind):
        await streams.get_records(f"{OLD} it", None)


@pytest.mark.parametrize("answer", [{}, {"Records": {}}, {"Records": [{}]}, {"Records": [{"dynamodb": {}}]}])
@virtual
async def test_an_answer_that_is_none_is_an_error_and_no_end(answer: dict[str, Any]) -> None:
    streams, _ = streams_over(ScriptedService(GetRecords=[answer]))
    with pytest.raises(InvalidStreamResponseError):
        await streams.get_records(f"{OLD} it", None)


@virtual
async def test_a_description_tells_when_the_stream_was_made() -> None:
    made = datetime(2026, 11, 23, tzinfo=UTC)
    answer = described()
    answer["StreamDescription"]["CreationRequestDateTime"] = made
    summary = await streams_over(ScriptedService(DescribeStream=[answer]))[0].describe()
    assert (summary.name, summary.arn, summary.status) == ("orders", ARN, "ENABLED")
    assert summary.created_ms == round(made.timestamp() * 1000)


def changed(**fields: Any) -> dict[str, Any]:
    one = record(5, SINCE_S)
    return {**one, "dynamodb": {**one["dynamodb"], **fields}}


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"NULL": True}
    for _ in range(depth):
        value = {"L": [value]}
    return value


HOSTILE = {
    "no record": 7,
    "a list": [],
    "an identity that is a list": {**record(5, SINCE_S), "userIdentity": [1]},
    "a change that is a text": {**record(5, SINCE_S), "dynamodb": "x"},
    "no time": changed(ApproximateCreationDateTime="now"),
    "the end of time": changed(ApproximateCreationDateTime=float("inf")),
    "before all time": changed(ApproximateCreationDateTime=float("-inf")),
    "a sequence number that is a number": changed(SequenceNumber=5),
    "a sequence number of letters": changed(SequenceNumber="x"),
    "a sequence number without an end": changed(SequenceNumber="9" * 5000),
    "a value of two types": changed(NewImage={"a": {"S": "x", "N": "1"}}),
    "a value without a type": changed(NewImage={"a": {}}),
    "a value that is a text": changed(NewImage={"a": "x"}),
    "an image that is a list": changed(NewImage=[{"S": "a"}]),
    "a set of numbers": changed(NewImage={"a": {"NS": [1]}}),
    "a map that is a list": changed(NewImage={"a": {"M": [1]}}),
    "nested": changed(NewImage={"a": nested(400)}),
    "half a character": changed(NewImage={"a": {"S": "\ud800"}}),
    "a size of no size": changed(SizeBytes="x"),
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
@virtual
async def test_a_record_as_the_service_never_writes_it_is_an_error_of_ours_or_delivered(hostile: Any) -> None:
    for start in (f"{OLD} it", f"{OLD} {SINCE_S} 0 0 it"):
        streams, _ = streams_over(ScriptedService(GetRecords=[{"Records": [hostile], "NextShardIterator": "n"}]))
        try:
            page = await streams.get_records(start, None)
        except InvalidStreamResponseError as error:
            assert ARN in str(error)
        else:
            assert page.count in (0, 1)


class WatchedService(ScriptedService):
    """Knows what was raised while the answer was read, which a client does in a thread."""

    raised: Exception | None = None

    async def fetch(self, *given: Any, **more: Any) -> Any:
        try:
            return await super().fetch(*given, **more)
        except InvalidStreamResponseError as error:
            self.raised = error
            raise


@virtual
async def test_records_are_written_anew_while_the_answer_is_read_and_not_on_the_loop() -> None:
    service = WatchedService(GetRecords=[{"Records": [changed(NewImage={"a": {}})], "NextShardIterator": "n"}])
    streams, _ = streams_over(service)
    with pytest.raises(InvalidStreamResponseError):
        await streams.get_records(f"{OLD} it", None)
    assert service.raised is not None
