"""`ActPlan`: the rows that an operator's command would change. Pure.

Each change is one conditional write of one row, with conditions made from the row that was read. So two operators, or
an operator and a worker, never overwrite each other: the second write is refused, and the command says so. If only part
of a plan is carried out, because a row has changed or the network failed, each row is either as before or as planned.
Running the command again plans the rest.

There are two kinds of plans. Plans of steering write rows that workers hold, under the conditions of `leases.writes`.
Plans for a whole application write rows that the operator holds meanwhile (`operator_hold`), by `held_writes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

from mld.core.errors import MldError, TableError
from mld.leases import rows
from mld.leases.lease import Lease
from mld.leases.rows import Place
from mld.leases.table import LeaseWrite, TableScan

Row: TypeAlias = Mapping[str, Mapping[str, Any]]

# The condition is that the row still belongs to this operator and is in no handoff. The id of an operator is made for
# one run of one command, so nobody else writes a row under it, and its own renewals do not stand in the way.


class ActRefusedError(MldError):
    """A command is refused before it changes anything. The message names the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Change:
    """One write of one row."""

    words: str
    """Completes the sentence "SHARD: "."""
    write: LeaseWrite[Any]
    place: Place | None = None
    """The table of the row; None: the lease table."""
    name: str = ""
    """Name of the row for people, if that is not its key."""

    @property
    def key(self) -> str:
        return self.name or self.write.key


@dataclass(frozen=True, slots=True)
class KeptLines:
    """A new file with lines: the records that the changes of a plan leave out."""

    path: Path
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ActPlan:
    """What a command would do."""

    title: str
    """One line."""
    changes: tuple[Change, ...]
    """In the order in which they are written."""
    notes: tuple[str, ...] = ()
    """Remarks for the operator."""
    kept: KeptLines | None = None
    """A file that is written before the first change, and removed if certainly no change was made."""


class Fate(Enum):
    """Result of a change."""

    DONE = "done"
    REFUSED = "refused"  # the row is not as the plan saw it: nothing was written
    UNKNOWN = "unknown"  # no answer, or an error: the row may be written or not
    SKIPPED = "not tried"  # an earlier change failed, and this one needs it


@dataclass(frozen=True, slots=True)
class Outcome:
    """A change and its fate."""

    change: Change
    fate: Fate
    why: str = ""
    """Reason, unless the change is done."""
    row: Lease | None = None
    """The row after the write, if the table has returned it."""

    @property
    def words(self) -> str:
        """The fate and its reason, for people."""
        return f"{self.fate.value}: {self.why}" if self.why else self.fate.value


@dataclass(frozen=True, slots=True)
class RawTable:
    """Every row of a lease table as it is stored, and the leases parsed from the rows."""

    rows: tuple[Row, ...]
    scan: TableScan

    def row(self, key: str) -> Row | None:
        """Return the stored row with this key; None if there is none."""
        return next((row for row in self.rows if row.get(rows.KEY, {}).get("S") == key), None)


def raw_table(found: Sequence[Row]) -> RawTable:
    """Parse the rows `found`, and return the table that consists of them."""
    leases, corrupt, others = [], [], []
    for row in found:
        try:
            lease = rows.parse_row(row)
        except rows.CorruptRowError as error:
            corrupt.append((error.key, error.reason))
            continue
        except TableError as error:
            corrupt.append((rows.UNKNOWN_KEY, str(error)))
            continue
        if lease is None:
            others.append(row)
        else:
            leases.append(lease)
    return RawTable(tuple(found), TableScan(tuple(leases), tuple(corrupt), tuple(others)))
