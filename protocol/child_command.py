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
    """Split a command at runs of spaces (U+0020), and at nothing else; drop empty pieces at the end.

    As in the Java daemon, a leading space makes the first piece empty, and an empty value gives one empty piece.
    Neither can be started.
    """
    pieces = _SPACES.split(value)
    while len(pieces) > 1 and not pieces[-1]:
        pieces.pop()
    return pieces


def shell_command(program_path: str, command: Sequence[str]) -> list[str]:
    """Return the command that runs `program_path` by a shell. It is for a script without `#!`, which the kernel refuses
    with ENOEXEC.
    """
    return [SHELL, program_path, *command[1:]]
