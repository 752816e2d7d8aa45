"""What the DynamoDB twin does that the stand-in servers cannot show: time, faults, permissions and counts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mld.core.clock import LoopClock
from mld.core.errors import AwsError
from tests.contract.dynamo import DEFINITIONS, INDEX, KEY, OWNER_INDEX, request
from tests.twins.dynamo import Fault, MemoryDynamo, TransactionCanceledError, Usage, lost_reply, lost_request
from tests.virtual_time import virtual

CREATE: dict[str, Any] = {
    "TableName": "app",
    "KeySchema": [{"AttributeName": "leaseKey", "KeyType": "HASH"}],
    "AttributeDefinitions": DEFINITIONS[:1],
    "BillingMode": "PAY_PER_REQUEST",
}
ADD_INDEX: dict[str, Any] = {
    "TableName": "app",
    "AttributeDefinitions": DEFINITIONS,
    "GlobalSecondaryIndexUpdates": [{"Create": OWNER_INDEX}],
}
DELETE_INDEX: dict[str, Any] = {
    "TableName": "app",
    "GlobalSecondaryIndexUpdates": [{"Delete": {"IndexName": INDEX}}],
}


async def make(**options: Any) -> MemoryDynamo:
    dynamo = MemoryDynamo(LoopClock(), **options)
    await dynamo.call("CreateTable", CREATE)
    return dynamo


async def put(dynamo: MemoryDynamo, key: str, owner: str) -> None:
    item = {"leaseKey": {"S": key}, "leaseOwner": {"S": owner}}
    await dynamo.call("PutItem", {"TableName": "app", "Item": item})


async def owned(dynamo: MemoryDynamo, owner: str) -> list[str]:
    asked = request("KeyConditionExpression", "#leaseOwner = :v", {"S": owner})
    answer = await dynamo.call("Query", {"TableName": "app", "IndexName": INDEX, **asked})
    return [item["leaseKey"]["S"] for item in answer["Items"]]


async def described(dynamo: MemoryDynamo) -> dict[str, Any]:
    table: dict[str, Any] = (await dynamo.call("DescribeTable", {"TableName": "app"}))["Table"]
    return table


async def code_of(dynamo: MemoryDynamo, operation: str, params: dict[str, Any]) -> str:
    with pytest.raises(AwsError) as caught:
        await dynamo.call(operation, params)
    return caught.value.code


# --- indexes ----------------------------------------------------------------------------------------------------------


@virtual
async def test_an_index_is_allocated_then_filled_then_readable() -> None:
    dynamo = await make(index_creation_s=60.0)
    await put(dynamo, "a", "w1")
    await dynamo.call("UpdateTable", ADD_INDEX)
    seen = []
    for _ in range(3):
        table = await described(dynamo)
        (index,) = table["GlobalSecondaryIndexes"]
        seen.append((table["TableStatus"], index["IndexStatus"], index.get("Backfilling")))
        with pytest.raises(AwsError, match=r"ValidationException.*backfilling" if len(seen) < 3 else "never"):
            await owned(dynamo, "w1")
            raise AwsError("Query", "never")
        await asyncio.sleep(30.0)
    assert seen == [("UPDATING", "CREATING", False), ("ACTIVE", "CREATING", True), ("ACTIVE", "ACTIVE", None)]
    assert await owned(dynamo, "w1") == ["a"]


@virtual
async def test_a_second_creation_is_refused_by_the_state_it_meets() -> None:
    dynamo = await make(index_creation_s=60.0)
    other = {**ADD_INDEX, "GlobalSecondaryIndexUpdates": [{"Create": {**OWNER_INDEX, "IndexName": "other"}}]}
    await dynamo.call("UpdateTable", ADD_INDEX)
    assert await code_of(dynamo, "UpdateTable", ADD_INDEX) == "ResourceInUseException"
    await asyncio.sleep(45.0)
    assert await code_of(dynamo, "UpdateTable", ADD_INDEX) == "ValidationException"
    assert await code_of(dynamo, "UpdateTable", other) == "LimitExceededException"
    await asyncio.sleep(45.0)
    assert await code_of(dynamo, "UpdateTable", ADD_INDEX) == "ValidationException"
    await dynamo.call("UpdateTable", other)


@virtual
async def test_a_test_can_finish_an_index() -> None:
    dynamo = await make(index_creation_s=float("inf"))
    await dynamo.call("UpdateTable", ADD_INDEX)
    await asyncio.sleep(1e6)
    assert await code_of(dynamo, "UpdateTable", DELETE_INDEX) == "ResourceInUseException"
    dynamo.finish_indexes("app")
    assert await owned(dynamo, "w1") == []
    await dynamo.call("UpdateTable", DELETE_INDEX)
    assert (await described(dynamo))["GlobalSecondaryIndexes"][0]["IndexStatus"] == "DELETING"
    with pytest.raises(AwsError, match="does not have the specified index"):
        await owned(dynamo, "w1")
    dynamo.finish_indexes("app")
    assert "GlobalSecondaryIndexes" not in await described(dynamo)


@virtual
async def test_a_missing_index_cannot_be_read_or_deleted() -> None:
    dynamo = await make()
    with pytest.raises(AwsError, match=r"ValidationException.*does not have the specified index"):
        await owned(dynamo, "w1")
    assert await code_of(dynamo, "UpdateTable", DELETE_INDEX) == "ResourceNotFoundException"


@virtual
async def test_an_index_lags_and_keeps_the_order_of_one_row() -> None:
    lags = iter((5.0, 1.0, 0.5))
    dynamo = await make(index_lag=lambda: next(lags))
    await dynamo.call("UpdateTable", ADD_INDEX)
    await put(dynamo, "a", "w1")  # seen at 5
    await put(dynamo, "a", "w2")  # drawn for 1, but not before the change before it
    await put(dynamo, "b", "w1")  # seen at 0.5
    seen = []
    for _ in range(3):
        seen.append((await owned(dynamo, "w1"), await owned(dynamo, "w2")))
        await asyncio.sleep(2.5)
    assert seen == [([], []), (["b"], []), (["b"], ["a"])]


@virtual
async def test_rows_planted_by_a_test_reach_the_index() -> None:
    dynamo = await make()
    await dynamo.call("UpdateTable", ADD_INDEX)
    dynamo.put_row("app", {**KEY, "leaseOwner": {"S": "w1"}})
    assert await owned(dynamo, "w1") == ["row"]
    dynamo.delete_row("app", "row")
    assert await owned(dynamo, "w1") == []


@pytest.mark.parametrize("owner", [{"N": "1"}, {"S": ""}, {"NULL": True}])
@virtual
async def test_an_index_key_of_another_type_is_refused(owner: dict[str, Any]) -> None:
    dynamo = await make()
    row = {"TableName": "app", "Item": {**KEY, "leaseOwner": owner}}
    await dynamo.call("PutItem", row)
    await dynamo.call("DeleteItem", {"TableName": "app", "Key": KEY})
    await dynamo.call("UpdateTable", ADD_INDEX)
    assert await code_of(dynamo, "PutItem", row) == "ValidationException"


# --- tables -----------------------------------------------------------------------------------------------------------


@virtual
async def test_tables_are_apart_and_have_keys_of_their_own() -> None:
    dynamo = await make()
    for name, key in (("app-CoordinatorState", "key"), ("app-WorkerMetricStats", "wid")):
        params = {
            **CREATE,
            "TableName": name,
            "KeySchema": [{"AttributeName": key, "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": key, "AttributeType": "S"}],
        }
        await dynamo.call("CreateTable", params)
        await dynamo.call("PutItem", {"TableName": name, "Item": {key: {"S": "x"}}})
        assert dynamo.rows(name) == {"x": {key: {"S": "x"}}}
        assert await code_of(dynamo, "GetItem", {"TableName": name, "Key": KEY}) == "ValidationException"
    assert dynamo.rows("app") == {}


@virtual
async def test_a_table_takes_its_time_and_can_be_protected() -> None:
    dynamo = MemoryDynamo(LoopClock(), creation_s=10.0)
    await dynamo.call("CreateTable", {**CREATE, "DeletionProtectionEnabled": True})
    assert (await described(dynamo))["TableStatus"] == "CREATING"
    get = {"TableName": "app", "Key": KEY}
    assert await code_of(dynamo, "GetItem", get) == "ResourceNotFoundException"
    backups = "DescribeContinuousBackups"
    assert await code_of(dynamo, backups, {"TableName": "app"}) == "ContinuousBackupsUnavailableException"
    await asyncio.sleep(10.0)
    assert (await described(dynamo))["TableStatus"] == "ACTIVE"
    assert await dynamo.call("GetItem", get) == {}
    assert await code_of(dynamo, "DeleteTable", {"TableName": "app"}) == "ValidationException"


@virtual
async def test_tags_are_put_and_listed() -> None:
    dynamo = MemoryDynamo(LoopClock())
    await dynamo.call("CreateTable", {**CREATE, "Tags": [{"Key": "team", "Value": "clicks"}]})
    arn = (await described(dynamo))["TableArn"]
    await dynamo.call("TagResource", {"ResourceArn": arn, "Tags": [{"Key": "a", "Value": "b"}]})
    assert dynamo.tags("app") == {"team": "clicks", "a": "b"}
    listed = await dynamo.call("ListTagsOfResource", {"ResourceArn": arn})
    assert {"Key": "a", "Value": "b"} in listed["Tags"]


@pytest.mark.parametrize("forbidden", ["UpdateTable", ("UpdateTable", "app")])
@virtual
async def test_what_is_forbidden_is_denied(forbidden: Any) -> None:
    dynamo = await make()
    dynamo.forbidden.add(forbidden)
    assert await code_of(dynamo, "UpdateTable", ADD_INDEX) == "AccessDeniedException"
    assert "GlobalSecondaryIndexes" not in await described(dynamo)
    dynamo.forbidden.clear()
    await dynamo.call("UpdateTable", ADD_INDEX)


@virtual
async def test_what_the_twin_does_not_know_is_refused() -> None:
    dynamo = await make()
    assert await code_of(dynamo, "BatchWriteItem", {"TableName": "app"}) == "UnknownOperationException"
    legacy = {"TableName": "app", "Key": KEY, "Expected": {"a": {"Exists": False}}}
    assert await code_of(dynamo, "DeleteItem", legacy) == "ValidationException"
    updated = {"TableName": "app", "Key": KEY, "ReturnValues": "UPDATED_NEW"}
    assert await code_of(dynamo, "UpdateItem", updated) == "ValidationException"
    unused = {"TableName": "app", "Key": KEY, "ExpressionAttributeNames": {"#a": "a"}}
    assert await code_of(dynamo, "GetItem", unused) == "ValidationException"


# --- counts, history, faults ------------------------------------------------------------------------------------------


@virtual
async def test_requests_and_items_are_counted_by_operation_table_and_sender() -> None:
    dynamo = await make(page_rows_max=4)
    for number in range(6):
        await put(dynamo, f"k{number}", "w1")
    dynamo.forget_usage()
    w1, w2 = dynamo.client("w1"), dynamo.client("w2")
    filtered = request("FilterExpression", "#leaseOwner = :v", {"S": "nobody"})
    page = await w1.call("Scan", {"TableName": "app", **filtered})
    await w1.call("Scan", {"TableName": "app", "ExclusiveStartKey": page["LastEvaluatedKey"]})
    await w2.call("GetItem", {"TableName": "app", "Key": {"leaseKey": {"S": "k0"}}})
    await w2.call("GetItem", {"TableName": "app", "Key": {"leaseKey": {"S": "missing"}}})
    await w2.call("DeleteItem", {"TableName": "app", "Key": {"leaseKey": {"S": "k0"}}})
    assert dynamo.usage(operation="Scan") == Usage(requests=2, items_read=6)
    assert dynamo.usage(sender="w2") == Usage(requests=3, items_read=1, items_written=1)
    assert dynamo.usage(table="app", sender="w2", operation="GetItem") == Usage(requests=2, items_read=1)
    assert dynamo.usage(table="other") == Usage()


@virtual
async def test_the_history_keeps_what_was_written_then() -> None:
    dynamo = await make()
    item: dict[str, Any] = {**KEY, "names": {"SS": ["a"]}}
    await dynamo.client("w1").call("PutItem", {"TableName": "app", "Item": item})
    item["names"]["SS"].append("b")
    answer = await dynamo.call("GetItem", {"TableName": "app", "Key": KEY})
    answer["Item"]["names"]["SS"].append("c")
    add = request("UpdateExpression", "ADD #names :v", {"SS": ["d"]})
    await dynamo.call("UpdateItem", {"TableName": "app", "Key": KEY, **add})
    first, second = dynamo.history
    assert (first.sender, first.table, first.before, first.after["names"]) == ("w1", "app", {}, {"SS": ["a"]})
    assert (second.before["names"], second.after["names"]) == ({"SS": ["a"]}, {"SS": ["a", "d"]})


@virtual
async def test_a_lost_request_is_not_applied_and_a_lost_reply_is() -> None:
    fates: list[Fault] = [lost_request(), lost_reply()]
    dynamo = await make()
    dynamo.faults = lambda *_: fates.pop(0)
    for key in ("a", "b"):
        with pytest.raises(Exception, match="connection reset"):
            await put(dynamo, key, "w1")
    assert set(dynamo.rows("app")) == {"b"}


# --- transactions -----------------------------------------------------------------------------------------------------


def transaction(*keys: str, **more: Any) -> dict[str, Any]:
    absent = request("ConditionExpression", "attribute_not_exists(#leaseKey)", {})
    puts = [{"Put": {"TableName": "app", "Item": {"leaseKey": {"S": key}}, **absent}} for key in keys]
    return {"TransactItems": puts, **more}


@virtual
async def test_a_transaction_sent_again_with_its_token_is_done_once() -> None:
    dynamo = await make()
    for _ in range(2):
        await dynamo.call("TransactWriteItems", transaction("a", "b", ClientRequestToken="t"))
    assert len(dynamo.history) == 2
    other = transaction("c", ClientRequestToken="t")
    assert await code_of(dynamo, "TransactWriteItems", other) == "IdempotentParameterMismatchException"
    await asyncio.sleep(601.0)
    again = transaction("a", "b", ClientRequestToken="t")
    assert await code_of(dynamo, "TransactWriteItems", again) == "TransactionCanceledException"


@virtual
async def test_reasons_carry_the_row_that_refused() -> None:
    dynamo = await make()
    await put(dynamo, "a", "w1")
    params = transaction("a", "b")
    params["TransactItems"][0]["Put"]["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
    with pytest.raises(TransactionCanceledError) as caught:
        await dynamo.call("TransactWriteItems", params)
    refused, other = caught.value.reasons
    assert (refused["Code"], other) == ("ConditionalCheckFailed", {"Code": "None"})
    assert refused["Item"]["leaseOwner"] == {"S": "w1"}
    assert set(dynamo.rows("app")) == {"a"}


@virtual
async def test_a_transaction_on_a_missing_table_does_nothing() -> None:
    dynamo = await make()
    params = transaction("a", "b")
    params["TransactItems"][1]["Put"]["TableName"] = "missing"
    assert await code_of(dynamo, "TransactWriteItems", params) == "ResourceNotFoundException"
    assert dynamo.rows("app") == {}
