"""The raw page against the plain way of reading, on bodies of any legal form; and what it must refuse."""

from __future__ import annotations

import json
import time
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mld.core.positions import LATEST, TRIM_HORIZON, Position
from mld.retrieval.rawbody import page_of
from mld.retrieval.rawpage import RawPage
from tests.support.bodies import BodyMaker, read_in_parts, reference_page
from tests.support.pages import assert_same

RECORD = '{"Data":"aGVsbG8=","PartitionKey":"k","ApproximateArrivalTimestamp":1.7E9,"SequenceNumber":"1"}'
BODY = f'{{"MillisBehindLatest":0,"NextShardIterator":"next","Records":[{RECORD},{RECORD}]}}'


def by_pattern(body: bytes) -> int:
    """How many of the records are read fast."""
    reader = page_of.in_parts()
    reader.end(body)
    return reader.by_pattern


def whole(body: bytes, rng: Random) -> RawPage:
    """Read a body at once."""
    return page_of(body)


WAYS = pytest.mark.parametrize("read", [whole, read_in_parts])


@WAYS
@settings(max_examples=60)  # `make fuzz` draws a million records
@given(rng=st.randoms(use_true_random=False), plain=st.sampled_from([0.0, 0.5, 1.0]))
def test_a_body_means_the_same_read_raw_and_read_plainly(read, rng: Random, plain: float) -> None:
    body = BodyMaker(rng, plain=plain).body()
    assert_same(read(body, rng), reference_page(body), rng)


@pytest.mark.parametrize("absent", ["", '"PartitionKey":null,'], ids=["missing", "null"])
@pytest.mark.parametrize("every", [1, 2, 5])
def test_a_record_without_a_partition_key_has_an_empty_one(absent: str, every: int) -> None:
    records = [
        f'{{"SequenceNumber":"{10 + n}","Data":"aGVsbG8=",{absent if n % every == 0 else """"PartitionKey":"k","""}'
        '"ApproximateArrivalTimestamp":1.700000000123E9}'
        for n in range(40)
    ]
    body = f'{{"Records":[{",".join(records)}]}}'.encode()
    line = json.loads(b"".join(page_of(body).after(TRIM_HORIZON).line()))
    assert [one["partitionKey"] for one in line["records"]] == ["" if n % every == 0 else "k" for n in range(40)]
    assert by_pattern(body) >= (39 if not absent and every == 1 else 0), "read as fast as others"


@WAYS
@given(rng=st.randoms(use_true_random=False), place=st.floats(0, 1, exclude_max=True))
def test_a_truncated_body_is_refused(read, rng: Random, place: float) -> None:
    body = BodyMaker(rng).body().rstrip(b" \t\r\n")
    with pytest.raises(ValueError):
        read(body[: int(place * len(body))], rng)


@given(st.binary(max_size=40), st.integers(0, len(BODY)), st.integers(0, 4))
def test_a_damaged_body_is_refused_or_means_what_it_says(patch: bytes, place: int, removed: int) -> None:
    """Never another exception."""
    body = BODY.encode()
    body = body[:place] + patch + body[place + removed :]
    try:
        page = page_of(body)
    except ValueError:
        return
    b"".join(page.after(LATEST).line())


def changed(old: str, new: str) -> bytes:
    assert old in BODY
    return BODY.replace(old, new).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"Records":null}',
        b'{"Records":[]}x',
        b'{"Records":[],}',
        b'{"Records":[,]}',
        b'{"Records":[1]}',
        b'{"Records":[{}]}',
        b'{"Records":[],"Records":null}',
        changed('"Data":"aGVsbG8=",', ""),
        changed(',"SequenceNumber":"1"', ""),
        changed('"k"', "7"),
        changed('"1"', "1"),
        changed('"1"', '"12a"'),
        changed('"1"', '""'),
        changed('"aGVsbG8="', "null"),
        changed('"aGVsbG8="', '"aGVsbG8"'),
        changed("1.7E9", '"yesterday"'),
        changed("1.7E9", "true"),
        changed("1.7E9", "1e999"),
        changed("1.7E9", "1.7E"),
        changed('"next"', "5"),
        changed("0,", '"0",'),
        changed("}]", "},]"),
        changed("},{", "}{"),
        changed("},{", "},,{"),
        changed('"k"', '"\n"'),
        changed('"k"', '"\\x"'),
        BODY.encode().replace(b'"k"', b'"\xff"'),
        changed('"NextShardIterator":"next"', '"ChildShards":[{"ShardId":"c"}]'),
        changed('"NextShardIterator":"next"', '"ChildShards":[7]'),
        changed('"NextShardIterator":"next"', '"ChildShards":' + "[" * 100_000 + "]" * 100_000),
    ],
    ids=repr,
)
def test_what_is_not_as_documented_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        page_of(body)


