"""HTTP answers in whatever pieces they come: whole, or an error, or a stream of a body; never something else."""

from __future__ import annotations

import tracemalloc
import zlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.aws.wire.answers import (
    BODY_BYTES_MAX,
    HEAD_BYTES_MAX,
    HEADERS_MAX,
    LINE_BYTES_MAX,
    Answer,
    AnswerParser,
    BrokenAnswerError,
)

CHUNKED = "Transfer-Encoding: chunked"
CUTS = st.lists(st.integers(1, 200), min_size=1, max_size=5)


def answer(body: bytes, *headers: str, status: str = "200 OK", length: bool = True) -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, *([f"content-length: {len(body)}"] if length else []), "", ""]
    return "\r\n".join(lines).encode() + body


def chunks(body: bytes, size: int) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%X;x=y\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\nTrailer: 1\r\n\r\n"


class Body:
    """Where a streamed body goes."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def append(self, piece: memoryview) -> None:
        self.pieces.append(bytes(piece))


def read(
    sent: bytes, cuts: Sequence[int] = (1 << 30,), *, ends: bool = False, sink: Body | None = None
) -> AnswerParser:
    """A parser that has received all of it in pieces of these sizes."""
    parser = AnswerParser(sink)
    at = number = 0
    while at < len(sent) and not parser.is_complete:
        assert not parser.is_ready or sink is not None
        size = min(cuts[number % len(cuts)], len(sent) - at)
        parser.feed(sent[at : at + size])
        at, number = at + size, number + 1
    if at < len(sent):
        parser.feed(sent[at:])
    if ends:
        parser.end()
    return parser


@pytest.mark.parametrize(
    ("sent", "body", "may_reuse"),
    [
        (answer(b"abc"), b"abc", True),
        (answer(b""), b"", True),
        (answer(b"abc", "Connection: Close"), b"abc", False),
        (answer(b"abc") + b"d", b"abc", False),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + answer(b"abc"), b"abc", True),
        (answer(chunks(b"abcde", 3), CHUNKED, length=False), b"abcde", True),
        (answer(chunks(b"abcde", 3), CHUNKED, "content-length: 2", length=False), b"abcde", True),
        (answer(b"0\r\n\r\n", CHUNKED, length=False), b"", True),
        (answer(b"abc", f"x-amz-crc32: {zlib.crc32(b'abc')}"), b"abc", True),
        (answer(b"abc", "x-amz-crc32: 1", "Content-Encoding: gzip"), b"abc", True),
        (b"HTTP/1.1 200 \r\nContent-Length:1\r\n\r\nx", b"x", True),
        (b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}", b"{}", True),
        (answer(b"", status="204 No Content", length=False), b"", True),
        (answer(b"x" * 3_000), b"x" * 3_000, True),
    ],
    ids=range(14),
)
def test_a_whole_answer_is_read_however_it_is_cut(sent: bytes, body: bytes, may_reuse: bool) -> None:
    for sizes in ([1 << 30], [1], [2, 5], [3], [20, 1], [60, 7, 300]):
        parser = read(sent, sizes)
        assert parser.is_complete and parser.may_reuse == may_reuse
        assert (parser.answer.status // 100, parser.answer.body) == (2, body)
        parser.end()


def test_names_of_headers_are_in_lower_case_and_the_last_one_counts() -> None:
    sent = answer(b"abc", "X-A: 1", "x-a:  2 ")
    assert read(sent).answer == Answer(200, {b"x-a": b"2", b"content-length": b"3"}, (b"abc",))


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    parser = read(answer(b"abc", length=False))
    assert not parser.is_complete
    parser.end()
    assert (parser.answer.body, parser.may_reuse) == (b"abc", False)


@pytest.mark.parametrize(
    "sent",
    [
        answer(b"abc")[:-1],
        answer(b"abc")[:-4],
        answer(b"abc")[:20],
        answer(b"abc")[:5],
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        answer(b"abc", "content-length: 2"),
        answer(b"", "content-length: -1", length=False),
        answer(b"", f"content-length: {BODY_BYTES_MAX + 1}", length=False),
        answer(b"", "content-length: " + "1" * 5000, length=False),
        answer(b"3\r\nab", CHUNKED, length=False),
        answer(b"3\r\nabc\r\n", CHUNKED, length=False),
        answer(b"3\r\nabc\r\n0\r\n", CHUNKED, length=False),
        answer(b"3\r\nabcde", CHUNKED, length=False),
        answer(b"\r\n", CHUNKED, length=False),
        answer(b"zz\r\nabc\r\n", CHUNKED, length=False),
        answer(b"-3\r\nabc\r\n", CHUNKED, length=False),
        answer(b"fffffffff\r\n", CHUNKED, length=False),
        answer(b"2\r\nabc\r\n", CHUNKED, length=False),
        answer(b"1" * (LINE_BYTES_MAX + 1), CHUNKED, length=False),
        answer(b"0\r\nTrailer: " + b"x" * LINE_BYTES_MAX, CHUNKED, length=False),
        answer(b"abc", "transfer-encoding: gzip", length=False),
        answer(b"abc", "x-amz-crc32: 1"),
        answer(chunks(b"abc", 2), CHUNKED, "x-amz-crc32: 1", length=False),
        answer(b"", *(f"h{number}: 1" for number in range(HEADERS_MAX))),
        answer(b"", "h: " + "x" * HEAD_BYTES_MAX),
        b"x" * (HEAD_BYTES_MAX + 1),
    ],
    ids=range(29),
)
def test_what_is_no_whole_answer_is_an_error_and_never_data(sent: bytes) -> None:
    for cuts in ([1 << 30], [7, 700]):
        with pytest.raises(BrokenAnswerError):
            read(sent, cuts, ends=True)


def test_a_body_of_unknown_length_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mld.aws.wire.answers.BODY_BYTES_MAX", 1000)
    for body, header in ((b"x" * 1001, "x: y"), (chunks(b"x" * 1001, 100), CHUNKED)):
        with pytest.raises(BrokenAnswerError, match="more than 1000"):
            read(answer(body, header, length=False))


@given(st.binary(max_size=300), CUTS)
def test_whatever_comes_is_read_alike_in_one_piece_and_in_many(noise: bytes, cuts: list[int]) -> None:
    """Noise where a head, a body or a chunk is expected."""
    for begin in (b"", b"HTTP/1.1 200 OK\r\n", answer(b"", CHUNKED, length=False), answer(b"", length=False)):
        outcomes: list[object] = []
        for sizes in ([1 << 30], cuts):
            try:
                parser = read(begin + noise, sizes, ends=True)
                got = parser.answer
                outcomes.append((got.status, got.headers, got.body, parser.may_reuse))
            except BrokenAnswerError:
                outcomes.append(BrokenAnswerError)
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("header", [CHUNKED, "content-length: 1000", "x: y"])
@given(cuts=CUTS)
def test_the_body_of_a_good_answer_streams(header: str, cuts: list[int]) -> None:
    body, sink = bytes(range(250)) * 4, Body()
    sent = answer(chunks(body, 99) if header == CHUNKED else body, header, length=False)
    parser = read(sent, cuts, ends=header == "x: y", sink=sink)
    assert parser.is_complete and b"".join(sink.pieces) == body
    assert parser.answer.body == b""


def test_a_stream_is_ready_with_its_head_and_a_refusal_when_it_is_whole() -> None:
    assert read(answer(b"", CHUNKED, length=False), sink=Body()).is_ready
    sink = Body()
    refused = answer(b"no", status="400 Bad")
    assert not read(refused[:-1], sink=sink).is_ready
    assert read(refused, sink=sink).answer.body == b"no"
    assert sink.pieces == []


def test_bytes_after_the_end_of_a_stream_are_an_error() -> None:
    with pytest.raises(BrokenAnswerError, match="after the end"):
        read(answer(b"0\r\n\r\nmore", CHUNKED, length=False), sink=Body())


@pytest.mark.parametrize("size", [1, 2])
def test_an_answer_in_tiny_chunks_takes_little_more_memory_than_its_body(size: int) -> None:
    body = bytes(range(256)) * 2_000
    sent = answer(chunks(body, size), CHUNKED, length=False)
    tracemalloc.start()
    try:
        got = read(sent, [16_384]).answer
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert got.body == body
    assert peak < 4 * len(body)


def test_a_long_head_byte_by_byte_is_searched_once() -> None:
    sent = answer(b"abc", "h: " + "x" * 60_000)
    assert read(sent, [1]).answer.body == b"abc"
