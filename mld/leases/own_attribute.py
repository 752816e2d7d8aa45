"""`OwnAttribute`: reads an attribute that mld has added to a row, and never raises, whatever its value is. Pure.

Rule: leases#attributes-of-mld. Anybody with write access to the table can store any value of DynamoDB in such an
attribute. So reading an attribute never raises, even if the function that converts the value (`meaning`) does. A value
that cannot be converted is *damaged*: it is read as absent, or as `if_damaged` if that is set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")

Row: TypeAlias = Mapping[str, Mapping[str, Any]]
"""A row as DynamoDB returns it. It maps each attribute name to a type and a value, as in ``{"leaseCounter": {"N":
"7"}}``."""

ITEM_BYTES_MAX = 400 * 1024  # DynamoDB's limit; used for texts that are only compared with our own, and never shown
INTEGER_DIGITS_MAX = 19  # a `long` of Java has at most this many digits


@dataclass(frozen=True, slots=True)
class OwnAttribute(Generic[T]):
    """One attribute: its name, its type in DynamoDB (`kind`), a function that converts a value of that type
    (`meaning`), and an example of a value as mld writes it.

    If `meaning` raises anything, the value is damaged.
    """

    name: str
    kind: str
    meaning: Callable[[Any], T]
    example: Any
    if_damaged: T | None = None

    def read(self, row: Row) -> T | None:
        """Return the attribute's value in the row; None if absent, `if_damaged` if damaged."""
        value = row.get(self.name)
        if value is None:
            return None
        try:
            return self.meaning(value[self.kind])
        except Exception:
            return self.if_damaged


def some_text(characters_max: int = ITEM_BYTES_MAX) -> Callable[[Any], str]:
    """Return a `meaning` that accepts a text of 1 to `characters_max` characters."""

    def read(found: Any) -> str:
        """Return the text. Raises ValueError if it is none, or has another length."""
        if not isinstance(found, str) or not 0 < len(found) <= characters_max:
            raise ValueError("no text, or too long")
        return found

    return read


def text_cut_to(characters_max: int) -> Callable[[Any], str]:
    """Return a `meaning` for a text written for people. A longer text is cut to `characters_max`."""
    return lambda found: some_text()(found)[:characters_max]


def integer(high: int, low: int = 0) -> Callable[[Any], int]:
    """Return a `meaning` for an integer from `low` to `high`, in plain ASCII digits, as mld writes it."""

    def read(found: Any) -> int:
        """Return the integer. Raises an error if it is none, or out of bounds."""
        if not (found.isascii() and found.isdigit() and len(found) <= INTEGER_DIGITS_MAX and low <= int(found) <= high):
            raise ValueError("no such integer")
        return int(found)

    return read


def binary(found: Any) -> bytes:
    """Return a binary value as bytes; used as a `meaning`."""
    return bytes(memoryview(found))
