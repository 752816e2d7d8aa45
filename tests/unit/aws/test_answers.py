"""HTTP answers as their bytes come in: whole ones, in whatever pieces, and what is none."""

from __future__ import annotations

import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.aws.wire.answers import Answer, Incoming, NothingSentBackError
from mld.aws.wire.chunks import BrokenAnswerError
from mld.aws.wire.frame_stream import FrameStream
from tests.unit.aws.test_wire import answer


def chunked(body: bytes) -> bytes:
    return answer(body, "Transfer-Encoding: chunked", length=False)


def fed(pieces: list[bytes]) -> Answer:
    """What comes of the pieces, after which the connection ends."""
    incoming = Incoming()
    for piece in pieces:
        if (found := incoming.feed(piece)) is not None:
            return found
    return incoming.end()


WHOLE = {
    "length": (answer(b"abc"), b"abc", True),
    "empty": (answer(b""), b"", True),
    "to be closed": (answer(b"abc", "Connection: Close"), b"abc", False),
    "after 100": (b"HTTP/1.1 100 Continue\r\n\r\n" + answer(b"abc"), b"abc", True),
    "chunks": (chunked(b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: 1\r\n\r\n"), b"abcde", True),
    "checksum": (answer(b"abc", f"x-amz-crc32: {zlib.crc32(b'abc')}"), b"abc", True),
    "bare line ends": (b"HTTP/1.1 200 OK\nContent-Length: 4\n\n\n\r\n.", b"\n\r\n.", True),
    "no reason": (b"HTTP/1.1 200 \r\nContent-Length:1\r\n\r\nx", b"x", True),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
    "large": (answer(b"x" * 3_000_000), b"x" * 3_000_000, True),
    "to the end": (answer(b"abc", length=False), b"abc", False),
}


@pytest.mark.parametrize(("sent", "body", "keep"), WHOLE.values(), ids=WHOLE)
def test_a_whole_answer_is_found_in_pieces_of_any_size(sent: bytes, body: bytes, keep: bool) -> None:
    for size in (len(sent), 65_536, 7, 1) if len(sent) < 1000 else (len(sent), 65_536):
        got = fed([sent[start : start + size] for start in range(0, len(sent), size)])
        assert (got.body, got.keep) == (body, keep)


@given(st.binary(max_size=300), st.integers(0, 500))
def test_an_answer_is_found_when_it_is_whole_and_not_before(body: bytes, cut: int) -> None:
    sent = answer(body, f"x-amz-crc32: {zlib.crc32(body)}")
    incoming = Incoming()
    cut = min(cut, len(sent) - 1)
    assert incoming.feed(sent[:cut]) is None
    found = incoming.feed(sent[cut:])
    assert found is not None and found.body == body and found.keep


@pytest.mark.parametrize("sent", [answer(b"abc"), chunked(b"3\r\nabc\r\n0\r\n\r\n")], ids=["length", "chunks"])
def test_a_connection_with_more_in_it_than_was_asked_for_is_not_used_again(sent: bytes) -> None:
    for pieces in ([sent + b"d"], [sent[:-2], sent[-2:] + b"d"]):
        got = fed(pieces)
        assert (got.body, got.keep) == (b"abc", False)


def test_the_head_can_be_had_first() -> None:
    incoming = Incoming()
    sent = answer(b"abc", "Name: value")
    assert not incoming.feed_head(sent[:30])
    assert incoming.feed_head(sent[30:-2])
    assert (incoming.status, incoming.headers[b"name"], incoming.ahead) == (200, b"value", b"a")
    found = incoming.feed(b"bc")
    assert found is not None and found.body == b"abc"


@pytest.mark.parametrize(
    "sent",
    [
        answer(b"abc")[:-1],
        answer(b"abc")[:-4],
        answer(b"abc")[:20],
        answer(b"abc")[:5],
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        answer(b"abc", "content-length: 2"),
        answer(b"abc", "no header"),
        answer(b"", "content-length: -1", length=False),
        answer(b"", "content-length: 999999999999", length=False),
        answer(b"abc", "transfer-encoding: gzip", length=False),
        answer(b"abc", "x-amz-crc32: 1"),
        answer(b"", "h: " + "x" * 70_000),
        b"x" * 70_000,
        chunked(b"3\r\nab"),
        chunked(b"3\r\nabc\r\n"),
        chunked(b"3\r\nabc\r\n0\r\n"),
        chunked(b"zz\r\nabc\r\n"),
        chunked(b"-3\r\nabc\r\n"),
        chunked(b"3\r\nabcde\r\n0\r\n\r\n"),
        chunked(b"3;" + b"x" * 5_000),
        chunked(b"123456789\r\n"),
    ],
    ids=range(22),
)
def test_what_is_no_whole_answer_is_an_error_and_never_data(sent: bytes) -> None:
    with pytest.raises(BrokenAnswerError):
        fed([sent])


def test_an_end_before_an_answer_is_told_apart() -> None:
    with pytest.raises(NothingSentBackError):
        fed([])


def test_a_body_in_tiny_chunks_takes_little_more_memory_than_itself() -> None:
    body = bytes(range(256)) * 200
    sent = chunked(b"".join(b"2\r\n%b\r\n" % body[at : at + 2] for at in range(0, len(body), 2)) + b"0\r\n\r\n")
    tracemalloc.start()
    try:
        got = fed([sent[start : start + 65_536] for start in range(0, len(sent), 65_536)])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert got.body == body
    assert peak < 4 * len(body) + len(sent)


def test_a_frame_in_tiny_chunks_takes_little_more_memory_than_itself() -> None:
    frame = (16 + 50_000).to_bytes(4, "big") + bytes(12) + bytes(range(250)) * 200
    stream = FrameStream(chunked=True)
    tracemalloc.start()
    try:
        for start in range(0, len(frame), 1_000):  # as they are read: many chunks at a time
            stream.feed(b"".join(b"1\r\n%c\r\n" % byte for byte in frame[start : start + 1_000]))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert b"".join(stream.take() or ()) == frame
    assert peak < 4 * len(frame)
