"""`OwnAttribute`: an attribute that mld adds to rows of its tables: its type, its bounds, its value if damaged. Pure.

Rule: leases#attributes-of-mld. Whoever may write the table may put anything there that DynamoDB takes. So reading an
attribute of ours never raises, whatever its `meaning` stumbles over. A damaged value counts as absent, or as what
`if_damaged` declares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")

Row: TypeAlias = Mapping[str, Mapping[str, Any]]
"""A row as DynamoDB gives it: a value by its type, by the name of the attribute."""

ITEM_BYTES_MAX = 400 * 1024  # DynamoDB's; for texts that are compared with what we wrote, and not shown
INTEGER_DIGITS_MAX = 19  # of a long, in Java


@dataclass(frozen=True, slots=True)
class OwnAttribute(Generic[T]):
    """One attribute: its name, its type in DynamoDB, what a value of that type says, and one as mld writes it.

    Whatever `meaning` raises is damage.
    """

    name: str
    kind: str
    meaning: Callable[[Any], T]
    example: Any
    if_damaged: T | None = None

    def read(self, row: Row) -> T | None:
        """Return what the row says; None if it says nothing."""
        value = row.get(self.name)
        if value is None:
            return None
        try:
            return self.meaning(value[self.kind])
        except Exception:
            return self.if_damaged


def some_text(characters_max: int = ITEM_BYTES_MAX) -> Callable[[Any], str]:
    """Return a meaning: the text itself, which is not empty."""

    def read(found: Any) -> str:
        if not isinstance(found, str) or not 0 < len(found) <= characters_max:
            raise ValueError("no text, or too long")
        return found

    return read


def words(characters_max: int) -> Callable[[Any], str]:
    """Return a meaning: what somebody wrote for people, of which the beginning is enough."""
    return lambda found: some_text()(found)[:characters_max]


def integer(high: int, low: int = 0) -> Callable[[Any], int]:
    """Return a meaning: plain ASCII digits, as mld writes them, from `low` to `high`."""

    def read(found: Any) -> int:
        if not (found.isascii() and found.isdigit() and len(found) <= INTEGER_DIGITS_MAX and low <= int(found) <= high):
            raise ValueError("no such integer")
        return int(found)

    return read


def binary(found: Any) -> bytes:
    """Return the bytes themselves, as what they mean."""
    return bytes(memoryview(found))
