"""Builds KPL aggregates (retrieval#aggregate-layout) from user records."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

MAGIC = b"\xf3\x89\x9a\xc2"


@dataclass(frozen=True, slots=True)
class User:
    """A user record as its producer writes it."""

    partition_key: str
    data: bytes
    explicit_hash_key: str | None = None


def aggregate(users: Sequence[User]) -> bytes:
    """The payload of one Kinesis record, as the KPL makes it."""
    keys = list(dict.fromkeys(user.partition_key for user in users))
    hash_keys = list(dict.fromkeys(user.explicit_hash_key for user in users if user.explicit_hash_key is not None))
    message = b"".join(field(1, key.encode()) for key in keys)
    message += b"".join(field(2, key.encode()) for key in hash_keys)
    for user in users:
        content = number(1, keys.index(user.partition_key))
        if user.explicit_hash_key is not None:
            content += number(2, hash_keys.index(user.explicit_hash_key))
        message += field(3, content + field(3, user.data))
    return sealed(message)


def sealed(message: bytes) -> bytes:
    """Any message between the magic and its digest."""
    return MAGIC + message + hashlib.md5(message).digest()


def field(field_number: int, content: bytes) -> bytes:
    return varint(field_number << 3 | 2) + varint(len(content)) + content


def number(field_number: int, value: int) -> bytes:
    return varint(field_number << 3) + varint(value)


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
