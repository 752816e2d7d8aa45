"""`kinesis_record`: turns a change of a DynamoDB table into the Kinesis record that a child gets.

Rule: retrieval#records-of-dynamodb. The data of the record is the JSON that Amazon's DynamoDB Streams adapter for the
KCL writes, byte for byte, so that children that compare or hash it see no difference. The adapter writes with Jackson:
fields in the order in which Jackson finds them, maps in the order of Java's HashMap, text in UTF-8, binary values in
base64, the time in milliseconds, and no nulls.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

_FIELDS = ("eventID", "eventName", "eventVersion", "eventSource", "awsRegion", "dynamodb")
_IMAGES = ("Keys", "NewImage", "OldImage")
# Finds a control character as `json.dumps` escapes it.
_CONTROL = re.compile(r"\\u00([01][0-9a-f])")
_TABLE_MIN = 16
"""Slots of a new HashMap; it doubles them when more than `_LOAD` of them are used."""
_LOAD = 0.75
_HASH_MASK = 0xFFFFFFFF


def data_of(record: Mapping[str, Any]) -> bytes:
    """Return the JSON for one record, which is given as in an answer of GetRecords of DynamoDB Streams.

    Raises KeyError, TypeError or ValueError.
    """
    parts = []
    identity = record.get("userIdentity")
    if identity is not None:
        parts.append(
            '"userIdentity":' + _object(("principalId", identity.get("PrincipalId")), ("type", identity.get("Type")))
        )
    for name in _FIELDS:
        value = record.get(name)
        if value is not None:
            parts.append(f'"{name}":' + (_change(value) if name == "dynamodb" else _text(value)))
    return ("{" + ",".join(parts) + "}").encode()


def created_s(record: Mapping[str, Any]) -> float:
    """Return when the change was made, in epoch seconds. Raises KeyError, TypeError or ValueError."""
    created = float(record["dynamodb"]["ApproximateCreationDateTime"])
    if not isfinite(created):
        raise ValueError("no time")
    return created


def key_of_item(record: Mapping[str, Any]) -> str:
    """Return the primary key of the changed item as JSON. Names are sorted, so all changes of an item have one text."""
    keys = record["dynamodb"].get("Keys")
    return "" if keys is None else json.dumps(keys, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def kinesis_record(record: Mapping[str, Any], *, keyed_by_item: bool = False) -> dict[str, Any]:
    """Return the record as GetRecords of Kinesis would return it. Raises KeyError, TypeError or ValueError.

    The partition key is the sequence number, as with Amazon's adapter, or with `keyed_by_item` the key of the item.
    """
    sequence = record["dynamodb"]["SequenceNumber"]
    return {
        "SequenceNumber": sequence,
        "ApproximateArrivalTimestamp": created_s(record),
        "Data": b64encode(data_of(record)).decode("ascii"),
        "PartitionKey": key_of_item(record) if keyed_by_item else sequence,
    }


def _change(change: Mapping[str, Any]) -> str:
    """Return the JSON for the member `dynamodb` of a record: time, keys, images and sequence number of the change."""
    parts = []
    if (created := change.get("ApproximateCreationDateTime")) is not None:
        parts.append(f'"ApproximateCreationDateTime":{round(float(created) * 1000)}')
    parts += [f'"{name}":' + _map(change[name]) for name in _IMAGES if change.get(name) is not None]
    if (sequence := change.get("SequenceNumber")) is not None:
        parts.append('"SequenceNumber":' + _text(sequence))
    if (size := change.get("SizeBytes")) is not None:
        parts.append(f'"SizeBytes":{int(size)}')
    if (view := change.get("StreamViewType")) is not None:
        parts.append('"StreamViewType":' + _text(view))
    return "{" + ",".join(parts) + "}"


def _map(values: Mapping[str, Any]) -> str:
    """Return the JSON for a map of attribute values, in the order of Java's HashMap."""
    return "{" + ",".join(f"{_text(name)}:{_value(values[name])}" for name in in_java_order(values)) + "}"


def _value(value: Mapping[str, Any]) -> str:
    """Return the JSON for one attribute value, ``{"S": …}``. Binary values are already base64 in the answer."""
    ((kind, inner),) = value.items()
    match kind:
        case "M":
            text = _map(inner)
        case "L":
            text = "[" + ",".join(map(_value, inner)) + "]"
        case "SS" | "NS" | "BS":
            text = "[" + ",".join(map(_text, inner)) + "]"
        case "BOOL" | "NULL":
            text = "true" if inner else "false"
        case _:
            text = _text(inner)
    return f'{{"{kind}":{text}}}'


def _object(*pairs: tuple[str, str | None]) -> str:
    """Return the JSON for an object with these texts, without those that are None."""
    return "{" + ",".join(f'"{name}":{_text(value)}' for name, value in pairs if value is not None) + "}"


def _text(text: str) -> str:
    """Return a text as a JSON string as Jackson writes it: not restricted to ASCII, and with upper-case hex digits in
    the escapes of control characters (`\\u001F`).
    """
    if not isinstance(text, str):
        raise TypeError(f"{text!r} is no text")
    return _CONTROL.sub(lambda found: "\\u00" + found[1].upper(), json.dumps(text, ensure_ascii=False))


def in_java_order(names: Iterable[str]) -> list[str]:
    """Return the keys in the order in which a HashMap of Java yields them after they were put into it in this order.

    A HashMap yields its keys slot by slot. The hash of a key decides its slot; keys in one slot stay in the order in
    which they came. The number of slots doubles whenever more than `_LOAD` of them would be used.
    """
    keys = list(dict.fromkeys(names))
    size = _TABLE_MIN
    while len(keys) > size * _LOAD:
        size *= 2
    return sorted(keys, key=lambda key: _spread(key) & (size - 1))


def _spread(text: str) -> int:
    """Return the hash that Java's HashMap uses for a String: `hashCode()`, its upper half mixed into the lower."""
    value = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for unit in range(0, len(encoded), 2):  # over UTF-16 code units, as Java does
        value = (31 * value + (encoded[unit] << 8) + encoded[unit + 1]) & _HASH_MASK
    return value ^ (value >> 16)
