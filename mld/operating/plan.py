"""`ActPlan`: the rows that an operator's command would change. Pure.

Each change is one conditional write of one row, with conditions made from the row that was read. So two operators, or
an operator and a worker, never overwrite each other: the second write is refused, and the command reports that. If only
part of a plan is carried out, because a row has changed or the network failed, each row is either as before or as
planned, and the same command can be run again for the rest.

There are two kinds of plans. Plans that steer a fleet (`steering`) change rows that workers hold, under the conditions
of `leases.writes`. Plans for a whole application change rows that the operator holds meanwhile (`operator_hold`), by
the writes of `held_writes`.
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


class ActRefusedError(MldError):
    """A command is refused. The message names the reason and the remedy. Nothing is changed yet, unless
    `Application.carry_out` finds only while it writes that somebody else is at work.
    """


@dataclass(frozen=True, slots=True)
class Change:
    """One write of one row."""

    words: str
    """What the change does; printed after "KEY: "."""
    write: LeaseWrite[Any]
    place: Place | None = None
    """The table of the row; None means the lease table."""
    name: str = ""
    """A name of the row for people; empty if that is its key."""

    @property
    def key(self) -> str:
        """What the row is called in the printed plan."""
        return self.name or self.write.key


@dataclass(frozen=True, slots=True)
class KeptLines:
    """The records that the changes of a plan leave out, as lines for a new file."""

    path: Path
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ActPlan:
    """What a command would do."""

    title: str
    """The plan in one line."""
    changes: tuple[Change, ...]
    """The writes of the plan, in the order in which they are sent."""
    notes: tuple[str, ...] = ()
    """Remarks for the operator."""
    kept: KeptLines | None = None
    """A file that is written before the first change. It is removed again if certainly no change was made."""


class Fate(Enum):
    """Result of a change."""

    DONE = "done"
    REFUSED = "refused"  # the row is not as the plan saw it: nothing was written
    UNKNOWN = "unknown"  # no answer, or an error: the row may be written or not
    SKIPPED = "not tried"  # an earlier change failed, and this one needs it


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a change."""

    change: Change
    fate: Fate
    why: str = ""
    """The reason, unless the change is done."""
    row: Lease | None = None
    """The row after the write, if the table has returned it."""

    @property
    def words(self) -> str:
        """The fate and the reason, for people."""
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
    """Return a table of these rows, with the leases parsed from them."""
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
