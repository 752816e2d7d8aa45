"""KPL aggregates: one Kinesis record that holds many user records. Pure.

Rules: retrieval#hash-range-rule (the range comes from the lease) and retrieval#malformed-aggregates (an aggregate is
parsed as a whole first; one that cannot be used is delivered as it came, and nothing of it is lost).

The protobuf parser is our own. To the child's line a user record of 100 bytes takes 2.1 us with it; with the compiled
`protobuf` it would take 1.6, which is not worth a dependency. It accepts what Java's accepts: unknown fields are
skipped, the last one of a repeated single field counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import md5
from typing import TypeAlias

from mld.streams import HASH_KEY_MAX, HashRange, Misrouted
from protocol.messages import Record

MAGIC = b"\xf3\x89\x9a\xc2"
DIGEST_BYTES = 16
GROUP_DEPTH_MAX = 100
"""Java's limit for nested messages."""
HASH_KEY_DIGITS_MAX = 39
"""Of 2**128 - 1; a longer number lies outside every range and is not worth converting."""

_PARTITION_KEY_TABLE, _EXPLICIT_HASH_KEY_TABLE, _RECORDS = 0x0A, 0x12, 0x1A  # tags: number << 3 | wire type
_PARTITION_KEY_INDEX, _EXPLICIT_HASH_KEY_INDEX, _DATA, _TAGS = 0x08, 0x10, 0x1A, 0x22
_TAG_KEY = 0x0A
_VARINT_BITS_MAX = 70
_UINT32 = 2**32 - 1
_UINT64 = 2**64 - 1
_INT32_MAX = 2**31 - 1
_ABSENT = -1
_HASH_KEY = re.compile(r"([+-]?)0*([0-9]+)", re.ASCII)
_EVERYTHING = HashRange(0, HASH_KEY_MAX)

Entry: TypeAlias = tuple[int, int, int, int]
"""A user record: index of its partition key, index of its explicit hash key (-1: none), start and end of its data."""


class MalformedAggregateError(ValueError):
    """The digest is right, but the content cannot be understood; the text says why."""


class MisroutedAggregateError(Exception):
    """The aggregate was built for another shard: nothing of it is delivered."""

    def __init__(self, misrouted: Misrouted) -> None:
        super().__init__(f"user record {misrouted.sub_sequence} belongs to another shard")
        self.misrouted = misrouted


def bears_magic(record: Record) -> bool:
    """Whether the record may be an aggregate: the cheap test that every record has to pass."""
    return record.data.startswith(MAGIC)


def user_records(record: Record, hash_range: HashRange | None) -> Sequence[Record]:
    """What the producer wrote: the user records of an aggregate, or the record itself if it is none.

    Raises MisroutedAggregateError if one of them does not belong into `hash_range` (None: unknown): nothing of it may
    be delivered then, as the producer, who built it for another shard, sends them all again. Raises
    MalformedAggregateError.
    """
    data = record.data
    start, end = len(MAGIC), len(data) - DIGEST_BYTES
    if end <= start or not data.startswith(MAGIC):
        return (record,)
    if md5(memoryview(data)[start:end], usedforsecurity=False).digest() != data[end:]:
        return (record,)
    keys, hash_keys, entries = _parse(data, start, end)
    _require_in_range(keys, hash_keys, entries, hash_range)
    texts = [key.decode("utf-8", "replace") for key in keys]
    sequence, arrival_ms = record.sequence_number, record.approximate_arrival_ms
    return [
        Record(data[first:last], texts[key], sequence, sub, arrival_ms)
        for sub, (key, _, first, last) in enumerate(entries)
    ]


# --- hash keys -------------------------------------------------------------------------------------------------------


def _require_in_range(
    keys: list[bytes], hash_keys: list[bytes], entries: list[Entry], hash_range: HashRange | None
) -> None:
    """All user records lie in the range. In order: what comes after one that does not is not looked at."""
    for key, explicit in dict.fromkeys([entry[:2] for entry in entries]):
        if key >= len(keys) or explicit >= len(hash_keys):
            raise MalformedAggregateError("a key's index is beyond its table")
        if explicit != _ABSENT:
            hash_key = _explicit_hash_key(hash_keys[explicit])
        elif hash_range in (None, _EVERYTHING):
            continue
        else:
            hash_key = _hash_of(keys[key])
        if hash_range is not None and not hash_range.start <= hash_key <= hash_range.end:
            sub_sequence = next(sub for sub, entry in enumerate(entries) if entry[:2] == (key, explicit))
            raise MisroutedAggregateError(
                Misrouted(
                    user_records=len(entries),
                    sub_sequence=sub_sequence,
                    hash_key=hash_key,
                    is_explicit=explicit != _ABSENT,
                    key_bytes=len(keys[key]),
                )
            )


