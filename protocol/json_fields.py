"""Reads fields of a child's message as leniently as Jackson does for the Java daemon.

Rules: protocol#tolerated-lines. A number is kept as text, with every digit, until the type of its field is known.
"""

from __future__ import annotations

from typing import NoReturn

_INT64_MAX = 2**63 - 1
_INT_TEXT_CHARS_MAX = 20
"""An int64 has at most 19 digits and a sign; longer texts are not converted."""


class NumberText(str):
    """A JSON number, kept as text so that no digit of a sequence number is lost."""

    __slots__ = ()


class Unreadable(Exception):
    """A field of a known message has a value of the wrong type."""


def refuse_constant(text: str) -> NoReturn:
    """Raise ValueError for NaN and Infinity, which Python's parser would accept."""
    raise ValueError(f"{text} is not JSON")


def coerce_text(value: dict[str, object], key: str) -> str | None:
    """Return a text field as Jackson would; None if it is null or missing. Raises Unreadable."""
    match value.get(key):
        case None:
            return None
        case bool(flag):
            return "true" if flag else "false"
        case str(text):  # also a NumberText: a number becomes the text of its digits
            return str(text)
        case _:
            raise Unreadable(f"{key!r} is neither text nor null")


def coerce_integer(value: dict[str, object], key: str) -> int | None:
    """Return the field as a 64-bit integer, coerced as Jackson would (protocol#tolerated-lines); None if it is absent,
    null or blank. Raises Unreadable.
    """
    match value.get(key):
        case None:
            return None
        case NumberText() as text:
            number = _truncate(text)
        case str(text) if not text.strip():
            return None
        case str(text):
            number = _whole(text.strip())
        case _:
            number = None
    if number is None or not -_INT64_MAX - 1 <= number <= _INT64_MAX:
        raise Unreadable(f"{key!r} is not a 64-bit integer or null")
    return number


def _truncate(text: str) -> int | None:
    """Return a JSON number without its fraction; None if it does not fit into 64 bits."""
    whole = _whole(text)
    if whole is not None:
        return whole
    number = float(text)  # it has a fraction, an exponent or too many digits
    return int(number) if abs(number) < _INT64_MAX else None


def _whole(text: str) -> int | None:
    """Return a text of at most 19 digits, with or without a sign, as an integer; None for any other text."""
    digits = text.removeprefix("-") if text.startswith("-") else text.removeprefix("+")
    if len(digits) >= _INT_TEXT_CHARS_MAX or not (digits.isascii() and digits.isdigit()):
        return None
    return int(text)
