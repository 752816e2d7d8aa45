"""What others wrote calls nobody and leads nowhere in a chat."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.core.chat_text import NAME_CHARACTERS_MAX, WORDS_CHARACTERS_MAX, chat_text, foreign_chat_text
from tests.support.chats import ATTACKS, ZERO_WIDTH_SPACE, acted_on


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_attack_is_acted_on(attack: str) -> None:
    assert acted_on(attack), "else the test sees nothing"
    assert acted_on(foreign_chat_text(attack)) == []


@given(st.lists(st.sampled_from([*ATTACKS, "<", "!", "@", "[", "](", ":", "//", "www", ".", "co", " "])).map("".join))
def test_no_joined_pieces_are_acted_on(text: str) -> None:
    assert acted_on(foreign_chat_text(text)) == []


@given(st.lists(st.sampled_from([*ATTACKS, "w", "www", "WWW", "."])).map("".join))
def test_a_sentence_that_goes_on_after_a_text_makes_no_link_of_it(text: str) -> None:
    assert acted_on(f"failing (1): {foreign_chat_text(text)}. The record processor fails.") == []


@given(st.text(max_size=400))
def test_no_text_is_acted_on_and_none_is_long(text: str) -> None:
    made = foreign_chat_text(text)
    assert acted_on(made) == []
    assert len(made) <= 12 * (WORDS_CHARACTERS_MAX + 1), "a character is at most \\U0010ffff"


@pytest.mark.parametrize(
    "name",
    ["shardId-000000000003", "w-1:7f3a", "lease table", "hash keys from 0", "clicks", "ip-10-0-0-7:4711", "café"],
)
def test_names_as_fleets_have_them_are_shown_as_they_are(name: str) -> None:
    assert foreign_chat_text(name, NAME_CHARACTERS_MAX) == name
    assert chat_text(name) == name


def test_a_file_or_host_of_the_operator_can_be_copied_and_one_of_others_is_no_link() -> None:
    assert chat_text("mld peek app.properties 3") == "mld peek app.properties 3"
    assert foreign_chat_text("host.internal") == f"host.{ZERO_WIDTH_SPACE}internal"


def test_what_is_long_is_cut() -> None:
    assert foreign_chat_text("x" * 5000, NAME_CHARACTERS_MAX) == "x" * NAME_CHARACTERS_MAX + "…"
