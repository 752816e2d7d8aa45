"""What is sent to DynamoDB for the rows of both migrations: parameters of each request. Pure.

Rules: coordination#state-writes, coordination#moving-rows. Every write has a condition. Unlike Java's, a delete asks
for the state that was read, and a row is moved only as it was read: whoever changes it in between wins, and the move is
tried again.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from mld.fleet.migrate.single_table import LEADER_KEY
from mld.fleet.migrate.states import Kind, Row, StateRow, StateT, changes_of, item_of
from mld.fleet.values import Place

Params: TypeAlias = dict[str, Any]

OWNER_NAME = "ownerName"


def get(place: Place, key: str) -> Params:
    return {"TableName": place.table, "Key": _key(place, key), "ConsistentRead": True}


def create(row: StateRow[StateT], place: Place) -> Params:
    return {"TableName": place.table, "Item": item_of(row, place), **_absent(place)}


def update(row: StateRow[StateT], previous: StateT, place: Place) -> Params:
    """Set the state, who and when, and the history. Attributes that are not ours stay."""
    names = {"#pk": place.key}
    values: dict[str, Any] = {":pk": {"S": row.kind.key}, ":previous": {"S": previous.value}}
    sets = []
    for number, (name, value) in enumerate(changes_of(row).items()):
        names[f"#a{number}"] = name
        values[f":a{number}"] = value
        sets.append(f"#a{number} = :a{number}")
    return {
        "TableName": place.table,
        "Key": _key(place, row.kind.key),
        "UpdateExpression": "SET " + ", ".join(sets),
        "ConditionExpression": "#pk = :pk AND #a0 = :previous",
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
    }


def delete(row: StateRow[StateT], place: Place) -> Params:
    """Delete the row if it still holds the state that was read."""
    return {"TableName": place.table, "Key": _key(place, row.kind.key), **_in_state(row.kind, row.state)}


def move(rows: list[tuple[Row, Row, Row | None]], legacy: Place, leases: Place, leader: str) -> Params:
    """Move rows to the lease table, while `leader` holds the lock in the legacy table.

    Each is (row as read in the legacy table, row to put, row with its key as read in the lease table or None).
    """
    actions: list[Params] = [_fence(legacy, leader)]
    for read, wanted, replaced in rows:
        condition = _absent(leases) if replaced is None else _unchanged(replaced)
        actions.append({"Put": {"TableName": leases.table, "Item": dict(wanted), **condition}})
        key = {legacy.key: read[legacy.key]}
        actions.append({"Delete": {"TableName": legacy.table, "Key": key, **_unchanged(read)}})
    return {"TransactItems": actions}


def finalise(
    row: StateRow[StateT], previous: StateT, legacy: Place, leases: Place, leader: str, *, copy_exists: bool
) -> Params:
    """Write `row` over `previous` in the legacy table and leave a copy in the lease table, while `leader` leads."""
    actions: list[Params] = [_fence(legacy, leader)]
    if not copy_exists:
        actions.append({"Put": create(row, leases)})
    condition = _in_state(row.kind, previous)
    actions.append({"Put": {"TableName": legacy.table, "Item": item_of(row, legacy), **condition}})
    return {"TransactItems": actions}


def _key(place: Place, key: str) -> Params:
    return {place.key: {"S": key}}


def _absent(place: Place) -> Params:
    return {"ConditionExpression": "attribute_not_exists(#pk)", "ExpressionAttributeNames": {"#pk": place.key}}


def _in_state(kind: Kind[StateT], state: StateT) -> Params:
    return {
        "ConditionExpression": "#state = :state",
        "ExpressionAttributeNames": {"#state": kind.attribute},
        "ExpressionAttributeValues": {":state": {"S": state.value}},
    }


def _unchanged(item: Row) -> Params:
    """Every attribute is as it was read. One that was added since goes unnoticed: nobody adds any to such rows."""
    numbered = list(enumerate(item.items()))
    return {
        "ConditionExpression": " AND ".join(f"#a{number} = :a{number}" for number, _ in numbered),
        "ExpressionAttributeNames": {f"#a{number}": name for number, (name, _) in numbered},
        "ExpressionAttributeValues": {f":a{number}": dict(value) for number, (_, value) in numbered},
    }


def _fence(legacy: Place, leader: str) -> Params:
    return {
        "ConditionCheck": {
            "TableName": legacy.table,
            "Key": _key(legacy, LEADER_KEY),
            "ConditionExpression": "#owner = :me",
            "ExpressionAttributeNames": {"#owner": OWNER_NAME},
            "ExpressionAttributeValues": {":me": {"S": leader}},
        }
    }
