"""How records are written in the body of a GetRecords answer: read once field by field, then by a pattern. Pure.

Rules: AWS JSON 1.1; protocol#record-fields (what a child gets). `columns_of` takes any record apart; `source_of_layout`
and `compiled` make a pattern from it for all that are written alike. A `Scan` finds where JSON values begin and end
without building them. It looks into a value only as far as that needs: strings end, brackets are balanced.
"""

from __future__ import annotations

import json
import math
import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quote
from typing import NamedTuple, NoReturn

from mld.retrieval.rawpage import FRAME_IN_BASE64, MAGIC_IN_BASE64, NO_KEY, Columns

QUOTE, BACKSLASH, COMMA, COLON = b'"\\,:'
ARRAY, ARRAY_END, OBJECT, OBJECT_END = b"[]{}"

_SPACES = b" \t\r\n"
_space = re.compile(rb"[ \t\r\n]*").match
_plain_name = re.compile(rb'"([A-Za-z0-9]+)":').match
_scalar = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null").match
_structure = re.compile(rb'["\[\]{}]').search

LAYOUTS_KEPT_MAX = 64
"""Layouts kept for the next bodies; a service has one, or one more for encrypted streams."""
ARRIVAL_UNKNOWN = b"0"
"""Milliseconds, sent for a record without an arrival time, which only stand-ins of Kinesis produce.

Children compute with the field, so it must not be null; and 0 can be told from a real time, while a clock could not.
"""
_SINGLE_DATA = b"(?!" + MAGIC_IN_BASE64.pattern + b")"
_PLAIN_DATA = b"(?!" + MAGIC_IN_BASE64.pattern + b"|" + FRAME_IN_BASE64.pattern + b")"

_SECONDS_MAX = 253_402_300_800  # the year 10000
_E9_DIGITS = 12  # of 1.763661600123E9 after the point: milliseconds without its first digit
_TIME = "ApproximateArrivalTimestamp"
_COLUMN_NAMES = ("PartitionKey", "SequenceNumber", _TIME)

_comma = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*").match
_sequence = re.compile(rb'"([0-9]+)"').fullmatch
_e9_time = re.compile(rb"([1-9])\.[0-9]{1,12}E9").fullmatch
_plain_time = re.compile(rb"[1-9][0-9]{0,11}(?:\.[0-9]{1,3})?").fullmatch
_PLAIN_KEY = rb'"[ !#-\[\]-~]*"'  # neither escapes nor anything that the child's line would have to escape
_plain_key = re.compile(_PLAIN_KEY).fullmatch
_PLAIN_TEXT = rb'"[^"\\\x00-\x1f]*"'
_plain_text = re.compile(_PLAIN_TEXT).fullmatch
_NUMBER = rb"-?[0-9][0-9.eE+-]*"
_WORD = rb"(?:true|false|null)"


class Scan:
    """A place in a body, and the steps over JSON from there. Each raises ValueError where the body is not JSON."""

    __slots__ = ("at", "body")

    def __init__(self, body: bytes, at: int = 0) -> None:
        self.body = body
        self.at = at

    def sees(self, byte: int) -> bool:
        """Return whether the next byte that is no white space is `byte`; skips the white space."""
        body = self.body
        if self.at < len(body):
            found = body[self.at]
            if found not in _SPACES:
                return found == byte
        match = _space(body, self.at)
        assert match is not None
        self.at = match.end()
        return self.at < len(body) and body[self.at] == byte

    def takes(self, byte: int) -> bool:
        found = self.sees(byte)
        self.at += found
        return found

    def expect(self, byte: int) -> None:
        if not self.takes(byte):
            self.fail(f"{chr(byte)} is missing")

    def expect_end(self) -> None:
        self.sees(COMMA)
        if self.at != len(self.body):
            self.fail("something follows")

    def fail(self, why: str) -> NoReturn:
        raise ValueError(f"not JSON at byte {self.at} of {len(self.body)}: {why}")

    def names(self, *, after_value: bool = False) -> Iterator[str]:
        """Yield the names of an object's members, from after its brace, or from after the value of one of them.

        The caller must step over the value of each.
        """
        if after_value:
            if not self.takes(COMMA):
                self.expect(OBJECT_END)
                return
        elif self.takes(OBJECT_END):
            return
        while True:
            if not self.sees(QUOTE):
                self.fail("a name is missing")
            yield self._name()
            if not self.takes(COMMA):
                self.expect(OBJECT_END)
                return

    def _name(self) -> str:
        plain = _plain_name(self.body, self.at)
        if plain is not None:
            self.at = plain.end()
            self.sees(QUOTE)
            return plain[1].decode()
        text = self.value()
        self.expect(COLON)
        self.sees(QUOTE)
        return str(json.loads(text.decode()))

    def value(self) -> bytes:
        """Return the text of the value that begins here; steps over it."""
        self.sees(QUOTE)
        start = self.at
        self.skip_value()
        return self.body[start : self.at]

    def skip_value(self) -> None:
        if self.sees(QUOTE):
            self._skip_string()
        elif self.sees(OBJECT) or self.sees(ARRAY):
            self._skip_nested()
        elif (match := _scalar(self.body, self.at)) is not None:
            self.at = match.end()
        else:
            self.fail("a value is missing")

    def _skip_string(self) -> None:
        """Step to the first quote after an even number of backslashes; `find` is much faster than a pattern."""
        body, end = self.body, self.at
        while True:
            end = body.find(b'"', end + 1)
            if end < 0:
                self.fail("a text does not end")
            before = end - 1
            while body[before] == BACKSLASH:
                before -= 1
            if (end - before) % 2:
                self.at = end + 1
                return

    def _skip_nested(self) -> None:
        """Step over an array or object that is not looked into; it need only be balanced."""
        depth = 0
        while True:
            match = _structure(self.body, self.at)
            if match is None:
                self.fail("a value does not end")
            self.at = match.start()
            mark = self.body[self.at]
            if mark == QUOTE:
                self._skip_string()
                continue
            self.at += 1
            depth += 1 if mark in (ARRAY, OBJECT) else -1
            if depth == 0:
                return


