"""Turns the property `executableName` into a command.

Rules: protocol#child-command. No shell, no quotes, no escapes, no variables: existing properties files rely on exactly
that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

SHELL = "/bin/sh"
_SPACES = re.compile(" +")


def split_command(value: str) -> list[str]:
    """Return the arguments: split at runs of U+0020 only; empty pieces at the end vanish.

    A leading space gives an empty first argument and an empty value a single empty one: both cannot be started, as in
    the Java daemon.
    """
    pieces = _SPACES.split(value)
    while len(pieces) > 1 and not pieces[-1]:
        pieces.pop()
    return pieces


def shell_command(program_path: str, command: Sequence[str]) -> list[str]:
    """Return the command to try if the kernel refuses to run `program_path` (ENOEXEC): it is a script without `#!`."""
    return [SHELL, program_path, *command[1:]]
