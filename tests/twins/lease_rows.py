"""Carries out a `LeaseWrite` on one lease, for tables in memory that keep leases and need no requests.

`simulation.test_scale` compares such a table with the one over DynamoDB's twin.
"""

from __future__ import annotations

from typing import Any

from mld.leases import rows
from mld.leases.lease import Lease
from mld.leases.table import LeaseWrite
from mld.leases.write_request import request_of
from tests.twins.dynamo_expressions import Expressions

Item = dict[str, Any]


class NotWrittenError(Exception):
    """The conditions do not hold."""


def carry_out(write: LeaseWrite[Any], lease: Lease | None) -> Item:
    """The row after `write` on the row of `lease`; {} if it is deleted. Raises NotWrittenError."""
    item = {} if lease is None else row_of(lease)
    operation, request = request_of(write)
    expressions = Expressions(request["ExpressionAttributeNames"], request.get("ExpressionAttributeValues"))
    if not expressions.holds(request["ConditionExpression"], item):
        raise NotWrittenError
    match operation:
        case "PutItem":
            return dict(request["Item"])
        case "DeleteItem":
            return {}
    return expressions.updated(request["UpdateExpression"], item)


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
