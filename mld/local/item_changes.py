"""Changes of items in DynamoDB tables, and the stream records made from them. Pure.

Items are written as in DynamoDB's JSON: attribute name -> ``{"S": "text"}``, binary values as base64 text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any

from mld.properties.values import partition_of

DynamoItem = Mapping[str, Any]

TTL_IDENTITY = {"PrincipalId": "dynamodb.amazonaws.com", "Type": "Service"}
"""The user who deletes items whose time to live is over."""
_EVENT_VERSION = "1.1"
_NESTED_BYTES = 3
"""Size of a list or map besides its elements."""


class ViewType(Enum):
    """Which images of the item a record has besides the keys."""

    KEYS_ONLY = "KEYS_ONLY"
    NEW_IMAGE = "NEW_IMAGE"
    OLD_IMAGE = "OLD_IMAGE"
    NEW_AND_OLD_IMAGES = "NEW_AND_OLD_IMAGES"


@dataclass(frozen=True, slots=True)
class TableStreamKey:
    """The name of one stream of a table. If the stream is disabled and enabled again, the new one has another label."""

    account: str
    region: str
    table: str
    label: str

    @property
    def arn(self) -> str:
        place = f"arn:{partition_of(self.region)}:dynamodb:{self.region}:{self.account}"
        return f"{place}:table/{self.table}/stream/{self.label}"


@dataclass(frozen=True, slots=True)
class ItemChange:
    """An item before and after a write; None if it did not exist. `by_ttl`: its time to live was over."""

    keys: DynamoItem
    old: DynamoItem | None
    new: DynamoItem | None
    by_ttl: bool = False

    @property
    def event_name(self) -> str | None:
        """INSERT, MODIFY or REMOVE; None if nothing changed, so that there is no record."""
        if self.old is None:
            return None if self.new is None else "INSERT"
        if self.new is None:
            return "REMOVE"
        return None if _comparable({"M": self.old}) == _comparable({"M": self.new}) else "MODIFY"


def coalesced(changes: Iterable[ItemChange]) -> list[ItemChange]:
    """Return the changes of one request, merged so that each item has one change.

    A request writes an item only once, but moto needs two steps when UpdateItem creates an item.
    """
    found: dict[str, ItemChange] = {}
    for change in changes:
        first = found.get(name := canonical(change.keys))
        old = change.old if first is None else first.old
        found[name] = ItemChange(change.keys, old, change.new, change.by_ttl)
    return list(found.values())


def canonical(value: DynamoItem) -> str:
    """Return a text that is the same for equal keys."""
    return json.dumps(_comparable({"M": value}), sort_keys=True, default=str)


def hash_of(value: DynamoItem) -> int:
    """Return a 32-bit hash of a partition key; it decides about the shard."""
    return int.from_bytes(hashlib.blake2s(canonical(value).encode(), digest_size=4).digest(), "big")


def record_json(
    change: ItemChange, event_name: str, key: TableStreamKey, view: ViewType, number: int, at_s: float
) -> tuple[dict[str, Any], int]:
    """Return the record as GetRecords shows it, and its size in bytes."""
    images: dict[str, Any] = {}
    if view in (ViewType.NEW_IMAGE, ViewType.NEW_AND_OLD_IMAGES) and change.new is not None:
        images["NewImage"] = change.new
    if view in (ViewType.OLD_IMAGE, ViewType.NEW_AND_OLD_IMAGES) and change.old is not None:
        images["OldImage"] = change.old
    size = item_bytes(change.keys) + sum(item_bytes(image) for image in images.values())
    record: dict[str, Any] = {
        "eventID": hashlib.blake2s(f"{key.arn} {number}".encode(), digest_size=16).hexdigest(),
        "eventName": event_name,
        "eventVersion": _EVENT_VERSION,
        "eventSource": "aws:dynamodb",
        "awsRegion": key.region,
        "dynamodb": {
            "ApproximateCreationDateTime": int(at_s),
            "Keys": change.keys,
            **images,
            "SequenceNumber": str(number),
            "SizeBytes": size,
            "StreamViewType": view.value,
        },
    }
    if change.by_ttl:
        record["userIdentity"] = TTL_IDENTITY
    return record, size


def item_bytes(item: DynamoItem) -> int:
    """Return the size of names and values, as DynamoDB counts it."""
    return sum(len(name.encode()) + _value_bytes(value) for name, value in item.items())


def _value_bytes(value: DynamoItem) -> int:
    ((kind, content),) = value.items()
    match kind:
        case "S":
            return len(content.encode())
        case "N":
            return (len(content.strip("-").replace(".", "").strip("0")) + 1) // 2 + 1
        case "B":
            return len(base64.b64decode(content))
        case "SS" | "NS" | "BS":
            return sum(_value_bytes({kind[0]: element}) for element in content)
        case "L":
            return _NESTED_BYTES + sum(1 + _value_bytes(element) for element in content)
        case "M":
            return _NESTED_BYTES + len(content) + item_bytes(content)
        case _:
            return 1  # a truth value or null


def _comparable(value: DynamoItem) -> Any:
    """Return a value that is equal if DynamoDB treats the values as equal: numbers by value, sets in any order."""
    ((kind, content),) = value.items()
    match kind:
        case "N":
            return [kind, _number(content)]
        case "NS":
            return [kind, sorted(map(_number, content))]
        case "SS" | "BS":
            return [kind, sorted(content)]
        case "L":
            return [kind, [_comparable(element) for element in content]]
        case "M":
            return [kind, {name: _comparable(element) for name, element in content.items()}]
        case _:
            return [kind, content]


def _number(text: str) -> str:
    try:
        return str(Decimal(text).normalize())
    except InvalidOperation:
        return text
