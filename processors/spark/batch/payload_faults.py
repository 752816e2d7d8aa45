"""What is said of payloads that do not fit the schema, once for many records, and when there are too many of them.

Pure: counts in, sentences out.
"""

from __future__ import annotations

from collections import deque

from mld.properties.redaction import printable

NAMES_MAX = 50
"""Names of stray fields that are said since the start; producers choose them, so there may be any number."""
RECORDS_MIN = 100
"""A share of fewer records says nothing."""


class StrayNames:
    """Which stray fields were said already."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def news(self, count: int, names: str | None) -> str | None:
        """Return a warning if one of the names, which commas separate, is new; None if all were said before."""
        new = [name for name in (names or "").split(", ") if name and name not in self._said]
        if not new or len(self._said) >= NAMES_MAX:
            return None
        self._said.update(new)
        return (
            f"{count} records have fields that mld.spark.schema does not name, and that are left out: "
            f"{printable(', '.join(new))} (letter case counts); name them there, or keep them in "
            "mld.spark.rescuedColumn"
        )


class MalformedShare:
    """How many of the last records, a hundred or more, are malformed."""

    def __init__(self, share_max: float) -> None:
        self._share_max = share_max
        self._batches: deque[tuple[int, int]] = deque()

    def excess(self, seen: int, malformed: int) -> str | None:
        """Take the next records; return why they are too many, if they are: then they come again and are not taken."""
        self._batches.append((seen, malformed))
        every, bad = map(sum, zip(*self._batches, strict=True))
        if every >= RECORDS_MIN and bad > self._share_max * every:
            self._batches.pop()
            return (
                f"{bad} of the last {every} records are malformed, more than mld.spark.malformedShareMax = "
                f"{self._share_max:g} allows, so they are not put into the dead letter"
            )
        while every - self._batches[0][0] >= RECORDS_MIN:
            every -= self._batches.popleft()[0]
        return None
