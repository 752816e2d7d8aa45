"""Sharing a line out: every record goes to one child, whole and as it was framed, and each key always to the same."""

import itertools
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.protocol.codec import PIECE_BYTES, encode_process_records
from mld.protocol.messages import Record
from mld.protocol.sharing import SharedLine, is_ordered, line_of_texts

KEYS = st.text(max_size=8) | st.sampled_from(["", '"', "\\", '\\"', "a\\", "}", '},{"data":"', "é", "\ud800", "😀"])
RECORDS = st.lists(
    st.builds(
        Record,
        data=st.binary(max_size=40),
        partition_key=KEYS,
        sequence_number=st.integers(1, 10**20).map(str),
        sub_sequence_number=st.integers(0, 300),
        approximate_arrival_ms=st.integers(-1, 2**45),
        extra=st.dictionaries(st.sampled_from(["streamName", "schemaName"]), st.text(max_size=5), max_size=2),
    ),
    max_size=12,
)


def shared(line: bytes, children: int, cuts: list[int]) -> SharedLine:
    shares = SharedLine(children)
    places = [0, *sorted(cut % (len(line) + 1) for cut in cuts), len(line)]
    for start, end in itertools.pairwise(places):
        shares.feed(line[start:end])
    return shares


def records_of(texts: list[bytes], lag_ms: int | None = 7) -> list[dict]:
    return json.loads(b"".join(line_of_texts(texts, lag_ms)))["records"]


def whole(records: list[Record], lag_ms: int | None = 7) -> bytes:
    return b"".join(encode_process_records(records, lag_ms))


@given(RECORDS, st.integers(1, 5), st.lists(st.integers(0, 5000), max_size=6))
def test_the_children_get_what_one_would(records, children, cuts):
    line = whole(records)
    shares = shared(line, children, cuts)
    expected = json.loads(line)["records"]
    assert [(sequence.decode(), sub) for sequence, sub, _ in shares.order] == [
        (one["sequenceNumber"], one["subSequenceNumber"]) for one in expected
    ]
    assert [records_of(texts) for texts in shares.texts] == [
        [one for one, (_, _, child) in zip(expected, shares.order, strict=True) if child == number]
        for number in range(children)
    ]
    assert shares.counts == {number: len(own) for number in range(children) if (own := of_child(shares, number))}
    assert shares.first_of == {number: of_child(shares, number)[0] for number in shares.counts}
    assert shares.last_of == {number: of_child(shares, number)[-1] for number in shares.counts}
    assert shares.is_ordered == is_ordered(shares.order)


def of_child(shares: SharedLine, number: int) -> list:
    return [record for record in shares.order if record[2] == number]


def test_what_is_certainly_in_order():
    assert is_ordered([(b"10", 0, 0), (b"10", 1, 1), (b"11", 0, 0)])
    assert not is_ordered([(b"11", 0, 0), (b"10", 0, 1)])
    assert not is_ordered([(b"9", 0, 0), (b"10", 0, 1)])  # texts of two lengths do not sort as numbers


@given(RECORDS, st.integers(2, 8))
def test_a_key_always_goes_to_the_same_child(records, children):
    for record, (_, _, child) in zip(records, shared(whole(records), children, []).order, strict=True):
        if record.partition_key:
            key = record.partition_key.encode("utf-8", "surrogatepass")
            assert child == zlib.crc32(key) % children


def test_the_hash_is_the_documented_one():
    """These are in docs/use/parallel.md: a change moves every key to another child."""
    keys = ["user-1", "user-2", "é", "😀"]
    records = [Record(b"x", key, str(number), 0, 1) for number, key in enumerate(keys, 1)]
    assert [child for _, _, child in shared(whole(records), 8, []).order] == [4, 6, 6, 4]


def test_records_without_a_key_go_to_the_children_in_turn():
    records = [Record(b"x", "", str(number), 0, 1) for number in range(1, 6)]
    line = whole(records)
    shares = SharedLine(3, turn=2)
    shares.feed(line)
    assert [child for _, _, child in shares.order] == [2, 0, 1, 2, 0]
    assert shares.turn == 1


@pytest.mark.parametrize("size", [PIECE_BYTES, 3 * PIECE_BYTES + 17])
def test_a_large_record_comes_in_pieces_and_goes_in_pieces(size):
    records = [Record(bytes([number]) * size, f"k{number}", str(number), 0, 1) for number in range(1, 4)]
    shares = SharedLine(1)
    for piece in encode_process_records(records, 7):
        shares.feed(piece)
    pieces = list(line_of_texts(shares.texts[0], 7))
    assert b"".join(pieces) == whole(records)
    assert max(map(len, pieces)) <= 2 * PIECE_BYTES
    assert max(map(len, shares.texts[0])) <= 2 * PIECE_BYTES  # its parts are not joined


@pytest.mark.parametrize("text", ['"}', "}", ',"action":"record"}', '":0', "\\"])
def test_what_stands_after_the_number_of_a_record_is_no_end(text):
    """A schema registry may put keys there, with names that somebody else has chosen."""
    records = [Record(b"x", "k", str(number), 0, 1, {"streamName": text}) for number in range(1, 4)]
    assert [sub for _, sub, _ in shared(whole(records), 1, []).order] == [0, 0, 0]
    assert len(records_of(shared(whole(records), 1, []).texts[0])) == 3


def test_five_hundred_keys_are_spread_over_eight_children():
    records = [Record(b"x", f"user-{number}", str(number), 0, 1) for number in range(1, 501)]
    shares = [len(records_of(texts)) for texts in shared(whole(records), 8, []).texts]
    assert max(shares) < 1.4 * 500 / 8
