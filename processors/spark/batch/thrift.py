"""Encodes page headers and the footer of a Parquet file, in the part of Thrift's compact protocol that they need.

It cannot decode. A child uses this module, so it is quick to import.
Source: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from typing import Any

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
Field = tuple[int, int, Any]
"""The number of a field, its type, and its value. The value is a number, a text, an `encoded` struct, or for a list the
type of its elements and their values.
"""
_SHORT_LIST = 15


def encoded(*fields: Field) -> bytes:
    """Encode the fields of a struct. They must be in the order of their numbers, each at most 15 above the one before.
    A field begins with a byte that has this difference and the type; a zero byte ends the struct.
    """
    out, last = bytearray(), 0
    for number, kind, value in fields:
        out.append((number - last) << 4 | kind)
        out += _value(kind, value)
        last = number
    return bytes(out) + b"\0"


def _value(kind: int, value: Any) -> bytes:
    """Encode a value of the type `kind`. That of a list is a pair: the type of its elements, and the elements."""
    if kind in (I32, I64):
        return varint(value << 1 ^ value >> 63)  # zigzag: 0, -1, 1, -2, … become 0, 1, 2, 3, …
    if kind == BINARY:
        text: bytes = value.encode()
        return varint(len(text)) + text
    if kind == STRUCT:
        return bytes(value)
    of, values = value
    count = len(values)
    head = bytes((count << 4 | of,)) if count < _SHORT_LIST else bytes((0xF0 | of,)) + varint(count)
    return head + b"".join(_value(of, one) for one in values)


def varint(value: int) -> bytes:
    """Encode a number that is not negative."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
