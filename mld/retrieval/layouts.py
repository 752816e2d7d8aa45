"""`RecordLayout`: patterns that read all records of a GetRecords answer that are written alike. Pure.

Rules: AWS JSON 1.1; protocol#record-fields (what a child gets). A service writes all its records in the same way, which
is called a layout here. `columns_of` reads any record field by field. `source_of_layout` and `compiled` make the
patterns for records that are written like this one.
"""

from __future__ import annotations

import json
import math
import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quote
from typing import NamedTuple

from mld.retrieval.json_scan import ARRAY, BACKSLASH, OBJECT, QUOTE
from mld.retrieval.pieces import FRAME_IN_BASE64, MAGIC_IN_BASE64, NO_KEY, Columns

LAYOUTS_KEPT_MAX = 64
"""Most compiled layouts that are kept for the next bodies. A service has one, and another one for encrypted streams."""
ARRIVAL_UNKNOWN = b"0"
"""Arrival time in milliseconds for a record that has none; only stand-ins of Kinesis have such records.

Children compute with the field, so it must not be null. A 0 cannot be mistaken for a real time, but our own time
could.
"""
_SINGLE_DATA = b"(?!" + MAGIC_IN_BASE64.pattern + b")"
_PLAIN_DATA = b"(?!" + MAGIC_IN_BASE64.pattern + b"|" + FRAME_IN_BASE64.pattern + b")"

_SECONDS_MAX = 253_402_300_800  # the year 10000
_E9_DIGITS = 12  # digits after the point in 1.763661600123E9: the milliseconds without their first digit
_TIME = "ApproximateArrivalTimestamp"
_COLUMN_NAMES = ("PartitionKey", "SequenceNumber", _TIME)

_comma = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*").match
_sequence = re.compile(rb'"([0-9]+)"').fullmatch
_e9_time = re.compile(rb"([1-9])\.[0-9]{1,12}E9").fullmatch
_plain_time = re.compile(rb"[1-9][0-9]{0,11}(?:\.[0-9]{1,3})?").fullmatch
_PLAIN_KEY = rb'"[ !#-\[\]-~]*"'  # has no escapes, and no characters that the child's line would have to escape
_plain_key = re.compile(_PLAIN_KEY).fullmatch
_PLAIN_TEXT = rb'"[^"\\\x00-\x1f]*"'
_plain_text = re.compile(_PLAIN_TEXT).fullmatch
_NUMBER = rb"-?[0-9][0-9.eE+-]*"
_WORD = rb"(?:true|false|null)"


class Member(NamedTuple):
    """Where the value of a field begins and ends in the body."""

    start: int
    end: int


def columns_of(body: bytes, members: dict[str, Member]) -> Columns:
    """Return the four fields of a record for the child's line.

    Raises ValueError for a record that Kinesis cannot have sent.
    """

    def text(name: str) -> bytes:
        """Return the bytes of a text in the record, with its quotes. Raises ValueError if there is no such text."""
        if name not in members:
            raise ValueError(f"a record without {name}")
        start, end = members[name]
        if body[start] != QUOTE:
            raise ValueError(f"{name} of a record is no text")
        return body[start:end]

    time, key = members.get(_TIME), members.get("PartitionKey")
    return Columns(
        _data(text("Data")),
        NO_KEY if key is None or body[key.start : key.end] == b"null" else _key(text("PartitionKey")),
        _digits(text("SequenceNumber")),
        ARRIVAL_UNKNOWN if time is None else _arrival_ms(body[time.start : time.end]),
    )


def _data(text: bytes) -> bytes:
    """Return the base64 text of a payload, given with its quotes, without them. If it is not plain, decode it and
    encode it again.
    """
    if BACKSLASH not in text and len(text) % 4 == 2:  # base64 and the two quotes
        return text[1:-1]
    return b2a_base64(a2b_base64(json.loads(text.decode())), newline=False)


