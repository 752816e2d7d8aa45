"""What DynamoDB does with the requests our adapters send, whatever stands behind the `Service`: the proof of the twin.

Subclasses supply `service`; `table` is an empty on-demand table with hash key `leaseKey` and the owner index.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mld.aws.service import Service
from mld.core.errors import AwsError
from tests.support.tables import unique_table

INDEX = "LeaseOwnerToLeaseKeyIndex"
OWNER_INDEX: dict[str, Any] = {
    "IndexName": INDEX,
    "KeySchema": [
        {"AttributeName": "leaseOwner", "KeyType": "HASH"},
        {"AttributeName": "leaseKey", "KeyType": "RANGE"},
    ],
    "Projection": {"ProjectionType": "KEYS_ONLY"},
}
DEFINITIONS = [{"AttributeName": name, "AttributeType": "S"} for name in ("leaseKey", "leaseOwner")]
KEY = {"leaseKey": {"S": "row"}}
ROW: dict[str, Any] = {
    **KEY,
    "text": {"S": "shardId-000000000001"},
    "number": {"N": "10"},
    "names": {"SS": ["a", "b"]},
    "stats": {"M": {"C": {"L": [{"N": "55.5"}, {"N": "-1"}]}, "E": {"M": {}}}},
    "list": {"L": [{"S": "x"}, {"N": "2"}]},
    "flag": {"BOOL": True},
    "bytes": {"B": b"\x00stage"},
}
CONDITIONS: list[tuple[str, dict[str, Any], bool]] = [
    ("attribute_exists(#text)", {}, True),
    ("attribute_exists(#missing)", {}, False),
    ("attribute_not_exists(#missing)", {}, True),
    ("#number = :v", {"N": "10.0"}, True),
    ("#number = :v", {"S": "10"}, False),
    ("#number <> :v", {"S": "10"}, True),
    ("#number > :v", {"N": "9"}, True),
    ("#number >= :v", {"N": "10"}, True),
    ("#number < :v", {"N": "9.999"}, False),
    ("#number <= :v", {"N": "1E1"}, True),
    ("#text > :v", {"S": "shardId-0"}, True),
    ("#text < :v", {"N": "5"}, False),
    ("#missing = :v", {"S": "x"}, False),
    ("#missing <> :v", {"S": "x"}, True),
    ("#missing < :v", {"N": "1"}, False),
    ("NOT #missing = :v", {"S": "x"}, True),
    ("begins_with(#text, :v)", {"S": "shardId-"}, True),
    ("begins_with(#text, :v)", {"S": "hardId"}, False),
    ("begins_with(#missing, :v)", {"S": "shardId"}, False),
    ("contains(#text, :v)", {"S": "Id-"}, True),
    ("contains(#names, :v)", {"S": "b"}, True),
    ("contains(#names, :v)", {"S": "c"}, False),
    ("contains(#list, :v)", {"N": "2"}, True),
    ("contains(#missing, :v)", {"S": "x"}, False),
    ("#names = :v", {"SS": ["b", "a"]}, True),
    ("#stats.#C[0] = :v", {"N": "55.50"}, True),
    ("#stats.#C[7] = :v", {"N": "1"}, False),
    ("attribute_exists(#stats.#E)", {}, True),
    ("attribute_not_exists(#stats.#missing)", {}, True),
    ("#list = :v", {"L": [{"S": "x"}, {"N": "2"}]}, True),
    ("#flag = :v", {"BOOL": True}, True),
    ("#bytes = :v", {"B": b"\x00stage"}, True),
    ("#text IN (:v, :w)", {"S": "shardId-000000000001"}, True),
    ("#text IN (:v, :w)", {"S": "other"}, False),
    ("#number BETWEEN :v AND :w", {"N": "9"}, True),
    ("size(#names) = :v", {"N": "2"}, True),
    ("attribute_type(#stats, :v)", {"S": "M"}, True),
    ("attribute_exists(#missing) OR attribute_exists(#text) AND #number = :v", {"N": "10"}, True),
    ("(attribute_exists(#missing) OR attribute_exists(#text)) AND NOT #number = :v", {"N": "10"}, False),
    ("NOT attribute_exists(#missing) AND #number = :v", {"N": "11"}, False),
]
W = {"N": "12"}
UPDATES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("SET #new = :v", {"S": "x"}, {"new": {"S": "x"}}),
    ("SET #number = #number + :v", {"N": "0.5"}, {"number": {"N": "10.5"}}),
    ("SET #number = #number - :v", {"N": "10"}, {"number": {"N": "0"}}),
    ("SET #new = if_not_exists(#new, :v)", {"N": "3"}, {"new": {"N": "3"}}),
    ("SET #text = if_not_exists(#text, :v)", {"N": "3"}, {}),
    ("SET #list = list_append(#list, :v)", {"L": [{"S": "y"}]}, {"list": {"L": [*ROW["list"]["L"], {"S": "y"}]}}),
    ("SET #new = #text, #text = :v", {"S": "y"}, {"new": ROW["text"], "text": {"S": "y"}}),
    ("SET #stats.#E = :v", {"N": "1"}, {"stats": {"M": ROW["stats"]["M"] | {"E": {"N": "1"}}}}),
    ("SET #new = :v REMOVE #text, #missing", {"NULL": True}, {"new": {"NULL": True}, "text": None}),
    ("REMOVE #stats.#C ADD #number :v", {"N": "-1"}, {"stats": {"M": {"E": {"M": {}}}}, "number": {"N": "9"}}),
    ("REMOVE #list[0]", {}, {"list": {"L": [{"N": "2"}]}}),
    ("ADD #new :v", {"N": "1"}, {"new": {"N": "1"}}),
    ("ADD #names :v", {"SS": ["b", "c"]}, {"names": {"SS": ["a", "b", "c"]}}),
    ("DELETE #names :v", {"SS": ["b"]}, {"names": {"SS": ["a"]}}),
    ("DELETE #names :v", {"SS": ["a", "b"]}, {"names": None}),
]
INVALID: list[tuple[str, str, dict[str, Any]]] = [
    ("ConditionExpression", "#text = :undefined", {}),
    ("ConditionExpression", "#text =", {}),
    ("ConditionExpression", "attribute_exists(#text) AND", {}),
    ("UpdateExpression", "SET #leaseKey = :v", {"S": "other"}),
    ("UpdateExpression", "SET #text = :v, #text = :v", {"S": "x"}),
    ("UpdateExpression", "ADD #text :v", {"N": "1"}),
    ("UpdateExpression", "SET #new = #missing", {}),
    ("UpdateExpression", "SET #missing.#C = :v", {"S": "x"}),
    ("UpdateExpression", "SET #number = #text + :v", {"N": "1"}),
]


def request(kind: str, expression: str, value: dict[str, Any]) -> dict[str, Any]:
    """An expression with the placeholders it uses."""
    words = expression.replace("[", " ").replace("]", " ").replace(".", " ")
    for mark in "(),":
        words = words.replace(mark, " ")
    names = {word: word[1:] for word in words.split() if word.startswith("#")}
    params: dict[str, Any] = {kind: expression, "ExpressionAttributeNames": names}
    values = ({":v": value} if ":v" in words.split() else {}) | ({":w": W} if ":w" in words.split() else {})
    if values:
        params["ExpressionAttributeValues"] = values
    return params


def case_id(value: Any) -> str | None:
    return value if isinstance(value, str) else None


class DynamoContract:
    """Requests by their raw parameters."""

    @pytest.fixture
    async def table(self, service: Service) -> str:
        name = unique_table()
        await service.call(
            "CreateTable",
            {
                "TableName": name,
                "KeySchema": [{"AttributeName": "leaseKey", "KeyType": "HASH"}],
                "AttributeDefinitions": DEFINITIONS,
                "BillingMode": "PAY_PER_REQUEST",
                "GlobalSecondaryIndexes": [OWNER_INDEX],
            },
        )
        return name

    async def _row(self, service: Service, table: str, key: str = "row") -> dict[str, Any] | None:
        params = {"TableName": table, "Key": {"leaseKey": {"S": key}}, "ConsistentRead": True}
        item: dict[str, Any] | None = (await service.call("GetItem", params)).get("Item")
        if item is not None:
            item = {name: {"SS": sorted(value["SS"])} if "SS" in value else value for name, value in item.items()}
        return item

    async def _put(self, service: Service, table: str, item: dict[str, Any], **more: Any) -> dict[str, Any]:
        return await service.call("PutItem", {"TableName": table, "Item": item, **more})

    async def _code(self, service: Service, operation: str, params: dict[str, Any]) -> str:
        with pytest.raises(AwsError) as caught:
            await service.call(operation, params)
        return caught.value.code

    # --- items and expressions

    async def test_values_of_all_kinds_come_back_as_they_were(self, service: Service, table: str) -> None:
        await self._put(service, table, ROW)
        assert await self._row(service, table) == ROW

    @pytest.mark.parametrize(("condition", "value", "holds"), CONDITIONS, ids=case_id)
    async def test_a_condition(
        self, service: Service, table: str, condition: str, value: dict[str, Any], holds: bool
    ) -> None:
        await self._put(service, table, ROW)
        params = {"TableName": table, "Key": KEY, **request("ConditionExpression", condition, value)}
        if holds:
            await service.call("DeleteItem", params)
            assert await self._row(service, table) is None
        else:
            assert await self._code(service, "DeleteItem", params) == "ConditionalCheckFailedException"
            assert await self._row(service, table) == ROW

    @pytest.mark.parametrize(("update", "value", "changes"), UPDATES, ids=case_id)
    async def test_an_update(
        self, service: Service, table: str, update: str, value: dict[str, Any], changes: dict[str, Any]
    ) -> None:
        await self._put(service, table, ROW)
        params = {"TableName": table, "Key": KEY, **request("UpdateExpression", update, value)}
        await service.call("UpdateItem", params)
        expected = {name: value for name, value in (ROW | changes).items() if value is not None}
        assert await self._row(service, table) == expected

    @pytest.mark.parametrize(("kind", "expression", "value"), INVALID, ids=case_id)
    async def test_an_invalid_expression_changes_nothing(
        self, service: Service, table: str, kind: str, expression: str, value: dict[str, Any]
    ) -> None:
        await self._put(service, table, ROW)
        params = {"TableName": table, "Key": KEY, **request(kind, expression, value)}
        assert await self._code(service, "UpdateItem", params) == "ValidationException"
        assert await self._row(service, table) == ROW

    async def test_an_update_makes_a_missing_row(self, service: Service, table: str) -> None:
        params = {"TableName": table, "Key": KEY, **request("UpdateExpression", "SET #a = :v", {"N": "1"})}
        answer = await service.call("UpdateItem", params | {"ReturnValues": "ALL_NEW"})
        assert answer["Attributes"] == {**KEY, "a": {"N": "1"}}

    async def test_the_row_before_a_write_is_returned_if_asked_for(self, service: Service, table: str) -> None:
        old = {**KEY, "a": {"N": "1"}}
        assert "Attributes" not in await self._put(service, table, old, ReturnValues="ALL_OLD")
        assert (await self._put(service, table, KEY, ReturnValues="ALL_OLD"))["Attributes"] == old
        params = {"TableName": table, "Key": KEY, "ReturnValues": "ALL_OLD"}
        assert (await service.call("DeleteItem", params))["Attributes"] == KEY

    async def test_a_refused_write_shows_the_row_if_asked_for(self, service: Service, table: str) -> None:
        await self._put(service, table, ROW)
        absent = request("ConditionExpression", "attribute_not_exists(#leaseKey)", {})
        wanted = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        with pytest.raises(AwsError) as caught:
            await self._put(service, table, KEY, **absent, **wanted)
        assert caught.value.code == "ConditionalCheckFailedException"
        assert caught.value.item is not None
        assert caught.value.item["number"] == ROW["number"]

    # --- scans

    async def _plant(self, service: Service, table: str, count: int = 12) -> list[str]:
        keys = [f"k{number:02d}" for number in range(count)]
        for number, key in enumerate(keys):
            row = {"leaseKey": {"S": key}, "leaseOwner": {"S": f"w{number % 2}"}, "n": {"N": str(number)}}
            await self._put(service, table, row)
        return keys

    async def _pages(self, service: Service, operation: str, params: dict[str, Any]) -> list[dict[str, Any]]:
        answers = [await service.call(operation, params)]
        while "LastEvaluatedKey" in answers[-1]:
            start = {"ExclusiveStartKey": answers[-1]["LastEvaluatedKey"]}
            answers.append(await service.call(operation, params | start))
        return answers

    async def test_a_limited_scan_finds_every_row_once(self, service: Service, table: str) -> None:
        keys = await self._plant(service, table)
        answers = await self._pages(service, "Scan", {"TableName": table, "Limit": 5})
        assert len(answers) >= 3
        assert sorted(item["leaseKey"]["S"] for answer in answers for item in answer["Items"]) == keys

    async def test_segments_share_the_rows(self, service: Service, table: str) -> None:
        keys = await self._plant(service, table)
        found = []
        for segment in range(3):
            params = {"TableName": table, "Segment": segment, "TotalSegments": 3, "Limit": 2}
            answers = await self._pages(service, "Scan", params)
            found += [item["leaseKey"]["S"] for answer in answers for item in answer["Items"]]
        assert sorted(found) == keys

    async def test_a_filter_comes_after_the_limit(self, service: Service, table: str) -> None:
        await self._plant(service, table)
        params = {"TableName": table, "Limit": 5, **request("FilterExpression", "#n >= :v", {"N": "9"})}
        answers = await self._pages(service, "Scan", params)
        assert sum(answer["Count"] for answer in answers) == 3
        assert sum(answer["ScannedCount"] for answer in answers) == 12

    async def test_a_count_has_no_items(self, service: Service, table: str) -> None:
        await self._plant(service, table)
        params = {"TableName": table, "Select": "COUNT", **request("FilterExpression", "#n < :v", {"N": "3"})}
        answers = await self._pages(service, "Scan", params)
        assert not any(answer.get("Items") for answer in answers)
        assert sum(answer["Count"] for answer in answers) == 3

    async def test_a_projection_shows_what_is_asked_for(self, service: Service, table: str) -> None:
        await self._put(service, table, ROW)
        params = {"TableName": table, **request("ProjectionExpression", "#leaseKey, #number, #missing", {})}
        answers = await self._pages(service, "Scan", params)
        assert [item for answer in answers for item in answer["Items"]] == [{**KEY, "number": {"N": "10"}}]

    # --- the index

    def _query(self, table: str, owner: str, **more: Any) -> dict[str, Any]:
        asked = request("KeyConditionExpression", "#leaseOwner = :v", {"S": owner})
        return {"TableName": table, "IndexName": INDEX, **asked, **more}

    async def _owned(self, service: Service, table: str, owner: str, **more: Any) -> list[dict[str, Any]]:
        answers = await self._pages(service, "Query", self._query(table, owner, **more))
        return [item for answer in answers for item in answer["Items"]]

    async def test_the_index_gives_the_keys_of_an_owner_in_order(self, service: Service, table: str) -> None:
        keys = await self._plant(service, table)
        expected = [{"leaseKey": {"S": key}, "leaseOwner": {"S": "w1"}} for key in keys[1::2]]
        assert await self._owned(service, table, "w1") == expected
        assert await self._owned(service, table, "w1", Limit=2) == expected
        assert await self._owned(service, table, "w1", ScanIndexForward=False, Limit=2) == expected[::-1]
        assert await self._owned(service, table, "nobody") == []

    async def test_the_index_follows_the_owner(self, service: Service, table: str) -> None:
        await self._put(service, table, {**KEY, "leaseOwner": {"S": "w1"}})
        update = request("UpdateExpression", "SET #leaseOwner = :v", {"S": "w2"})
        await service.call("UpdateItem", {"TableName": table, "Key": KEY, **update})
        assert (await self._owned(service, table, "w1"), len(await self._owned(service, table, "w2"))) == ([], 1)
        update = request("UpdateExpression", "REMOVE #leaseOwner", {})
        await service.call("UpdateItem", {"TableName": table, "Key": KEY, **update})
        assert await self._owned(service, table, "w2") == []

    async def test_a_range_of_an_owner_s_keys(self, service: Service, table: str) -> None:
        keys = await self._plant(service, table)
        condition = "#leaseOwner = :owner AND begins_with(#leaseKey, :v)"
        asked = request("KeyConditionExpression", condition, {"S": "k0"})
        asked["ExpressionAttributeValues"][":owner"] = {"S": "w1"}
        answer = await service.call("Query", {"TableName": table, "IndexName": INDEX, **asked})
        assert [item["leaseKey"]["S"] for item in answer["Items"]] == keys[1:10:2]

    async def test_an_index_is_never_read_consistently(self, service: Service, table: str) -> None:
        assert await self._code(service, "Query", self._query(table, "w", ConsistentRead=True)) == "ValidationException"

    async def test_the_index_is_described(self, service: Service, table: str) -> None:
        described = (await service.call("DescribeTable", {"TableName": table}))["Table"]
        assert described["TableStatus"] == "ACTIVE"
        assert described["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
        (index,) = described["GlobalSecondaryIndexes"]
        assert (index["IndexName"], index["IndexStatus"]) == (INDEX, "ACTIVE")
        assert index["Projection"] == {"ProjectionType": "KEYS_ONLY"}

    async def test_an_index_can_be_deleted_and_made_again(self, service: Service, table: str) -> None:
        await self._plant(service, table, 4)
        params: dict[str, Any] = {"TableName": table, "GlobalSecondaryIndexUpdates": [{"Delete": {"IndexName": INDEX}}]}
        await service.call("UpdateTable", params)
        described = (await service.call("DescribeTable", {"TableName": table}))["Table"]
        assert not described.get("GlobalSecondaryIndexes")
        params["GlobalSecondaryIndexUpdates"] = [{"Create": OWNER_INDEX}]
        await service.call("UpdateTable", params | {"AttributeDefinitions": DEFINITIONS})
        assert len(await self._owned(service, table, "w1")) == 2

    # --- transactions

    def _transaction(self, *actions: dict[str, Any]) -> dict[str, Any]:
        return {"TransactItems": list(actions)}

    async def test_a_transaction_does_all(self, service: Service, table: str) -> None:
        await self._put(service, table, {"leaseKey": {"S": "lock"}, "n": {"N": "1"}})
        await self._put(service, table, {"leaseKey": {"S": "old"}})
        await self._put(service, table, KEY)
        held = {"TableName": table, "Key": {"leaseKey": {"S": "lock"}}}
        await service.call(
            "TransactWriteItems",
            self._transaction(
                {"ConditionCheck": held | request("ConditionExpression", "#n = :v", {"N": "1"})},
                {"Put": {"TableName": table, "Item": {"leaseKey": {"S": "new"}}}},
                {"Delete": {"TableName": table, "Key": {"leaseKey": {"S": "old"}}}},
                {"Update": {"TableName": table, "Key": KEY} | request("UpdateExpression", "SET #a = :v", {"S": "x"})},
            ),
        )
        assert await self._row(service, table, "new") == {"leaseKey": {"S": "new"}}
        assert await self._row(service, table, "old") is None
        assert await self._row(service, table) == {**KEY, "a": {"S": "x"}}

    async def test_a_cancelled_transaction_does_nothing_and_names_the_reasons(
        self, service: Service, table: str
    ) -> None:
        await self._put(service, table, KEY)
        absent = request("ConditionExpression", "attribute_not_exists(#leaseKey)", {})
        params = self._transaction(
            {"Put": {"TableName": table, "Item": {"leaseKey": {"S": "new"}}}},
            {"Put": {"TableName": table, "Item": KEY, **absent}},
        )
        with pytest.raises(AwsError) as caught:
            await service.call("TransactWriteItems", params)
        assert caught.value.code == "TransactionCanceledException"
        assert "[None, ConditionalCheckFailed]" in str(caught.value)
        assert await self._row(service, table, "new") is None

    async def test_two_operations_on_one_row_are_no_transaction(self, service: Service, table: str) -> None:
        params = self._transaction(
            {"Put": {"TableName": table, "Item": KEY}}, {"Delete": {"TableName": table, "Key": KEY}}
        )
        assert await self._code(service, "TransactWriteItems", params) == "ValidationException"

    async def test_of_many_transactions_one_wins(self, service: Service, table: str) -> None:
        absent = request("ConditionExpression", "attribute_not_exists(#leaseKey)", {})

        async def race(racer: int) -> bool:
            put = {"TableName": table, "Item": {**KEY, "by": {"N": str(racer)}}, **absent}
            try:
                await service.call("TransactWriteItems", self._transaction({"Put": put}))
            except AwsError as error:
                assert error.code in ("TransactionCanceledException", "TransactionConflictException")
                return False
            return True

        assert sum(await asyncio.gather(*(race(racer) for racer in range(8)))) == 1
