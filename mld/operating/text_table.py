"""`Listing`: a table of text, which `printing` prints. Pure.

Nothing heavy is imported here, because `mld status` prints a listing, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OPTIONAL_COLUMNS = frozenset({"stream", "where", "up"})
"""Columns that are left out if they are empty in all rows."""
FAULTS_SHOWN = 20
"""How many faults are printed below a table. JSON has all."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A table of text."""

    columns: tuple[tuple[str, bool], ...]
    """Name of each column, and whether it is aligned to the right."""
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    """Lines that are printed below the table."""


def listing_of(header: str, rows: Iterable[tuple[str, ...]], notes: Iterable[str]) -> Listing:
    """Return a listing. `header` has the names of the columns, separated by commas; a column written as ``name>`` is
    aligned to the right. Empty columns among `OPTIONAL_COLUMNS` are left out.
    """
    columns = tuple((name.removesuffix(">"), name.endswith(">")) for name in header.split(", "))
    found = tuple(rows)
    shown = [
        at for at, (name, _) in enumerate(columns) if name not in OPTIONAL_COLUMNS or any(row[at] for row in found)
    ]
    return Listing(
        tuple(columns[at] for at in shown), tuple(tuple(row[at] for at in shown) for row in found), tuple(notes)
    )
