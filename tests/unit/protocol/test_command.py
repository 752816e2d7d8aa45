"""The property `executableName` as a command (protocol#child-command)."""

from __future__ import annotations

import pytest

from mld.protocol.child_command import split_command


@pytest.mark.parametrize(
    ("value", "command"),
    [
        ("a", ["a"]),
        ("python  app.py   --x", ["python", "app.py", "--x"]),
        ('a "b c"', ["a", '"b', 'c"']),
        ("a\tb c\u00a0d", ["a\tb", "c\u00a0d"]),
        ("$HOME/x ~ *", ["$HOME/x", "~", "*"]),
        ("a b   ", ["a", "b"]),
        (" a", ["", "a"]),
        ("", [""]),
        ("  ", [""]),
    ],
)
def test_a_command_is_split_at_spaces_and_nothing_is_expanded(value: str, command: list[str]) -> None:
    assert split_command(value) == command
