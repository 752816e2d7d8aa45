"""The model of DynamoDB Streams: records, shards over time, iterators. Time is passed in."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

from mld.local import change_stream
from mld.local import dynamo_streams as json_api
from mld.local.change_stream import SPLIT_OPEN_MAX, SPLIT_RECORDS, ChangeShard, DynamoStreamsError, TableStream
from mld.local.item_changes import ItemChange, TableStreamKey, ViewType, coalesced, item_bytes
from mld.local.table_streams import TableStreams

T0 = 1_790_000_000.0
HOUR = 3600.0
ACCOUNT, REGION = "111111111111", "eu-west-1"
KEY = TableStreamKey(ACCOUNT, REGION, "orders", "2026-09-21T12:53:20.000")
ASKED = {"StreamArn": KEY.arn, "ShardId": "s" * 40}
SCHEMA = [{"AttributeName": "Id", "KeyType": "HASH"}]


class Streams:
    """A model with one stream, asked as a client would ask."""

    def __init__(self, view: ViewType = ViewType.NEW_AND_OLD_IMAGES) -> None:
        self.model = TableStreams()
        self.stream = self.model.enable(KEY, view, SCHEMA, now=T0)

    def write(self, item: str, now: float, *, old: Any = None, new: Any = "?") -> None:
        """A change of an item; by default its insertion."""
        keys = {"Id": {"S": item}}
        self.model.record(
            KEY.arn,
            [ItemChange(keys, None if old is None else keys | old, None if new is None else keys | {"v": {"S": new}})],
            now=now,
        )

    def ask(self, operation: str, now: float, *, region: str = REGION, **fields: Any) -> Any:
        body = json.dumps(fields).encode()
        return json.loads(json_api.dispatch(self.model, operation, body, now, account=ACCOUNT, region=region))

    def refusal(self, operation: str, now: float, **fields: Any) -> str:
        with pytest.raises(Exception) as refused:
            self.ask(operation, now, **fields)
        return str(getattr(refused.value, "code", repr(refused.value)))

    def describe(self, now: float, **fields: Any) -> Any:
        return self.ask("DescribeStream", now, StreamArn=KEY.arn, **fields)["StreamDescription"]

    def shards(self, now: float) -> list[Any]:
        found: list[Any] = self.describe(now)["Shards"]
        return found

    def iterator(self, shard: str, now: float, kind: str = "TRIM_HORIZON", **fields: Any) -> str:
        answer = self.ask("GetShardIterator", now, StreamArn=KEY.arn, ShardId=shard, ShardIteratorType=kind, **fields)
        return str(answer["ShardIterator"])

    def page(self, shard: str, now: float, kind: str = "TRIM_HORIZON", **fields: Any) -> Any:
        return self.ask("GetRecords", now, ShardIterator=self.iterator(shard, now, kind, **fields))

    def ids(self, page: Any) -> list[str]:
        return [record["dynamodb"]["Keys"]["Id"]["S"] for record in page["Records"]]


# The three records of the developer guide's example, with the sizes that it gives.
GUIDE_KEYS = {"Id": {"N": "101"}}
GUIDE_NEW = GUIDE_KEYS | {"Message": {"S": "New item!"}}
GUIDE_CHANGED = GUIDE_KEYS | {"Message": {"S": "This item has changed"}}


@pytest.mark.parametrize(
    ("old", "new", "name", "size"),
    [
        (None, GUIDE_NEW, "INSERT", 26),
        (GUIDE_NEW, GUIDE_CHANGED, "MODIFY", 59),
        (GUIDE_CHANGED, None, "REMOVE", 38),
    ],
)
def test_records_are_those_of_the_guide(old: Any, new: Any, name: str, size: int) -> None:
    streams = Streams()
    streams.model.record(KEY.arn, [ItemChange(GUIDE_KEYS, old, new)], now=T0 + 1.7)
    (record,) = streams.page(streams.shards(T0 + 2)[0]["ShardId"], T0 + 2)["Records"]
    change = record["dynamodb"]
    assert (record["eventName"], record["eventVersion"], record["eventSource"]) == (name, "1.1", "aws:dynamodb")
    assert (record["awsRegion"], change["StreamViewType"]) == (REGION, "NEW_AND_OLD_IMAGES")
    assert (change["Keys"], change.get("OldImage"), change.get("NewImage")) == (GUIDE_KEYS, old, new)
    assert (change["SizeBytes"], change["ApproximateCreationDateTime"]) == (size, int(T0 + 1))
    assert re.fullmatch("[0-9a-f]{32}", record["eventID"])
    assert re.fullmatch("[0-9]{21,40}", change["SequenceNumber"])
    assert "userIdentity" not in record


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"N": "1"}, {"N": "1.00"}),
        ({"SS": ["a", "b"]}, {"SS": ["b", "a"]}),
        ({"NS": ["1", "2"]}, {"NS": ["2.0", "1"]}),
        ({"M": {"x": {"L": [{"N": "10"}]}}}, {"M": {"x": {"L": [{"N": "1e1"}]}}}),
    ],
)
def test_a_write_that_changes_nothing_has_no_record(before: Any, after: Any) -> None:
    assert ItemChange(GUIDE_KEYS, {"v": before}, {"v": after}).event_name is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"N": "1"}, {"S": "1"}),
        ({"L": [{"S": "a"}, {"S": "b"}]}, {"L": [{"S": "b"}, {"S": "a"}]}),
        ({"BOOL": True}, {"BOOL": False}),
    ],
)
def test_a_write_that_changes_something_has_one(before: Any, after: Any) -> None:
    assert ItemChange(GUIDE_KEYS, {"v": before}, {"v": after}).event_name == "MODIFY"


def test_changes_of_one_request_are_one_for_each_item() -> None:
    other = {"Id": {"N": "7"}}
    steps = [
        ItemChange(GUIDE_KEYS, None, GUIDE_KEYS),
        ItemChange(other, other, None),
        ItemChange({"Id": {"N": "101.0"}}, GUIDE_KEYS, GUIDE_NEW),
    ]
    found = coalesced(steps)
    assert [(change.old, change.new) for change in found] == [(None, GUIDE_NEW), (other, None)]


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ({"BOOL": True}, 1), ({"NULL": True}, 1), ({"B": "AAEC"}, 3), ({"S": "\u00e9"}, 2), ({"SS": ["ab", "c"]}, 3),
        ({"L": [{"S": "a"}]}, 5), ({"M": {"x": {"S": "a"}}}, 6),
    ],
)  # fmt: skip
def test_sizes_of_values(value: Any, size: int) -> None:
    assert item_bytes({"v": value}) == 1 + size


# --- shards over time ------------------------------------------------------------------------------------------------


def test_a_shard_lives_four_hours_and_has_one_child() -> None:
    streams = Streams()
    (parent,) = streams.shards(T0 + 4 * HOUR - 1)
    assert re.fullmatch(r"shardId-\d{20}-[0-9a-f]{8}", parent["ShardId"])
    assert int(parent["ShardId"][8:28]) == T0 * 1000
    assert "EndingSequenceNumber" not in parent["SequenceNumberRange"] and "ParentShardId" not in parent
    before, child = streams.shards(T0 + 4 * HOUR)
    assert child["ParentShardId"] == before["ShardId"] == parent["ShardId"]
    ending = int(before["SequenceNumberRange"]["EndingSequenceNumber"])
    assert ending < int(child["SequenceNumberRange"]["StartingSequenceNumber"])
    assert int(child["ShardId"][8:28]) == (T0 + 4 * HOUR) * 1000


def test_shards_and_records_go_after_a_day() -> None:
    streams = Streams()
    streams.write("a", T0)
    first = streams.shards(T0)[0]["ShardId"]
    at = T0 + 24 * HOUR
    assert streams.ids(streams.page(first, at)) == ["a"]
    assert streams.ids(streams.page(first, at + 1)) == []  # the shard has been closed for twenty hours
    assert first in [shard["ShardId"] for shard in streams.shards(T0 + 28 * HOUR - 1)]
    assert first not in [shard["ShardId"] for shard in streams.shards(T0 + 28 * HOUR)]
    assert streams.refusal(
        "GetShardIterator", T0 + 28 * HOUR, StreamArn=KEY.arn, ShardId=first, ShardIteratorType="LATEST"
    ) == ("ResourceNotFoundException")


@pytest.mark.parametrize("leap_h", [4, 27, 28, 1000, 250_000])
def test_a_leap_of_the_clock_leaves_a_chain_of_a_day(leap_h: int) -> None:
    streams = Streams()
    shards = streams.shards(T0 + leap_h * HOUR)
    assert len(shards) <= 8
    for before, after in itertools.pairwise(shards):
        assert after["ParentShardId"] == before["ShardId"]
    assert [s["ShardId"] for s in shards if "EndingSequenceNumber" not in s["SequenceNumberRange"]] == [
        shards[-1]["ShardId"]
    ]
    born_s = int(shards[-1]["ShardId"][8:28]) / 1000
    assert T0 + leap_h * HOUR - 4 * HOUR < born_s <= T0 + leap_h * HOUR


def test_a_busy_shard_splits_and_items_stay_in_order() -> None:
    streams = Streams()
    for number in range(4 * SPLIT_RECORDS):
        streams.write(f"item-{number % 97}", T0 + number / 1000, new=str(number))
    shards = streams.shards(T0 + 60)
    assert len(shards) > 2
    children: dict[str, list[str]] = {}
    for shard in shards:
        children.setdefault(shard.get("ParentShardId", ""), []).append(shard["ShardId"])
    assert all(len(found) == 2 for parent, found in children.items() if parent)
    seen: dict[str, list[int]] = {}

    def read(shard: str) -> None:
        iterator: str | None = streams.iterator(shard, T0 + 60)
        while iterator is not None:
            page = streams.ask("GetRecords", T0 + 60, ShardIterator=iterator)
            for record in page["Records"]:
                image = record["dynamodb"]["NewImage"]
                seen.setdefault(image["Id"]["S"], []).append(int(image["v"]["S"]))
            iterator = page.get("NextShardIterator") if page["Records"] else None
        for child in children.get(shard, ()):
            read(child)

    read(shards[0]["ShardId"])
    assert sum(map(len, seen.values())) == 4 * SPLIT_RECORDS
    assert all(found == sorted(found) for found in seen.values())


def test_load_stops_splitting_at_a_number_of_open_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_stream, "SPLIT_RECORDS", 50)
    streams = Streams()
    for number in range(40 * 50):
        streams.write(str(number), T0 + 1)
    is_open = ["EndingSequenceNumber" not in shard["SequenceNumberRange"] for shard in streams.shards(T0 + 1)]
    assert sum(is_open) == SPLIT_OPEN_MAX


def test_children_are_listed_and_pages_have_a_limit() -> None:
    streams = Streams()
    (first,) = streams.shards(T0)
    children = streams.stream.split(None, T0 + 1)
    streams.stream.split(children[0], T0 + 2)
    wanted = {"Type": "CHILD_SHARDS", "ShardId": first["ShardId"]}
    found = streams.describe(T0 + 3, ShardFilter=wanted)["Shards"]
    assert {shard["ShardId"] for shard in found} == set(children)
    names: list[str] = []
    page = streams.describe(T0 + 3, Limit=2)
    while True:
        names += [shard["ShardId"] for shard in page["Shards"]]
        if (last := page.get("LastEvaluatedShardId")) is None:
            break
        assert last == names[-1] and len(page["Shards"]) == 2
        page = streams.describe(T0 + 3, Limit=2, ExclusiveStartShardId=last)
    assert len(names) == len(set(names)) == 5 and names[0] == first["ShardId"]


def test_a_disabled_stream_is_readable_for_a_day() -> None:
    streams = Streams()
    streams.write("a", T0)
    streams.model.disable(KEY.arn, now=T0 + HOUR)
    streams.write("b", T0 + 2 * HOUR)
    at = T0 + 23 * HOUR
    assert streams.describe(at)["StreamStatus"] == "DISABLED"
    (shard,) = streams.shards(at)
    page = streams.page(shard["ShardId"], at)
    assert streams.ids(page) == ["a"] and "NextShardIterator" not in page
    assert streams.refusal("DescribeStream", T0 + 25 * HOUR, StreamArn=KEY.arn) == "ResourceNotFoundException"
    assert streams.ask("ListStreams", T0 + 25 * HOUR)["Streams"] == []


# --- reading ---------------------------------------------------------------------------------------------------------


def test_a_page_has_at_most_a_thousand_records_and_a_megabyte() -> None:
    small, large = Streams(), Streams()
    for number in range(999):
        small.write(str(number), T0)
        if number < 6:
            large.write(str(number), T0, new="x" * 300_000)
    small.write("999", T0 + 100)
    small.write("1000", T0 + 100)
    page = small.page(small.shards(T0 + 100)[0]["ShardId"], T0 + 100)
    assert len(page["Records"]) == 1000
    assert small.ids(small.ask("GetRecords", T0 + 100, ShardIterator=page["NextShardIterator"])) == ["1000"]
    page = large.page(large.shards(T0)[0]["ShardId"], T0)
    assert large.ids(page) == ["0", "1", "2"]
    assert large.ids(large.ask("GetRecords", T0, ShardIterator=page["NextShardIterator"])) == ["3", "4", "5"]


def test_the_end_of_a_shard_has_no_iterator() -> None:
    streams = Streams()
    streams.write("a", T0)
    shard = streams.shards(T0)[0]["ShardId"]
    open_page = streams.page(shard, T0)
    streams.stream.roll(T0 + 1)
    assert "NextShardIterator" in open_page
    last = streams.ask("GetRecords", T0 + 1, ShardIterator=open_page["NextShardIterator"])
    assert last == {"Records": []}
    assert "NextShardIterator" not in streams.page(shard, T0 + 1)
    assert "NextShardIterator" not in streams.page(shard, T0 + 1, "LATEST")


def test_what_was_trimmed_cannot_be_asked_for() -> None:
    streams = Streams()
    for name in "ab":
        streams.write(name, T0)
    shard = streams.shards(T0)[0]["ShardId"]
    iterator = streams.iterator(shard, T0)
    first, last = (r["dynamodb"]["SequenceNumber"] for r in streams.page(shard, T0)["Records"])
    streams.stream.shard(shard, T0).log.trim(float("inf"))
    streams.write("c", T0)
    assert streams.refusal("GetRecords", T0, ShardIterator=iterator) == "TrimmedDataAccessException"
    asked: dict[str, Any] = {"StreamArn": KEY.arn, "ShardId": shard}
    for kind, number in (("AT", first), ("AFTER", first), ("AT", last)):
        refused = streams.refusal(
            "GetShardIterator", T0, ShardIteratorType=f"{kind}_SEQUENCE_NUMBER", SequenceNumber=number, **asked
        )
        assert refused == "TrimmedDataAccessException"
    assert streams.ids(streams.page(shard, T0, "AFTER_SEQUENCE_NUMBER", SequenceNumber=last)) == ["c"]
    assert streams.ids(streams.page(shard, T0)) == ["c"]


@pytest.mark.parametrize(
    ("operation", "fields", "code"),
    [
        ("DescribeStream", {}, "ValidationException"),
        ("DescribeStream", {"StreamArn": KEY.arn, "Limit": 101}, "ValidationException"),
        ("DescribeStream", {"StreamArn": KEY.arn + "x"}, "ResourceNotFoundException"),
        ("DescribeStream", {"StreamArn": KEY.arn, "ShardFilter": {"Type": "ALL"}}, "ValidationException"),
        ("GetRecords", {"ShardIterator": "x"}, "ValidationException"),
        ("GetRecords", {"ShardIterator": f"{KEY.arn}|1|AAAA"}, "ValidationException"),
        ("GetShardIterator", ASKED | {"ShardIteratorType": "LATEST"}, "ResourceNotFoundException"),
        ("GetShardIterator", ASKED | {"ShardIteratorType": "AT_TIMESTAMP"}, "ValidationException"),
        ("ListStreams", {"Limit": 0}, "ValidationException"),
        ("PutRecord", {}, "UnknownOperationException"),
    ],
)  # fmt: skip
def test_refusals(operation: str, fields: dict[str, Any], code: str) -> None:
    assert Streams().refusal(operation, T0, **fields) == code


def test_a_number_of_another_shard_is_refused() -> None:
    streams = Streams()
    streams.write("a", T0)
    (shard,) = streams.shards(T0)
    number = streams.page(shard["ShardId"], T0)["Records"][0]["dynamodb"]["SequenceNumber"]
    (child,) = streams.stream.roll(T0 + 1)
    refused = streams.refusal(
        "GetShardIterator",
        T0 + 1,
        StreamArn=KEY.arn,
        ShardId=child,
        ShardIteratorType="AT_SEQUENCE_NUMBER",
        SequenceNumber=number,
    )
    assert refused == "ValidationException"


def test_streams_are_listed_by_account_region_and_table() -> None:
    streams = Streams()
    for account, region, table in ((ACCOUNT, REGION, "t"), ("2" * 12, REGION, "t"), (ACCOUNT, "us-east-1", "t")):
        streams.model.enable(TableStreamKey(account, region, table, "l"), ViewType.KEYS_ONLY, SCHEMA, now=T0)
    assert [s["TableName"] for s in streams.ask("ListStreams", T0)["Streams"]] == ["orders", "t"]
    assert [s["TableName"] for s in streams.ask("ListStreams", T0, TableName="t")["Streams"]] == ["t"]
    page = streams.ask("ListStreams", T0, Limit=1)
    assert page["LastEvaluatedStreamArn"] == KEY.arn
    rest = streams.ask("ListStreams", T0, Limit=1, ExclusiveStartStreamArn=KEY.arn)
    assert [s["TableName"] for s in rest["Streams"]] == ["t"] and "LastEvaluatedStreamArn" not in rest
    with pytest.raises(DynamoStreamsError):
        streams.ask("DescribeStream", T0, region="us-east-1", StreamArn=KEY.arn)


def test_limits_are_enforced_if_asked() -> None:
    streams = Streams()
    streams.model.enforce = True
    iterator = streams.iterator(streams.shards(T0)[0]["ShardId"], T0)
    for _ in range(10):
        streams.ask("GetRecords", T0, ShardIterator=iterator)
    assert streams.refusal("GetRecords", T0, ShardIterator=iterator) == "LimitExceededException"
    streams.ask("GetRecords", T0 + 1, ShardIterator=iterator)
    for _ in range(9):
        streams.describe(T0)
    assert streams.refusal("DescribeStream", T0, StreamArn=KEY.arn) == "LimitExceededException"


def test_a_clock_set_back_keeps_records_and_their_order() -> None:
    streams = Streams()
    streams.write("a", T0 + 100)
    streams.write("b", T0)
    (shard,) = streams.stream.shards(T0)
    assert isinstance(shard, ChangeShard) and isinstance(streams.stream, TableStream)
    assert streams.ids(streams.page(shard.shard_id, T0)) == ["a", "b"]


def test_empty_stretches_lie_before_records_and_before_the_end() -> None:
    world = Streams()
    (shard,) = world.shards(T0)
    world.write("a", T0)
    world.model.stretch_pages = 2
    iterator, seen = world.iterator(shard["ShardId"], T0), []
    for step in range(9):
        if step == 4:
            world.write("b", T0)
        if step == 7:
            world.model.disable(KEY.arn, now=T0)
        page = world.ask("GetRecords", T0, ShardIterator=iterator)
        seen.append(len(page["Records"]))
        iterator = page["NextShardIterator"]
    assert seen == [0, 0, 1, 0, 0, 0, 1, 0, 0]
    assert "NextShardIterator" not in world.ask("GetRecords", T0, ShardIterator=iterator)
