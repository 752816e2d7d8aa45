"""`kinesis_record`: a change of a DynamoDB table as the record that a child gets: the JSON of Amazon's adapter for the
KCL, byte for byte.

Rule: retrieval#records-of-dynamodb. The adapter's multi-language daemon writes each record with Jackson: fields in the
order in which Jackson finds them, maps in the order of Java's HashMap, text in UTF-8, binary values in base64, the time
in milliseconds, and no nulls. Children that compare or hash these bytes see no difference.
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
_CONTROL = re.compile(r"\\u00([01][0-9a-f])")
_TABLE_MIN = 16
_LOAD = 0.75
_HASH_MASK = 0xFFFFFFFF


def data_of(record: Mapping[str, Any]) -> bytes:
    """Return the data of one record of an answer, as the API writes it. Raises KeyError, TypeError or ValueError."""
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
    """Return the primary key of the changed item as text: JSON with sorted names, the same for all its changes."""
    keys = record["dynamodb"].get("Keys")
    return "" if keys is None else json.dumps(keys, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def kinesis_record(record: Mapping[str, Any], *, keyed_by_item: bool = False) -> dict[str, Any]:
    """Return the record in the form of Kinesis's GetRecords. Its partition key is the sequence number, as with Amazon's
    adapter, or the key of the item. Raises KeyError, TypeError or ValueError.
    """
    sequence = record["dynamodb"]["SequenceNumber"]
    return {
        "SequenceNumber": sequence,
        "ApproximateArrivalTimestamp": created_s(record),
        "Data": b64encode(data_of(record)).decode("ascii"),
        "PartitionKey": key_of_item(record) if keyed_by_item else sequence,
    }


def _change(change: Mapping[str, Any]) -> str:
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
    return "{" + ",".join(f"{_text(name)}:{_value(values[name])}" for name in in_java_order(values)) + "}"


def _value(value: Mapping[str, Any]) -> str:
    """Return one attribute value, ``{"S": …}``. Binary values are base64 in the answer already."""
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
    return "{" + ",".join(f'"{name}":{_text(value)}' for name, value in pairs if value is not None) + "}"


def _text(text: str) -> str:
    """Encode a text as Jackson does: in UTF-8, with control characters that have no letter of their own as upper-case
    hex.
    """
    if not isinstance(text, str):
        raise TypeError(f"{text!r} is no text")
    return _CONTROL.sub(lambda found: "\\u00" + found[1].upper(), json.dumps(text, ensure_ascii=False))


def in_java_order(names: Iterable[str]) -> list[str]:
    """Return the order in which Java's HashMap returns keys that were put in this order."""
    keys = list(dict.fromkeys(names))
    size = _TABLE_MIN
    while len(keys) > size * _LOAD:
        size *= 2
    return sorted(keys, key=lambda key: _spread(key) & (size - 1))


def _spread(text: str) -> int:
    """Return Java's hash of a String, as HashMap spreads it."""
    value = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for unit in range(0, len(encoded), 2):
        value = (31 * value + (encoded[unit] << 8) + encoded[unit + 1]) & _HASH_MASK
    return value ^ (value >> 16)
