"""The `LeaseTable` port: every read and conditional write of the lease table (leases#conditional-writes).

A write is a value (`LeaseWrite`), made by a function of `writes` and carried out by `apply`. It contains its
conditions, and the functions that interpret its answer. If the answer is a `Refusal` or False, the write was *refused*:
another process has changed the row. After an exception (`errors.TableError`) the outcome is *unknown*; only after
`TableThrottledError` and `TableMissingError` the write was certainly *not applied*.

Implementations never repeat writes. A holder's next write allows for all states in which its earlier writes may have
left the row (leases#overlapping-writes). Other callers may repeat a write with `resent=True`. If the repeated write is
refused, but the row looks as an earlier attempt would have left it, that counts as success (leases#lost-replies).
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
    """The keys of unreadable leases, each with the reason."""
    others: tuple[Row, ...] = ()
    """The rows that are not leases, as DynamoDB returned them."""

    @property
    def is_empty(self) -> bool:
        """Whether the table has no leases, not even unreadable ones."""
        return not (self.leases or self.corrupt)

    @property
    def lease_counts(self) -> tuple[int, int]:
        """How many leases there are, and how many leases of unfinished shards. Unreadable leases count in both."""
        unread = len(self.corrupt)
        return len(self.leases) + unread, sum(not lease.is_complete for lease in self.leases) + unread

    @property
    def unreadable(self) -> frozenset[str]:
        """Keys of the leases that cannot be read."""
        return frozenset(key for key, _ in self.corrupt)


class IndexStatus(Enum):
    """The status of the owner index, `LeaseOwnerToLeaseKeyIndex` (leases#owner-index)."""

    MISSING = "missing"  # or being deleted
    CREATING = "creating"  # being filled; it cannot be read yet
    ACTIVE = "active"
    FORBIDDEN = "forbidden"  # we may not create it, or may not read its status


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to a conditional write that was refused. `by_twin`: the row still names us, but another process with
    our worker id has raised its counter.

    `row` is the present row. It is set only if its owners are not those that the writer had seen, or if it names us and
    the lease may be held again.
    """

    why: str
    by_twin: bool = False
    row: Lease | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Overtaken:
    """The answer to a holder's write that changed nothing, although the row is still ours: other writes of ours were
    applied first, or the row is complete.
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
    """A term of a condition expression, in which `#name` stands for the attribute `name`, as in KCL."""

    text: str
    values: tuple[Value, ...] = ()
    """The values of the placeholders in `text`, except for ``:key``, which always stands for the row's key."""

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
    """One conditional write of one row. If `item` is set, it creates the row; if `sets`, `removes` or `adds` are, it
    changes the row; otherwise it deletes the row.
    """

    verb: str
    """The name of the function in `writes` that made this write."""
    key: str
    conditions: tuple[Condition, ...]
    """All conditions must hold."""
    accepted: Callable[[Row], AnswerT]
    """Returns the answer if the row was written. Its argument is the new row if `wants_row`, else an empty row."""
    refused: Callable[[Lease | None], AnswerT | LeaseWrite[AnswerT]]
    """Returns the answer if the conditions did not hold, or another write to try instead. Its argument is the present
    row if `wants_row`, else None; it is also None if there is no row."""
    creates: Lease | None = None
    """The lease in `item`, if the write creates one."""
    item: Row | None = None
    """The row to create."""
    sets: tuple[tuple[str, Value], ...] = ()
    removes: tuple[str, ...] = ()
    adds: tuple[tuple[str, Value], ...] = ()
    wants_row: bool = True
    """Whether the answer depends on the row, so that DynamoDB has to return it."""

    @property
    def deletes(self) -> bool:
        return not (self.item or self.sets or self.removes or self.adds)


# --- the ports --------------------------------------------------------------------------------------------------------


class LeaseTable(Protocol):
    """The lease table. All methods raise `errors.TableError`."""

    async def ensure(self) -> bool:
        """Create the table if it is missing, and wait until it can be used. Return whether this call created it."""
        ...

    async def scan(self, part: tuple[int, int] | None = None, *, consistent: bool = False) -> TableScan:
        """Return all rows, page by page; large tables are read in parallel segments.

        With `part`, a pair (number, how many parts), only one part of the table is read; a row is always in the same
        part. With `consistent`, the result includes all writes made before the scan, for twice the price.
        """
        ...

    async def get(self, key: str, *, consistent: bool = True) -> Lease | None:
        """Return one lease; None if there is no such row, or if the row is not a lease.

        If not `consistent`, the row may be a little out of date, for half the price.
        """
        ...

    async def get_many(self, keys: Sequence[str]) -> Mapping[str, Lease]:
        """Read many leases by strongly consistent reads. Rows that are missing, unreadable or not leases are left
        out.
        """
        ...

    async def apply(self, write: LeaseWrite[AnswerT]) -> AnswerT:
        """Carry out a write made by a function of `writes`, and return the answer that this function describes."""
        ...


class LeaseIndex(Protocol):
    """The index that finds rows by their owner."""

    async def ensure(self) -> IndexStatus:
        """Create the owner index if it is missing, without waiting until it is filled; return its status.

        If another worker creates the index at the same time, or if we may not create it, no error is raised; the
        status shows that.
        """
        ...

    async def status(self) -> IndexStatus:
        """Return the state of the index."""
        ...

    async def keys_owned_by(self, worker: str) -> tuple[str, ...]:
        """Return the keys of the rows whose `leaseOwner` is `worker`: its leases, and those that are being handed off
        to it. They are eventually consistent.

        The keys are read from the owner index. While the index cannot be used, the table is scanned, every few seconds
        at most.
        """
        ...


class StoredTable(LeaseTable, Protocol):
    """The lease table with its index. If the table is deleted, it can be restored from the rows that were seen last."""

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
