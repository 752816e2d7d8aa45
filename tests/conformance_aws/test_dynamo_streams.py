"""DynamoDB Streams: what the service promises of the change records of a table, and the daemon relies on."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.conformance_aws.conftest import TableFeed, Target, code_of, settle, unique

Make = Callable[..., TableFeed]

WRITES: dict[str, tuple[Callable[[TableFeed], Any], list[str]]] = {
    "put": (lambda feed: feed.put("a"), ["INSERT"]),
    "put over": (lambda feed: (feed.put("a"), feed.put("a", v={"S": "1"})), ["INSERT", "MODIFY"]),
    "put the same": (lambda feed: (feed.put("a"), feed.put("a")), ["INSERT"]),
    "update of a new item": (lambda feed: feed.update("a", "1"), ["INSERT"]),
    "update": (lambda feed: (feed.put("a"), feed.update("a", "1")), ["INSERT", "MODIFY"]),
    "update with the same": (lambda feed: (feed.update("a", "1"), feed.update("a", "1")), ["INSERT"]),
    "delete": (lambda feed: (feed.put("a"), feed.delete("a")), ["INSERT", "REMOVE"]),
    "delete of nothing": (lambda feed: feed.delete("a"), []),
}


@pytest.mark.parametrize("case", WRITES)
def test_a_write_that_changes_an_item_has_one_record(make_feed: Make, case: str) -> None:
    write, names = WRITES[case]
    feed = make_feed()
    write(feed)
    assert feed.events() == [(name, "a") for name in names]


def test_a_refused_write_has_no_record(make_feed: Make) -> None:
    feed = make_feed()
    feed.put("a")
    item = {"leaseKey": {"S": "a"}, "v": {"S": "1"}}
    code = code_of(
        feed.dynamodb.put_item, TableName=feed.name, Item=item, ConditionExpression="attribute_not_exists(leaseKey)"
    )
    assert (code, feed.events()) == ("ConditionalCheckFailedException", [("INSERT", "a")])


def test_a_batch_has_a_record_for_each_item(make_feed: Make) -> None:
    feed = make_feed()
    feed.put("a")
    requests = [{"PutRequest": {"Item": {"leaseKey": {"S": key}}}} for key in ("b", "c")]
    requests.append({"DeleteRequest": {"Key": {"leaseKey": {"S": "a"}}}})
    feed.dynamodb.batch_write_item(RequestItems={feed.name: requests})
    assert sorted(feed.events()) == [("INSERT", "a"), ("INSERT", "b"), ("INSERT", "c"), ("REMOVE", "a")]


def test_a_transaction_has_a_record_for_each_item(make_feed: Make) -> None:
    feed = make_feed()
    feed.put("a")
    put = {"TableName": feed.name, "Item": {"leaseKey": {"S": "b"}}}
    delete = {"TableName": feed.name, "Key": {"leaseKey": {"S": "a"}}}
    feed.dynamodb.transact_write_items(TransactItems=[{"Put": put}, {"Delete": delete}])
    assert sorted(feed.events()) == [("INSERT", "a"), ("INSERT", "b"), ("REMOVE", "a")]


def test_a_transaction_that_fails_has_none_and_later_writes_have_theirs(make_feed: Make) -> None:
    feed = make_feed()
    put = {"TableName": feed.name, "Item": {"leaseKey": {"S": "b"}}}
    check = {
        "TableName": feed.name,
        "Key": {"leaseKey": {"S": "none"}},
        "ConditionExpression": "attribute_exists(leaseKey)",
    }
    code = code_of(feed.dynamodb.transact_write_items, TransactItems=[{"Put": put}, {"ConditionCheck": check}])
    feed.put("after")
    assert (code, feed.events()) == ("TransactionCanceledException", [("INSERT", "after")])


def test_partiql_has_records(make_feed: Make) -> None:
    feed = make_feed()
    for statement in (
        f"INSERT INTO \"{feed.name}\" VALUE {{'leaseKey': 'a'}}",
        f"UPDATE \"{feed.name}\" SET v='1' WHERE leaseKey='a'",
        f"DELETE FROM \"{feed.name}\" WHERE leaseKey='a'",
    ):
        feed.dynamodb.execute_statement(Statement=statement)
    assert feed.events() == [("INSERT", "a"), ("MODIFY", "a"), ("REMOVE", "a")]


@pytest.mark.parametrize(
    ("view", "images"),
    [
        ("KEYS_ONLY", set()),
        ("NEW_IMAGE", {"NewImage"}),
        ("OLD_IMAGE", {"OldImage"}),
        ("NEW_AND_OLD_IMAGES", {"NewImage", "OldImage"}),
    ],
)
def test_a_view_chooses_the_images(make_feed: Make, view: str, images: set[str]) -> None:
    feed = make_feed(view)
    feed.put("a", v={"S": "1"})
    feed.put("a", v={"S": "2"})
    change = feed.records()[1]["dynamodb"]
    assert {name for name in change if name.endswith("Image")} == images
    assert change["StreamViewType"] == feed.describe()["StreamViewType"] == view
    for image, value in (("OldImage", "1"), ("NewImage", "2")):
        assert image not in images or change[image]["v"] == {"S": value}


VALUES: dict[str, Any] = {
    "s": {"S": "\u00e9\u2603 \U0001f600"},
    "n": {"N": "3.25"},
    "b": {"B": b"\x00\xff"},
    "bool": {"BOOL": False},
    "null": {"NULL": True},
    "list": {"L": [{"S": "x"}, {"N": "1"}, {"L": []}]},
    "map": {"M": {"deep": {"M": {"b": {"B": b"\x01"}}}}},
    "ss": {"SS": ["x"]},
    "bs": {"BS": [b"\x02"]},
}


def test_images_hold_values_of_every_type(make_feed: Make) -> None:
    feed = make_feed()
    feed.put("a", **VALUES)
    (record,) = feed.records()
    assert record["dynamodb"]["NewImage"] == {"leaseKey": {"S": "a"}, **VALUES}


def test_a_record_says_what_it_is(make_feed: Make) -> None:
    feed = make_feed()
    feed.put("a")
    (record,) = feed.records()
    assert (record["eventSource"], record["eventVersion"]) == ("aws:dynamodb", "1.1")
    assert record["awsRegion"] == feed.arn.split(":")[3]
    assert re.fullmatch("[0-9a-f-]{32,36}", record["eventID"])
    change = record["dynamodb"]
    assert re.fullmatch("[0-9]{21,40}", change["SequenceNumber"])
    assert change["ApproximateCreationDateTime"].microsecond == 0
    assert "userIdentity" not in record


def test_sizes_count_names_and_values(make_feed: Make) -> None:
    feed = make_feed()
    feed.put("a", v={"S": "xyz"})
    (record,) = feed.records()
    assert record["dynamodb"]["SizeBytes"] == 2 * len("leaseKeya") + len("vxyz")


def test_records_of_an_item_are_in_order(make_feed: Make) -> None:
    feed = make_feed()
    for number in range(30):
        feed.put(f"k{number % 3}", v={"N": str(number)})
    for key in ("k0", "k1", "k2"):
        own = [r["dynamodb"] for r in feed.records() if r["dynamodb"]["Keys"]["leaseKey"]["S"] == key]
        assert [int(c["NewImage"]["v"]["N"]) for c in own] == [n for n in range(30) if f"k{n % 3}" == key]
        numbers = [int(c["SequenceNumber"]) for c in own]
        assert numbers == sorted(set(numbers))


# --- streams of tables -----------------------------------------------------------------------------------------------


def test_a_table_shows_its_stream(make_feed: Make) -> None:
    feed = make_feed("KEYS_ONLY")
    table = feed.table()
    assert table["StreamSpecification"] == {"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"}
    assert table["LatestStreamArn"] == f"{table['TableArn']}/stream/{table['LatestStreamLabel']}"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}", table["LatestStreamLabel"])
    found = feed.describe()
    assert found["StreamStatus"] == "ENABLED" and found["TableName"] == feed.name
    assert found["KeySchema"] == [{"AttributeName": "leaseKey", "KeyType": "HASH"}]
    assert all(re.fullmatch(r"shardId-\d{20}-[0-9a-f]{8}", shard) for shard in feed.shard_ids())


def test_streams_are_listed_by_table(make_feed: Make, dynamodbstreams: Any) -> None:
    feed, _ = make_feed(), make_feed()
    found = dynamodbstreams.list_streams(TableName=feed.name)["Streams"]
    assert found == [{"StreamArn": feed.arn, "TableName": feed.name, "StreamLabel": feed.arn.rpartition("/")[2]}]


def test_a_stream_that_does_not_exist_is_not_found(make_feed: Make, dynamodbstreams: Any) -> None:
    feed = make_feed()
    arn = feed.arn[:-1] + ("1" if feed.arn[-1] != "1" else "2")
    assert code_of(dynamodbstreams.describe_stream, StreamArn=arn) == "ResourceNotFoundException"


def test_a_shard_that_does_not_exist_is_not_found(make_feed: Make, dynamodbstreams: Any) -> None:
    asked = {"StreamArn": make_feed().arn, "ShardId": "shardId-00000000000000000001-00000000"}
    code = code_of(dynamodbstreams.get_shard_iterator, ShardIteratorType="LATEST", **asked)
    assert code == "ResourceNotFoundException"


def test_a_disabled_stream_is_read_to_its_end(make_feed: Make) -> None:
    feed = make_feed()
    feed.put("a")
    feed.set_stream(None)
    settle(lambda: feed.describe()["StreamStatus"] == "DISABLED")
    feed.put("unseen")
    assert feed.events() == [("INSERT", "a")]
    for shard in feed.describe()["Shards"]:
        assert "EndingSequenceNumber" in shard["SequenceNumberRange"]
        assert "NextShardIterator" not in feed.page(shard["ShardId"])


def test_a_stream_enabled_again_has_another_arn(make_feed: Make) -> None:
    feed = make_feed()
    feed.put("a")
    feed.set_stream(None)
    settle(lambda: "StreamSpecification" not in feed.table())
    feed.set_stream("KEYS_ONLY")
    settle(lambda: feed.table()["LatestStreamArn"] != feed.arn)
    feed.put("b")
    later = TableFeed(feed.name, feed.table()["LatestStreamArn"], feed.dynamodb, feed.streams)
    assert (feed.events(), later.events()) == ([("INSERT", "a")], [("INSERT", "b")])


def test_the_stream_of_a_deleted_table_can_be_read(make_feed: Make) -> None:
    feed = make_feed()
    feed.put("a")
    feed.dynamodb.delete_table(TableName=feed.name)
    settle(lambda: feed.describe()["StreamStatus"] == "DISABLED")
    assert feed.events() == [("INSERT", "a")]


@pytest.mark.parametrize(
    "wanted",
    [{"StreamEnabled": True}, {"StreamEnabled": True, "StreamViewType": "EVERYTHING"}, {"StreamViewType": "KEYS_ONLY"}],
)
def test_a_specification_that_is_none_is_refused(dynamodb: Any, wanted: dict[str, Any]) -> None:
    name = unique()
    code = code_of(
        dynamodb.create_table,
        TableName=name,
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification=wanted,
    )
    with contextlib.suppress(ClientError):
        dynamodb.delete_table(TableName=name)
    assert code == "ValidationException"


@pytest.mark.parametrize("view", ["KEYS_ONLY", None])
def test_a_stream_is_not_set_twice(make_feed: Make, view: str | None) -> None:
    feed = make_feed("KEYS_ONLY")
    if view is None:
        feed.set_stream(None)
        settle(lambda: feed.describe()["StreamStatus"] == "DISABLED")
    assert code_of(feed.set_stream, view=view) == "ValidationException"


# --- iterators -------------------------------------------------------------------------------------------------------


def test_the_four_kinds_of_iterators(make_feed: Make) -> None:
    feed = make_feed()
    for value in "123":
        feed.put("a", v={"S": value})
    shard_id = next(s for s in feed.shard_ids() if feed.page(s)["Records"])
    number = feed.page(shard_id)["Records"][1]["dynamodb"]["SequenceNumber"]

    def values(page: dict[str, Any]) -> list[str]:
        return [r["dynamodb"]["NewImage"]["v"]["S"] for r in page["Records"]]

    assert values(feed.page(shard_id, "AT_SEQUENCE_NUMBER", SequenceNumber=number)) == ["2", "3"]
    assert values(feed.page(shard_id, "AFTER_SEQUENCE_NUMBER", SequenceNumber=number)) == ["3"]
    latest = feed.page(shard_id, "LATEST")
    assert latest["Records"] == []
    feed.put("a", v={"S": "4"})
    assert values(feed.streams.get_records(ShardIterator=latest["NextShardIterator"])) == ["4"]


def test_pages_follow_one_another(make_feed: Make) -> None:
    feed = make_feed()
    for number in range(7):
        feed.put("a", v={"N": str(number)})
    shard_id = next(s for s in feed.shard_ids() if feed.page(s)["Records"])
    iterator, seen = feed.iterator(shard_id), []
    while len(seen) < 7:
        page = feed.streams.get_records(ShardIterator=iterator, Limit=3)
        assert 0 < len(page["Records"]) <= 3
        seen += [int(r["dynamodb"]["NewImage"]["v"]["N"]) for r in page["Records"]]
        iterator = page["NextShardIterator"]
    assert seen == list(range(7))
    assert feed.streams.get_records(ShardIterator=iterator)["Records"] == []


@pytest.mark.parametrize("limit", [0, 1001])
def test_a_limit_out_of_range_is_refused(make_feed: Make, limit: int) -> None:
    feed = make_feed()
    iterator = feed.iterator(feed.shard_ids()[0])
    assert code_of(feed.streams.get_records, ShardIterator=iterator, Limit=limit) == "ValidationException"


def test_an_iterator_that_is_none_is_refused(dynamodbstreams: Any) -> None:
    assert code_of(dynamodbstreams.get_records, ShardIterator="no iterator") == "ValidationException"


# --- time: only where the clock or the shards can be moved -----------------------------------------------------------


@pytest.fixture
def moved(target: Target) -> Target:
    if target.embedded is None:
        pytest.skip("needs the embedded AWS's controls")
    return target


def test_a_split_ends_a_shard_and_gives_it_children(make_feed: Make, moved: Target) -> None:
    feed = make_feed()
    feed.put("a")
    (parent,) = feed.shard_ids()
    assert moved.embedded is not None
    children = moved.embedded.control("POST", "dynamodb/split", {"stream": feed.arn})["children"]
    feed.put("b")
    found = {shard["ShardId"]: shard for shard in feed.describe()["Shards"]}
    assert "EndingSequenceNumber" in found[parent]["SequenceNumberRange"]
    assert [found[child]["ParentShardId"] for child in children] == [parent, parent]
    assert feed.events() == [("INSERT", "a"), ("INSERT", "b")]
    assert "NextShardIterator" not in feed.page(parent)
    own = feed.describe(ShardFilter={"Type": "CHILD_SHARDS", "ShardId": parent})["Shards"]
    assert {shard["ShardId"] for shard in own} == set(children)
    assert len(feed.describe(Limit=1)["Shards"]) == 1
    assert feed.describe(Limit=1)["LastEvaluatedShardId"] == parent


def test_shards_live_four_hours_and_records_a_day(
    make_feed: Make, pass_time: Callable[[float], None], moved: Target
) -> None:
    feed = make_feed()
    feed.put("a")
    (first,) = feed.shard_ids()
    number = feed.records()[0]["dynamodb"]["SequenceNumber"]
    pass_time(4 * 3600)
    assert len(feed.shard_ids()) == 2
    assert feed.events() == [("INSERT", "a")]
    pass_time(20 * 3600 + 1)
    asked = {"StreamArn": feed.arn, "ShardId": first, "ShardIteratorType": "AT_SEQUENCE_NUMBER"}
    code = code_of(feed.streams.get_shard_iterator, SequenceNumber=number, **asked)
    assert (code, feed.events()) == ("TrimmedDataAccessException", [])
    pass_time(4 * 3600)
    assert first not in feed.shard_ids()


def test_an_iterator_expires_after_fifteen_minutes(make_feed: Make, pass_time: Callable[[float], None]) -> None:
    feed = make_feed()
    iterator = feed.iterator(feed.shard_ids()[0])
    pass_time(901)
    assert code_of(feed.streams.get_records, ShardIterator=iterator) == "ExpiredIteratorException"


def test_items_whose_time_to_live_is_over_are_removed_by_the_service(make_feed: Make, moved: Target) -> None:
    feed = make_feed()
    feed.dynamodb.update_time_to_live(
        TableName=feed.name, TimeToLiveSpecification={"Enabled": True, "AttributeName": "until"}
    )
    feed.put("old", until={"N": "1700000000"})
    feed.put("new", until={"N": "9900000000"})
    feed.put("never", until={"S": "1700000000"})
    assert moved.embedded is not None
    moved.embedded.control("POST", "dynamodb/expire")
    removed = [r for r in feed.records() if r["eventName"] == "REMOVE"]
    assert [r["dynamodb"]["Keys"]["leaseKey"]["S"] for r in removed] == ["old"]
    assert removed[0]["userIdentity"] == {"PrincipalId": "dynamodb.amazonaws.com", "Type": "Service"}
