"""The `LeaseTable` port: every read and conditional write of the lease table (leases#conditional-writes).

A write is a value, made by a function of `writes` and carried out by `apply`. It is fenced by its conditions, and says
itself what an answer means: a `Refusal` or False means *refused*, somebody else changed the row. An exception
(`errors.TableError`) means *unknown*, except `TableThrottledError` and `TableMissingError`, which mean *not applied*.
Implementations do not repeat writes by themselves: a holder's next write says what those before it may have made of the
row (leases#overlapping-writes), a caller of another write repeats it with `resent=True`, and only then is a row that an
earlier attempt of ours left behind accepted as our own success (leases#lost-replies).
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
    """The raw rows that are no leases."""

    @property
    def is_empty(self) -> bool:
        """Whether there is no lease at all, not even an unreadable one."""
        return not (self.leases or self.corrupt)

    @property
    def lease_counts(self) -> tuple[int, int]:
        """Leases, and those of open shards; both count what cannot be read."""
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
    FORBIDDEN = "forbidden"  # we may not create it, or may not ask


@dataclass(frozen=True, slots=True)
class Refusal:
    """A conditional write was refused. `by_twin`: the row still names us, yet somebody else has moved its counter.

    `row` is the row as it is, where it was refused for other owners than were seen, or is ours to find anew.
    """

    why: str
    by_twin: bool = False
    row: Lease | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Overtaken:
    """A write of a holder has changed nothing, and the row still is ours: other writes of ours were faster, or it is
    complete.
    """

    row: Lease


# --- writes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Value:
    """A value in DynamoDB's form, under the name that expressions have for it."""

    name: str
    typed: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Condition:
    """A term of a condition expression: each attribute under its own name with a `#`, as KCL writes it."""

    text: str
    values: tuple[Value, ...] = ()
    """Those that it names, except ``:key``, which is the row's."""

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
    """One conditional write of one row: a new row (`item`), changes of a row, or neither: its deletion."""

    verb: str
    """The name of the function that made it."""
    key: str
    conditions: tuple[Condition, ...]
    """All of them must hold."""
    accepted: Callable[[Row], AnswerT]
    """The answer if the row was written; gets the row as it is then if `wants_row`, else nothing."""
    refused: Callable[[Lease | None], AnswerT | LeaseWrite[AnswerT]]
    """The answer if the conditions did not hold, or what to write instead; gets the row as it is if `wants_row`."""
    creates: Lease | None = None
    """The lease that `item` is read as."""
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
        """Return every row, in one pass of pages, in parallel segments where the table is large.

        `part` (number, of how many): only the rows of one part of the table. The same row is always in the same part.
        `consistent`: with all that was written before, for twice the price.
        """
        ...

    async def get(self, key: str, *, consistent: bool = True) -> Lease | None:
        """Return one lease, strongly consistent; None if there is no such row or the row is not a lease.

        Not `consistent`: the row may be shown as it was a moment ago, for half the price.
        """
        ...

    async def get_many(self, keys: Sequence[str]) -> Mapping[str, Lease]:
        """Read many leases, strongly consistent. Rows that are absent, unreadable or no leases are left out."""
        ...

    async def apply(self, write: LeaseWrite[AnswerT]) -> AnswerT:
        """Carry out a write of `writes`: what became of it, in the terms of the function that made it."""
        ...


class LeaseIndex(Protocol):
    """The rows by owner."""

    async def ensure(self) -> IndexStatus:
        """Create the owner index if it is missing, without waiting for it; how it stands afterwards.

        A concurrent creator or a missing permission is no error: the status tells.
        """
        ...

    async def status(self) -> IndexStatus: ...

    async def keys_owned_by(self, worker: str) -> tuple[str, ...]:
        """Return keys of the rows whose owner is `worker`, pending handoffs to it included; eventually consistent.

        Read from the owner index, and while that cannot be used from a scan, which is made only every few seconds.
        """
        ...


class StoredTable(LeaseTable, Protocol):
    """The table as it is stored, with its index, and what is known of it in case that somebody deletes it."""

    types_rows: bool
    """Whether new rows say by `entityType` that they are leases: not while 2.x may use the table
    (coordination#bare-tables)."""

    @property
    def index(self) -> LeaseIndex: ...

    @property
    def lost_since(self) -> float | None:
        """Since when a table that was there is gone, in monotonic seconds; None if it is not, or was made again."""
        ...

    async def restore(self, worker: str) -> int:
        """Create a lost table, and in it, for nobody, the rows as `worker` saw them last; how many were not there."""
        ...
