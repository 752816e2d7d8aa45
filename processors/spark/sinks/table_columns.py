"""Whether a frame fits the columns of a table: what is added to the table, what stays empty, and what is refused.

Columns are matched by name, without regard to case. A type that every value fits into is no change. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mld.processors.spark.commit.ledger import Columns
from mld.processors.spark.sink_port import SinkRefused

WHOLE = ("tinyint", "smallint", "int", "bigint")
FITS = {
    **{kind: (*WHOLE[at + 1 :], "float", "double") for at, kind in enumerate(WHOLE[:2])},
    "int": ("bigint", "double"),
    "float": ("double",),
    "void": ("*",),
}
"""Types of a table, by the type of a frame, that hold every value of it exactly."""
TEXTS = ("string", "varchar", "char")


@dataclass(frozen=True, slots=True)
class ColumnChanges:
    added: Columns
    """Columns that the table has not got."""
    absent: tuple[str, ...]
    """Columns of the table, by its names, that the frame has not got: they are null."""


def changes(have: Sequence[tuple[str, str]], new: Sequence[tuple[str, str]], sink: str, table: str) -> ColumnChanges:
    """Return what a frame with the columns `new` means for a table with `have`. Raises SinkRefused."""
    known = {name.lower(): (name, kind) for name, kind in have}
    added = []
    for name, kind in new:
        before = known.get(name.lower())
        if before is None:
            if kind == "void":
                raise SinkRefused(f"sink {sink}: the new column {name} has no type; cast it in the pipeline")
            added.append((name, kind))
        elif not fits(kind, before[1]):
            raise SinkRefused(
                f"sink {sink}: the column {before[0]} of {table} is {before[1]}, that of the pipeline is {kind}; cast "
                "it in the pipeline, or give it another name (new columns are added to the table)"
            )
    named = {name.lower() for name, _ in new}
    return ColumnChanges(tuple(added), tuple(name for name, _ in have if name.lower() not in named))


def fits(kind: str, column: str) -> bool:
    """Return whether a column of the type `column` holds every value of the type `kind`."""
    if kind == column or "*" in FITS.get(kind, ()):
        return True
    if kind.partition("(")[0] in TEXTS and column == "string":
        return True
    return column in FITS.get(kind, ())
