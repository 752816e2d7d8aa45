"""A slice of the fuzz of quoted words; the long run is `python -m tests.fuzz.quoted`."""

from __future__ import annotations

import pytest

from tests.fuzz.quoted import SECRET, check_quoted, run
from tests.support.chats import ATTACKS

EXAMPLES = 200


def test_words_of_records_children_and_rows_stay_words_in_every_medium() -> None:
    run(EXAMPLES, derandomize=True)


@pytest.mark.parametrize(
    "text",
    [
        *ATTACKS,
        SECRET,
        "",
        " ",
        "\ud800",
        "x\nREADY=1\nSTOPPING=1",
        "\x1b[2J\rmld: all is well",
        "x" * 9000,
    ],
)
def test_attacks_by_name(text: str) -> None:
    check_quoted(text)
