"""`user_records`: takes KPL aggregates apart: Kinesis records that hold many user records each. Pure.

Rules: retrieval#hash-range-rule (the range comes from the lease) and retrieval#malformed-aggregates. An aggregate is
parsed as a whole before any user record is delivered. If it is malformed, the record is delivered unchanged, so nothing
is lost.

The protobuf parser is our own. It takes about a quarter of the 2 us that a user record of 100 bytes costs until it is
in the child's line; the compiled `protobuf` would not save enough to be worth a dependency. The parser accepts what
Java's parser accepts: it skips unknown fields, and if a single field is repeated, the last value counts.

Everybody who may write to the stream can write aggregates. Although an aggregate ends with a digest, a hostile producer
can make a small one that takes very long to parse, or one whose user records all repeat a large key. So there are
limits, far above anything that an honest producer makes. An aggregate that exceeds one counts as malformed. All work
whose amount depends on an aggregate is done in `Steps` of at most 2 ms.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from hashlib import md5
from itertools import islice
from json.encoder import encode_basestring_ascii as quote
from struct import Struct
from struct import error as StructError
from typing import TypeAlias

from mld.core.steps import Steps
from mld.core.streams import HASH_KEY_MAX, HashRange, Misrouted

MAGIC = b"\xf3\x89\x9a\xc2"
DIGEST_BYTES = 16
GROUP_DEPTH_MAX = 100
"""Java's limit for nested messages."""
HASH_KEY_DIGITS_MAX = 39
"""Digits of 2**128 - 1, the highest hash key. A longer number is outside every range, so it is not converted."""

KEY_CHARS_MAX = 256
"""Longest partition key, as in Kinesis and the KPL, and longest explicit hash key (39 digits, with zeros before
them)."""
USER_RECORDS_MAX = 1024 * 1024 // 6
"""Most user records in an aggregate, and most keys in one of its tables. The KPL's AggregationMaxSize is 51,200 bytes
by default and 1 MiB at most, and a user record without data takes 6 bytes. Kinesis accepts records of 10 MiB, but such
an aggregate reaches the limit only with user records below 54 bytes, keys not counted."""
FIELDS_MAX = 500
"""Most fields of one user record, including those of its tags and groups. The KPL writes two or three."""
EXPANSION_MAX = 80
"""How many times its own size an aggregate may grow in the child's line, not counting its payloads. User records of 100
bytes grow less than three times. The worst case below all other limits, empty user records of 6 bytes with one key of
256 letters, grows 76 times."""
USER_RECORD_FRAME_BYTES = 200
"""Bytes of a user record in the child's line besides payload and key."""

SLICE = 400
"""User records, keys or other fields that one step examines. Each takes about 1 us, those with the longest numbers
4 us."""
PACKED_MIN = SLICE // 2
"""Fewest user records that are packed into one list, even if many steps are needed to read them. Otherwise there could
be very many short lists, and some loops go over all lists in one step."""
OPENING = 10
"""Cost of opening an aggregate of any size, expressed as a number of user records to examine (SLICE)."""
DIGEST_SLICE_BYTES = 512 * 1024
"""Bytes that one step digests, in about 1 ms."""

_PARTITION_KEY_TABLE, _EXPLICIT_HASH_KEY_TABLE, _RECORDS = 0x0A, 0x12, 0x1A  # tags: number << 3 | wire type
_PARTITION_KEY_INDEX, _EXPLICIT_HASH_KEY_INDEX, _DATA, _TAGS = 0x08, 0x10, 0x1A, 0x22
_TAG_KEY = 0x0A
_VARINT_BITS_MAX = 70
_UINT32 = 2**32 - 1
_UINT64 = 2**64 - 1
_INT32_MAX = 2**31 - 1
_ABSENT = -1  # stands for a field that a user record does not have
_USUAL_HEAD_BYTES = 9  # three tags, two indexes below 16,384 and a length; producers never write more
_KEY_BYTES_MAX = 4 * KEY_CHARS_MAX
_KEY_IN_LINE_BYTES_MAX = 2 + 12 * KEY_CHARS_MAX  # two quotes, and two escapes of six bytes for a character
_HASH_KEY = re.compile(r"([+-]?)0*([0-9]+)", re.ASCII)
_EVERYTHING = HashRange(0, HASH_KEY_MAX)
_BEYOND = "a key's index is beyond its table"

