"""What of Thrift's compact protocol the head of a page and the foot of a Parquet file need, to be written.

Source: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from collections.abc import Sequence

Field = tuple[int, int, bytes]
"""Number, type, and the value as it is written."""
_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12
_SHORT_LIST = 15


def struct(*fields: Field) -> bytes:
    """Encode fields in the order of their numbers, of which none is more than 15 after the one before."""
    out, last = bytearray(), 0
    for number, kind, value in fields:
        out.append((number - last) << 4 | kind)
        out += value
        last = number
    return bytes(out) + b"\0"


def i32(number: int, value: int) -> Field:
    return number, _I32, _zigzag(value)


def i64(number: int, value: int) -> Field:
    return number, _I64, _zigzag(value)


def text(number: int, value: str) -> Field:
    return number, _BINARY, _text(value)


def inner(number: int, value: bytes) -> Field:
    """Return a struct in a field."""
    return number, _STRUCT, value


def structs(number: int, values: Sequence[bytes]) -> Field:
    return number, _LIST, _list(_STRUCT, values)


def i32s(number: int, values: Sequence[int]) -> Field:
    return number, _LIST, _list(_I32, [_zigzag(value) for value in values])


def texts(number: int, values: Sequence[str]) -> Field:
    return number, _LIST, _list(_BINARY, [_text(value) for value in values])


def _list(kind: int, values: Sequence[bytes]) -> bytes:
    count = len(values)
    head = bytes((count << 4 | kind,)) if count < _SHORT_LIST else bytes((0xF0 | kind,)) + varint(count)
    return head + b"".join(values)


def _text(value: str) -> bytes:
    data = value.encode()
    return varint(len(data)) + data


def _zigzag(value: int) -> bytes:
    return varint(value << 1 ^ value >> 63)


def varint(value: int) -> bytes:
    """Encode a number of at least 0."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and how many bytes it takes."""
    value = width = 0
    while True:
        byte = data[at + width]
        value |= (byte & 0x7F) << 7 * width
        width += 1
        if byte < 0x80:
            return value, width
