"""What a hostile producer may put: payloads of one record each, named, with what must become of them.

Whatever is here passes Kinesis, which looks at the size of a record and at nothing in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache

from mld.retrieval.kpl import FIELDS_MAX, GROUP_DEPTH_MAX, KEY_CHARS_MAX, USER_RECORDS_MAX
from tests.support.kpl import MAGIC, field, number, sealed, varint

FULL = "\U0001f600" * KEY_CHARS_MAX
"""The largest key that Kinesis takes: 1,024 bytes, and three times that in the child's line."""


class Outcome(Enum):
    AS_IT_CAME = "one record, as it came"
    OPENED = "its user records"
    NOTHING = "no user record is in it"


@dataclass(frozen=True, slots=True)
class Attack:
    data: bytes
    outcome: Outcome


Make = Callable[[int], bytes]


def user(data: bytes = b"", key: int = 0, *, explicit: int | None = None, extra: bytes = b"") -> bytes:
    """A user record as it stands in an aggregate."""
    hash_key = b"" if explicit is None else number(2, explicit)
    return field(3, number(1, key) + hash_key + extra + field(3, data))


def key_of(text: str | bytes) -> bytes:
    return field(1, text.encode() if isinstance(text, str) else text)


def explicit_of(text: str) -> bytes:
    return field(2, text.encode())


LONG_ZERO = b"\x80" * 9 + b"\x00"
EMPTY = user()
ONE = key_of("k") + user(b"x")


