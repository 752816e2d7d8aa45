"""KPL aggregates: retrieval#aggregate-layout and the rules that follow it there."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.core.positions import LATEST, Position
from mld.core.steps import finish
from mld.core.streams import HASH_KEY_MAX, HashRange, Misrouted
from mld.protocol.messages import Record
from mld.retrieval import kpl
from mld.retrieval.kpl import (
    DIGEST_BYTES,
    GROUP_DEPTH_MAX,
    MAGIC,
    MalformedAggregateError,
    MisroutedAggregateError,
)
from tests.fuzz.attacks import attack
from tests.fuzz.meter import Meter
from tests.support.kpl import User, aggregate, field, number, sealed, varint
from tests.support.pages import page_with, records_of, users_of

VECTOR = bytes.fromhex(
    "f3899ac20a04706b2d610a04706b2d62120531323334351a0708001a036f6e651a09080110001a0374776f0713dc6c35027dfa4b4504e0b70233d0"
)
PK_A_HASH = 37734456349525827306212900493151175156
PK_B_HASH = 85407741071154541078745004925322871391
EVERYTHING = HashRange(0, HASH_KEY_MAX)
ARRIVAL_MS = 1_700_000_000_123


def outer(data: bytes, sequence: str = "7") -> Record:
    return Record(data, "a", sequence, 0, ARRIVAL_MS)


def users_in(data: bytes, hash_range: HashRange | None = None) -> list[tuple[str, bytes, int]]:
    """The user records; nothing if the aggregate is misrouted."""
    try:
        users = users_of(outer(data), hash_range) or ()
    except MisroutedAggregateError:
        return []
    return [(r.partition_key, r.data, r.sub_sequence_number) for r in users]


def opened(message: bytes) -> list[tuple[str, bytes, int]]:
    return users_in(sealed(message))


def is_raw(data: bytes) -> bool:
    return users_of(outer(data), None) is None


# --- retrieval#aggregate-vectors -------------------------------------------------------------------------------------


def test_the_builder_of_the_tests_makes_the_vector() -> None:
    assert aggregate([User("pk-a", b"one"), User("pk-b", b"two", "12345")]) == VECTOR


def test_the_hash_keys_of_the_vector() -> None:
    assert [int.from_bytes(hashlib.md5(key).digest()) for key in (b"pk-a", b"pk-b")] == [PK_A_HASH, PK_B_HASH]


@pytest.mark.parametrize("hash_range", [None, EVERYTHING, HashRange(0, 2**127 - 1), HashRange(12345, PK_A_HASH)])
def test_the_vector_is_opened_where_all_its_records_belong(hash_range: HashRange | None) -> None:
    assert users_of(outer(VECTOR), hash_range) == [
        Record(b"one", "pk-a", "7", 0, ARRIVAL_MS),
        Record(b"two", "pk-b", "7", 1, ARRIVAL_MS),
    ]


@pytest.mark.parametrize(
    ("hash_range", "misrouted"),
    [
        (HashRange(20000, HASH_KEY_MAX), Misrouted(2, 1, 12345, True, 4)),
        (HashRange(12346, HASH_KEY_MAX), Misrouted(2, 1, 12345, True, 4)),
        (HashRange(0, PK_A_HASH - 1), Misrouted(2, 0, PK_A_HASH, False, 4)),
    ],
)
def test_a_misrouted_aggregate_says_what_is_lost_and_the_first_record_that_belongs_elsewhere(
    hash_range: HashRange, misrouted: Misrouted
) -> None:
    with pytest.raises(MisroutedAggregateError) as raised:
        users_of(outer(VECTOR), hash_range)
    assert raised.value.misrouted == misrouted


# --- is it one? (retrieval#aggregate-layout) -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"plain",
        MAGIC,
        MAGIC + hashlib.md5(b"").digest(),
        VECTOR[:-1],
        VECTOR + b"x",
        b"x" + VECTOR,
        VECTOR[:-1] + bytes([VECTOR[-1] ^ 1]),
    ],
)
def test_what_is_no_aggregate_stays_as_it_is(data: bytes) -> None:
    assert is_raw(data)


def test_an_aggregate_without_records_disappears() -> None:
    assert opened(field(1, b"key")) == []


PLAIN_RECORD = field(3, number(1, 0) + field(3, b"x"))
MALFORMED = {
    "cut off": (field(1, b"k") + PLAIN_RECORD)[:-1],
    "record cut off": field(1, b"k") + field(3, (number(1, 0) + field(3, b"x"))[:-1]),
    "number cut off by the end of its record": field(1, b"k") + field(3, field(3, b"x") + b"\x08") + b"\x00",
    "no partition key index": field(1, b"k") + field(3, field(3, b"x")),
    "no data": field(1, b"k") + field(3, number(1, 0)),
    "tag without key": field(1, b"k") + field(3, number(1, 0) + field(3, b"x") + field(4, field(2, b"v"))),
    "field number 0": field(1, b"k") + PLAIN_RECORD + b"\x02\x00",
    "wire type 6": field(1, b"k") + PLAIN_RECORD + varint(9 << 3 | 6),
    "wire type 7": field(1, b"k") + PLAIN_RECORD + varint(9 << 3 | 7),
    "group not ended": field(1, b"k") + PLAIN_RECORD + varint(9 << 3 | 3),
    "group not begun": field(1, b"k") + PLAIN_RECORD + varint(9 << 3 | 4),
    "groups crossed": varint(9 << 3 | 3) + varint(8 << 3 | 3) + varint(9 << 3 | 4) + varint(8 << 3 | 4),
    "groups too deep": varint(9 << 3 | 3) * (GROUP_DEPTH_MAX + 1) + varint(9 << 3 | 4) * (GROUP_DEPTH_MAX + 1),
    "endless number": field(1, b"k") + varint(9 << 3) + b"\xff" * 11,
    "negative length": field(1, b"k") + varint(9 << 3 | 2) + varint(2**32 - 1),
    "fixed 64 cut off": varint(9 << 3 | 1) + bytes(7),
    "fixed 32 cut off": varint(9 << 3 | 5) + bytes(3),
    "index beyond the keys": field(1, b"k") + field(3, number(1, 1) + field(3, b"x")),
    "index beyond the hash keys": field(1, b"k") + field(3, number(1, 0) + number(2, 0) + field(3, b"x")),
    **{
        f"explicit hash key {key!r}": field(1, b"k")
        + field(2, key)
        + field(3, number(1, 0) + number(2, 0) + field(3, b""))
        for key in (b"", b" 1", b"1_0", b"0x1", b"+", b"--1", "\u0661".encode())
    },
}


@pytest.mark.parametrize("message", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_message_is_refused(message: bytes) -> None:
    with pytest.raises(MalformedAggregateError):
        opened(message)


# --- tolerance (retrieval#aggregate-layout) --------------------------------------------------------------------------

UNKNOWN = (
    number(9, 2**64 - 1)
    + (varint(9 << 3 | 1) + bytes(8))
    + (varint(9 << 3 | 5) + bytes(4))
    + field(9, b"unknown")
    + (varint(9 << 3 | 3) + number(1, 1) + varint(8 << 3 | 3) + varint(8 << 3 | 4) + varint(9 << 3 | 4))
)
WRONG_TYPES = number(1, 5) + number(2, 5) + number(3, 5)


@pytest.mark.parametrize("extra", [UNKNOWN, WRONG_TYPES])
def test_unknown_fields_and_types_are_skipped(extra: bytes) -> None:
    inner = field(9, b"") + varint(1 << 3 | 5) + bytes(4) + number(3, 1) + number(4, 1)
    tags = field(4, UNKNOWN + field(1, b"name") + field(2, b"value")) + field(4, field(1, b""))
    record = field(3, inner + number(1, 0) + tags + field(3, b"x"))
    assert opened(extra + field(1, b"k") + extra + record + extra) == [("k", b"x", 0)]


def test_the_last_of_a_repeated_single_field_counts() -> None:
    record = field(3, number(1, 9) + field(3, b"no") + field(3, b"yes") + number(1, 1))
    assert opened(field(1, b"a") + field(1, b"b") + record) == [("b", b"yes", 0)]


def test_tables_may_follow_the_records() -> None:
    assert opened(PLAIN_RECORD + field(1, b"k")) == [("k", b"x", 0)]


def test_numbers_may_be_written_longer_than_needed() -> None:
    record = b"\x88\x00" + b"\x80\x80\x00" + b"\x9a\x00" + b"\x81\x00" + b"x"
    assert opened(field(1, b"k") + b"\x9a\x00" + varint(len(record)) + record) == [("k", b"x", 0)]


def test_bad_utf_8_in_a_key_is_replaced() -> None:
    message = field(1, b"k\xff") + PLAIN_RECORD
    hash_key = int.from_bytes(hashlib.md5("k\ufffd".encode()).digest())
    assert users_in(sealed(message), HashRange(hash_key, hash_key)) == [("k\ufffd", b"x", 0)]


def test_tables_of_more_than_127_entries() -> None:
    users = [User(f"key {n}", b"%d" % n, str(n)) for n in range(300)]
    assert users_in(aggregate(users)) == [(u.partition_key, u.data, n) for n, u in enumerate(users)]


# --- retrieval#hash-range-rule ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "explicit, belongs",
    [("10", True), ("+10", True), ("0" * 50 + "10", True), ("20", True), ("9", False), ("21", False), ("-10", False),
     ("9" * 256, False), ("-" + "9" * 255, False)],
)  # fmt: skip
def test_both_ends_of_the_range_belong_to_it(explicit: str, belongs: bool) -> None:
    assert bool(users_in(aggregate([User("k", b"", explicit)]), HashRange(10, 20))) is belongs


def test_nothing_is_dropped_if_the_range_is_unknown() -> None:
    assert len(users_in(aggregate([User("k", b"", "9" * 50), User("k", b"", "-1")]))) == 2


# --- properties ------------------------------------------------------------------------------------------------------

hash_keys = st.integers(0, HASH_KEY_MAX).map(str)
users = st.builds(User, st.text(max_size=8), st.binary(max_size=200), st.none() | hash_keys)
ranges = st.none() | st.tuples(st.integers(0, HASH_KEY_MAX), st.integers(0, HASH_KEY_MAX)).map(
    lambda ends: HashRange(min(ends), max(ends))
)


def belongs(user: User, hash_range: HashRange | None) -> bool:
    if hash_range is None:
        return True
    key = user.explicit_hash_key
    hash_key = int.from_bytes(hashlib.md5(user.partition_key.encode()).digest()) if key is None else int(key)
    return hash_range.start <= hash_key <= hash_range.end


@given(st.lists(users, min_size=1, max_size=6), ranges)
def test_what_is_aggregated_comes_out_again_or_not_at_all(written: list[User], hash_range: HashRange | None) -> None:
    expected = [(user.partition_key, user.data, sub) for sub, user in enumerate(written)]
    if not all(belongs(user, hash_range) for user in written):
        expected = []
    assert users_in(aggregate(written), hash_range) == expected


@given(st.lists(users, min_size=1, max_size=4), st.data())
def test_a_truncated_or_flipped_aggregate_is_delivered_as_it_is(written: list[User], data: st.DataObject) -> None:
    whole = aggregate(written)
    if data.draw(st.booleans()):
        damaged = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        bit = data.draw(st.integers(0, 8 * len(whole) - 1))
        damaged = bytes(byte ^ (1 << bit % 8 if n == bit // 8 else 0) for n, byte in enumerate(whole))
    assert is_raw(damaged)


def _spoiled(written: list[User], place: int, patch: bytes) -> bytes:
    message = aggregate(written)[len(MAGIC) : -DIGEST_BYTES]
    return message[:place] + patch + message[place + len(patch) :]


messages = st.binary(min_size=1, max_size=60) | st.builds(
    _spoiled, st.lists(users, min_size=1, max_size=3), st.integers(0, 200), st.binary(max_size=4)
)


@given(messages)
def test_bytes_without_magic_or_digest_are_delivered_as_they_are(message: bytes) -> None:
    assert is_raw(b"x" + sealed(message))
    assert is_raw(MAGIC + message + hashlib.md5(message + b"x").digest())


@given(messages, st.none() | st.integers(0, 4))
def test_whatever_is_sealed_is_opened_or_delivered_as_it_came(message: bytes, sub: int | None) -> None:
    """Only MalformedAggregateError may be raised, and the page has caught it."""
    record = outer(sealed(message))
    batch = page_with([record]).after(LATEST if sub is None else Position("7", sub), EVERYTHING)
    records = records_of(batch)
    if batch.malformed:
        assert records == ([record] if sub is None else [])


def test_what_a_checkpoint_has_passed_is_not_looked_at_again() -> None:
    """A child may checkpoint within an aggregate and get the rest again and again: what is skipped costs no step."""
    data = aggregate([User("k", b"%d" % one) for one in range(9_000)])
    users = finish(kpl.user_records(data, None, kpl.Work()))
    assert users is not None
    for sub in (0, 2_999, 3_000, 8_998, 8_999):
        left = [(bytes(payload), number) for payload, _, number in users.after(sub).columns()]
        assert left == [(b"%d" % one, one) for one in range(sub + 1, 9_000)]
    opened = []
    original = kpl._unpacked
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kpl, "_unpacked", lambda some: opened.append(kpl._count(some)) or original(some))
        assert len(list(users.after(8_990).columns())) == 9
    assert sum(opened) < 9_000 / 2


def test_however_many_fields_user_records_have_few_lists_of_them_are_counted() -> None:
    """Each of these user records takes a step of its own to read. Counting a list for each took 15 ms in 10 MiB."""
    users = finish(kpl.user_records(attack("tags", 1_000_000).data, None, kpl.Work()))
    assert users is not None and len(users) > 2_000
    meter = Meter()
    with meter.counting():
        (last,) = users.after(users.last - 1).columns()
    assert last[2] == users.last
    assert meter.lines_max < 500
