"""`request_of`: translates a conditional write of a lease row into a DynamoDB request, without TableName. Pure.

In the expressions `#name` stands for the attribute `name`, as in KCL.
"""

from __future__ import annotations

from typing import Any

from mld.leases import rows
from mld.leases.table import LeaseWrite
from mld.leases.writes import EXISTS


def request_of(write: LeaseWrite[Any], key_name: str = rows.KEY) -> tuple[str, dict[str, Any]]:
    """Return the name of the DynamoDB operation for `write`, and its parameters: PutItem if it creates a row,
    DeleteItem if it deletes one, else UpdateItem.
    """
    clauses = (
        ("SET", [f"#{attribute} = {value.name}" for attribute, value in write.sets]),
        ("REMOVE", [f"#{attribute}" for attribute in write.removes]),
        ("ADD", [f"#{attribute} {value.name}" for attribute, value in write.adds]),
    )
    update = " ".join(f"{word} {', '.join(parts)}" for word, parts in clauses if parts)
    condition = " AND ".join(one.text for one in write.conditions)
    request: dict[str, Any] = (
        {"Key": {key_name: {"S": write.key}}} if write.item is None else {"Item": write.item}
    ) | {"ConditionExpression": condition}
    if update:
        request["UpdateExpression"] = update
    request["ExpressionAttributeNames"] = rows.names_in(condition + update)
    values: dict[str, Any] = {":key": {"S": write.key}} if EXISTS in write.conditions else {}
    values |= {value.name: value.typed for one in write.conditions for value in one.values}
    values |= {value.name: value.typed for _, value in (*write.sets, *write.adds)}
    if values:
        request["ExpressionAttributeValues"] = values
    if write.item is not None:
        return "PutItem", request
    if write.deletes:
        return "DeleteItem", request
    if write.wants_row:
        request["ReturnValues"] = "ALL_NEW"
    return "UpdateItem", request | {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
