"""What a JVM or a pipeline prints without a line feed takes no memory of its host, and does not fill the log."""

from __future__ import annotations

import io
from collections import deque
from types import SimpleNamespace

import pytest

from mld.processors.spark import link
from mld.processors.spark.host.connection import ChildConnection
from mld.processors.spark.host.printed_lines import LINE_BYTES_MAX, SAID_LINES_MAX, PrintedLines, bounded_lines
from mld.processors.spark.sanitizing import sanitizer_of


def test_of_a_line_that_never_ends_the_beginning_is_kept() -> None:
    long = b"x" * (3 * LINE_BYTES_MAX + 7)
    assert list(bounded_lines(io.BytesIO(b"one\n" + long + b"\ntwo\n" + long))) == [
        b"one\n",
        b"x" * LINE_BYTES_MAX,
        b"two\n",
        b"x" * LINE_BYTES_MAX,
    ]


@pytest.mark.parametrize("line", ["x" * LINE_BYTES_MAX, "\U0001f600" * LINE_BYTES_MAX, "short"])
def test_what_is_printed_is_passed_on_in_frames_that_a_child_takes(line: str) -> None:
    """A function that prints a record of 800 KB, many times over, must not end the child of another shard."""
    printed, heard = PrintedLines.__new__(PrintedLines), []
    printed._kept = deque(f"{line}{n}\n" for n in range(SAID_LINES_MAX))

    def pass_on(text: str) -> bool:
        frame = link.encode(link.SAID, {"text": text})
        link.decode_header(frame[: link.HEADER.size])
        heard.append(link.decode_body(frame[link.HEADER.size :])["text"])
        return True

    printed._pass_on = pass_on
    printed.deliver()
    assert "".join(heard) == "".join(f"{line}{n}\n" for n in range(SAID_LINES_MAX))


def test_what_no_child_can_take_is_kept_in_its_order() -> None:
    printed = PrintedLines.__new__(PrintedLines)
    printed._kept, printed._pass_on = deque(["a\n", "b\n"]), lambda text: False
    printed.deliver()
    assert list(printed._kept) == ["a\n", "b\n"]


def test_a_sentence_of_any_length_fits_into_a_frame() -> None:
    written: list[bytes] = []
    writer = SimpleNamespace(write=written.append, close=lambda: None)
    host = SimpleNamespace(gone=lambda child: None)
    ChildConnection(host, 1, writer, sanitizer_of((), {})).fail("\U0001f600" * link.BODY_BYTES_MAX)  # type: ignore[arg-type]
    link.decode_header(written[0][: link.HEADER.size])
    body = link.decode_body(written[0][link.HEADER.size :])
    assert body["reason"].startswith("\U0001f600" * 1000) and body["status"] == 1
