"""What DynamoDB charges for a request, in read and write units. Pure.

A write unit covers 1 KB of the larger of the item before and after, refused or not; a read unit covers 4 KB, half a
unit if the read is eventually consistent. GetItem is charged by the item, Query and Scan by the bytes of a whole page
before filters and projections, rounded up once; each costs one unit at least, half if eventually consistent. An index
is written, and charged, only when an attribute that it shows has changed; a change of its key is two writes.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping
from typing import Any

WRITE_UNIT_BYTES = 1024
READ_UNIT_BYTES = 4096
EVENTUALLY_CONSISTENT = 0.5
TRANSACTION = 2.0
NUMBER_BYTES_BASE = 1  # a number takes about a byte for two significant digits, and one more
CONTAINER_BYTES = 3
ELEMENT_BYTES = 1

Item = Mapping[str, Mapping[str, Any]]


def item_bytes(item: Item) -> int:
    """The size of an item: names and values in UTF-8, numbers and containers by AWS's rules of thumb."""
    return sum(len(name.encode()) + _value_bytes(value) for name, value in item.items())


def write_units(before: Item, after: Item) -> int:
    """Of one write to the table itself."""
    return max(1, math.ceil(max(item_bytes(before), item_bytes(after)) / WRITE_UNIT_BYTES))


def index_write_units(before: Item, after: Item) -> int:
    """Of what a write changes in an index; both are the item as the index shows it, {} for not at all."""
    return sum(max(1, math.ceil(item_bytes(item) / WRITE_UNIT_BYTES)) for item in (before, after) if item)


def read_units(items: Iterable[Item], *, consistent: bool) -> float:
    """Of one page that was read, whatever of it was returned."""
    units = max(1, math.ceil(sum(map(item_bytes, items)) / READ_UNIT_BYTES))
    return units * (1.0 if consistent else EVENTUALLY_CONSISTENT)


def _value_bytes(value: Mapping[str, Any]) -> int:
    ((kind, content),) = value.items()
    match kind:
        case "S":
            return len(content.encode())
        case "N":
            return _number_bytes(content)
        case "B":
            return len(content if isinstance(content, bytes) else base64.b64decode(content))
        case "SS":
            return sum(len(text.encode()) for text in content)
        case "NS":
            return sum(map(_number_bytes, content))
        case "L":
            return CONTAINER_BYTES + sum(ELEMENT_BYTES + _value_bytes(element) for element in content)
        case "M":
            return CONTAINER_BYTES + sum(
                ELEMENT_BYTES + len(name.encode()) + _value_bytes(element) for name, element in content.items()
            )
    return 1  # BOOL and NULL


def _number_bytes(text: str) -> int:
    digits = text.lower().partition("e")[0].replace(".", "").lstrip("-").strip("0")
    return NUMBER_BYTES_BASE + math.ceil(len(digits) / 2) + text.startswith("-")
