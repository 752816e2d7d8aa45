"""How large DynamoDB takes an item to be, from above, and what still fits into the write units that it costs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

WRITE_UNIT_BYTES = 1024
CONTAINER_BYTES = 3
ELEMENT_BYTES = 1
NUMBER_BYTES_MAX = 21
OTHER_BYTES = 1  # BOOL and NULL


def item_bytes(item: Mapping[str, Mapping[str, Any]], without: Collection[str] = ()) -> int:
    """The size of an item without some attributes: names, and values by AWS's rules of thumb, numbers rounded up."""
    return sum(_bytes(name) + _value_bytes(value) for name, value in item.items() if name not in without)


def room_for(item: Mapping[str, Mapping[str, Any]], name: str, reserve: int) -> int:
    """How long a binary attribute `name` may be, so that writing the item costs no unit more than without it.

    `reserve`: bytes by which the rest may grow until it is written again.
    """
    size = item_bytes(item, without=(name,)) + reserve
    return max(0, -size % WRITE_UNIT_BYTES - _bytes(name))


def _bytes(text: object) -> int:
    return len(str(text).encode())


def _value_bytes(value: Mapping[str, Any]) -> int:
    return sum(_content_bytes(kind, content) for kind, content in value.items())


def _content_bytes(kind: str, content: Any) -> int:
    match kind:
        case "S":
            return _bytes(content)
        case "B":
            return len(content)
        case "N":
            return min(NUMBER_BYTES_MAX, 2 + (len(str(content)) + 1) // 2)
        case "L":
            return CONTAINER_BYTES + sum(ELEMENT_BYTES + _value_bytes(one) for one in content)
        case "M":
            return CONTAINER_BYTES + sum(
                ELEMENT_BYTES + _bytes(name) + _value_bytes(one) for name, one in content.items()
            )
        case "SS" | "NS" | "BS":
            return sum(len(one) if isinstance(one, bytes) else _bytes(one) for one in content)
    return OTHER_BYTES
