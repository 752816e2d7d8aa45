"""A second reader of files, character by character: slow, plain, and on its own.

Rules: configuration#logical-lines, configuration#keys-and-separators, configuration#escaped-characters.
"""

from __future__ import annotations

BLANKS = " \t\f"
LINE_ENDS = "\r\n"
HEX_DIGITS = "0123456789abcdefABCDEF"


def load(data: bytes) -> list[tuple[str, str]]:
    """All entries with their keys and values; ValueError for a malformed escape."""
    return [split(line) for line in logical_lines(data.decode("latin-1"))]


def logical_lines(text: str) -> list[str]:
    lines = []
    buffer = ""
    odd_backslashes = continued = False
    skipping = True
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if skipping:
            if char in BLANKS or (char in LINE_ENDS and not continued):
                continue
            skipping = continued = False
        if buffer == "" and char in "#!":
            while position < len(text) and text[position] not in LINE_ENDS:
                position += 1
            position += 1
            skipping = True
            continue
        if char not in LINE_ENDS:
            buffer += char
            odd_backslashes = char == "\\" and not odd_backslashes
        elif buffer == "":
            skipping = True
        elif odd_backslashes:
            buffer = buffer[:-1]
            odd_backslashes = False
            skipping = continued = True
            if char == "\r" and text[position : position + 1] == "\n":
                position += 1
        else:
            lines.append(buffer)
            buffer = ""
            odd_backslashes = continued = False
            skipping = True
    if odd_backslashes:
        buffer = buffer[:-1]
    return [*lines, buffer] if buffer else lines


def split(line: str) -> tuple[str, str]:
    escaped = False
    end = 0
    while end < len(line):
        char = line[end]
        if not escaped and (char in "=:" or char in BLANKS):
            break
        escaped = char == "\\" and not escaped
        end += 1
    separated = line[end : end + 1] in ("=", ":")
    start = end + 1
    while start < len(line):
        if line[start] in BLANKS:
            start += 1
        elif line[start] in "=:" and not separated:
            separated = True
            start += 1
        else:
            break
    return unescape(line[:end]), unescape(line[start:])


def unescape(text: str) -> str:
    result = ""
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char != "\\":
            result += char
            continue
        if position == len(text):
            break
        char = text[position]
        position += 1
        if char == "u":
            digits = text[position : position + 4]
            if len(digits) < 4 or any(digit not in HEX_DIGITS for digit in digits):
                raise ValueError("malformed escape")
            result += chr(int(digits, 16))
            position += 4
        else:
            result += {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(char, char)
    return result
