"""What a page of records promises, run over one that was read from a body and over one that was made record by record.

Rules: retrieval#raw-pages, retrieval#order-of-preparation, retrieval#checkpoint-filter.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from mld.core.positions import AT_TIMESTAMP, LATEST, SHARD_END, TRIM_HORIZON, Position
from mld.core.streams import HASH_KEY_MAX, ChildShard, HashRange, Misrouted, Page
from mld.protocol.messages import Record
from mld.retrieval.rawbody import page_of
from tests.support.kpl import User, aggregate, sealed
from tests.support.pages import page_with, places, records_of

ARRIVAL_MS = 1_700_000_000_123
X = "49590338271490256608559692538361571095921575989136588898"
TRIPLE = aggregate([User("k", b"0"), User("k", b"1"), User("k", b"2")])
VECTOR = bytes.fromhex(  # retrieval#aggregate-vectors
    "f3899ac20a04706b2d610a04706b2d62120531323334351a0708001a036f6e651a09080110001a0374776f0713dc6c35027dfa4b4504e0b70233d0"
)
MALFORMED = sealed(b"\x1a\x02\x08\x00")  # a user record without data

MakePage = Callable[..., Page]


def record(sequence: str, data: bytes = b"data", key: str = "key") -> Record:
    return Record(data, key, sequence, 0, ARRIVAL_MS)


def one_by_one(*records: Record, next_iterator: str | None = "next", lag_ms: int | None = 0) -> Page:
    return page_with(records, next_iterator, lag_ms)


def read(*records: Record, next_iterator: str | None = "next", lag_ms: int | None = 0) -> Page:
    return page_of(body_of(records, NextShardIterator=next_iterator, MillisBehindLatest=lag_ms))


def body_of(records: Any, **members: Any) -> bytes:
    items = [
        {
            "SequenceNumber": r.sequence_number,
            "ApproximateArrivalTimestamp": r.approximate_arrival_ms / 1000,
            "Data": base64.b64encode(r.data).decode(),
            "PartitionKey": r.partition_key,
        }
        for r in records
    ]
    return json.dumps({**members, "Records": items}).encode()


@pytest.fixture(params=[read, one_by_one], ids=["read", "one by one"])
def page(request: pytest.FixtureRequest) -> MakePage:
    make: MakePage = request.param
    return make


def test_a_page_knows_its_size_its_ends_and_what_comes_next(page: MakePage) -> None:
    whole = page(record("1", b"abc"), record("2", b"de"), lag_ms=7)
    assert (whole.count, whole.data_bytes, whole.first_sequence, whole.last_sequence) == (2, 5, "1", "2")
    assert (whole.first_arrival_ms, whole.next_iterator, whole.millis_behind_latest) == (ARRIVAL_MS, "next", 7)


@pytest.mark.parametrize(
    ("after", "arrival"),
    [
        (TRIM_HORIZON, ARRIVAL_MS),
        (Position("1", 0), ARRIVAL_MS + 1),
        (Position("2", 0), ARRIVAL_MS + 2),
        (Position("3", 0), None),
        (SHARD_END, None),
    ],
)
def test_a_page_knows_when_the_first_record_after_a_position_arrived(
    page: MakePage, after: Position, arrival: int | None
) -> None:
    records = [Record(b"x", "key", str(1 + n), 0, ARRIVAL_MS + n) for n in range(3)]
    assert page(*records).first_arrival_ms_after(after) == arrival
    assert page().first_arrival_ms_after(after) is None


def test_an_aggregate_at_the_position_may_have_records_after_it(page: MakePage) -> None:
    records = [Record(TRIPLE, "k", "1", 0, ARRIVAL_MS), Record(b"x", "k", "2", 0, ARRIVAL_MS + 1)]
    assert page(*records).first_arrival_ms_after(Position("1", 0)) == ARRIVAL_MS
    assert page(*records).first_arrival_ms_after(Position("2", 0)) == ARRIVAL_MS + 1


def test_an_empty_page_has_no_ends_and_an_empty_batch(page: MakePage) -> None:
    empty = page(next_iterator=None, lag_ms=None)
    assert (empty.count, empty.data_bytes, empty.first_sequence, empty.last_sequence) == (0, 0, None, None)
    assert (empty.first_arrival_ms, empty.next_iterator, empty.millis_behind_latest) == (None, None, None)
    batch = empty.after(LATEST)
    assert (batch.largest, batch.data_bytes, records_of(batch)) == (None, 0, [])


def test_a_record_reaches_the_child_as_it_is(page: MakePage) -> None:
    batch = page(record("7", b"\xff\x00", key='a"\\\u00e9\x7f\n'), lag_ms=42).after(LATEST)
    line = b"".join(batch.line())
    assert line == (
        b'{"action":"processRecords","records":[{"data":"/wA=","partitionKey":"a\\"\\\\\\u00e9\\u007f\\n",'
        b'"sequenceNumber":"7","approximateArrivalTimestamp":1700000000123,"subSequenceNumber":0,"action":"record"}],'
        b'"millisBehindLatest":42}\n'
    )


def test_a_plain_record_at_the_checkpoint_is_dropped(page: MakePage) -> None:
    batch = page(record(X)).after(Position(X, 0))
    assert (records_of(batch), batch.largest, batch.data_bytes) == ([], None, 0)


def test_sequence_numbers_compare_as_integers(page: MakePage) -> None:
    assert places(page(record("9"), record("10")).after(Position("9"))) == ["10/0"]


@pytest.mark.parametrize("sentinel", [LATEST, TRIM_HORIZON, AT_TIMESTAMP])
def test_every_record_lies_after_a_starting_sentinel(page: MakePage, sentinel: Position) -> None:
    assert places(page(record("0"), record("1")).after(sentinel)) == ["0/0", "1/0"]


def test_no_record_lies_after_the_end_of_the_shard(page: MakePage) -> None:
    assert places(page(record(X)).after(SHARD_END)) == []


@pytest.mark.parametrize("at", range(-1, 301, 7))
def test_a_checkpoint_cuts_a_page_anywhere(page: MakePage, at: int) -> None:
    whole = page(*(record(str(1000 + n), bytes(n)) for n in range(300)))
    batch = whole.after(Position(str(1000 + at)))
    assert places(batch) == [f"{1000 + n}/0" for n in range(at + 1, 300)]
    assert batch.largest == (Position("1299") if at < 299 else None)
    assert batch.data_bytes == sum(range(at + 1, 300))


def test_records_out_of_order_are_filtered_one_by_one(page: MakePage) -> None:
    batch = page(record("5"), record("12"), record("3"), record("9")).after(Position("4"))
    assert (places(batch), batch.largest) == (["5/0", "12/0", "9/0"], Position("12"))


def test_a_line_can_be_framed_again(page: MakePage) -> None:
    batch = page(record("1"), record("2")).after(LATEST)
    assert list(batch.line()) == list(batch.line())


@pytest.mark.parametrize("size", [0, 1000, 20_000, 131_072, 400_000])
def test_a_large_batch_is_framed_in_pieces(page: MakePage, size: int) -> None:
    batch = page(*(record(str(n), bytes(size)) for n in range(1000, 1000 + max(3, 2_000_000 // (size + 100))))).after(
        LATEST
    )
    pieces = list(batch.line())
    assert max(map(len, pieces)) < 330_000
    assert json.loads(b"".join(pieces))["records"][-1]["data"] == base64.b64encode(bytes(size)).decode()


# --- aggregates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [
        (TRIM_HORIZON, ["5/0", "7/0", "7/1", "7/2", "9/0"]),
        (Position("5"), ["7/0", "7/1", "7/2", "9/0"]),
        (Position("7", 0), ["7/1", "7/2", "9/0"]),
        (Position("7", 1), ["7/2", "9/0"]),
        (Position("7", 2), ["9/0"]),
        (Position("7", 3), ["9/0"]),
        (Position("9"), []),
        (SHARD_END, []),
    ],
)
def test_a_checkpoint_inside_an_aggregate_keeps_the_rest_of_it(
    page: MakePage, checkpoint: Position, expected: list[str]
) -> None:
    batch = page(record("5"), record("7", TRIPLE), record("9")).after(checkpoint)
    assert places(batch) == expected
    sequence, _, sub = expected[-1].partition("/") if expected else ("", "", "")
    assert batch.largest == (Position(sequence, int(sub)) if expected else None)


@pytest.mark.parametrize("place", range(3))
def test_an_aggregate_is_found_wherever_it_stands(page: MakePage, place: int) -> None:
    records = [record("1"), record("2"), record("3")]
    records[place] = record(str(place + 1), TRIPLE)
    assert len(places(page(*records).after(LATEST))) == 5


def test_user_data_is_counted_while_the_line_is_framed(page: MakePage) -> None:
    batch = page(record("7", VECTOR), record("8", TRIPLE), record("9", b"plain")).after(Position("7", 0))
    assert list(batch.line()) == list(batch.line())
    assert batch.data_bytes == len(b"two") + 3 + len(b"plain")


def test_a_misrouted_aggregate_yields_nothing(page: MakePage) -> None:
    batch = page(record("6"), record("7", VECTOR)).after(LATEST, HashRange(20_000, HASH_KEY_MAX))
    assert (places(batch), batch.largest) == (["6/0"], Position("6"))
    assert page(record("7", VECTOR)).after(LATEST, HashRange(20_000, HASH_KEY_MAX)).largest is None


def test_a_malformed_aggregate_is_delivered_as_it_came_and_named(page: MakePage) -> None:
    batch = page(record("7", MALFORMED), record("8")).after(LATEST)
    assert records_of(batch)[0].data == MALFORMED
    assert list(batch.malformed) == ["7"]


def test_an_aggregate_of_another_shard_yields_nothing_and_is_named(page: MakePage) -> None:
    there = HashRange(20000, HASH_KEY_MAX)  # 12345, the explicit hash key of the second user record, is outside
    found = Misrouted(user_records=2, sub_sequence=1, hash_key=12345, is_explicit=True, key_bytes=4)
    batch = page(record("6", VECTOR), record("7", b"plain"), record("8", VECTOR)).after(LATEST, there)
    for _ in range(2):
        assert places(batch) == ["7/0"]
        assert batch.misrouted == {"6": found, "8": found}
    assert batch.malformed == {}
    nothing = page(record("6", VECTOR)).after(LATEST, there)
    assert (nothing.largest, nothing.misrouted) == (None, {"6": found})
    assert page(record("6", VECTOR)).after(Position("6", 1), HashRange(0, 2**127)).misrouted == {}
    assert page(record("7", b"plain")).after(LATEST, there).misrouted == {}


@pytest.mark.parametrize("data", [VECTOR[:4], VECTOR[:20], VECTOR[:-1] + b"\x00", b"x" + VECTOR])
def test_what_is_no_aggregate_is_a_plain_record(page: MakePage, data: bytes) -> None:
    batch = page(record("7", data)).after(LATEST)
    assert [r.data for r in records_of(batch)] == [data]
    assert batch.largest == Position("7")


def test_the_children_are_named_at_the_end() -> None:
    child = {
        "ShardId": "shardId-1",
        "ParentShards": ["shardId-0"],
        "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
    }
    page = page_of(body_of([], ChildShards=[child]))
    assert page.child_shards == (ChildShard("shardId-1", frozenset({"shardId-0"}), HashRange(0, 9)),)