def many(count: int, **changes: str) -> bytes:
    records = [RECORD.replace('"1"', f'"{1000 + n}"') for n in range(count)]
    for place, text in changes.items():
        records[int(place.removeprefix("at"))] = text
    return ('{"Records":[' + ",".join(records) + "]}").encode()


MEMBERS = st.lists(
    st.tuples(
        st.sampled_from(
            [b"Records", b"Record\\u0073", b"NextShardIterator", b"MillisBehindLatest", b"ChildShards", b"X"]
        ),
        st.sampled_from(
            [b"[]", b"[ ]", b"null", b'"A"', b"0", b"1.5", b"NaN", b'{"Records":[]}', b'"a\\"Records\\":[]"', b"\xff"]
        ),
    ),
    max_size=5,
)


@given(MEMBERS, st.sampled_from([b"", b" ", b"x", b"}"]))
def test_a_body_without_records_means_the_same_read_at_once_and_step_by_step(members, after) -> None:
    body = b"{" + b",".join(b'"%s":%s' % member for member in members) + b"}" + after

    def found(read):
        try:
            page = read()
        except ValueError:
            return None
        return page.count, page.next_iterator, page.millis_behind_latest, page.child_shards, page.pieces

    def step_by_step():
        reader = page_of.in_parts(part_bytes=len(body) + 1)
        reader.feed(body)
        return reader.end()

    assert found(lambda: page_of(body)) == found(step_by_step)


def test_records_that_are_written_alike_are_read_by_one_pattern() -> None:
    page_of(many(2).replace(b'"k"', b'"k","EncryptionType":"KMS"'))
    assert by_pattern(many(1000)) == 999


def test_what_a_body_taught_is_known_in_the_next_one() -> None:
    page_of(many(2))
    assert by_pattern(many(3)) == 3


def test_bodies_of_large_payloads_are_wanted_in_one_piece() -> None:
    page_of(many(3))
    assert page_of.wants_parts
    page_of(many(3).replace(b"aGVsbG8=", b"aGVs" * 2000))
    assert not page_of.wants_parts


def test_large_payloads_are_framed_like_small_ones() -> None:
    body = many(30).replace(b"aGVsbG8=", b"aGVs" * 2000 + b"bG8=")
    for cut in (TRIM_HORIZON, Position("1005"), Position("1029")):
        assert b"".join(page_of(body).after(cut).line()) == reference_page(body).line(
            reference_page(body).after(cut, None)
        )


@pytest.mark.parametrize(
    "odd",
    [
        RECORD.replace('"k"', '"\\u006b"'),
        RECORD.replace('"k"', '"\u00e9"'),
        RECORD.replace("aGVsbG8=", "aGVsbG8\\u003d"),
        RECORD.replace('"k"', '"k","EncryptionType":"KMS"'),
        RECORD.replace("1.7E9", "1700000000"),
        RECORD.replace(",", " , "),
    ],
)
def test_one_odd_record_costs_the_others_nothing(odd: str) -> None:
    assert by_pattern(many(1000, at500=odd)) >= 997


def test_a_body_of_many_kinds_of_records_is_still_read() -> None:
    records = [RECORD.replace('"k"', f'"k","Field{n}":1') for n in range(200)]
    assert page_of(('{"Records":[' + ",".join(records) + "]}").encode()).count == 200


def test_reading_takes_time_in_proportion_to_the_body() -> None:
    """The worst kinds of bodies: backslashes everywhere, quotes everywhere, many layouts in turn."""
    kinds = [
        lambda n: many(1, at0=RECORD.replace('"k"', '"' + "\\\\" * n + '"')),
        lambda n: ('{"Records":[],"x":[' + ",".join(['"\\""'] * n) + "]}").encode(),
        lambda n: many(n // 20, **{f"at{m}": RECORD.replace(",", " ,") for m in range(0, n // 20, 2)}),
    ]
    for kind in kinds:
        small, large = (min(timed(kind(size)) for _ in range(3)) for size in (20_000, 80_000))
        assert large < 4 * small * 3 + 0.01


def timed(body: bytes) -> float:
    began = time.thread_time()
    page_of(body)
    return time.thread_time() - began
