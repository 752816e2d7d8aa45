"""Lines taken apart: the records come out as the bytes that went in, wherever the pieces were cut."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from mld.protocol.codec import RECORDS_HEAD, encode_process_records, records_tail
from mld.protocol.framed_records import FramedRecord, Splitter, line_of
from mld.protocol.messages import Record

HOSTILE_TEXTS = st.sampled_from([',"action":"record"}', '"', "\\", '\\",\\"action":"record"}', "ключ", "\n", ""])
RECORDS = st.lists(
    st.builds(
        Record,
        data=st.one_of(st.binary(max_size=40), st.just(b"x" * 200_000), st.just(b',"action":"record"}')),
        partition_key=st.one_of(HOSTILE_TEXTS, st.text(max_size=8)),
        sequence_number=st.integers(0, 10**56).map(str),
        sub_sequence_number=st.integers(0, 10**6),
        approximate_arrival_ms=st.integers(-5, 2**42),
    ),
    max_size=8,
)


def split(line: bytes, piece_bytes: int) -> list[FramedRecord]:
    splitter = Splitter()
    pieces = (line[start : start + piece_bytes] for start in range(0, len(line), piece_bytes))
    return [record for piece in pieces for record in splitter.feed(piece)]


@given(RECORDS, st.one_of(st.none(), st.integers(0, 10**9)), st.sampled_from([19, 64, 4_096, 131_072]))
def test_every_line_comes_apart_into_its_records_and_together_again(
    records: list[Record], lag_ms: int | None, piece_bytes: int
) -> None:
    line = b"".join(encode_process_records(records, lag_ms))
    if len(line) > 100 * piece_bytes:
        piece_bytes = 131_072
    framed = split(line, piece_bytes)
    lines = [b"".join(encode_process_records([record], None)) for record in records]
    assert [record.text for record in framed] == [
        line.removeprefix(RECORDS_HEAD).removesuffix(records_tail(None)) for line in lines
    ]
    for mine, given_ in zip(framed, records, strict=True):
        assert (mine.sequence, mine.sub) == (given_.sequence_number, given_.sub_sequence_number)
        assert mine.data_bytes == len(given_.data)
        assert mine.fields()["partitionKey"] == given_.partition_key
    assert b"".join(line_of(framed, lag_ms)) == line


def test_some_of_the_records_make_a_line_of_their_own() -> None:
    records = [Record(b"a" * number, f"k{number}", str(number), 0, 7) for number in range(5)]
    framed = split(b"".join(encode_process_records(records, 12)), 1_000)
    message = json.loads(b"".join(line_of(framed[1:3], 12)))
    assert [record["sequenceNumber"] for record in message["records"]] == ["1", "2"]
    assert message["millisBehindLatest"] == 12


def test_a_long_line_comes_in_pieces() -> None:
    records = [Record(b"x" * 300_000, "k", str(number), 0, 7) for number in range(3)]
    pieces = list(line_of(split(b"".join(encode_process_records(records, None)), 100_000), None))
    assert max(map(len, pieces)) <= 131_072
