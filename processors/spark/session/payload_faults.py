"""Sentences about payloads that do not fit the schema: one for many records, and one when they are too many.

Pure: counts in, sentences out.
"""

from __future__ import annotations

from mld.properties.printable import printable

STRAY_NAMES_MAX = 50
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
        if not new or len(self._said) >= STRAY_NAMES_MAX:
            return None
        self._said.update(new)
        return (
            f"{count} records have fields that mld.spark.schema does not name, and that are left out: "
            f"{printable(', '.join(new))} (letter case counts); name them there, or keep them in "
            "mld.spark.rescuedColumn"
        )


class MalformedShare:
    """How many of the last hundred records are malformed; a batch of as many or more is judged by itself."""

    def __init__(self, share_max: float) -> None:
        self._share_max = share_max
        self._seen = self._bad = 0.0
        """Of the last hundred, of which a longer batch is all. What was refused counts as anything else."""

    def excess(self, seen: int, malformed: int) -> str | None:
        """Take the next records; return why they are too many, if they are: then they come again and are not taken."""
        if not seen:
            return None
        own = min(seen, RECORDS_MIN)
        before = min(self._seen, RECORDS_MIN - own)
        every = own + before
        bad = malformed * own / seen + (self._bad * before / self._seen if before else 0.0)
        self._seen, self._bad = every, bad
        if every < RECORDS_MIN or bad <= self._share_max * every or malformed <= self._share_max * seen:
            return None
        counts = (malformed, seen) if seen >= RECORDS_MIN else (round(bad), round(every))
        return (
            f"{counts[0]} of the last {counts[1]} records are malformed, more than mld.spark.malformedShareMax = "
            f"{self._share_max:g} allows, so they are not put into the dead letter"
        )