def _hash_of(key: bytes) -> int:
    replaced = key.decode("utf-8", "replace").encode()
    return int.from_bytes(md5(replaced, usedforsecurity=False).digest())


def _explicit_hash_key(key: bytes) -> int:
    match = _HASH_KEY.fullmatch(key.decode("utf-8", "replace"))
    if match is None:
        raise MalformedAggregateError("an explicit hash key is not a decimal number")
    sign, digits = match.groups()
    number = int(digits) if len(digits) <= HASH_KEY_DIGITS_MAX else HASH_KEY_MAX + 1
    return -number if sign == "-" else number


# --- protobuf --------------------------------------------------------------------------------------------------------


def _parse(data: bytes, position: int, end: int) -> tuple[list[bytes], list[bytes], list[Entry]]:
    """The tables and the user records of an AggregatedRecord, which is `data[position:end]`.

    A number may be read past `end`, but not past the data, as the digest follows; what crosses an end is refused.
    """
    keys: list[bytes] = []
    hash_keys: list[bytes] = []
    entries: list[Entry] = []
    while position < end:
        tag, position = _tag(data, position)
        if tag == _RECORDS:
            first, position = _length_delimited(data, position, end)
            entries.append(_entry(data, first, position))
        elif tag == _PARTITION_KEY_TABLE:
            first, position = _length_delimited(data, position, end)
            keys.append(data[first:position])
        elif tag == _EXPLICIT_HASH_KEY_TABLE:
            first, position = _length_delimited(data, position, end)
            hash_keys.append(data[first:position])
        else:
            position = _skip(data, position, end, tag)
    return keys, hash_keys, entries


def _entry(data: bytes, position: int, end: int) -> Entry:
    key = explicit = start = stop = _ABSENT
    while position < end:
        tag = data[position]
        position += 1
        if tag >= 0x80:
            tag, position = _tag(data, position - 1)
        if tag == _PARTITION_KEY_INDEX:
            key, position = _number(data, position, end)
        elif tag == _EXPLICIT_HASH_KEY_INDEX:
            explicit, position = _number(data, position, end)
        elif tag == _DATA:
            start, position = _length_delimited(data, position, end)
            stop = position
        elif tag == _TAGS:
            start_of_tag, position = _length_delimited(data, position, end)
            _require_key_of_tag(data, start_of_tag, position)
        else:
            position = _skip(data, position, end, tag)
    if key == _ABSENT or start == _ABSENT:
        raise MalformedAggregateError("a user record without partition key or data")
    return key, explicit, start, stop


def _require_key_of_tag(data: bytes, position: int, end: int) -> None:
    found = False
    while position < end:
        tag, position = _tag(data, position)
        found |= tag == _TAG_KEY
        position = _skip(data, position, end, tag)
    if not found:
        raise MalformedAggregateError("a tag without key")


def _tag(data: bytes, position: int) -> tuple[int, int]:
    tag = data[position]
    if tag < 0x80:
        return tag, position + 1
    tag, position = _varint(data, position)
    return tag & _UINT32, position


def _number(data: bytes, position: int, end: int) -> tuple[int, int]:
    number = data[position]
    position += 1
    if number >= 0x80:
        number, position = _varint(data, position - 1)
    if position > end:
        raise MalformedAggregateError("a number is cut off")
    return number, position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, _VARINT_BITS_MAX, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _UINT64, position
    raise MalformedAggregateError("a number of more than ten bytes")


def _length_delimited(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Start and end of a field's content."""
    length = data[position]
    position += 1
    if length >= 0x80:
        length, position = _varint(data, position - 1)
        length &= _UINT32
    if length > _INT32_MAX or position + length > end:
        raise MalformedAggregateError("a field is cut off")
    return position, position + length


def _skip(data: bytes, position: int, end: int, tag: int) -> int:
    """The end of a field that nobody needs, groups and all that is in them included. Cases are wire types."""
    groups: list[int] = []
    while True:
        number, wire_type = tag >> 3, tag & 7
        if number == 0:
            raise MalformedAggregateError("a field without number")
        match wire_type:
            case 0:
                _, position = _varint(data, position)
            case 1:
                position += 8
            case 2:
                _, position = _length_delimited(data, position, end)
            case 3:
                groups.append(number)
            case 4:
                if not groups or groups.pop() != number:
                    raise MalformedAggregateError("the end of a group that was not begun")
            case 5:
                position += 4
            case _:
                raise MalformedAggregateError(f"wire type {wire_type}")
        if position > end or len(groups) > GROUP_DEPTH_MAX or (groups and position == end):
            raise MalformedAggregateError("a field is cut off")
        if not groups:
            return position
        tag, position = _tag(data, position)
