"""A hostile producer: every payload, partition key and KPL aggregate that Kinesis lets in.

`check_page` takes a page of such records the whole way to the child's line, and beyond: as our own base class, the
Spark processor and the search for a record that kills read it. It holds us to four things, for each page:

promise      each record reaches the child as it came, or as its user records, in order and once, by a reading of
             aggregates that is not ours (`opened_by_the_book`); after a checkpoint inside of it, what comes after that
size         the line is at most `LINE_PER_BYTE` times the payloads, and `LINE_PER_RECORD` for each record
memory       it takes at most `MEMORY_PER_BYTE` times the payloads, and `MEMORY_PER_RECORD` for each record
loop         no step on the event loop works more than `tests.fuzz.meter` allows, makes more than `STEP_BYTES_MAX` of
             memory, as the copy of a large payload would, or frees more than `STEP_FREED_MAX` objects

    python -m tests.fuzz.producer --examples 20000 --bytes 10485760     a long run; `make fuzz-producer`
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mld.core.positions import TRIM_HORIZON, Position
from mld.core.streams import HASH_KEY_MAX, HashRange
from mld.processors.daemon_lines import ReceivedAction, parse_daemon_line
from mld.processors.spark.batch.record_columns import read_line
from mld.protocol.framed_records import Splitter
from mld.protocol.messages import ProcessRecords
from mld.retrieval.kpl import EXPANSION_MAX, KEY_CHARS_MAX, MAGIC
from mld.retrieval.rawbody import page_of
from mld.retrieval.rawpage import RawPage
from tests.fuzz.attacks import FULL, Attack, Outcome, attack, names
from tests.fuzz.meter import Meter
from tests.support.kpl import field, number, sealed, varint

LINE_PER_BYTE = EXPANSION_MAX + 2
LINE_PER_RECORD = 400 + 12 * KEY_CHARS_MAX
MEMORY_PER_BYTE = 15
"""A user record takes 16 bytes while its aggregate is open, and 6 in it, and a key 8; the rest are copies."""
MEMORY_PER_RECORD = 4096
MEMORY_BYTES = 8 * 1024 * 1024
"""Pieces of the line, and what is loaded when it is first used."""
STEP_BYTES_MAX = 3 * 1024 * 1024
STEP_FREED_MAX = 20_000
EVERYTHING = HashRange(0, HASH_KEY_MAX)
FIRST = 49_590_338_271_490_256_608_559_692_538_361_571_095_921_575_989_136_588_898
TIMES = ("1763661600.123", "1.763661600123E9", "0", "0.001", "1763661600", "null", "253402300799.999")
EXAMPLES = 2_000
BYTES = 1024 * 1024
RUN_BYTES = 128 * 1024
"""Of one message many times over, so that a drawn page is one that Kinesis could answer with: at most 10 MB."""


@dataclass(frozen=True, slots=True)
class Put:
    data: bytes
    key: str = "k"
    time: str = TIMES[0]


Delivered = tuple[str, int, str, bytes]
"""Sequence number, sub-sequence number, partition key, payload."""

# --- what must come of it ---------------------------------------------------------------------------------------------


class _Damaged(Exception):
    pass


def opened_by_the_book(data: bytes) -> list[tuple[bytes, bytes | None, bytes]] | None:
    """Key, explicit hash key and payload of each user record (retrieval#aggregate-layout); None for no aggregate."""
    message, digest = data[4:-16], data[-16:]
    if data[:4] != MAGIC or len(data) < 21 or hashlib.md5(message).digest() != digest:
        return None
    try:
        keys, hash_keys, users = [], [], []
        for tag, value in _fields(message):
            if tag == (1, 2):
                keys.append(value)
            elif tag == (2, 2):
                hash_keys.append(value)
            elif tag == (3, 2):
                users.append(_user(value))
        return [(keys[key], None if given is None else hash_keys[given], text) for key, given, text in users]
    except (_Damaged, IndexError):
        return None


def _user(message: bytes) -> tuple[int, int | None, bytes]:
    found: dict[tuple[int, int], Any] = {}
    for tag, value in _fields(message):
        found[tag] = value
        if tag == (4, 2) and (1, 2) not in dict(_fields(value)):
            raise _Damaged
    if (1, 0) not in found or (3, 2) not in found:
        raise _Damaged
    return found[1, 0], found.get((2, 0)), found[3, 2]


def _fields(message: bytes) -> Iterator[tuple[tuple[int, int], Any]]:
    """Field number and wire type, and the value, of each field that is in no group."""
    at = 0
    groups: list[int] = []
    while at < len(message):
        tag, at = _varint(message, at)
        tag &= 2**32 - 1
        name, kind = tag >> 3, tag & 7
        value: Any = None
        if kind == 0:
            value, at = _varint(message, at)
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        elif kind == 2:
            size, at = _varint(message, at)
            size &= 2**32 - 1
            if size >= 2**31:
                raise _Damaged
            value, at = message[at : at + size], at + size
        elif kind == 3 and len(groups) < 100:
            groups.append(name)
        elif kind != 4 or not groups or groups.pop() != name:
            raise _Damaged
        if name == 0 or at > len(message):
            raise _Damaged
        if not groups and kind < 3:
            yield (name, kind), value
    if groups:
        raise _Damaged


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise _Damaged
        value |= (message[at] & 0x7F) << shift
        at += 1
        if message[at - 1] < 0x80:
            return value & 2**64 - 1, at
    raise _Damaged


def expected(puts: Sequence[Put], raw: set[int], hash_range: HashRange | None) -> list[Delivered]:
    """What the child must get if the aggregates `raw` are delivered as they came."""
    delivered: list[Delivered] = []
    for place, put in enumerate(puts):
        sequence = str(FIRST + place)
        users = None if place in raw else opened_by_the_book(put.data)
        if users is None:
            delivered.append((sequence, 0, put.key, put.data))
        elif put.key == "" or all(_belongs(key, given, hash_range) for key, given, _ in users):  # Kinesis placed it
            delivered += [
                (sequence, sub, key.decode("utf-8", "replace"), text) for sub, (key, _, text) in enumerate(users)
            ]
    return delivered


def _belongs(key: bytes, given: bytes | None, hash_range: HashRange | None) -> bool:
    if hash_range is None:
        return True
    text = key.decode("utf-8", "replace").encode()
    hash_key = int.from_bytes(hashlib.md5(text).digest()) if given is None else int(given)
    return hash_range.start <= hash_key <= hash_range.end


# --- the way of a page ------------------------------------------------------------------------------------------------


def body_of(puts: Sequence[Put]) -> bytes:
    """The answer of GetRecords."""
    records = [
        f'{{"SequenceNumber":"{FIRST + place}","ApproximateArrivalTimestamp":{put.time},'
        f'"Data":"{base64.b64encode(put.data).decode()}","PartitionKey":{json.dumps(put.key)}}}'
        for place, put in enumerate(puts)
    ]
    return f'{{"Records":[{",".join(records)}],"NextShardIterator":"next","MillisBehindLatest":0}}'.encode()


def read(
    page: RawPage, position: Position, hash_range: HashRange | None, meter: Meter
) -> tuple[list[Delivered], set[int], int]:
    """What the child gets after `position`, which aggregates are delivered as they came, and the size of the line."""
    with meter.counting():
        batch = page.after(position, hash_range)
        for _ in meter.each(batch.opening()):
            pass
        pieces = list(meter.each(batch.line()))
    line = b"".join(pieces)
    delivered = delivered_in(line)
    assert batch.largest == (Position(delivered[-1][0], delivered[-1][1]) if delivered else None)
    raw = {int(sequence) - FIRST for sequence in batch.malformed}
    check_readers(line, pieces, delivered)
    return delivered, raw, len(line)


def delivered_in(line: bytes) -> list[Delivered]:
    assert line.endswith(b"\n") and line.count(b"\n") == 1 and line.isascii() and b"\r" not in line
    return [
        (r["sequenceNumber"], r["subSequenceNumber"], r["partitionKey"], base64.b64decode(r["data"]))
        for r in json.loads(line)["records"]
    ]


def check_readers(line: bytes, pieces: list[bytes], delivered: list[Delivered]) -> None:
    """Whoever reads the line, or takes it apart, finds the same records."""
    received = parse_daemon_line(line)
    assert isinstance(received, ReceivedAction) and isinstance(received.action, ProcessRecords)
    assert [
        (r.sequence_number, r.sub_sequence_number, r.partition_key, r.data) for r in received.action.records
    ] == delivered
    for_spark = read_line(line).groups
    places = [(int(sequence), sub) for sequence, sub, _, _ in delivered]
    assert [tuple(group.position(at)) for group in for_spark for at in range(len(group.data))] == places
    splitter = Splitter()
    framed = [record for piece in pieces for record in splitter.feed(piece)]
    assert [(int(record.sequence), record.sub) for record in framed] == places


def check_page(puts: Sequence[Put], position: Position = TRIM_HORIZON, hash_range: HashRange | None = None) -> set[int]:
    """Hold us to the promise, the size of the line and the work in a step; which aggregates came as they were."""
    meter = Meter()
    page = page_of(body_of(puts))
    delivered, raw, size = read(page, position, hash_range, meter)
    floor = (-1, -1) if position.number is None else (position.number, position.sub)
    wanted = [one for one in expected(puts, raw, hash_range) if (int(one[0]), one[1]) > floor]
    assert delivered == wanted
    assert size <= LINE_PER_BYTE * sum(len(put.data) for put in puts) + LINE_PER_RECORD * len(puts) + 100
    meter.check()
    return raw


def check_memory(puts: Sequence[Put]) -> None:
    """While the page is made, opened and framed, its line going away piece by piece as it does into a pipe."""
    body = body_of(puts)
    page_of(body)  # layouts and patterns are kept
    tracemalloc.start()
    try:
        batch = page_of(body).after(TRIM_HORIZON, EVERYTHING)
        peak = tracemalloc.get_traced_memory()[1]
        steps = chain(batch.opening(), batch.line())
        is_over = False
        while not is_over:
            blocks, (before, _) = sys.getallocatedblocks(), tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            is_over = next(steps, steps) is steps
            made, freed = tracemalloc.get_traced_memory()[1], blocks - sys.getallocatedblocks()
            assert made - before <= STEP_BYTES_MAX, f"{made - before} bytes made in one step"
            assert freed <= STEP_FREED_MAX, f"{freed} objects freed in one step"
            peak = max(peak, made)
    finally:
        tracemalloc.stop()
    size = sum(len(put.data) for put in puts)
    assert peak <= MEMORY_PER_BYTE * size + MEMORY_PER_RECORD * len(puts) + MEMORY_BYTES, f"{peak} for {size} bytes"


def check_attack(name: str, size: int) -> None:
    """An attack between two ordinary records: alone it has the outcome that it should have, and it hides no other."""
    found: Attack = attack(name, size)
    puts = [Put(b"before"), Put(found.data, FULL), Put(b"after")]
    raw = check_page(puts, hash_range=EVERYTHING)
    users = [one for one in expected(puts, raw, EVERYTHING) if one[0] == str(FIRST + 1)]
    match found.outcome:
        case Outcome.AS_IT_CAME:
            assert users == [(str(FIRST + 1), 0, FULL, found.data)]
        case Outcome.OPENED:
            assert users and 1 not in raw and opened_by_the_book(found.data) is not None
            for sub in (0, len(users) // 2, len(users) - 1):
                check_page(puts, Position(str(FIRST + 1), sub), EVERYTHING)
            check_page(puts, hash_range=HashRange(HASH_KEY_MAX, HASH_KEY_MAX))  # all of it belongs elsewhere
        case Outcome.NOTHING:
            assert not users


# --- drawn ------------------------------------------------------------------------------------------------------------

_texts = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["", "\x00", "\u2028", '"', "\\", "\x7f\x85", "k" * KEY_CHARS_MAX, FULL, "\ud800", '"}\n{"']),
    st.builds(lambda c, n: c * n, st.characters(codec="utf-8"), st.integers(1, KEY_CHARS_MAX)),
)
_keys = _texts.map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(max_size=20)
_indexes = st.integers(0, 3) | st.sampled_from([127, 128, 2**32, 2**64 - 1])
_payloads = st.binary(max_size=60) | st.sampled_from([b"", bytes(100_001), b"\xff" * 4096, MAGIC])
_hash_keys = st.integers(-2, 2**128).map(str) | st.sampled_from(["0" * 90 + "7", "9" * 300, "", "+1", "1_0", "\u0661"])
_unknown = st.builds(number, st.integers(5, 20), st.integers(0, 2**64 - 1)) | st.builds(
    lambda n, inner: varint(n << 3 | 3) + inner + varint(n << 3 | 4),
    st.integers(1, 20),
    st.just(b"") | st.builds(number, st.integers(1, 9), st.integers(0, 300)),
)
_oddities = st.one_of(
    st.just(b""),
    _unknown,
    st.binary(max_size=6),
    _keys.map(lambda key: field(4, field(1, key))),
    st.just(field(4, b"")),
)
_user_messages = st.builds(
    lambda key, given, odd, data: field(
        3, number(1, key) + (b"" if given is None else number(2, given)) + odd + field(3, data)
    ),
    _indexes,
    st.none() | st.integers(0, 2),
    st.just(b"") | _oddities,
    _payloads,
)
_parts = st.one_of(
    _keys.map(lambda key: field(1, key)),
    _hash_keys.map(lambda key: field(2, key.encode())),
    _user_messages,
    st.builds(
        lambda user, times: user * max(1, min(times, RUN_BYTES // len(user))),
        _user_messages,
        st.sampled_from([2, 501, 3000]),
    ),
    _oddities,
)
_messages = st.lists(_parts, min_size=1, max_size=8).map(b"".join)
_honest_messages = st.builds(
    lambda keys, users: (
        b"".join(field(1, key) for key in keys)
        + b"".join(field(3, number(1, key % len(keys)) + field(3, data)) for key, data in users)
    ),
    st.lists(_keys, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), _payloads), min_size=1, max_size=8),
)
_spoiled = st.builds(
    lambda message, place, patch: message[: place % (len(message) + 1)] + patch + message[place % (len(message) + 1) :],
    _honest_messages | _messages,
    st.integers(0, 400),
    st.binary(max_size=4),
)
_data = st.one_of(
    _payloads,
    _honest_messages.map(sealed),
    _messages.map(sealed),
    _spoiled.map(sealed),
    _honest_messages.map(sealed)
    .map(lambda whole: field(1, b"k") + field(3, number(1, 0) + field(3, whole)))
    .map(sealed),
    _messages.map(lambda message: MAGIC + message),
)
_puts = st.builds(Put, _data, _texts.map(lambda text: text[:KEY_CHARS_MAX]), st.sampled_from(TIMES))
_ranges = st.none() | st.just(EVERYTHING) | st.integers(0, HASH_KEY_MAX).map(lambda end: HashRange(0, end))
pages = st.tuples(
    st.lists(_puts, min_size=1, max_size=5),
    st.just(TRIM_HORIZON)
    | st.builds(lambda n, sub: Position(str(FIRST + n), sub), st.integers(0, 4), st.integers(0, 3)),
    _ranges,
)


def run(examples: int, check: Callable[..., Any], *, derandomize: bool) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=derandomize,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(pages)
    def trial(page: tuple[list[Put], Position, HashRange | None]) -> None:
        check(*page)

    trial()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.producer", description=__doc__)
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="pages to draw (default %(default)s)")
    parser.add_argument("--bytes", type=int, default=BYTES, help="size of the named attacks (default %(default)s)")
    arguments = parser.parse_args()
    start_s = time.monotonic()
    for name in names():
        check_attack(name, arguments.bytes)
        check_memory([Put(attack(name, arguments.bytes).data)])
    print(f"{len(names())} attacks of {arguments.bytes} bytes in {time.monotonic() - start_s:.0f} s", flush=True)
    start_s = time.monotonic()
    run(arguments.examples, check_page, derandomize=False)
    print(f"{arguments.examples} drawn pages in {time.monotonic() - start_s:.0f} s: nothing found", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