def many(entry: bytes, size: int) -> bytes:
    return entry * (size // len(entry))


# --- no aggregates ---------------------------------------------------------------------------------------------------


def _plain() -> dict[str, Make]:
    return {
        "empty data": lambda size: b"",
        "zeros": bytes,
        "all bytes": lambda size: bytes(range(256)) * (size // 256),
        "base64 of padding": lambda size: b"\x00" * (size | 1),
        "magic alone": lambda size: MAGIC,
        "magic and a digest": lambda size: MAGIC + hashlib.md5(b"").digest(),
        "magic and garbage": lambda size: MAGIC + b"\xff" * size,
        "wrong digest": lambda size: sealed(key_of("k") + many(EMPTY, size))[:-1] + b"\x00",
        "magic without its last byte": lambda size: MAGIC[:3] + bytes(size),
    }


# --- aggregates that nobody makes -------------------------------------------------------------------------------------


def _unreasonable() -> dict[str, Make]:
    group, group_end = varint(9 << 3 | 3), varint(9 << 3 | 4)
    return {
        "garbage with its digest": lambda size: sealed(b"\xff" * size),
        "zeros with their digest": lambda size: sealed(bytes(size)),
        "a large key that all user records name": lambda size: sealed(
            key_of("k" * (size // 2)) + many(EMPTY, size // 2)
        ),
        "a key of 257 characters": lambda size: sealed(key_of("k" * (KEY_CHARS_MAX + 1)) + user(bytes(size))),
        "a key of 257 characters that nobody names": lambda size: sealed(ONE + key_of("\u00e9" * (KEY_CHARS_MAX + 1))),
        "the largest key, named by all": lambda size: sealed(key_of(FULL) + many(EMPTY, size)),
        "a key of controls, named by all": lambda size: sealed(key_of("\x00" * KEY_CHARS_MAX) + many(EMPTY, size)),
        "a key of bad UTF-8, named by all": lambda size: sealed(key_of(b"\xff" * KEY_CHARS_MAX) + many(EMPTY, size)),
        "large keys by turns": lambda size: sealed(
            b"".join(key_of(FULL[:-1] + chr(0x1F600 + n)) for n in range(64))
            + many(b"".join(user(key=n) for n in range(64)), size)
        ),
        "the largest indexes": lambda size: sealed(
            key_of("k") + explicit_of("1") + many(user(key=2**64 - 1, explicit=2**64 - 1), size)
        ),
        "too many user records": lambda size: sealed(key_of("k") + EMPTY * (USER_RECORDS_MAX + 1)),
        "too many keys": lambda size: sealed(key_of("kk") * (USER_RECORDS_MAX + 1) + EMPTY),
        "too many empty keys": lambda size: sealed(key_of("") * (USER_RECORDS_MAX + 1) + EMPTY),
        "too many explicit hash keys": lambda size: sealed(ONE + explicit_of("1") * (USER_RECORDS_MAX + 1)),
        "an explicit hash key of many digits": lambda size: sealed(
            key_of("k") + explicit_of("9" * size) + user(explicit=0)
        ),
        "an explicit hash key of many zeros and no end": lambda size: sealed(
            key_of("k") + explicit_of("0" * size + "x") + user(explicit=0)
        ),
        "many wrong explicit hash keys": lambda size: sealed(
            key_of("k")
            + b"".join(explicit_of("0" * 200 + f"{n}x") for n in range(size // 400))
            + b"".join(user(explicit=n) for n in reversed(range(size // 400)))
        ),
        "an index beyond the table": lambda size: sealed(key_of("k") + many(EMPTY, size) + user(key=2**64 - 1)),
        "no table at all": lambda size: sealed(many(EMPTY, size)),
        "no data": lambda size: sealed(key_of("k") + many(EMPTY, size) + field(3, number(1, 0))),
        "no key": lambda size: sealed(key_of("k") + many(EMPTY, size) + field(3, field(3, b"x"))),
        "user records of nothing": lambda size: sealed(key_of("k") + many(field(3, b""), size)),
        "data written again and again": lambda size: sealed(
            key_of("k") + field(3, number(1, 0) + many(field(3, b""), size))
        ),
        "an index written again and again": lambda size: sealed(
            key_of("k") + field(3, many(number(1, 0), size) + field(3, b""))
        ),
        "tags without number": lambda size: sealed(key_of("k") + user(extra=many(field(4, field(1, b"")), size))),
        "a tag of many keys": lambda size: sealed(key_of("k") + user(extra=field(4, many(field(1, b""), size)))),
        "a tag of a large group": lambda size: sealed(
            key_of("k") + user(extra=field(4, group + many(number(1, 1), size) + group_end))
        ),
        "a tag without key": lambda size: sealed(key_of("k") + many(EMPTY, size) + user(extra=field(4, b""))),
        "a group of many fields": lambda size: sealed(ONE + group + many(number(1, 1), size) + group_end),
        "groups without end": lambda size: sealed(ONE + many(group, size)),
        "groups too deep": lambda size: sealed(ONE + group * (GROUP_DEPTH_MAX + 1) + group_end * (GROUP_DEPTH_MAX + 1)),
        "a number of eleven bytes": lambda size: sealed(key_of("k") + many(EMPTY, size) + varint(72) + b"\x80" * 11),
        "a length of two gigabytes": lambda size: sealed(ONE + varint(9 << 3 | 2) + varint(2**31)),
        "a length that is negative": lambda size: sealed(ONE + varint(9 << 3 | 2) + varint(2**64 - 1)),
        "numbers that go on behind the digest": lambda size: unending_digest(),
    }


@cache
def unending_digest() -> bytes:
    """A message that ends within a tag, with a digest that goes on with it so that no number ends before the data."""
    for salt in range(2**24):
        message = ONE + field(9, b"%d" % salt) + b"\xc8"
        digest = hashlib.md5(message).digest()
        numbers = [byte >= 0x80 for byte in digest]
        tag = numbers.index(False) if False in numbers else len(numbers)
        if 6 <= tag <= 8 and all(numbers[tag + 1 :]):
            return MAGIC + message + digest
    raise AssertionError("one in some ten thousand digests is of this kind")


# --- aggregates that are strange and allowed --------------------------------------------------------------------------


def _allowed() -> dict[str, Make]:
    group, group_end = varint(9 << 3 | 3), varint(9 << 3 | 4)
    swapped = field(3, field(3, b"") + number(1, 0))
    return {
        "as many user records as the KPL can pack": lambda size: sealed(
            key_of("k") + EMPTY * min(USER_RECORDS_MAX, size // len(EMPTY))
        ),
        "empty user records under a key of 256 letters": lambda size: sealed(
            key_of("k" * KEY_CHARS_MAX) + many(EMPTY, size)
        ),
        "keys of their own": lambda size: sealed(
            b"".join(key_of(f"{n:036d}") + user(b"data", n) for n in range(size // 50))
        ),
        "explicit hash keys of their own": lambda size: sealed(
            key_of("k") + b"".join(explicit_of(f"{n:0256d}") + user(b"", 0, explicit=n) for n in range(size // 270))
        ),
        "one user record that is all": lambda size: sealed(key_of(FULL) + user(bytes(size))),
        "two that are all": lambda size: sealed(key_of(FULL) + user(bytes(size // 2)) + user(bytes(size // 2 | 1))),
        "a table of empty keys": lambda size: sealed(many(key_of(""), min(size, USER_RECORDS_MAX)) + EMPTY),
        "fields in another order": lambda size: sealed(key_of("k") + many(swapped, size)),
        "longer numbers than needed": lambda size: sealed(
            key_of("k") + many(b"\x9a\x80\x00\x0a\x88\x80\x00\x80\x80\x00\x9a\x00\x80\x00", size)
        ),
        "indexes as long as numbers may be": lambda size: sealed(
            key_of("k") + many(field(3, b"\x08" + LONG_ZERO + field(3, b"")), size)
        ),
        "unknown fields": lambda size: sealed(key_of("k") + many(number(9, 1), size) + EMPTY),
        "groups": lambda size: sealed(key_of("k") + many(group + number(1, 1) + group_end, size) + EMPTY),
        "groups in user records": lambda size: sealed(
            key_of("k") + many(user(extra=(group + group_end) * (FIELDS_MAX // 3)), size)
        ),
        "tags": lambda size: sealed(key_of("k") + many(user(extra=field(4, field(1, b"")) * 100), size)),
        "groups as deep as may be": lambda size: sealed(ONE + group * GROUP_DEPTH_MAX + group_end * GROUP_DEPTH_MAX),
        "keys of bad UTF-8": lambda size: sealed(key_of(b"\xed\xa0\x80\xff\xc0\x80") + many(user(bytes(60)), size)),
        "keys that break lines": lambda size: sealed(
            key_of('\u2028\u2029\x85\x0b\r\n\x00"\\,"action":"record"},{"data":"') + many(user(bytes(60)), size)
        ),
        "aggregates in an aggregate": lambda size: sealed(key_of("k") + user(sealed(key_of("k") + user(sealed(ONE))))),
    }


def _nothing() -> dict[str, Make]:
    return {
        "keys and nothing else": lambda size: sealed(many(key_of("k"), min(size, USER_RECORDS_MAX))),
        "unknown fields and nothing else": lambda size: sealed(many(number(9, 1), size)),
    }


_MAKERS: dict[str, tuple[Make, Outcome]] = {
    name: (make, outcome)
    for outcome, makers in (
        (Outcome.AS_IT_CAME, {**_plain(), **_unreasonable()}),
        (Outcome.OPENED, _allowed()),
        (Outcome.NOTHING, _nothing()),
    )
    for name, make in makers.items()
}


def names() -> list[str]:
    return list(_MAKERS)


def attack(name: str, size: int) -> Attack:
    """The attack with a record of about `size` bytes, where the size matters."""
    make, outcome = _MAKERS[name]
    return Attack(make(size), outcome)
