"""What an act would change, row by row, and why it may not. Pure.

Each change is one conditional write of one row, made from the row as the plan saw it. So two operators, or an operator
and a worker, never overwrite each other: whoever comes second is refused, and is told. A plan that is carried out in
part, because a row moved or the network failed, leaves every row either as it was or as planned; asking again plans
what is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from mld.core.errors import MldError, TableError
from mld.core.stream_ids import keys_meant, stream_of_key
from mld.leases import rows
from mld.leases.table import LeaseWrite, TableScan
from mld.leases.writes import request_of

NAMED_MAX = 5
Row: TypeAlias = Mapping[str, Mapping[str, Any]]


class ActRefusedError(MldError):
    """An act cannot be planned: nothing was changed. The message names the reason and the remedy."""


class WriteKind(Enum):
    """The operation of DynamoDB that makes a change."""

    UPDATE = "UpdateItem"
    PUT = "PutItem"
    DELETE = "DeleteItem"


@dataclass(frozen=True, slots=True)
class Change:
    """One write of one row: `words` completes "SHARD: ". `request` is without TableName, and has its condition."""

    key: str
    words: str
    kind: WriteKind
    request: Mapping[str, Any]
    table: str | None = None
    """Where the row is; None: in the lease table."""


@dataclass(frozen=True, slots=True)
class ActPlan:
    """What an act would do: `title` in one line, changes in the order in which they are written, and remarks."""

    title: str
    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()


class Fate(Enum):
    """What became of a change."""

    DONE = "done"
    REFUSED = "refused"  # the row is not as the plan saw it: nothing was written
    UNKNOWN = "unknown"  # no answer, or an error: it may be written or not
    SKIPPED = "not tried"  # an earlier change failed, and this one needs it


@dataclass(frozen=True, slots=True)
class Outcome:
    """A change and its fate; `why` says more unless it is done."""

    change: Change
    fate: Fate
    why: str = ""


@dataclass(frozen=True, slots=True)
class RawTable:
    """Every row of a lease table as it is stored, and what the rows mean."""

    rows: tuple[Row, ...]
    scan: TableScan

    def row(self, key: str) -> Row | None:
        """The row of a lease."""
        return next((row for row in self.rows if row.get(rows.KEY, {}).get("S") == key), None)


def raw_table(found: Sequence[Row]) -> RawTable:
    """The table that consists of `found`."""
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


def update(key: str, words: str, request: Mapping[str, Any]) -> Change:
    """A change by UpdateItem."""
    return Change(key, words, WriteKind.UPDATE, request)


def change_by(write: LeaseWrite[Any], words: str) -> Change:
    """A change by one of `leases.writes`."""
    operation, request = request_of(write)
    return Change(write.key, words, WriteKind(operation), request)


def full_key(known: Iterable[str], name: str, labels: Mapping[str, str] | None = None) -> str:
    """The lease key that a person means by `name`: a key, a shard or its number (``7``), or ``STREAM:SHARD``.

    Raises ActRefusedError for a shard that is not there, or is in several streams.
    """
    keys = sorted(known)
    found = keys_meant(keys, name, labels)
    if len(found) == 1:
        return found[0]
    if found:
        shard = name.rpartition(":")[2]
        streams = [stream_of_key(key) or "" for key in found]
        ways = ", ".join(f"{(labels or {}).get(stream, stream)}:{shard}" for stream in streams[:NAMED_MAX])
        more = ", …" if len(found) > NAMED_MAX else ""
        raise ActRefusedError(f"{len(found)} streams have a shard {name}: say which one, as {ways}{more}")
    near = ", ".join(keys[:5]) + (", …" if len(keys) > 5 else "")
    raise ActRefusedError(f"there is no shard {name} in the lease table; it has {near or 'no leases at all'}")
