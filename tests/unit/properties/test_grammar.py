"""The file grammar against the worked examples of the spec and, on random input, against its reference algorithm."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mld.properties.lines import FileEntry, GrammarError, decode, parse
from tests.unit.properties import reference_grammar


def pairs(data: bytes) -> list[tuple[str, str]]:
    return [(entry.key, entry.value) for entry in parse(data)]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a = b # c", [("a", "b # c")]),
        (b"a = = b", [("a", "= b")]),
        (b"a==b", [("a", "=b")]),
        (b"a:b", [("a", "b")]),
        (b"a b", [("a", "b")]),
        (b"a", [("a", "")]),
        (b"=v", [("", "v")]),
        (b"a=b  \t", [("a", "b  \t")]),
        (b'a="x"', [("a", '"x"')]),
        (b"# c \\\na=1", [("a", "1")]),
        (b"  ! c\r\na=1\rb=2", [("a", "1"), ("b", "2")]),
        (b"a=x\\\n  #y", [("a", "x#y")]),
        (b"a=x\\\n\nb=1", [("a", "x"), ("b", "1")]),
        (b"a=x\\\\\nb=1", [("a", "x\\"), ("b", "1")]),
        (b"a=x\\", [("a", "x")]),
        (b"lo\\\n  ng=1", [("long", "1")]),
        (b"\\q\\=\\:\\#\\ k=\\t\\n\\r\\f\\u0041", [("q=:# k", "\t\n\r\fA")]),
        (b"a=\\ud83d\\ude00", [("a", "\N{GRINNING FACE}")]),
        (b"\\\n#a=1\nb=2", [("b", "2")]),
        (b"", []),
    ],
)
def test_examples_of_the_spec(data: bytes, expected: list[tuple[str, str]]) -> None:
    assert pairs(data) == expected


@pytest.mark.parametrize("data", [b"a=\\u", b"a=\\u12", b"a=\\u00g0", b"\\u1=2", b"a=\\u 123"])
def test_a_malformed_unicode_escape_is_refused_with_its_line(data: bytes) -> None:
    with pytest.raises(GrammarError) as caught:
        parse(b"# one\n\n" + data)
    assert caught.value.line == 3


def test_an_upper_case_u_is_an_ordinary_escape() -> None:
    assert pairs(b"a=\\U0041") == [("a", "U0041")]


def test_entries_know_the_line_of_their_key() -> None:
    data = b"# c\r\na=1\r\n\r\nb=2\\\r\n  3\r\n\\\r\nc=4\n"
    assert parse(data) == [FileEntry("a", "1", 2), FileEntry("b", "23", 4), FileEntry("c", "4", 7)]


def test_duplicates_are_all_reported_in_order() -> None:
    assert pairs(b"a=1\na=2") == [("a", "1"), ("a", "2")]


def test_utf_8_is_read_as_such_and_anything_else_as_latin_1() -> None:
    assert decode("a=é€".encode()) == "a=é€"
    assert decode("a=é".encode("latin-1")) == "a=é"


def test_a_byte_order_mark_is_no_part_of_the_first_key() -> None:
    assert pairs(b"\xef\xbb\xbfa=1") == [("a", "1")]


NASTY = st.lists(st.sampled_from(list("ab=: \t\f\\#!\r\nu0A") + ["\\\r\n", "\\\\", "\\u0041", "\x0b", "\x85"]))


@settings(max_examples=1000)
@given(NASTY.map(lambda parts: "".join(parts).encode("latin-1")))
@example(b"\\\n#x")
@example(b"\\\r\\\n")
def test_it_agrees_with_the_reference_algorithm(data: bytes) -> None:
    try:
        expected: list[tuple[str, str]] | None = reference_grammar.load(data)
    except ValueError:
        expected = None
    try:
        actual: list[tuple[str, str]] | None = pairs(data)
    except GrammarError:
        actual = None
    assert actual == expected


@given(NASTY.map(lambda parts: "".join(parts).encode("latin-1")))
def test_every_line_number_points_at_text(data: bytes) -> None:
    try:
        entries = parse(data)
    except GrammarError:
        return
    lines = data.decode("latin-1").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert all(lines[entry.line - 1].strip(" \t\f") for entry in entries)
    assert [entry.line for entry in entries] == sorted({entry.line for entry in entries})
