"""Rules: retrieval#checkpoint-filter; and the plain page."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.positions import AT_TIMESTAMP, LATEST, SHARD_END, TRIM_HORIZON, Position
from mld.retrieval.page import RecordsPage
from protocol.messages import Record

X = "49590338271490256608559692538361571095921575989136588898"


def record(sequence: str, sub: int = 0, data: bytes = b"data") -> Record:
    return Record(data, "key", sequence, sub, 1_700_000_000_123)


def page(*records: Record, lag_ms: int | None = 0) -> RecordsPage:
    return RecordsPage(records, "next", lag_ms)


AGGREGATE = page(record(X, 0), record(X, 1), record(X, 2))


def test_a_page_knows_its_size_and_its_last_record() -> None:
    whole = page(record("1", data=b"abc"), record("2", data=b"de"))
    assert (whole.count, whole.data_bytes, whole.last_sequence) == (2, 5, "2")


def test_an_empty_page_has_no_last_record() -> None:
    assert (page().count, page().data_bytes, page().last_sequence) == (0, 0, None)


def test_a_checkpoint_inside_an_aggregate_keeps_the_rest() -> None:
    batch = AGGREGATE.after(Position(X, 1))
    assert (batch.records, batch.largest) == ((record(X, 2),), Position(X, 2))


def test_a_checkpoint_without_sub_sequence_redelivers_the_rest_of_the_aggregate() -> None:
    assert AGGREGATE.after(Position(X, 0)).records == (record(X, 1), record(X, 2))


def test_a_plain_record_at_the_checkpoint_is_dropped() -> None:
    batch = page(record(X)).after(Position(X, 0))
    assert (batch.count, batch.largest, batch.data_bytes) == (0, None, 0)


def test_sequence_numbers_compare_as_integers() -> None:
    assert page(record("9"), record("10")).after(Position("9")).records == (record("10"),)


@pytest.mark.parametrize("sentinel", [LATEST, TRIM_HORIZON, AT_TIMESTAMP])
def test_every_record_lies_after_a_starting_sentinel(sentinel: Position) -> None:
    assert page(record("0"), record("1")).after(sentinel).count == 2


def test_no_record_lies_after_the_end_of_the_shard() -> None:
    assert page(record(X)).after(SHARD_END).count == 0


def test_a_batch_is_framed_as_one_process_records_line() -> None:
    batch = page(record("1"), record("2", data=b"\xff"), lag_ms=42).after(Position("1"))
    line = b"".join(batch.line())
    assert line.endswith(b"\n")
    message = json.loads(line)
    assert (message["action"], message["millisBehindLatest"]) == ("processRecords", 42)
    assert [(r["sequenceNumber"], r["data"]) for r in message["records"]] == [("2", "/w==")]


def test_a_line_can_be_framed_again() -> None:
    batch = page(record("1")).after(LATEST)
    assert list(batch.line()) == list(batch.line())


def test_a_large_batch_is_framed_in_pieces() -> None:
    batch = page(*(record(str(n), data=bytes(1000)) for n in range(1000))).after(LATEST)
    assert max(len(piece) for piece in batch.line()) < 300_000


positions = st.builds(
    Position, st.integers(0, 40).map(str) | st.sampled_from(["LATEST", "TRIM_HORIZON", "SHARD_END"]), st.integers(0, 3)
)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3)), max_size=20), positions)
def test_the_filter_agrees_with_the_order_of_positions(orders: list[tuple[int, int]], position: Position) -> None:
    records = [record(str(number), sub) for number, sub in orders]
    expected = [r for r in records if Position(r.sequence_number, r.sub_sequence_number) > position]
    batch = page(*records).after(position)
    assert list(batch.records) == expected
    largest = max((Position(r.sequence_number, r.sub_sequence_number) for r in expected), default=None)
    assert batch.largest == largest
