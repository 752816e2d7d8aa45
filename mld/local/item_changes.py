"""`ItemChange`: a change of an item in a DynamoDB table, from which a stream record is made. Pure.

Items have the form of DynamoDB's JSON: they map attribute names to values such as ``{"S": "text"}``. Binary values are
base64 text.
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
"""The `userIdentity` in the record of an item that was deleted because its time to live was over."""
_EVENT_VERSION = "1.1"
_NESTED_BYTES = 3
"""Bytes that a list or map takes besides its elements."""


class ViewType(Enum):
    """The images of the item that a record has besides the keys."""

    KEYS_ONLY = "KEYS_ONLY"
    NEW_IMAGE = "NEW_IMAGE"
    OLD_IMAGE = "OLD_IMAGE"
    NEW_AND_OLD_IMAGES = "NEW_AND_OLD_IMAGES"


@dataclass(frozen=True, slots=True)
class TableStreamKey:
    """Identifies one stream of a table. If a stream is disabled and enabled again, the new stream has another label."""

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
    """An item before (`old`) and after (`new`) a write; None if it did not exist then. `by_ttl` says that it was
    deleted because its time to live was over.
    """

    keys: DynamoItem
    old: DynamoItem | None
    new: DynamoItem | None
    by_ttl: bool = False

    @property
    def event_name(self) -> str | None:
        """INSERT, MODIFY or REMOVE; None if the item did not change, so that no record is made."""
        if self.old is None:
            return None if self.new is None else "INSERT"
        if self.new is None:
            return "REMOVE"
        return None if _comparable({"M": self.old}) == _comparable({"M": self.new}) else "MODIFY"


def coalesced(changes: Iterable[ItemChange]) -> list[ItemChange]:
    """Return the changes of one request, merged so that each item has one change.

    A request changes an item only once, but moto writes twice when UpdateItem creates an item.
    """
    found: dict[str, ItemChange] = {}
    for change in changes:
        name = canonical(change.keys)
        first = found.get(name)
        old = change.old if first is None else first.old
        found[name] = ItemChange(change.keys, old, change.new, change.by_ttl)
    return list(found.values())


def canonical(value: DynamoItem) -> str:
    """Return a text that is the same for all keys that DynamoDB treats as equal."""
    return json.dumps(_comparable({"M": value}), sort_keys=True, default=str)


def hash_of(value: DynamoItem) -> int:
    """Return a 32-bit hash of a partition key. It decides which shard gets the changes of the item."""
    return int.from_bytes(hashlib.blake2s(canonical(value).encode(), digest_size=4).digest(), "big")


def record_json(
    change: ItemChange, event_name: str, key: TableStreamKey, view: ViewType, number: int, at_s: float
) -> tuple[dict[str, Any], int]:
    """Return the record of a change as GetRecords shows it, and the size of the record in bytes."""
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
    """Return the size of an item in bytes, names and values, as DynamoDB counts it."""
    return sum(len(name.encode()) + _value_bytes(value) for name, value in item.items())


def _value_bytes(value: DynamoItem) -> int:
    """Return the size of an attribute value by the rules of DynamoDB."""
    ((kind, content),) = value.items()
    match kind:
        case "S":
            return len(content.encode())
        case "N":  # one byte for two significant digits, and one more
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
            return 1  # BOOL or NULL


def _comparable(value: DynamoItem) -> Any:
    """Return a form of a value that can be compared: it is equal for two values if DynamoDB treats them as equal.

    Numbers are equal if they have the same value, sets if they have the same elements in any order.
    """
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
    """Return a number in the form in which DynamoDB returns it."""
    try:
        return str(Decimal(text).normalize())
    except InvalidOperation:
        return text
