"""Lines of the protocol, shortened for people, however they come in pieces."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mld.consumer.short_line import LINE_CHARACTERS_MAX, PAYLOAD_CHARACTERS_SHOWN, RECORDS_SHOWN, ShortLine
from mld.protocol.codec import encode_action, encode_process_records
from mld.protocol.messages import Dialect, Initialize, Record


def record(number: int, data: bytes = b"click", key: str = "user") -> Record:
    return Record(data, key, str(number), 1_700_000_000_000, 0)


def short(line: bytes, *cuts: int) -> ShortLine:
    shortened = ShortLine()
    edges = [0, *sorted(min(cut, len(line)) for cut in cuts), len(line)]
    for start, end in pairwise(edges):
        shortened.feed(line[start:end])
    return shortened


def batch(*records: Record) -> bytes:
    return b"".join(encode_process_records(records, 340))


def test_a_short_line_is_shown_as_it_is() -> None:
    line = encode_action(Initialize("shardId-000000000000", "TRIM_HORIZON", 0), Dialect.KCL_2)
    assert short(line).text() == line.decode().rstrip("\n")
    line = batch(record(1), record(2))
    assert short(line).text() == line.decode().rstrip("\n")


def test_of_many_records_the_first_are_shown_and_the_others_counted() -> None:
    shortened = short(batch(*(record(number) for number in range(1, 1001))))
    value = json.loads(shortened.text())
    assert [one["sequenceNumber"] for one in value["records"][:-1]] == ["1", "2", "3"]
    assert value["records"][-1] == f"… {1000 - RECORDS_SHOWN} more records"
    assert value["millisBehindLatest"] == 340
    assert shortened.records == 1000


def test_of_a_long_payload_the_beginning_is_shown() -> None:
    value = json.loads(short(batch(record(1, b"x" * 30_000))).text())
    assert value["records"][0]["data"] == "eHh4" * (PAYLOAD_CHARACTERS_SHOWN // 4) + "… 39952 more"
    assert value["records"][0]["partitionKey"] == "user"


def test_a_key_that_looks_like_a_record_is_none() -> None:
    keys = ['{"data":"', '"action":"record"}', "x" * 256]
    shortened = short(batch(*(record(number, key=key) for number, key in enumerate(keys * 3))))
    assert shortened.records == 9
    assert [one["partitionKey"] for one in json.loads(shortened.text())["records"][:3]] == keys


def test_what_is_shown_is_bounded() -> None:
    assert len(short(b"x" * 10_000_000).text()) == LINE_CHARACTERS_MAX + 1
    unfinished = short(batch(*(record(number, b"y" * 1000) for number in range(100)))[:-2000])
    assert len(unfinished.text()) < LINE_CHARACTERS_MAX


@given(
    st.lists(st.tuples(st.binary(max_size=300), st.text(max_size=5)), max_size=6),
    st.lists(st.integers(0, 2500), max_size=12),
)
def test_pieces_make_no_difference(records: list[tuple[bytes, str]], cuts: list[int]) -> None:
    line = batch(*(record(number, data, key) for number, (data, key) in enumerate(records)))
    whole, pieces = short(line), short(line, *cuts)
    assert (pieces.text(), pieces.records, pieces.size) == (whole.text(), len(records), len(line))
    assert json.loads(whole.text())["millisBehindLatest"] == 340
