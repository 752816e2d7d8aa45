"""Turns the property `executableName` into a command.

Rules: protocol#child-command. There is no shell, and there are no quotes, escapes or variables: existing properties
files rely on that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

SHELL = "/bin/sh"
_SPACES = re.compile(" +")


def split_command(value: str) -> list[str]:
    """Split at runs of spaces (U+0020) only; empty pieces at the end are dropped.

    As in the Java daemon, a leading space gives an empty first argument, and an empty value a single empty one; neither
    can be started.
    """
    pieces = _SPACES.split(value)
    while len(pieces) > 1 and not pieces[-1]:
        pieces.pop()
    return pieces


def shell_command(program_path: str, command: Sequence[str]) -> list[str]:
    """Return the command to try after the kernel refused `program_path` (ENOEXEC), because it is a
    script without `#!`.
    """
    return [SHELL, program_path, *command[1:]]
