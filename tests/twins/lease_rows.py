"""Carries out a `LeaseWrite` on one lease, for tables in memory that need neither requests nor expressions.

It must accept exactly what DynamoDB accepts of the write's expression; `simulation.test_scale` compares the two.
"""

from __future__ import annotations

from typing import Any

from mld.leases import rows
from mld.leases.lease import Lease
from mld.leases.table import Absent, AnyOf, Condition, Exists, Is, IsNot, LeaseWrite, Present

Item = dict[str, Any]


class NotWrittenError(Exception):
    """The conditions do not hold."""


def carry_out(write: LeaseWrite[Any], lease: Lease | None) -> Item:
    """The row after `write` on the row of `lease`; {} if it is deleted. Raises NotWrittenError."""
    item = {} if lease is None else row_of(lease)
    if not all(_holds(condition, item) for condition in write.conditions):
        raise NotWrittenError
    if write.item is not None:
        return dict(write.item)
    if write.creates is not None:
        return rows.new_row(write.creates)
    if write.deletes:
        return {}
    changed = item | {name: value.typed for name, value in write.sets}
    for name, value in write.adds:
        changed[name] = {"N": str(int(item.get(name, {"N": "0"})["N"]) + int(value.typed["N"]))}
    return {name: value for name, value in changed.items() if name not in write.removes}


def row_of(lease: Lease) -> Item:
    """The row that is read as `lease`."""
    row: Item = rows.new_row(rows.reborn(lease)) | {
        rows.COUNTER: {"N": str(lease.counter)},
        rows.OWNER_SWITCHES: {"N": str(lease.owner_switches)},
    }
    texts = {
        rows.OWNER: lease.owner,
        rows.CHECKPOINT_OWNER: lease.checkpoint_owner,
        rows.HEARTBEAT: lease.heartbeat,
        rows.RESTART: lease.restart,
    }
    row |= {name: {"S": text} for name, text in texts.items() if text is not None}
    if lease.hash_range is not None:
        row[rows.HASH_START] = {"S": str(lease.hash_range.start)}
        row[rows.HASH_END] = {"S": str(lease.hash_range.end)}
    if lease.throughput_kbps is not None:
        row[rows.THROUGHPUT] = {"N": rows.number_text(lease.throughput_kbps)}
    if lease.pending is not None:
        row[rows.PENDING] = {"S": lease.pending.position.sequence}
        row[rows.PENDING_SUB] = {"N": str(lease.pending.position.sub)}
        if lease.pending.state is not None:
            row[rows.PENDING_STATE] = {"B": lease.pending.state}
    if lease.failing is not None:
        row[rows.FAILING] = rows.failing_value(lease.failing)
    if lease.left_out:
        row[rows.LEFT_OUT] = {"SS": sorted(lease.left_out)}
    if lease.pinned_until_s is not None:
        row[rows.PINNED_UNTIL] = {"N": str(lease.pinned_until_s)}
    return row if lease.status is None else row | rows.status_values(lease.status)


def _holds(condition: Condition, item: Item) -> bool:
    match condition:
        case Exists():
            return bool(item)
        case Is(attribute, value):
            return bool(item.get(attribute) == value.typed)
        case IsNot(attribute, value):
            return bool(item) and item.get(attribute) != value.typed
        case Absent(attribute):
            return attribute not in item
        case Present(attribute):
            return attribute in item
        case AnyOf(lists):
            return any(all(_holds(one, item) for one in some) for some in lists)
