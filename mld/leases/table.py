"""The `LeaseTable` port: every read and conditional write of the lease table (leases#conditional-writes).

A write is a value, made by a function of `writes` and carried out by `apply`. It is fenced by its conditions, and it
contains the functions that interpret its answer. A `Refusal` or False means *refused*: somebody else changed the row.
An exception (`errors.TableError`) means that the outcome is *unknown*, except `TableThrottledError` and
`TableMissingError`, which mean *not applied*.

Implementations never repeat writes. A holder's next write allows for all states in which its earlier writes may have
left the row (leases#overlapping-writes). Other callers repeat a write with `resent=True`. Only then is a row that looks
as our earlier attempt would have left it accepted as our own success (leases#lost-replies).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from mld.leases.lease import Lease
from mld.leases.own_attribute import Row

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class TableScan:
    """Every row of the table, or of a part of it."""

    leases: tuple[Lease, ...] = ()
    corrupt: tuple[tuple[str, str], ...] = ()
    """Keys of the rows that are leases but cannot be read, with the reason."""
    others: tuple[Row, ...] = ()
    """Rows that are no leases, as DynamoDB returned them."""

    @property
    def is_empty(self) -> bool:
        """Whether there is no lease at all, not even an unreadable one."""
        return not (self.leases or self.corrupt)

    @property
    def lease_counts(self) -> tuple[int, int]:
        """How many leases there are, and how many of open shards. Unreadable leases count in both."""
        unread = len(self.corrupt)
        return len(self.leases) + unread, sum(not lease.is_complete for lease in self.leases) + unread

    @property
    def unreadable(self) -> frozenset[str]:
        """Keys of the leases that cannot be read."""
        return frozenset(key for key, _ in self.corrupt)


class IndexStatus(Enum):
    """The owner index, `LeaseOwnerToLeaseKeyIndex` (leases#owner-index)."""

    MISSING = "missing"  # also while it is being deleted
    CREATING = "creating"  # cannot be read before it is filled
    ACTIVE = "active"
    FORBIDDEN = "forbidden"  # we may not create it, or may not read its status


@dataclass(frozen=True, slots=True)
class Refusal:
    """A conditional write was refused. `by_twin`: the row still names us, but another process has raised its counter.

    `row` is the row as it is now; set only if the owners differ from those that the writer had seen, or if the row is
    ours and the lease may be held anew.
    """

    why: str
    by_twin: bool = False
    row: Lease | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Overtaken:
    """A holder's write changed nothing, although the row is still ours: other writes of ours were faster, or the row is
    complete.
    """

    row: Lease


# --- writes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Value:
    """A value in DynamoDB's form (`typed`), and the placeholder (`name`) that stands for it in expressions."""

    name: str
    typed: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Condition:
    """A term of a condition expression. It names each attribute by its own name after a `#`, as KCL does."""

    text: str
    values: tuple[Value, ...] = ()
    """The values of its placeholders, except ``:key``, which is always the row's key."""

    @classmethod
    def equal(cls, attribute: str, value: Value) -> Condition:
        return cls(f"#{attribute} = {value.name}", (value,))

    @classmethod
    def absent(cls, attribute: str) -> Condition:
        return cls(f"attribute_not_exists(#{attribute})")

    @classmethod
    def present(cls, attribute: str) -> Condition:
        return cls(f"attribute_exists(#{attribute})")


@dataclass(frozen=True, slots=True)
class LeaseWrite(Generic[AnswerT]):
    """One conditional write of one row: it creates a row (`item`), changes one, or, if it has neither, deletes it."""

    verb: str
    """The name of the function in `writes` that made it."""
    key: str
    conditions: tuple[Condition, ...]
    """All conditions must hold."""
    accepted: Callable[[Row], AnswerT]
    """Returns the answer if the row was written; gets the new row if `wants_row`, else an empty one."""
    refused: Callable[[Lease | None], AnswerT | LeaseWrite[AnswerT]]
    """Returns the answer if the conditions did not hold, or another write to try; gets the present row if `wants_row`.
    """
    creates: Lease | None = None
    """The lease that `item` contains."""
    item: Row | None = None
    """A new row."""
    sets: tuple[tuple[str, Value], ...] = ()
    removes: tuple[str, ...] = ()
    adds: tuple[tuple[str, Value], ...] = ()
    wants_row: bool = True

    @property
    def deletes(self) -> bool:
        return not (self.item or self.sets or self.removes or self.adds)


# --- the ports --------------------------------------------------------------------------------------------------------


class LeaseTable(Protocol):
    async def ensure(self) -> bool:
        """Create the table if it is missing and wait until it can be used; True if this call created it."""
        ...

    async def scan(self, part: tuple[int, int] | None = None, *, consistent: bool = False) -> TableScan:
        """Return all rows, page by page; large tables are read in parallel segments.

        `part` (number, of how many): read only one part of the table. A row is always in the same part.
        `consistent`: include all writes made before the scan, for twice the price.
        """
        ...

    async def get(self, key: str, *, consistent: bool = True) -> Lease | None:
        """Return one lease; None if there is no such row, or if the row is not a lease.

        If not `consistent`, the row may be a little out of date, for half the price.
        """
        ...

    async def get_many(self, keys: Sequence[str]) -> Mapping[str, Lease]:
        """Read many leases, strongly consistent. Missing or unreadable rows, and other than leases, are left out."""
        ...

    async def apply(self, write: LeaseWrite[AnswerT]) -> AnswerT:
        """Carry out a write made by `writes`; return the answer that the function which made it describes."""
        ...


class LeaseIndex(Protocol):
    """The rows by owner."""

    async def ensure(self) -> IndexStatus:
        """Create the owner index if it is missing, without waiting until it is filled; return its status.

        If another worker creates it at the same time, or we lack the permission, that is no error but a status.
        """
        ...

    async def status(self) -> IndexStatus: ...

    async def keys_owned_by(self, worker: str) -> tuple[str, ...]:
        """Return the keys of rows whose owner is `worker`, including pending handoffs to it; eventually consistent.

        They are read from the owner index. While the index cannot be used, the table is scanned, every few seconds at
        most.
        """
        ...


class StoredTable(LeaseTable, Protocol):
    """The lease table with its index. It can be restored from the rows as last seen if somebody deletes it."""

    types_rows: bool
    """Whether new rows have an `entityType`; False while workers of 2.x may use the table (coordination#bare-tables).
    """

    @property
    def index(self) -> LeaseIndex: ...

    @property
    def lost_since(self) -> float | None:
        """Since when the table has been missing, after it existed, in monotonic seconds; None if it exists."""
        ...

    async def restore(self, worker: str) -> int:
        """Create a lost table, and its rows as `worker` saw them last, without owners. Return how many rows were
        created.
        """
        ...
