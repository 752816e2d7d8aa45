"""What an operator's command would change, row by row: one value for all of them. Pure.

Each change is one conditional write of one row, made from the row as the plan saw it. So two operators, or an operator
and a worker, never overwrite each other: whoever comes second is refused, and learns so. A plan that is carried out in
part, because a row moved or the network failed, leaves every row either as it was or as planned; asking again plans
what is left.

Two kinds of plans: those of steering write rows that workers hold, under the conditions of `leases.writes`; those that
move a whole application write rows that an operator holds meanwhile (`operator_hold`), by the writes at the end here.
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
    """A command cannot be planned: nothing was changed. The message names the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Change:
    """One write of one row: `words` completes "SHARD: "."""

    words: str
    write: LeaseWrite[Any]
    place: Place | None = None
    """Where the row is; None: in the lease table."""
    name: str = ""
    """What people call the row, if not by its key."""

    @property
    def key(self) -> str:
        return self.name or self.write.key


@dataclass(frozen=True, slots=True)
class KeptLines:
    """A new file, and its lines: what the changes of a plan take away."""

    path: Path
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ActPlan:
    """What a command would do: `title` in one line, changes in the order in which they are written, and remarks."""

    title: str
    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()
    kept: KeptLines | None = None
    """Written before the first change, and gone again if surely none was made."""


class Fate(Enum):
    """What became of a change."""

    DONE = "done"
    REFUSED = "refused"  # the row is not as the plan saw it: nothing was written
    UNKNOWN = "unknown"  # no answer, or an error: it may be written or not
    SKIPPED = "not tried"  # an earlier change failed, and this one needs it


@dataclass(frozen=True, slots=True)
class Outcome:
    """A change and its fate; `why` says more unless it is done. `row` is what the table has then, if it answered so."""

    change: Change
    fate: Fate
    why: str = ""
    row: Lease | None = None

    @property
    def words(self) -> str:
        """What became of it, for people."""
        return f"{self.fate.value}: {self.why}" if self.why else self.fate.value


@dataclass(frozen=True, slots=True)
class RawTable:
    """Every row of a lease table as it is stored, and what the rows mean."""

    rows: tuple[Row, ...]
    scan: TableScan

    def row(self, key: str) -> Row | None:
        """Return the row of this key."""
        return next((row for row in self.rows if row.get(rows.KEY, {}).get("S") == key), None)


def raw_table(found: Sequence[Row]) -> RawTable:
    """Return the table that consists of `found`."""
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
