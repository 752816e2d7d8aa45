"""What a JVM or a pipeline prints without a line feed takes no memory of its host, and does not fill the log."""

from __future__ import annotations

import io
from collections import deque

import pytest

from mld.processors.spark import link
from mld.processors.spark.host.printed_lines import LINE_BYTES_MAX, SAID_LINES_MAX, PrintedLines, bounded_lines


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


def test_a_sentence_that_is_too_long_for_a_frame_is_cut() -> None:
    frame = link.encode(link.FAILED, {"reason": "\U0001f600" * link.BODY_BYTES_MAX, "status": 1})
    link.decode_header(frame[: link.HEADER.size])
    assert link.decode_body(frame[link.HEADER.size :]) == {"reason": "\U0001f600" * link.TEXT_CHARS_MAX, "status": 1}
