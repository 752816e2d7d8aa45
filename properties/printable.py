"""`printable`: escapes the characters of foreign text that end a line or control a terminal.

Such text may contain line breaks (Unicode has seven), escape sequences, bidirectional overrides or half a surrogate
pair. Rules: configuration#hidden-values. Pure.
"""

from __future__ import annotations

import re

_BEYOND_ASCII = re.compile(r"[^\x20-\x7e]+")


def printable(text: str) -> str:
    """Return `text` with everything but visible characters and plain spaces escaped as in Python: ``\\n``, ``\\x1b``,
    ``\\u2028``. Letters, symbols and marks of all scripts are kept. Backslashes are kept, too, so the escaping cannot
    be undone."""
    return text if text.isprintable() else _BEYOND_ASCII.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """Return `text` with each line escaped as by `printable`; the line feeds are kept."""
    return "\n".join(map(printable, text.split("\n")))


def _escaped(match: re.Match[str]) -> str:
    """Return a run of characters outside ASCII, or of control characters, with those escaped that are not visible."""
    run = match.group()
    return run if run.isprintable() else "".join(map(_escaped_character, run))


def _escaped_character(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
