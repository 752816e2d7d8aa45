"""Changes of moto's tables on their way into the streams: none lost, none twice, in order."""

from __future__ import annotations

import itertools
import json
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError, HTTPClientError

from tests.support.servers import EmbeddedAws

WRITERS, WRITES_EACH = 6, 25


@pytest.fixture
def table(aws: EmbeddedAws, request: pytest.FixtureRequest) -> str:
    """The name of a table with a stream."""
    name = request.node.originalname[:100]
    made = aws.client("dynamodb").create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "k", "KeyType": "HASH"}, {"AttributeName": "r", "KeyType": "RANGE"}],
        AttributeDefinitions=[{"AttributeName": a, "AttributeType": "S"} for a in ("k", "r")],
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    )
    assert made["TableDescription"]["LatestStreamArn"]
    return str(name)


def item(key: str, **attributes: Any) -> dict[str, Any]:
    return {"k": {"S": key}, "r": {"S": "r"}, **attributes}


def changes(aws: EmbeddedAws, table: str) -> list[dict[str, Any]]:
    """Of all shards, in order of their ids."""
    streams = aws.client("dynamodbstreams")
    arn = aws.client("dynamodb").describe_table(TableName=table)["Table"]["LatestStreamArn"]
    found: list[dict[str, Any]] = []
    for shard in streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]:
        asked = {"StreamArn": arn, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
        iterator = streams.get_shard_iterator(**asked)["ShardIterator"]
        while iterator is not None:
            page = streams.get_records(ShardIterator=iterator)
            found += page["Records"]
            iterator = page.get("NextShardIterator") if page["Records"] else None
    return found


def test_writers_at_the_same_time_leave_every_version_once_and_in_order(aws: EmbeddedAws, table: str) -> None:
    dynamodb = aws.client("dynamodb")

    def write(number: int) -> None:
        if number % 20 == 0:
            aws.control("POST", "dynamodb/split" if number % 40 else "dynamodb/roll", {"table": table})
        dynamodb.update_item(
            TableName=table,
            Key=item("counted"),
            UpdateExpression="ADD n :one",
            ExpressionAttributeValues={":one": {"N": "1"}},
        )

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS * WRITES_EACH)))
    found = [change["dynamodb"] for change in changes(aws, table)]
    assert [int(c["NewImage"]["n"]["N"]) for c in found] == list(range(1, WRITERS * WRITES_EACH + 1))
    assert all(after["OldImage"] == before["NewImage"] for before, after in itertools.pairwise(found))


def test_a_write_whose_answer_is_lost_has_its_record(aws: EmbeddedAws, table: str) -> None:
    aws.inject_faults({"service": "dynamodb", "operation": "PutItem", "drop": True, "after": True, "count": 1})
    with pytest.raises(HTTPClientError):
        aws.client("dynamodb").put_item(TableName=table, Item=item("a"))
    assert [change["eventName"] for change in changes(aws, table)] == ["INSERT"]


def test_a_write_that_never_arrived_has_none(aws: EmbeddedAws, table: str) -> None:
    aws.inject_faults({"service": "dynamodb", "operation": "PutItem", "code": "InternalServerError", "count": 1})
    with pytest.raises(ClientError):
        aws.client("dynamodb").put_item(TableName=table, Item=item("a"))
    assert changes(aws, table) == []


def test_a_record_is_there_when_its_write_is_answered(aws: EmbeddedAws, table: str) -> None:
    for number in range(6):
        aws.client("dynamodb").put_item(TableName=table, Item=item("a", n={"N": str(number)}))
        assert changes(aws, table)[-1]["dynamodb"]["NewImage"]["n"] == {"N": str(number)}


def test_keys_have_both_parts(aws: EmbeddedAws, table: str) -> None:
    aws.client("dynamodb").put_item(TableName=table, Item=item("a", v={"S": "x"}))
    (change,) = changes(aws, table)
    assert change["dynamodb"]["Keys"] == item("a")


def test_an_image_is_that_of_its_time(aws: EmbeddedAws, table: str) -> None:
    dynamodb = aws.client("dynamodb")
    dynamodb.put_item(TableName=table, Item=item("a", m={"M": {"l": {"L": [{"S": "1"}]}}}))
    dynamodb.update_item(
        TableName=table,
        Key=item("a"),
        UpdateExpression="SET m.l = list_append(m.l, :more)",
        ExpressionAttributeValues={":more": {"L": [{"S": "2"}]}},
    )
    images = [change["dynamodb"]["NewImage"]["m"]["M"]["l"]["L"] for change in changes(aws, table)]
    assert images == [[{"S": "1"}], [{"S": "1"}, {"S": "2"}]]


def test_a_refusal_of_a_stream_is_injected_in_its_own_form(aws: EmbeddedAws, table: str) -> None:
    fault = {"service": "dynamodbstreams", "operation": "DescribeStream", "code": "LimitExceededException", "count": 1}
    aws.inject_faults(fault)
    with pytest.raises(ClientError, match="LimitExceededException"):
        changes(aws, table)
    assert changes(aws, table) == []


@pytest.mark.parametrize(
    "body", [{}, {"table": "none"}, {"table": "a", "stream": "b"}, {"table": 1}, {"table": "a", "other": "b"}, []]
)
def test_a_control_that_cannot_be_understood_says_so(aws: EmbeddedAws, body: Any) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        aws.control("POST", "dynamodb/split", body)
    with refused.value as answer:
        assert answer.code == 400
        assert json.loads(answer.read())["error"]


def test_an_index_that_exists_already_is_refused_as_dynamodb_refuses_it(aws: EmbeddedAws, table: str) -> None:
    """Workers that start at the same time all want to make the index of owners."""
    index = {
        "IndexName": "by-r",
        "KeySchema": [{"AttributeName": "r", "KeyType": "HASH"}],
        "Projection": {"ProjectionType": "KEYS_ONLY"},
    }
    wanted = {
        "TableName": table,
        "AttributeDefinitions": [{"AttributeName": "r", "AttributeType": "S"}],
        "GlobalSecondaryIndexUpdates": [{"Create": index}],
    }
    dynamodb = aws.client("dynamodb")
    dynamodb.update_table(**wanted)
    with pytest.raises(ClientError, match=r"ValidationException.*already exists"):
        dynamodb.update_table(**wanted)
