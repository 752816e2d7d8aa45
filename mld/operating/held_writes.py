"""The writes to rows that an operator holds. Pure.

A change of a row is conditional: the row must still belong to this operator, and be in no handoff. An operator's id is
made for one run of one command, so no other process writes a row under that id. The operator's own renewals do not
affect the condition.
"""

from __future__ import annotations

from dataclasses import replace

from mld.leases import rows, writes
from mld.leases.lease import Lease
from mld.leases.table import Condition, LeaseWrite, Refusal, Value
from mld.operating.plan import Row

_STALE = (
    *writes.PREPARED,
    rows.CHILDREN,
    rows.THROUGHPUT,
    rows.HEARTBEAT,
    rows.FAILING,
    rows.LEFT_OUT,
    *rows.STATUS,
)
"""Attributes that belong to the former position of a row. They are removed when the row gets another position."""
_OF_HOLDER = (rows.OWNER, rows.CHECKPOINT_OWNER, rows.HEARTBEAT, *rows.STATUS)
"""Attributes that describe the holder of a row."""


def create(lease: Lease, me: str) -> LeaseWrite[bool]:
    """Create a row that belongs to the operator until the hold gives it back."""
    return writes.create(replace(lease, owner=me))


def put_back(row: Row, me: str) -> LeaseWrite[bool]:
    """Create a saved row again, unchanged except for its owner, which is the operator."""
    item = {name: value for name, value in row.items() if name not in _OF_HOLDER} | {rows.OWNER: {"S": me}}
    return writes.put("put", rows.parse_row(item), item)


def rewrite(row: Lease, target: Lease, me: str) -> LeaseWrite[Lease | Refusal]:
    """Return the write that turns `row`, as it was last read, into a row like a new one for `target`: with the
    checkpoint, parents, children and hash range of `target`. Attributes that belong to the row's former position
    (`_STALE`) are removed.
    """
    new = rows.new_row(target)
    attributes = [rows.CHECKPOINT, rows.CHECKPOINT_SUB, rows.OWNER_SWITCHES]
    attributes += [] if row.parents == target.parents else [rows.PARENTS]
    attributes += [] if row.hash_range == target.hash_range else [rows.HASH_START, rows.HASH_END]
    sets = tuple((name, Value(f":{name}", new[name])) for name in (*attributes, rows.CHILDREN) if name in new)
    removed = tuple(name for name in (*attributes, *_STALE) if name not in new)

    def refused(_: Lease | None) -> Lease | Refusal:
        """Return the answer of the write if its conditions do not hold."""
        return Refusal("the row does not belong to this operator, or is being handed over")

    counter_step = ((rows.COUNTER, writes.ONE),)
    return LeaseWrite(
        "rewrite", row.key, _held_by(me), writes.the_row, refused, sets=sets, removes=removed, adds=counter_step
    )


def remove(key: str, me: str) -> LeaseWrite[bool]:
    """Delete the row."""
    return writes.yes_or_no("remove", key, *_held_by(me))


def _held_by(me: str) -> tuple[Condition, ...]:
    """Return the conditions that the operator `me` owns the row, and that it is in no handoff."""
    return Condition.equal(rows.OWNER, Value(":me", {"S": me})), writes.NOT_HANDED
