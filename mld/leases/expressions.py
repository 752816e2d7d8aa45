"""A `LeaseWrite` as a request of DynamoDB, without TableName. Pure.

Each attribute stands in the expressions under its own name with a `#`, as KCL writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from mld.leases import rows
from mld.leases.table import Absent, AnyOf, Condition, Exists, Is, IsNot, LeaseWrite, Present, Value

_PLACEHOLDER = re.compile(r"#(\w+)")


def request_of(write: LeaseWrite[Any], key_name: str = rows.KEY) -> tuple[str, dict[str, Any]]:
    """Return the operation and its parameters. Raises ValueError for a row that must not be born (`rows.new_row`)."""
    condition, update = _all_of(write.conditions), _update(write)
    if write.item is not None:
        request: dict[str, Any] = {"Item": write.item}
    elif write.creates is not None:
        request = {"Item": rows.new_row(write.creates)}
    else:
        request = {"Key": {key_name: {"S": write.key}}}
    request["ConditionExpression"] = condition
    if update:
        request["UpdateExpression"] = update
    request["ExpressionAttributeNames"] = {f"#{name}": name for name in _PLACEHOLDER.findall(condition + update)}
    if values := dict(_values(write)):
        request["ExpressionAttributeValues"] = values
    if write.puts:
        return "PutItem", request
    if write.deletes:
        return "DeleteItem", request
    if write.wants_row:
        request["ReturnValues"] = "ALL_NEW"
    return "UpdateItem", request | {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


def _all_of(conditions: Iterable[Condition]) -> str:
    return " AND ".join(map(_condition, conditions))


def _condition(condition: Condition) -> str:
    match condition:
        case Exists():
            return f"#{rows.KEY} = :key"
        case Is(attribute, value):
            return f"#{attribute} = {value.name}"
        case IsNot(attribute, value):
            return f"#{attribute} <> {value.name}"
        case Absent(attribute):
            return f"attribute_not_exists(#{attribute})"
        case Present(attribute):
            return f"attribute_exists(#{attribute})"
        case AnyOf(lists):
            return "(" + " OR ".join(f"({_all_of(one)})" if len(one) > 1 else _all_of(one) for one in lists) + ")"


def _update(write: LeaseWrite[Any]) -> str:
    clauses = (
        ("SET", [f"#{attribute} = {value.name}" for attribute, value in write.sets]),
        ("REMOVE", [f"#{attribute}" for attribute in write.removes]),
        ("ADD", [f"#{attribute} {value.name}" for attribute, value in write.adds]),
    )
    return " ".join(f"{word} {', '.join(parts)}" for word, parts in clauses if parts)


def _values(write: LeaseWrite[Any]) -> Iterator[tuple[str, Any]]:
    for condition in write.conditions:
        yield from ((value.name, value.typed) for value in _values_in(condition, write.key))
    yield from ((value.name, value.typed) for _, value in (*write.sets, *write.adds))


def _values_in(condition: Condition, key: str) -> Iterator[Value]:
    match condition:
        case Exists():
            yield Value(":key", {"S": key})
        case Is(_, value) | IsNot(_, value):
            yield value
        case AnyOf(lists):
            for one in (condition for some in lists for condition in some):
                yield from _values_in(one, key)
