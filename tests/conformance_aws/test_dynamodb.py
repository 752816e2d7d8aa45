"""What leases need of DynamoDB: conditions, the old arguments of Java workers, indexes, scans, atomicity."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.conformance_aws.conftest import code_of, settle, unique

MakeTable = Callable[..., str]
OWNER_INDEX = {
    "IndexName": "LeaseOwnerToLeaseKeyIndex",
    "KeySchema": [
        {"AttributeName": "leaseOwner", "KeyType": "HASH"},
        {"AttributeName": "leaseKey", "KeyType": "RANGE"},
    ],
    "Projection": {"ProjectionType": "KEYS_ONLY"},
}
OWNER = {"AttributeName": "leaseOwner", "AttributeType": "S"}


def key(name: str = "shard") -> dict[str, Any]:
    return {"leaseKey": {"S": name}}


def row(dynamodb: Any, table: str, name: str = "shard") -> dict[str, Any] | None:
    item: dict[str, Any] | None = dynamodb.get_item(TableName=table, Key=key(name), ConsistentRead=True).get("Item")
    return item


def test_tables_that_exist_or_do_not_are_told_apart(dynamodb: Any, make_table: MakeTable) -> None:
    table = make_table()
    again = {
        "TableName": table,
        "KeySchema": [{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        "AttributeDefinitions": [{"AttributeName": "leaseKey", "AttributeType": "S"}],
        "BillingMode": "PAY_PER_REQUEST",
    }
    assert code_of(dynamodb.create_table, **again) == "ResourceInUseException"
    assert code_of(dynamodb.describe_table, TableName=unique()) == "ResourceNotFoundException"
    assert code_of(dynamodb.get_item, TableName=unique(), Key=key()) == "ResourceNotFoundException"


def test_a_put_if_absent_wins_once(dynamodb: Any, make_table: MakeTable) -> None:
    put = {"TableName": make_table(), "Item": key(), "ConditionExpression": "attribute_not_exists(leaseKey)"}
    assert code_of(dynamodb.put_item, **put) == ""
    assert code_of(dynamodb.put_item, **put) == "ConditionalCheckFailedException"


def test_a_refused_update_returns_the_old_row_if_asked(dynamodb: Any, make_table: MakeTable) -> None:
    table = make_table()
    dynamodb.put_item(TableName=table, Item=key() | {"leaseCounter": {"N": "5"}})
    with pytest.raises(ClientError) as caught:
        dynamodb.update_item(
            TableName=table,
            Key=key(),
            UpdateExpression="SET leaseCounter = :new",
            ConditionExpression="leaseCounter = :old",
            ExpressionAttributeValues={":old": {"N": "4"}, ":new": {"N": "6"}},
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    assert caught.value.response["Error"]["Code"] == "ConditionalCheckFailedException"
    assert caught.value.response["Item"]["leaseCounter"] == {"N": "5"}


@pytest.mark.parametrize("matches", [True, False])
@pytest.mark.parametrize("operation", ["put", "update", "delete"])
def test_the_old_expected_argument_is_a_condition(
    dynamodb: Any, make_table: MakeTable, operation: str, matches: bool
) -> None:
    table = make_table()
    dynamodb.put_item(TableName=table, Item=key() | {"leaseCounter": {"N": "1"}, "leaseOwner": {"S": "w1"}})
    expected = {
        "leaseCounter": {"Value": {"N": "1"}},
        "leaseOwner": {"Value": {"S": "w1" if matches else "w2"}},
        "checkpointOwner": {"Exists": False},
    }
    if operation == "put":
        refused = code_of(dynamodb.put_item, TableName=table, Item=key(), Expected=expected)
    elif operation == "update":
        change = {"leaseOwner": {"Action": "DELETE"}, "leaseCounter": {"Value": {"N": "2"}, "Action": "PUT"}}
        refused = code_of(dynamodb.update_item, TableName=table, Key=key(), AttributeUpdates=change, Expected=expected)
    else:
        refused = code_of(dynamodb.delete_item, TableName=table, Key=key(), Expected=expected)
    assert refused == ("" if matches else "ConditionalCheckFailedException")
    left = row(dynamodb, table)
    if not matches:
        assert left is not None and left["leaseOwner"] == {"S": "w1"} and left["leaseCounter"] == {"N": "1"}
    elif operation == "delete":
        assert left is None
    else:
        assert left is not None and "leaseOwner" not in left


def test_an_unknown_old_comparison_is_refused(dynamodb: Any, make_table: MakeTable) -> None:
    rule = {"leaseCounter": {"ComparisonOperator": "ROUGHLY"}}
    delete = {"TableName": make_table(), "Key": key(), "Expected": rule}
    assert code_of(dynamodb.delete_item, **delete) == "ValidationException"


def test_every_attribute_type_of_a_lease_row_comes_back(dynamodb: Any, make_table: MakeTable) -> None:
    table = make_table()
    item = key() | {
        "parentShardId": {"SS": ["a", "b"]},
        "throughput": {"N": "12.5"},
        "list": {"L": [{"S": "x"}, {"NULL": True}]},
        "map": {"M": {"deep": {"BOOL": False}}},
        "bytes": {"B": b"\x00\x01"},
    }
    dynamodb.put_item(TableName=table, Item=item)
    found = row(dynamodb, table)
    assert found is not None
    found["parentShardId"]["SS"].sort()
    assert found == item


@pytest.mark.parametrize("at_creation", [True, False])
def test_the_owner_index_is_sparse_and_keys_only(dynamodb: Any, make_table: MakeTable, at_creation: bool) -> None:
    if at_creation:
        table = make_table(more_attributes=[OWNER], GlobalSecondaryIndexes=[OWNER_INDEX])
    else:
        table = make_table()
        dynamodb.update_table(
            TableName=table,
            AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}, OWNER],
            GlobalSecondaryIndexUpdates=[{"Create": OWNER_INDEX}],
        )

    def ready() -> bool:
        indexes = dynamodb.describe_table(TableName=table)["Table"].get("GlobalSecondaryIndexes", [])
        return [index["IndexStatus"] for index in indexes] == ["ACTIVE"]

    settle(ready)
    for number in range(3):
        dynamodb.put_item(TableName=table, Item=key(f"s{number}") | {"leaseOwner": {"S": "w1"}, "x": {"S": "y"}})
    dynamodb.put_item(TableName=table, Item=key("free"))
    query = {
        "TableName": table,
        "IndexName": OWNER_INDEX["IndexName"],
        "KeyConditionExpression": "leaseOwner = :o",
        "ExpressionAttributeValues": {":o": {"S": "w1"}},
    }
    settle(lambda: dynamodb.query(**query)["Count"] == 3)
    first = dynamodb.query(**query, Limit=2)
    rest = dynamodb.query(**query, ExclusiveStartKey=first["LastEvaluatedKey"])
    found = first["Items"] + rest["Items"]
    assert sorted(item["leaseKey"]["S"] for item in found) == ["s0", "s1", "s2"]
    assert all(set(item) == {"leaseKey", "leaseOwner"} for item in found)
    assert code_of(dynamodb.query, **query, ConsistentRead=True) == "ValidationException"


def test_a_query_of_a_missing_index_is_a_validation_error(dynamodb: Any, make_table: MakeTable) -> None:
    query = {
        "TableName": make_table(),
        "IndexName": "nothing",
        "KeyConditionExpression": "leaseOwner = :o",
        "ExpressionAttributeValues": {":o": {"S": "w1"}},
    }
    assert code_of(dynamodb.query, **query) == "ValidationException"


def test_a_parallel_scan_in_pages_finds_each_row_once(dynamodb: Any, make_table: MakeTable) -> None:
    table = make_table()
    for number in range(40):
        dynamodb.put_item(TableName=table, Item=key(f"s{number}"))
    found: list[str] = []
    for segment in range(10):
        scan: dict[str, Any] = {"TableName": table, "Segment": segment, "TotalSegments": 10, "Limit": 3}
        while True:
            page = dynamodb.scan(**scan)
            found += [item["leaseKey"]["S"] for item in page["Items"]]
            if not page.get("LastEvaluatedKey"):
                break
            scan["ExclusiveStartKey"] = page["LastEvaluatedKey"]
    assert sorted(found) == sorted(f"s{number}" for number in range(40))


def test_a_transaction_is_all_or_nothing_and_says_why(dynamodb: Any, make_table: MakeTable) -> None:
    table = make_table()
    dynamodb.put_item(TableName=table, Item=key("taken"))
    puts = [
        {"Put": {"TableName": table, "Item": key(name), "ConditionExpression": "attribute_not_exists(leaseKey)"}}
        for name in ("new", "taken")
    ]
    with pytest.raises(ClientError) as caught:
        dynamodb.transact_write_items(TransactItems=puts)
    assert caught.value.response["Error"]["Code"] == "TransactionCanceledException"
    assert [r["Code"] for r in caught.value.response["CancellationReasons"]] == ["None", "ConditionalCheckFailed"]
    assert row(dynamodb, table, "new") is None


def test_deletion_protection_protects(dynamodb: Any, make_table: MakeTable) -> None:
    table = make_table(DeletionProtectionEnabled=True)
    assert code_of(dynamodb.delete_table, TableName=table) == "ValidationException"


def test_reserved_words_and_unused_values_are_refused(dynamodb: Any, make_table: MakeTable) -> None:
    update: dict[str, Any] = {"TableName": make_table(), "Key": key()}
    value = {":v": {"S": "x"}}
    reserved = code_of(
        dynamodb.update_item, **update, UpdateExpression="SET owner = :v", ExpressionAttributeValues=value
    )
    unused = code_of(
        dynamodb.update_item,
        **update,
        UpdateExpression="SET a = :v",
        ExpressionAttributeValues=value | {":w": {"S": "y"}},
    )
    assert (reserved, unused) == ("ValidationException", "ValidationException")


def test_of_sixteen_contenders_exactly_one_wins_each_round(dynamodb: Any, make_table: MakeTable) -> None:
    table = make_table()
    dynamodb.put_item(TableName=table, Item=key() | {"leaseCounter": {"N": "0"}})

    def contend(number: int) -> bool:
        change = {
            "UpdateExpression": "SET leaseCounter = :new",
            "ConditionExpression": "leaseCounter = :old",
            "ExpressionAttributeValues": {":old": {"N": str(number)}, ":new": {"N": str(number + 1)}},
        }
        return code_of(dynamodb.update_item, TableName=table, Key=key(), **change) == ""

    with ThreadPoolExecutor(16) as pool:
        winners = [sum(pool.map(contend, [number] * 16)) for number in range(10)]
    assert winners == [1] * 10


def test_concurrent_additions_are_all_counted(dynamodb: Any, make_table: MakeTable) -> None:
    table = make_table()

    def add(_: int) -> None:
        dynamodb.update_item(
            TableName=table, Key=key(), UpdateExpression="ADD n :one", ExpressionAttributeValues={":one": {"N": "1"}}
        )

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(80)))
    found = row(dynamodb, table)
    assert found is not None and found["n"] == {"N": "80"}
