"""Sentences about payloads that do not fit the schema: a warning about stray fields, which the schema does not name,
and a refusal of too many malformed records.

Pure: counts in, sentences out.
"""

from __future__ import annotations

from mld.properties.printable import printable

STRAY_NAMES_MAX = 50
"""How many names of stray fields are logged at most after a start. Producers choose the names, so there may be any
number of them.
"""
RECORDS_MIN = 100
"""The share of malformed records is not judged before this many records have come."""


class StrayNames:
    """Keeps the names of stray fields that were logged already."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def warning(self, count: int, names: str | None) -> str | None:
        """Return a warning about `count` records with stray fields, if at least one of `names` was not logged before;
        else None. `names` is a list with commas.
        """
        new = [name for name in (names or "").split(", ") if name and name not in self._logged]
        if not new or len(self._logged) >= STRAY_NAMES_MAX:
            return None
        self._logged.update(new)
        return (
            f"{count} records have fields that mld.spark.schema does not name, and that are left out: "
            f"{printable(', '.join(new))} (letter case counts); name them there, or keep them in "
            "mld.spark.rescuedColumn"
        )


class MalformedShare:
    """Judges the share of malformed records among the last hundred. A batch of a hundred or more is
    judged by itself.
    """

    def __init__(self, share_max: float) -> None:
        self._share_max = share_max
        self._seen = self._bad = 0.0
        """Numbers of records and of malformed records among the last hundred, scaled down if a batch has more. Records
        that were refused count, too."""

    def excess(self, seen: int, malformed: int) -> str | None:
        """Count `seen` further records, of which `malformed` are malformed. If too many are, return the reason: then
        the records have to be refused, and are delivered again. Otherwise return None. The share is that among the last
        RECORDS_MIN records, or among the new ones if these are more.
        """
        if not seen:
            return None
        # At most RECORDS_MIN records are counted. If only a part of a batch fits, its malformed ones are scaled down.
        of_new = min(seen, RECORDS_MIN)
        of_old = min(self._seen, RECORDS_MIN - of_new)
        counted = of_new + of_old
        bad = malformed * of_new / seen + (self._bad * of_old / self._seen if of_old else 0.0)
        self._seen, self._bad = counted, bad
        # A batch with few malformed records is allowed, whatever came before it.
        is_allowed = bad <= self._share_max * counted or malformed <= self._share_max * seen
        if counted < RECORDS_MIN or is_allowed:
            return None
        counts = (malformed, seen) if seen >= RECORDS_MIN else (round(bad), round(counted))
        return (
            f"{counts[0]} of the last {counts[1]} records are malformed, more than mld.spark.malformedShareMax = "
            f"{self._share_max:g} allows, so they are not put into the dead letter"
        )
