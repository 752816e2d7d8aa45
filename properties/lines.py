"""`parse`: reads the entries of a `.properties` file (key, value, line), exactly as java.util.Properties.load does.

Rules: configuration#file-encoding, configuration#logical-lines, configuration#keys-and-separators. Two things differ
from Java: valid UTF-8 is read as UTF-8, and a byte order mark is dropped. This module knows no keys, and converts no
values.

How a file is read: natural lines end at LF, CR or CR LF. A natural line that ends in an odd number of backslashes is
continued by the next one: the last backslash and the next line's leading blanks are removed. The result is a logical
line; its key ends at the first unescaped `=`, `:` or blank. (The package javaproperties is not used here: it takes `#`
after an empty continued line for data, where Java sees a comment, and it does not report line numbers.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BLANKS = " \t\f"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINE_END = re.compile(r"\r\n|\r|\n")
_ODD_BACKSLASHES_AT_END = re.compile(r"(?<!\\)(?:\\\\)*\\\Z")
_KEY = re.compile(r"(?:[^\\=: \t\f]|\\.?)*", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t\f]*(?:[=:][ \t\f]*)?")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|u|.|\Z)", re.DOTALL)
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_ESCAPED_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class GrammarError(ValueError):
    """A `\\u` is not followed by four hexadecimal digits, the only text that Java refuses. `line` is where the entry
    starts.
    """

    def __init__(self, line: int) -> None:
        super().__init__("\\u must be followed by four hexadecimal digits")
        self.line = line


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One key and its value, both unescaped, with trailing blanks. `line` (counted from 1) is where the key starts."""

    key: str
    value: str
    line: int


def parse(data: bytes) -> list[FileEntry]:
    """Return all entries of a file in their order, including duplicates and empty keys.

    Raises GrammarError for a malformed `\\u` escape.
    """
    return [_entry(text, line) for text, line in _logical_lines(decode(data))]


def decode(data: bytes) -> str:
    """Decode a file as UTF-8, without a byte order mark; if it is not valid UTF-8, as ISO-8859-1."""
    data = data.removeprefix(_BYTE_ORDER_MARK)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("iso-8859-1")


def _logical_lines(text: str) -> Iterator[tuple[str, int]]:
    """Yield logical lines that are neither blank nor a comment, each with the number of its first line that has
    text.
    """
    naturals = _LINE_END.split(text)
    pending, first, continued = "", 0, False
    for number, natural in enumerate(naturals, start=1):
        piece = natural.lstrip(_BLANKS)
        if not pending:
            # After an empty continued line, the next line is read like the first line of an entry: as a comment, a
            # blank line or a key.
            first = number
            if piece.startswith(("#", "!")):
                continued = False
                continue
        continued = _ODD_BACKSLASHES_AT_END.search(piece) is not None
        pending += piece[:-1] if continued else piece
        if pending and not continued:
            yield pending, first
            pending = ""
    if pending and continued:
        yield pending, first


def _entry(text: str, line: int) -> FileEntry:
    """Split a logical line into its key and value. Raises GrammarError."""
    key = _KEY.match(text)
    assert key is not None  # the pattern matches the empty string
    separator = _SEPARATOR.match(text, key.end())
    assert separator is not None
    try:
        return FileEntry(_unescape(key.group()), _unescape(text[separator.end() :]), line)
    except ValueError:
        raise GrammarError(line) from None


def _unescape(text: str) -> str:
    """Replace the escapes in a text. Raises ValueError for a malformed `\\u`."""
    if "\\" not in text:
        return text
    # Java's characters are UTF-16 units: two escapes may make one character outside the basic plane.
    return _SURROGATE_PAIR.sub(_join_surrogates, _ESCAPE.sub(_unescape_one, text))


def _unescape_one(match: re.Match[str]) -> str:
    """Return the character of one escape. Raises ValueError for a `\\u` without four hexadecimal digits."""
    escaped: str = match.group(1)
    if escaped == "u":
        raise ValueError(match.string)
    if len(escaped) > 1:
        return chr(int(escaped[1:], 16))
    return _ESCAPED_CONTROLS.get(escaped, escaped)


def _join_surrogates(match: re.Match[str]) -> str:
    return match.group().encode("utf-16-le", "surrogatepass").decode("utf-16-le")
