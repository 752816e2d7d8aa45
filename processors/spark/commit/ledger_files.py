"""The names of the files of a ledger that is a directory, and the state of the ledger according to a listing of them.

    <sink>/_mld/ledger/<number>.json   an entry
    <sink>/_mld/ledger/<number>.done   all files of this entry are in their places
    <sink>/_mld/ledger/<number>.floor  all entries up to this number were done, and are removed

Pure: values in, values out. `journal` creates and removes the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

HOME = "_mld"
LEDGER = f"{HOME}/ledger"
NUMBER_DIGITS = 12
"""Digits of a number in a name, with leading zeros so that names sort. At one commit a second they
last 31,000 years.
"""
ENTRIES_KEPT = 64
"""How many of the newest entries are kept, so that people can see the last minutes. The rules need only the newest.
"""
ENTRIES_SWEPT_FROM = 4 * ENTRIES_KEPT
"""Old entries are removed only once there are this many entries, so that entries are seldom removed."""
ENTRY, DONE, FLOOR = "json", "done", "floor"
_NAME = re.compile(rf"(?P<number>\d{{{NUMBER_DIGITS},}})\.(?P<kind>{ENTRY}|{DONE}|{FLOOR})", re.ASCII)
_PUBLISHED = re.compile(rf"c(?P<number>\d{{{NUMBER_DIGITS},}})-.+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Names:
    """The numbers in the names of the ledger's files: numbers that are taken, and those whose files are all moved.

    Entries up to number `floor` were done and are removed. An entry that is created at or below it later does not
    count."""

    taken: tuple[int, ...] = ()
    done: frozenset[int] = frozenset()
    floor: int = 0

    @classmethod
    def of(cls, names: Iterable[str]) -> Names:
        """Sort the names in a listing of the directory. Names that are not of the ledger are ignored."""
        found = [(match["kind"], int(match["number"])) for name in names if (match := _NAME.fullmatch(name))]
        return cls(
            tuple(sorted(number for kind, number in found if kind == ENTRY)),
            frozenset(number for kind, number in found if kind == DONE),
            max((number for kind, number in found if kind == FLOOR), default=0),
        )

    @property
    def head(self) -> int:
        """The highest number; 0 if there is none."""
        return self.taken[-1] if self.taken else 0

    @property
    def unfinished(self) -> tuple[int, ...]:
        """Entries whose files may not all be in their places yet, in the order in which to finish them."""
        return tuple(number for number in self.taken if number not in self.done and number > self.floor)

    @property
    def obsolete(self) -> tuple[int, ...]:
        """Old entries that may be removed, lowest first; none unless there are `ENTRIES_SWEPT_FROM` entries.

        Numbers are removed from the lowest on, so entries above an unfinished one stay, too."""
        if len(self.taken) < ENTRIES_SWEPT_FROM:
            return ()
        horizon = min((self.head - ENTRIES_KEPT, *(number - 1 for number in self.unfinished)))
        return tuple(number for number in self.taken if number <= horizon)


def path_of(number: int, kind: str = ENTRY) -> str:
    """Return the path of the ledger's file of this number and kind, within the sink."""
    return f"{LEDGER}/{number:0{NUMBER_DIGITS}d}.{kind}"


def published_name(number: int, name: str) -> str:
    """Return the name that commit `number` gives, in the sink, to a file that Spark has called `name`."""
    return f"c{number:0{NUMBER_DIGITS}d}-{name}"


def commit_of(name: str) -> int | None:
    """Return the number of the commit that published a file, by its name; None if no commit did."""
    found = _PUBLISHED.fullmatch(name)
    return int(found["number"]) if found else None