Payload: TypeAlias = bytes | bytearray
Entry: TypeAlias = tuple[int, int, int, int]
"""A user record: index of its partition key, index of its explicit hash key (-1: none), start and end of its data."""
Entries: TypeAlias = list[bytes | list[Entry]]
"""User records in the order of the aggregate, as lists. All lists but the last are packed into bytes: as objects they
would take eight times the memory, and freeing them would take milliseconds."""
_ENTRY, _PLACE = Struct("4i"), Struct("2i")
TEXTS_MAX = 5_000
"""Most keys of a table that are kept as objects, because freeing more would take milliseconds, too."""
KEYS_KEPT = 64
"""Most keys kept as JSON text while the user records of one aggregate are framed."""
COPIED_BYTES_MAX = 64 * 1024
"""Larger payloads are not copied, to save time; a view is used."""


class MalformedAggregateError(ValueError):
    """The digest is right, but the content cannot be read or exceeds a limit; the text says why."""


class MisroutedAggregateError(Exception):
    """The aggregate was built for another shard, so none of its user records is delivered."""

    def __init__(self, misrouted: Misrouted) -> None:
        super().__init__(f"user record {misrouted.sub_sequence} belongs to another shard")
        self.misrouted = misrouted


class UserRecords:
    """The user records of one aggregate, beginning with sub-sequence number `first`."""

    __slots__ = ("_count", "_data", "_entries", "_first", "_keys")

    def __init__(self, data: Payload, keys: _Keys, entries: Entries, first: int = 0) -> None:
        self._data = data
        self._keys = keys
        self._entries = entries
        self._count = sum([_count(chunk) for chunk in entries])
        self._first = min(first, self._count)

    def after(self, sub: int) -> UserRecords:
        """Return the user records whose sub-sequence number is above `sub`."""
        return UserRecords(self._data, self._keys, self._entries, max(0, sub + 1))

    def __len__(self) -> int:
        return self._count - self._first

    @property
    def last(self) -> int:
        """The highest sub-sequence number."""
        return self._count - 1

    def columns(self) -> Iterator[tuple[Payload | memoryview, bytes, int]]:
        """Yield each user record: payload, partition key as JSON text, sub-sequence number."""
        data, keys, first = self._data, self._keys, self._first
        texts: dict[int, bytes] = {}  # JSON texts of the first KEYS_KEPT keys, by their index in the table
        chunk_end = 0
        for chunk in self._entries:
            chunk_start, chunk_end = chunk_end, chunk_end + _count(chunk)
            if chunk_end <= first:
                continue
            skipped = max(0, first - chunk_start)
            for sub, (key, _, start, end) in enumerate(islice(_unpacked(chunk), skipped, None), chunk_start + skipped):
                text = texts.get(key)
                if text is None:
                    text = quote(keys[key]).encode()
                    if len(texts) < KEYS_KEPT:
                        texts[key] = text
                yield (data if end - start <= COPIED_BYTES_MAX else memoryview(data))[start:end], text, sub


class _Keys:
    """A table of keys. The first TEXTS_MAX keys are kept as texts, later ones as places in the data."""

    __slots__ = ("_data", "_places", "_texts")

    def __init__(self, data: Payload) -> None:
        self._data = data
        self._texts: list[str] = []
        self._places = bytearray()

    def add(self, start: int, end: int) -> None:
        """Add the key at `data[start:end]`. Raises MalformedAggregateError if it is too long."""
        if end - start > _KEY_BYTES_MAX or len(text := self._text(start, end)) > KEY_CHARS_MAX:
            raise MalformedAggregateError(f"a key of more than {KEY_CHARS_MAX} characters")
        if len(self._texts) < TEXTS_MAX:
            self._texts.append(text)
        else:
            self._places += _PLACE.pack(start, end)

    def __len__(self) -> int:
        return len(self._texts) + len(self._places) // _PLACE.size

    def __getitem__(self, index: int) -> str:
        """Return the key with this index, which must be in the table."""
        if index < TEXTS_MAX:
            return self._texts[index]
        return self._text(*_PLACE.unpack_from(self._places, _PLACE.size * (index - TEXTS_MAX)))

    def _text(self, start: int, end: int) -> str:
        return self._data[start:end].decode("utf-8", "replace")


