"""Lines of a child, however its output is cut into reads (protocol#line-framing)."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.protocol.line_splitter import LineSplitter


def all_lines(chunks: list[bytes]) -> list[str]:
    splitter = LineSplitter()
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    return lines + splitter.eof()


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\r\nb\rc\n", ["a", "b", "c"]),
        (b"a\n\nb", ["a", "", "b"]),
        (b"a\r\rb\r", ["a", "", "b"]),
        (b"\n\r\n", ["", ""]),
        (b"", []),
        (b"last", ["last"]),
        ("\u2028\x0b\x0c\x85 is one line\n".encode(), ["\u2028\x0b\x0c\x85 is one line"]),
        (b"bad \xff utf-8\n", ["bad \ufffd utf-8"]),
    ],
)
def test_newline_carriage_return_and_both_end_a_line_and_nothing_else_does(data: bytes, lines: list[str]) -> None:
    assert all_lines([data]) == lines
    assert all_lines([bytes([byte]) for byte in data]) == lines


@given(data=st.lists(st.sampled_from([b"\r", b"\n", b"a", "\u00e9".encode(), b"\xff"]), max_size=40), cuts=st.data())
def test_where_the_reads_are_cut_makes_no_difference(data: list[bytes], cuts: st.DataObject) -> None:
    whole = b"".join(data)
    at = sorted(cuts.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    chunks = [whole[start:end] for start, end in zip([0, *at], [*at, len(whole)], strict=True)]
    expected = re.split(r"\r\n|\r|\n", whole.decode("utf-8", "replace"))
    if expected[-1] == "":
        expected.pop()
    assert all_lines(chunks) == expected


def test_a_line_end_is_seen_before_the_byte_after_it_has_come() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"status\r") == ["status"]
    assert splitter.feed(b"\n") == []
    assert splitter.feed(b"\n") == [""]


def test_the_unfinished_line_is_counted_so_that_reading_can_pause() -> None:
    splitter = LineSplitter()
    splitter.feed(b"done\nhalf")
    assert splitter.buffered_bytes == 4
    splitter.feed(b"\n")
    assert splitter.buffered_bytes == 0


def test_of_an_overlong_line_the_beginning_is_kept() -> None:
    splitter = LineSplitter(line_bytes_max=4)
    assert splitter.feed(b"123") == []
    assert splitter.feed(b"456") == []
    assert splitter.buffered_bytes == 4
    assert splitter.feed(b"7\nabcdefg\nxy\n") == ["1234", "abcd", "xy"]


def test_a_long_line_in_small_reads_costs_time_linear_in_its_length() -> None:
    def cost_s(reads: int) -> float:
        splitter = LineSplitter(line_bytes_max=64 * reads)
        start_s = time.process_time()
        for _ in range(reads):
            splitter.feed(b"x" * 64)
        assert len(splitter.eof()[0]) == reads * 64
        return time.process_time() - start_s

    short_s = min(cost_s(10_000) for _ in range(3))
    long_s = min(cost_s(100_000) for _ in range(3))
    assert long_s < 40 * short_s, "ten times the length should cost about ten times the time, not a hundred times"
