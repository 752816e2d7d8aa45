"""Writes of an operator to rows that an operator holds. Pure.

The condition is that the row still belongs to this operator and is in no handoff. The id of an operator is made for one
run of one command, so nobody else writes a row under it, and its own renewals do not stand in the way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mld.leases import rows, writes
from mld.leases.lease import Lease
from mld.operating.acts.plan import Change, Row, WriteKind, change_by, update

_PLACEHOLDER = re.compile(r"#(\w+)")
MINE = "#leaseOwner = :me AND attribute_not_exists(#checkpointOwner)"
_STALE = (
    rows.PENDING,
    rows.PENDING_SUB,
    rows.PENDING_STATE,
    rows.CHILDREN,
    rows.THROUGHPUT,
    rows.HEARTBEAT,
    rows.FAILING,
    rows.LEFT_OUT,
    *rows.STATUS,
)
"""What a row says about a place that it leaves."""
OWNERS = (rows.OWNER, rows.CHECKPOINT_OWNER)


def rewrite(seen: Lease, target: Lease, me: str, words: str) -> Change:
    """Give the row the place of `target`, as if it had been created there, with its parents and hash range."""
    new = rows.new_row(target)
    sets = ["#checkpoint = :checkpoint", "#checkpointSubSequenceNumber = :sub", "#ownerSwitchesSinceCheckpoint = :zero"]
    values: dict[str, Any] = {
        ":me": {"S": me},
        ":one": {"N": "1"},
        ":zero": {"N": "0"},
        ":checkpoint": new[rows.CHECKPOINT],
        ":sub": new[rows.CHECKPOINT_SUB],
    }
    other = [] if seen.parents == target.parents else [rows.PARENTS]
    other += [] if seen.hash_range == target.hash_range else [rows.HASH_START, rows.HASH_END]
    for name in (*other, rows.CHILDREN):
        if name in new:
            sets.append(f"#{name} = :{name}")
            values[f":{name}"] = new[name]
    gone = ", ".join(f"#{name}" for name in (*other, *_STALE) if name not in new)
    expression = f"SET {', '.join(sets)} REMOVE {gone} ADD #leaseCounter :one"
    return update(seen.key, words, _request(seen.key, MINE, expression, values))


def advance(seen: Lease, checkpoint: Lease, me: str, words: str) -> Change:
    """Store a later checkpoint, as `leases.writes.checkpoint` does: progress, so a note of failures goes."""
    values = {
        ":me": {"S": me},
        ":one": {"N": "1"},
        ":zero": {"N": "0"},
        ":checkpoint": {"S": checkpoint.checkpoint.sequence},
        ":sub": {"N": str(checkpoint.checkpoint.sub)},
        ":old": {"S": seen.checkpoint.sequence},
        ":oldSub": {"N": str(seen.checkpoint.sub)},
    }
    condition = f"{MINE} AND #checkpoint = :old AND #checkpointSubSequenceNumber = :oldSub"
    gone = (rows.PENDING, rows.PENDING_SUB, rows.PENDING_STATE, rows.FAILING)
    expression = (
        "SET #checkpoint = :checkpoint, #checkpointSubSequenceNumber = :sub, #ownerSwitchesSinceCheckpoint = :zero"
        f" REMOVE {', '.join(f'#{name}' for name in gone)} ADD #leaseCounter :one"
    )
    return update(seen.key, words, _request(seen.key, condition, expression, values))


def remove(key: str, me: str, words: str) -> Change:
    """Delete the row."""
    request = {
        "Key": {rows.KEY: {"S": key}},
        "ConditionExpression": MINE,
        "ExpressionAttributeNames": _names(MINE),
        "ExpressionAttributeValues": {":me": {"S": me}},
    }
    return Change(key, words, WriteKind.DELETE, request)


def create(lease: Lease, me: str, words: str) -> Change:
    """A new row, which belongs to the operator until it is handed back."""
    return change_by(writes.create(replace(lease, owner=me)), words)


def put_back(row: Row, me: str, words: str) -> Change:
    """A saved row, as it was but for its owners."""
    condition = "attribute_not_exists(#leaseKey)"
    item = {name: value for name, value in row.items() if name not in (*OWNERS, rows.HEARTBEAT, *rows.STATUS)}
    item[rows.OWNER] = {"S": me}
    request = {"Item": item, "ConditionExpression": condition, "ExpressionAttributeNames": _names(condition)}
    return Change(row[rows.KEY]["S"], words, WriteKind.PUT, request)


def _request(key: str, condition: str, expression: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "Key": {rows.KEY: {"S": key}},
        "ConditionExpression": condition,
        "UpdateExpression": expression,
        "ExpressionAttributeNames": _names(condition + expression),
        "ExpressionAttributeValues": dict(values),
    }


def _names(expressions: str) -> dict[str, str]:
    return {f"#{name}": name for name in _PLACEHOLDER.findall(expressions)}