class Member(NamedTuple):
    """Where the value of a field stands."""

    start: int
    end: int


def columns_of(body: bytes, members: dict[str, Member]) -> Columns:
    def text(name: str) -> bytes:
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
    if BACKSLASH not in text and len(text) % 4 == 2:  # of the two quotes
        return text[1:-1]
    return b2a_base64(a2b_base64(json.loads(text.decode())), newline=False)


def _key(text: bytes) -> bytes:
    return text if _plain_key(text) else quote(json.loads(text.decode())).encode()


def _digits(text: bytes) -> bytes:
    digits: str = json.loads(text.decode())
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"not a sequence number: {digits!r}")
    return digits.encode()


def _arrival_ms(text: bytes) -> bytes:
    """Return the milliseconds, rounded to the microsecond as by the SDK, then to the millisecond, half up."""
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
    """Return milliseconds from the digits after the point in 1.763661600123E9; the service omits zeros at the end."""
    return digits.ljust(_E9_DIGITS, b"0")


def _plain_millis(text: bytes) -> bytes:
    """Return milliseconds of a time like 1763661600.123."""
    seconds, _, fraction = text.partition(b".")
    return seconds + fraction.ljust(3, b"0")


# --- layouts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """How a run of records is written: patterns, all with the same `groups` groups, and where a record's columns are.

    `head` matches from the start of a record through the quote that begins its payload. `to_any` matches from the quote
    that ends a payload through the quote that begins the next one; `to_plain` is the same, but not before an aggregate
    or a frame, `to_single` not before an aggregate; `to_end` goes through the end of the array, and `to_next` to where
    the next record begins. The groups of a match are columns of the record that ends there, then columns of the one
    that begins there: if those of all matches stand in a row, `head` included, the columns of the first record are at
    `key` (None: no record has one), `sequence` and `time`. An arrival time is `time_head`, then the group if it has
    `time_chars` characters, else `time_fill` of it.
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
    """What a layout is compiled from: patterns before and after the payload and between records; how times start."""

    head: bytes
    tail: bytes
    between: bytes
    names_in_head: tuple[str, ...]
    names_in_tail: tuple[str, ...]
    time_head: bytes


def source_of_layout(body: bytes, start: int, members: dict[str, Member], end: int) -> LayoutSource | None:
    """Return the layout of the record `body[start:end]`; None if a regular expression had better not try."""
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
    if _TIME not in members:
        time_head = ARRIVAL_UNKNOWN
        parts.append(b"()")
        names.append(_TIME)
    parts.append(re.escape(body[start:end]))
    comma = _comma(body, end)
    return LayoutSource(
        head[0], b"".join(parts), b"," if comma is None else re.escape(comma[0]), head[1], tuple(names), time_head
    )


def _pattern(name: str, value: bytes) -> bytes | None:
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
    if value == b"null":
        return ARRIVAL_UNKNOWN, b"null()"
    if match := _e9_time(value):
        return match[1], match[1] + rb"\.([0-9]{1,12})E9"
    return b"", b"([1-9][0-9]{0,11}(?:\\.[0-9]{1,3})?)" if _plain_time(value) else None


@lru_cache(LAYOUTS_KEPT_MAX)
def compiled(source: LayoutSource) -> RecordLayout:
    """Return the layout itself; making a new one takes some 0.3 ms."""
    opening = source.head + b'"'
    before = b'"' + source.tail
    between = before + source.between + opening
    tail, head = source.names_in_tail, source.names_in_head
    groups = len(tail) + len(head)
    place = {name: groups + number for number, name in enumerate(tail)} | {
        name: len(tail) + number for number, name in enumerate(head)
    }
    is_e9 = source.time_head not in (b"", ARRIVAL_UNKNOWN)
    return RecordLayout(
        head=re.compile(b"()" * len(tail) + opening),
        to_plain=re.compile(between + _PLAIN_DATA),
        to_single=re.compile(between + _SINGLE_DATA),
        to_any=re.compile(between),
        to_end=re.compile(before + rb"[ \t\r\n]*\]" + b"()" * len(head)),
        to_next=re.compile(before + source.between),
        groups=groups,
        key=place.get("PartitionKey"),
        sequence=place["SequenceNumber"],
        time=place[_TIME],
        time_head=source.time_head,
        time_chars=_E9_DIGITS if is_e9 else 0,
        time_fill=_e9_millis if is_e9 else _plain_millis,
    )