def _key(text: bytes) -> bytes:
    """Return a partition key as JSON text in ASCII."""
    return text if _plain_key(text) else quote(json.loads(text.decode())).encode()


def _digits(text: bytes) -> bytes:
    """Return a sequence number without quotes. Raises ValueError."""
    digits: str = json.loads(text.decode())
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"not a sequence number: {digits!r}")
    return digits.encode()


def _arrival_ms(text: bytes) -> bytes:
    """Return the time in milliseconds: rounded to the microsecond, as the SDK does, then half up to the millisecond."""
    if text == b"null":
        return ARRIVAL_UNKNOWN
    if _e9_time(text):
        return text[:1] + _e9_millis(text[2:-2])
    if _plain_time(text):
        return _plain_millis(text)
    value = json.loads(text)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _SECONDS_MAX:
        raise ValueError(f"not an arrival time: {text[:40]!r}")
    fraction, seconds = math.modf(value)
    micros = int(seconds) * 1_000_000 + round(fraction * 1_000_000)
    return b"%d" % ((micros + 500) // 1000)


def _e9_millis(digits: bytes) -> bytes:
    """Return milliseconds, but without their first digit, from the digits after the point in 1.763661600123E9.

    The service omits zeros at the end.
    """
    return digits.ljust(_E9_DIGITS, b"0")


def _plain_millis(text: bytes) -> bytes:
    """Return milliseconds of a time like 1763661600.123."""
    seconds, _, fraction = text.partition(b".")
    return seconds + fraction.ljust(3, b"0")


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """The way in which a service writes its records: patterns to read them, and which groups hold a record's fields.

    Each pattern but `to_next` has `groups` groups, and each but `head` begins at the quote that ends a payload:

    - `head` matches from the start of a record through the quote that begins its payload;
    - `to_any` matches through the quote that begins the next payload;
    - `to_plain` does so unless the next payload may be an aggregate or have a schema frame;
    - `to_single` does so unless the next payload may be an aggregate;
    - `to_end` matches through the end of the array;
    - `to_next` matches up to the start of the next record.

    The groups of a match hold the fields of the record that ends there, then those of the record that begins there. The
    groups of all matches are put in one row, which begins with the groups of `head`. In this row, `key` (None: no
    record has a key), `sequence` and `time` are the indexes of the first record's fields; each further record is
    `groups` later. An arrival time is `time_head`, followed by the group if it has `time_chars` characters, else by
    `time_fill(group)`.
    """

    head: re.Pattern[bytes]
    to_plain: re.Pattern[bytes]
    to_single: re.Pattern[bytes]
    to_any: re.Pattern[bytes]
    to_end: re.Pattern[bytes]
    to_next: re.Pattern[bytes]
    groups: int
    key: int | None
    sequence: int
    time: int
    time_head: bytes
    time_chars: int
    time_fill: Callable[[bytes], bytes]


class LayoutSource(NamedTuple):
    """What a layout is compiled from: the patterns for the text before the payload, after it and between two records,
    the names of the fields in their groups, and the beginning that all arrival times have.
    """

    head: bytes
    tail: bytes
    between: bytes
    names_in_head: tuple[str, ...]
    names_in_tail: tuple[str, ...]
    time_head: bytes


def source_of_layout(body: bytes, start: int, members: dict[str, Member], end: int) -> LayoutSource | None:
    """Return the layout of the record `body[start:end]`, whose fields are at the places `members`; None if the record
    is so unusual that a pattern made from it would rarely match.

    The text of the record becomes the pattern, with each value replaced by a pattern for all values of its field. The
    payload divides it into the part before the payload and the part after it.
    """
    parts: list[bytes] = []
    names: list[str] = []
    head: tuple[bytes, tuple[str, ...]] | None = None
    time_head = b""
    for name, member in members.items():
        literal = body[start : member.start]
        start = member.end
        if BACKSLASH in literal:
            return None
        parts.append(re.escape(literal))
        if name == "Data":
            head = b"".join(parts), tuple(names)
            parts, names = [], []
            continue
        value = body[member.start : member.end]
        if name == _TIME:
            time_head, pattern = _time_pattern(value)
        else:
            pattern = _pattern(name, value)
        if pattern is None:
            return None
        parts.append(pattern)
        if name in _COLUMN_NAMES:
            names.append(name)
    assert head is not None
    if _TIME not in members:  # an empty group stands for the missing time
        time_head = ARRIVAL_UNKNOWN
        parts.append(b"()")
        names.append(_TIME)
    parts.append(re.escape(body[start:end]))
    comma = _comma(body, end)
    between = b"," if comma is None else re.escape(comma[0])  # None: this is the last record of the array
    head_pattern, names_in_head = head
    return LayoutSource(head_pattern, b"".join(parts), between, names_in_head, tuple(names), time_head)


def _pattern(name: str, value: bytes) -> bytes | None:
    """Return the pattern for the values of a field, of which `value` is one; None if it is unusual."""
    if name == "PartitionKey":
        return b"(%b)" % _PLAIN_KEY if _plain_key(value) else None
    if name == "SequenceNumber":
        return b'"([0-9]+)"' if _sequence(value) else None
    if value[0] == QUOTE:
        return _PLAIN_TEXT if _plain_text(value) else None
    if value[0] in (OBJECT, ARRAY):
        return None
    return _WORD if value in (b"true", b"false", b"null") else _NUMBER


def _time_pattern(value: bytes) -> tuple[bytes, bytes | None]:
    """Return what the arrival times in milliseconds begin with, and the pattern of the values, whose group has the
    digits after that. The pattern is None if `value` is unusual.

    A time may be written as seconds with an exponent (`1.7000000001E9`). The digit before the point, which is the same
    in all records, is then the beginning. Other times have an empty beginning; that of null is ARRIVAL_UNKNOWN.
    """
    if value == b"null":
        return ARRIVAL_UNKNOWN, b"null()"  # the empty group stands for the missing digits
    if match := _e9_time(value):
        return match[1], match[1] + rb"\.([0-9]{1,12})E9"
    return b"", b"([1-9][0-9]{0,11}(?:\\.[0-9]{1,3})?)" if _plain_time(value) else None


@lru_cache(LAYOUTS_KEPT_MAX)
def compiled(source: LayoutSource) -> RecordLayout:
    """Return the layout with its patterns compiled. That takes about 0.3 ms, so the results are kept.

    A match between two payloads has the fields after the first payload in its first groups, and the fields before the
    second payload in its last groups. `head` and `to_end`, which lack one of these parts, get empty groups in its
    place, so that their groups have the same numbers.
    """
    opening = source.head + b'"'
    rest = b'"' + source.tail  # of a record, from the quote that ends its payload
    between = rest + source.between + opening
    tail, head = source.names_in_tail, source.names_in_head
    groups = len(tail) + len(head)
    # In the row of all groups, the first record's fields before its payload are in the match of `head`, after its empty
    # groups. Its fields after the payload are at the beginning of the next match.
    place = {name: groups + number for number, name in enumerate(tail)} | {
        name: len(tail) + number for number, name in enumerate(head)
    }
    is_e9 = source.time_head not in (b"", ARRIVAL_UNKNOWN)
    return RecordLayout(
        head=re.compile(b"()" * len(tail) + opening),
        to_plain=re.compile(between + _PLAIN_DATA),
        to_single=re.compile(between + _SINGLE_DATA),
        to_any=re.compile(between),
        to_end=re.compile(rest + rb"[ \t\r\n]*\]" + b"()" * len(head)),
        to_next=re.compile(rest + source.between),
        groups=groups,
        key=place.get("PartitionKey"),
        sequence=place["SequenceNumber"],
        time=place[_TIME],
        time_head=source.time_head,
        time_chars=_E9_DIGITS if is_e9 else 0,  # with 0, only the empty group of a missing time is left as it is
        time_fill=_e9_millis if is_e9 else _plain_millis,
    )
