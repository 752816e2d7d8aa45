"""Where an Iceberg table keeps the ledger: the newest entry as a property of the table, and in the summary of each
snapshot a short note that says which entry it came with.

Snapshots are kept for days, and all their summaries stand in every metadata file: whole entries there would make each
commit write what a thousand commits have said. One property is replaced instead, in the commit that moves `main`. The
note ties the two together: walking from the current snapshot by its parents, the first note must be that of the
property. If it is not, `main` was moved by hand, and nobody can know which records are in the table.

A note has a `version` that no program knows which looks for whole entries in summaries, so that such a one refuses the
table. A whole entry in a summary is still read: tables of older programs have it.

Pure: values in, values out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from mld.processors.spark.commit.ledger import LedgerEntry

PROPERTY = "mld.ledger"
"""Key of the newest entry among the properties of the table, and of the note or entry in a snapshot's summary."""
KEPT_PROPERTY = "mld.ledger.keep"
"""Set by a person to the number of the entry that shall stay in force though `main` was moved by hand."""
NOTE_VERSION = "note"


class MainWasMoved(Exception):
    """The table was rolled back or replaced: the ledger is ahead of its rows. `number` is that of the ledger."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(number)


@dataclass(frozen=True, slots=True)
class Lineage:
    """What the snapshots of `main` say: the summary's text of the first that has one, from the current one by parents;
    `whole` if the walk has seen the first snapshot of all, so that nothing can have been expired."""

    said: str | None
    whole: bool


def note(entry: LedgerEntry) -> str:
    """Return what the summary of the entry's snapshot says."""
    value = {"application": "mld", "version": NOTE_VERSION, "number": entry.number, "token": entry.token}
    return json.dumps(value, separators=(",", ":"))


def head_of(
    lineage: Lineage, kept: str | None, keep: str | None, decode: Callable[[str], LedgerEntry]
) -> LedgerEntry | None:
    """Return the entry in force, of the walk and the table's properties; None if nobody has written with a ledger.

    Raises MainWasMoved, ValueError if a note is damaged, and what `decode` raises."""
    if lineage.said is None:
        if kept is None:
            return None
        entry = decode(kept)
        if lineage.whole and keep != str(entry.number):
            raise MainWasMoved(entry.number)
        return entry
    noted = _note_of(lineage.said)
    if noted is None:
        return decode(lineage.said)
    if kept is None:  # a person has taken the property away, so that everything is written again
        return LedgerEntry(*noted)
    entry = decode(kept)
    if entry.token != noted[1] and keep != str(entry.number):
        raise MainWasMoved(entry.number)
    return entry


def _note_of(text: str) -> tuple[int, str] | None:
    """Number and token of a note; None if the text is a whole entry. Raises ValueError."""
    value = json.loads(text)
    if not isinstance(value, dict) or value.get("version") != NOTE_VERSION:
        return None
    number, token = value.get("number"), value.get("token")
    if not isinstance(number, int) or not isinstance(token, str):
        raise ValueError(f"no note of a ledger: {text[:200]}")
    return number, token


def moved_sentence(sink: str, table: str, number: int) -> str:
    """Return what a person can do when `MainWasMoved`."""
    return (
        f"sink {sink}: {table} was rolled back or replaced: its ledger is that of commit {number}, which is not in the "
        "table any more; nothing was written. If what was rolled back is to be delivered again, forget the marks by "
        f"ALTER TABLE {table} UNSET TBLPROPERTIES ('{PROPERTY}'), and begin the application where you want it to; if "
        f"it is to stay away, ALTER TABLE {table} SET TBLPROPERTIES ('{KEPT_PROPERTY}' = '{number}')"
    )
