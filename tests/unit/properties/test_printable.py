"""No text of others ends a line, moves a cursor or turns what follows round."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.properties.printable import printable, printable_lines

ESCAPED = [
    ("\0", "\\x00"), ("\a", "\\x07"), ("\b", "\\x08"), ("\t", "\\t"), ("\n", "\\n"), ("\v", "\\x0b"), ("\f", "\\x0c"),
    ("\r", "\\r"),
    ("\x1b", "\\x1b"), ("\x1c", "\\x1c"), ("\x1e", "\\x1e"), ("\x7f", "\\x7f"), ("\x85", "\\x85"), ("\x9b", "\\x9b"),
    ("\u061c", "\\u061c"), ("\u200e", "\\u200e"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029"), ("\u202e", "\\u202e"),
    ("\u2066", "\\u2066"), ("\u2069", "\\u2069"), ("\ud800", "\\ud800"), ("\udfff", "\\udfff"), ("\ufeff", "\\ufeff"),
    ("\U000e0041", "\\U000e0041"),
]  # fmt: skip


@pytest.mark.parametrize(("character", "escaped"), ESCAPED)
def test_what_is_not_visible_is_escaped(character: str, escaped: str) -> None:
    assert printable(f"a{character}ü{character}z") == f"a{escaped}ü{escaped}z"


@pytest.mark.parametrize("text", ["", "plain", 'with "quotes" and \\', "Grüße, 世界 🎉", "e\u0301"])
def test_what_is_visible_stays(text: str) -> None:
    assert printable(text) is text


@given(st.text(st.characters(codec=None, categories=None)))
def test_any_text_becomes_one_line_without_controls_that_can_be_encoded(text: str) -> None:
    fit = printable(text)
    assert fit.splitlines() == ([fit] if fit else [])
    assert not {unicodedata.category(character) for character in fit} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert fit.encode("utf-8").decode("utf-8") == fit


def test_only_line_feeds_keep_lines_apart() -> None:
    assert printable_lines("one\ntwo\rthree\u2028four") == "one\ntwo\\rthree\\u2028four"
