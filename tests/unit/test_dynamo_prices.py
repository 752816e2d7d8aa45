"""What the DynamoDB twin charges: sizes and units, and that its bill counts them."""

from __future__ import annotations

from typing import Any

import pytest

from mld.core.clock import LoopClock
from mld.core.errors import AwsError
from tests.twins import dynamo_prices as prices
from tests.twins.dynamo import MemoryDynamo
from tests.virtual_time import virtual


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ({"S": "shard"}, 5),
        ({"S": "é"}, 2),
        ({"N": "27"}, 2),
        ({"N": "-27"}, 3),
        ({"N": "12500000"}, 3),  # zeros at the end do not count
        ({"B": b"1234"}, 4),
        ({"SS": ["ab", "c"]}, 3),
        ({"BOOL": True}, 1),
        ({"L": [{"S": "ab"}, {"NULL": True}]}, 3 + 1 + 2 + 1 + 1),
        ({"M": {"k": {"S": "ab"}}}, 3 + 1 + 1 + 2),
    ],
)
def test_an_item_is_as_large_as_its_names_and_values(value: dict[str, Any], size: int) -> None:
    assert prices.item_bytes({"name": value}) == 4 + size


def test_a_write_costs_the_larger_item_by_the_kilobyte() -> None:
    small, large = {"k": {"S": "x"}}, {"k": {"S": "x" * 1500}}
    assert [prices.write_units(*pair) for pair in (({}, small), (small, large), (large, {}))] == [1, 2, 2]


def test_a_page_is_rounded_up_once_and_half_as_dear_if_eventually_consistent() -> None:
    rows = [{"k": {"S": "x" * 1000}}] * 9
    assert prices.read_units(rows, consistent=True) == 3
    assert prices.read_units(rows, consistent=False) == 1.5
    assert prices.read_units([], consistent=False) == 0.5


@virtual
async def test_the_twin_bills_refused_writes_and_changed_index_entries() -> None:
    dynamo = MemoryDynamo(LoopClock(), priced=True)
    index = {
        "IndexName": "by-owner",
        "KeySchema": [{"AttributeName": "owner", "KeyType": "HASH"}],
        "Projection": {"ProjectionType": "KEYS_ONLY"},
    }
    await dynamo.call(
        "CreateTable",
        {
            "TableName": "t",
            "BillingMode": "PAY_PER_REQUEST",
            "KeySchema": [{"AttributeName": "k", "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "S"} for name in ("k", "owner")],
            "GlobalSecondaryIndexes": [index],
        },
    )

    async def write(update: str, **values: dict[str, str]) -> float:
        before = dynamo.usage().write_units
        request = {"TableName": "t", "Key": {"k": {"S": "a"}}, "UpdateExpression": update}
        request["ExpressionAttributeNames"] = {"#owner": "owner"} if "#owner" in update else {"#n": "n"}
        request["ExpressionAttributeValues"] = {f":{name}": value for name, value in values.items()}
        await dynamo.call("UpdateItem", request)
        return dynamo.usage().write_units - before

    assert await write("SET #owner = :o", o={"S": "w1"}) == 2  # the row, and its entry
    assert await write("SET #n = :n", n={"N": "1"}) == 1  # the index does not show it
    assert await write("SET #owner = :o", o={"S": "w2"}) == 3  # one entry goes, one comes
    before = dynamo.usage().write_units
    with pytest.raises(AwsError):
        await dynamo.call(
            "DeleteItem",
            {
                "TableName": "t",
                "Key": {"k": {"S": "a"}},
                "ConditionExpression": "attribute_not_exists(#owner)",
                "ExpressionAttributeNames": {"#owner": "owner"},
            },
        )
    assert dynamo.usage().write_units - before == 1
    await dynamo.call("GetItem", {"TableName": "t", "Key": {"k": {"S": "a"}}, "ConsistentRead": True})
    assert dynamo.usage(operation="GetItem").read_units == 1