def _count(entries: bytes | list[Entry]) -> int:
    return len(entries) // _ENTRY.size if isinstance(entries, bytes) else len(entries)


def _unpacked(entries: bytes | list[Entry]) -> Iterable[Entry]:
    return _ENTRY.iter_unpack(entries) if isinstance(entries, bytes) else entries


class Work:
    """The work left in the present step, in units of SLICE. Many small aggregates share one step."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = SLICE


def user_records(data: Payload, hash_range: HashRange | None, work: Work) -> Steps[UserRecords | None]:
    """Return the user records in a record's payload; None if the record is not an aggregate. An aggregate begins with
    MAGIC and ends with the MD5 digest of everything in between, which is a protobuf message.

    Raises MisroutedAggregateError if a user record does not belong to `hash_range` (None: unknown). The aggregate was
    built for another shard then, and its producer sends all of it again, so no part of it may be delivered. Raises
    MalformedAggregateError if the aggregate cannot be read or exceeds a limit.
    """
    if work.left <= 0:
        yield
        work.left = SLICE
    work.left -= OPENING
    start, end = len(MAGIC), len(data) - DIGEST_BYTES
    if end <= start or not data.startswith(MAGIC):
        return None
    digest = md5(usedforsecurity=False)
    view = memoryview(data)
    for at in range(start, end, DIGEST_SLICE_BYTES):
        if at > start:
            yield
        digest.update(view[at : min(end, at + DIGEST_SLICE_BYTES)])
    if digest.digest() != data[end:]:
        return None
    try:
        keys, hash_keys, entries = yield from _parse(data, start, end, work)
    except IndexError:  # a number is cut off, and the digest after it happens to continue the number to the end
        raise MalformedAggregateError("a number is cut off") from None
    except StructError:
        raise MalformedAggregateError(_BEYOND) from None
    yield from _require_in_range(keys, hash_keys, entries, hash_range)
    yield from _require_bounded_line(keys, entries, EXPANSION_MAX * len(data))
    return UserRecords(data, keys, entries)


def _require_in_range(keys: _Keys, hash_keys: _Keys, entries: Entries, hash_range: HashRange | None) -> Steps[None]:
    """Check that all user records belong to the range: by their explicit hash key, or if they have none, by the MD5
    hash of their partition key. Only explicit hash keys are checked if the range is unknown or covers everything.

    Raises MisroutedAggregateError, which describes the first user record that does not belong to the range; but
    MalformedAggregateError if any user record is malformed.
    """
    misrouted: Misrouted | None = None
    before = 0  # how many user records the earlier chunks of `entries` have
    for number, chunk in enumerate(entries):
        if number:
            yield
        indexes = [entry[:2] for entry in _unpacked(chunk)]
        for key, explicit in dict.fromkeys(indexes):  # each pair of keys once, because many user records share it
            if key >= len(keys) or explicit >= len(hash_keys):
                raise MalformedAggregateError(_BEYOND)
            if explicit != _ABSENT:
                hash_key = _explicit_hash_key(hash_keys[explicit])
            elif hash_range in (None, _EVERYTHING) or misrouted:
                continue  # after the first misrouted user record, the rest is only checked for being well formed
            else:
                hash_key = int.from_bytes(md5(keys[key].encode(), usedforsecurity=False).digest())
            if hash_range is not None and not misrouted and not hash_range.start <= hash_key <= hash_range.end:
                misrouted = Misrouted(
                    user_records=sum([_count(part) for part in entries]),
                    sub_sequence=before + indexes.index((key, explicit)),
                    hash_key=hash_key,
                    is_explicit=explicit != _ABSENT,
                    key_bytes=len(keys[key].encode()),
                )
        before += len(indexes)
    if misrouted:
        raise MisroutedAggregateError(misrouted)


def _explicit_hash_key(key: str) -> int:
    """Return the hash key as a number. Raises MalformedAggregateError if the text is not one."""
    match = _HASH_KEY.fullmatch(key)
    if match is None:
        raise MalformedAggregateError("an explicit hash key is not a decimal number")
    sign, digits = match.groups()
    number = int(digits) if len(digits) <= HASH_KEY_DIGITS_MAX else HASH_KEY_MAX + 1
    return -number if sign == "-" else number


def _require_bounded_line(keys: _Keys, entries: Entries, bytes_max: int) -> Steps[None]:
    """Check that the user records take at most `bytes_max` bytes in the child's line, not counting payloads. `keys` are
    the aggregate's partition keys, to which `entries` refer by number.

    The user records are counted one by one only if there are enough of them to exceed the limit. Raises
    MalformedAggregateError.
    """
    if sum([_count(chunk) for chunk in entries]) * (USER_RECORD_FRAME_BYTES + _KEY_IN_LINE_BYTES_MAX) <= bytes_max:
        return
    sizes = array("i")
    for start in range(0, len(keys), SLICE):
        yield
        some_keys = range(start, min(len(keys), start + SLICE))
        sizes.extend([USER_RECORD_FRAME_BYTES + len(quote(keys[index])) for index in some_keys])
    total = 0
    for chunk in entries:
        yield
        total += sum([sizes[entry[0]] for entry in _unpacked(chunk)])
        if total > bytes_max:
            raise MalformedAggregateError(f"its user records would take more than {EXPANSION_MAX} times its size")


# --- protobuf --------------------------------------------------------------------------------------------------------


def _parse(data: Payload, position: int, end: int, work: Work) -> Steps[tuple[_Keys, _Keys, Entries]]:
    """Return both key tables and the user records of the AggregatedRecord in `data[position:end]`.

    A number may be read past `end`, into the digest, but a field that ends after `end` is refused. Raises IndexError if
    a number would go on after the end of the data, and StructError for an index that is too large for any table.
    """
    keys, hash_keys = _Keys(data), _Keys(data)
    entries: Entries = []
    count = 0
    # What is left of the present step is counted in a local variable. If parsing raises, `work` says that nothing is
    # left, so that the next aggregate begins with a new step.
    left, work.left = work.left, 0
    chunk: list[Entry] = []
    while True:  # once for each step
        while position < end and left > 0:
            left -= 1
            tag, position = _tag(data, position)
            if tag == _RECORDS:
                first, position = _length_delimited(data, position, end)
                entry = _usual_entry(data, first, position)
                if entry is None:
                    entry, fields = _entry(data, first, position)
                    left -= 2 * fields  # an unusual user record takes two units for each field
                chunk.append(entry)
            elif tag == _PARTITION_KEY_TABLE:
                first, position = _length_delimited(data, position, end)
                keys.add(first, position)
            elif tag == _EXPLICIT_HASH_KEY_TABLE:
                first, position = _length_delimited(data, position, end)
                hash_keys.add(first, position)
            else:
                position, fields = _skip(data, position, end, tag)
                left -= fields
        if max(count + len(chunk), len(keys), len(hash_keys)) > USER_RECORDS_MAX:
            raise MalformedAggregateError(f"more than {USER_RECORDS_MAX} user records or keys")
        if position >= end:
            work.left = left
            return keys, hash_keys, [*entries, chunk]
        if len(chunk) >= PACKED_MIN:
            count += len(chunk)
            entries.append(b"".join([_ENTRY.pack(*entry) for entry in chunk]))
            chunk = []
        yield
        left = SLICE


def _usual_entry(data: Payload, position: int, end: int) -> Entry | None:
    """Return the user record at `data[position:end]` if it is written as producers write it: each field once, in order,
    and no others.

    Return None if it is written otherwise, or if its numbers are so long that reading them takes more than one unit of
    SLICE.
    """
    first = position
    if data[position] != _PARTITION_KEY_INDEX:
        return None
    key, position = _number(data, position + 1, end)
    explicit = _ABSENT
    if data[position] == _EXPLICIT_HASH_KEY_INDEX:
        explicit, position = _number(data, position + 1, end)
    if data[position] != _DATA:
        return None
    start, stop = _length_delimited(data, position + 1, end)
    return (key, explicit, start, stop) if stop == end and start - first <= _USUAL_HEAD_BYTES else None


def _entry(data: Payload, position: int, end: int) -> tuple[Entry, int]:
    """Return the user record at `data[position:end]`, however it is written, and how many fields it has."""
    key = explicit = start = stop = _ABSENT
    fields = 0
    while position < end:
        tag, position = _tag(data, position)
        more = 1
        if tag == _PARTITION_KEY_INDEX:
            key, position = _number(data, position, end)
        elif tag == _EXPLICIT_HASH_KEY_INDEX:
            explicit, position = _number(data, position, end)
        elif tag == _DATA:
            start, position = _length_delimited(data, position, end)
            stop = position
        elif tag == _TAGS:
            start_of_tag, position = _length_delimited(data, position, end)
            more += _require_key_of_tag(data, start_of_tag, position)
        else:
            position, more = _skip(data, position, end, tag)
        fields = _bounded(fields + more)
    if key == _ABSENT or start == _ABSENT:
        raise MalformedAggregateError("a user record without partition key or data")
    return (key, explicit, start, stop), fields


def _require_key_of_tag(data: Payload, position: int, end: int) -> int:
    """Check that a tag of a user record (the KPL's message Tag) has a key. Return how many fields the tag has."""
    found = False
    fields = 0
    while position < end:
        tag, position = _tag(data, position)
        found |= tag == _TAG_KEY
        position, more = _skip(data, position, end, tag)
        fields = _bounded(fields + more)
    if not found:
        raise MalformedAggregateError("a tag without key")
    return fields


def _bounded(fields: int) -> int:
    """Return the number of fields. Raises MalformedAggregateError if there are too many."""
    if fields > FIELDS_MAX:
        raise MalformedAggregateError(f"more than {FIELDS_MAX} fields in a user record or a group")
    return fields


def _tag(data: Payload, position: int) -> tuple[int, int]:
    """Return the protobuf tag at `position` (field number and wire type), and where it ends."""
    tag = data[position]
    if tag < 0x80:
        return tag, position + 1
    tag, position = _varint(data, position)
    return tag & _UINT32, position


def _number(data: Payload, position: int, end: int) -> tuple[int, int]:
    """Return the number at `position`, and where it ends. Raises MalformedAggregateError if it goes beyond `end`."""
    number = data[position]
    position += 1
    if number >= 0x80:
        number, position = _varint(data, position - 1)
    if position > end:
        raise MalformedAggregateError("a number is cut off")
    return number, position


def _varint(data: Payload, position: int) -> tuple[int, int]:
    """Return the number of any length at `position`, and where it ends."""
    value = 0
    for shift in range(0, _VARINT_BITS_MAX, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _UINT64, position
    raise MalformedAggregateError("a number of more than ten bytes")


def _length_delimited(data: Payload, position: int, end: int) -> tuple[int, int]:
    """Return where the content of a field begins and ends. Its length is at `position`. Raises MalformedAggregateError
    if it goes beyond `end`.
    """
    length = data[position]
    position += 1
    if length >= 0x80:
        length, position = _varint(data, position - 1)
        length &= _UINT32
    if length > _INT32_MAX or position + length > end:
        raise MalformedAggregateError("a field is cut off")
    return position, position + length


def _skip(data: Payload, position: int, end: int, tag: int) -> tuple[int, int]:
    """Skip the field with this tag; if it is a group, with all fields inside. Return where it ends and how many fields
    were skipped.
    """
    groups: list[int] = []
    fields = 0
    while True:
        fields = _bounded(fields + 1)
        number, wire_type = tag >> 3, tag & 7
        if number == 0:
            raise MalformedAggregateError("a field without number")
        match wire_type:  # as protobuf numbers them
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
            return position, fields
        tag, position = _tag(data, position)
