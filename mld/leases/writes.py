"""Every conditional write of a lease row, and what a refusal means. Pure.

Rules: leases#conditional-writes, leases#refused-writes, leases#lost-replies, leases#completed-rows and
leases#owner-switches. Functions return request parameters without `TableName`.

The holder's guard (leases#holder-guard), used by renew and checkpoint:

    leaseCounter = n AND ((leaseOwner = me AND no checkpointOwner) OR (checkpointOwner = me AND leaseOwner <> me))

It holds before and during a handoff, so that one write also learns of one; the last clause leaves alone a row that
names one worker twice, which nobody may renew. When it is refused, the old row decides (`judge_refused`):

    row                            an attempt of ours is unknown     no such attempt
    gone, or another actual owner  lost                              lost
    ours, counter n + 1            ours: the lost reply said yes     lost to a twin: same worker id, other process
    ours, counter beyond           lost to a twin                    lost to a twin
    ours, counter n                the SHARD_END guard refused: the row as it is, nothing written

At most one of our attempts with counter n can have been applied, and only a process with our worker id could have
written (n + 1, us) otherwise. Never accept n + 1 without an unknown attempt: that is how twins go unnoticed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from mld.leases import rows
from mld.leases.lease import Failing, Lease, ShardStatus
from mld.leases.table import Refusal
from mld.positions import SHARD_END_NAME, Position
from mld.streams import HashRange

Request: TypeAlias = dict[str, Any]

GUARD = (
    "#leaseCounter = :seen AND ((#leaseOwner = :me AND attribute_not_exists(#checkpointOwner))"
    " OR (#checkpointOwner = :me AND #leaseOwner <> :me))"
)
NOT_COMPLETE = "#checkpoint <> :shardEnd"

_PLACEHOLDER = re.compile(r"#(\w+)")


# --- requests --------------------------------------------------------------------------------------------------------


def create(lease: Lease) -> Request:
    """PutItem, if the key is free. Raises ValueError as `rows.new_row` does."""
    condition = "attribute_not_exists(#leaseKey)"
    return {
        "Item": rows.new_row(lease),
        "ConditionExpression": condition,
        "ExpressionAttributeNames": _names(condition),
    }


def renew(
    lease: Lease, heartbeat: str | None = None, failing: Failing | None = None, status: ShardStatus | None = None
) -> Request:
    """The heartbeat; carries the throughput if the lease has one.

    `heartbeat` is the epoch of a worker heartbeat that stands for the renewals from now on. None: no heartbeat does,
    and a mark that says otherwise is taken away. `failing` is a note for the row, one of no failure takes it off;
    without one the row keeps its own.
    `status` is for people; without one the row keeps its own, which grows old.
    """
    update = "SET #leaseCounter = :next"
    values = _guard_values(lease)
    if lease.throughput_kbps is not None:
        update += ", #throughputKBps = :throughput"
        values[":throughput"] = {"N": rows.number_text(lease.throughput_kbps)}
    if failing is not None and failing.failures:
        update += f", #{rows.FAILING} = :failing"
        values[":failing"] = rows.failing_value(failing)
    if heartbeat is not None:
        update += f", #{rows.HEARTBEAT} = :heartbeat"
        values[":heartbeat"] = {"S": heartbeat}
    gone = [rows.HEARTBEAT] if heartbeat is None and lease.heartbeat is not None else []
    gone += [rows.FAILING] if failing is not None and not failing.failures else []
    if status is not None:
        told = rows.status_values(status)
        update += "".join(f", #{name} = :{name}" for name in told)
        values |= {f":{name}": value for name, value in told.items()}
        gone += [name for name in rows.STATUS if name not in told]
    if gone:
        update += " REMOVE " + ", ".join(f"#{name}" for name in gone)
    return _update(lease.key, GUARD, update, values)


def checkpoint(lease: Lease, position: Position, throughput_kbps: float | None = None) -> Request:
    """Store `position`, forget any prepared one; also a heartbeat. Never over SHARD_END, except by SHARD_END.
    It is progress, so a note of failures goes. `throughput_kbps` comes along where hardly any renewal tells it.
    """
    values = _guard_values(lease) | {
        ":checkpoint": {"S": position.sequence},
        ":sub": {"N": str(0 if position.is_sentinel else position.sub)},
        ":zero": {"N": "0"},
    }
    condition = GUARD
    if not position.is_shard_end:
        condition += f" AND {NOT_COMPLETE}"
        values[":shardEnd"] = {"S": SHARD_END_NAME}
    update = (
        "SET #leaseCounter = :next, #checkpoint = :checkpoint, #checkpointSubSequenceNumber = :sub,"
        " #ownerSwitchesSinceCheckpoint = :zero"
    )
    if throughput_kbps is not None:
        update += ", #throughputKBps = :throughput"
        values[":throughput"] = {"N": rows.number_text(throughput_kbps)}
    update += " REMOVE #pendingCheckpoint, #pendingCheckpointSubSequenceNumber, #pendingCheckpointState"
    update += "" if lease.failing is None else f", #{rows.FAILING}"
    return _update(lease.key, condition, update, values)


def take(lease: Lease, owner: str) -> Request:
    """Change the owner if the counter stands where it was read; ends a pending handoff. May be an owner switch."""
    values = {":seen": _number(lease.counter), ":next": _number(lease.counter + 1), ":owner": {"S": owner}}
    update = "SET #leaseCounter = :next, #leaseOwner = :owner REMOVE #checkpointOwner" + _and_mark(lease)
    if is_owner_switch(lease, owner):
        update += " ADD #ownerSwitchesSinceCheckpoint :one"
        values[":one"] = _number(1)
    return _update(lease.key, "#leaseCounter = :seen", update, values)


def begin_handoff(lease: Lease, next_owner: str) -> Request:
    """Name the next owner, the present one keeps renewing and checkpointing; the counter stays for its sake."""
    assert lease.owner is not None, "only an owned lease can be handed off"
    assert next_owner != lease.owner, "nobody may renew a row that names one worker twice"
    values = {":key": {"S": lease.key}, ":owner": {"S": lease.owner}, ":nextOwner": {"S": next_owner}}
    condition = "#leaseKey = :key AND #leaseOwner = :owner AND attribute_not_exists(#checkpointOwner)"
    return _update(lease.key, condition, "SET #leaseOwner = :nextOwner, #checkpointOwner = :owner", values)


def assign(lease: Lease, owner: str) -> Request:
    """Change the owner if the owners are as seen; ends a pending handoff. The counter is raised, but no condition."""
    values = {":key": {"S": lease.key}, ":newOwner": {"S": owner}, ":one": _number(1)}
    condition = "#leaseKey = :key" + _owners_as_seen(lease, values)
    update = f"SET #leaseOwner = :newOwner REMOVE #checkpointOwner{_and_mark(lease)} ADD #leaseCounter :one"
    if is_owner_switch(lease, owner):
        update += ", #ownerSwitchesSinceCheckpoint :one"
    return _update(lease.key, condition, update, values)


def assign_expired(lease: Lease, owner: str) -> Request:
    """`assign` of a lease whose counter has not moved since it was seen."""
    request = assign(lease, owner)
    request["ConditionExpression"] += " AND #leaseCounter = :seen"
    request["ExpressionAttributeValues"][":seen"] = _number(lease.counter)
    return request


def release(lease: Lease) -> Request:
    """Remove our side of the owner pair as seen, raise the counter.

    It depends on the owners only, so that it also works right after a renewal whose reply was lost.
    """
    assert lease.actual_owner is not None, "only an owned lease can be released"
    values = {":key": {"S": lease.key}, ":one": _number(1), ":me": {"S": lease.actual_owner}}
    if lease.checkpoint_owner is None:
        condition = "#leaseKey = :key AND #leaseOwner = :me AND attribute_not_exists(#checkpointOwner)"
        update = f"REMOVE #leaseOwner, #checkpointOwner{_and_mark(lease)} ADD #leaseCounter :one"
    else:
        condition = "#leaseKey = :key AND #checkpointOwner = :me AND "
        if lease.owner is None:
            condition += "attribute_not_exists(#leaseOwner)"
        else:
            condition += "#leaseOwner = :nextOwner"
            values[":nextOwner"] = {"S": lease.owner}
        update = f"REMOVE #checkpointOwner{_and_mark(lease)} ADD #leaseCounter :one"
    return _update(lease.key, condition, update, values)


def pause(lease: Lease, words: str) -> Request:
    """Ask the holder to deliver nothing from now on. Its renewals go on, so the counter stays."""
    assert words, "somebody pauses it"
    values: dict[str, Any] = {":key": {"S": lease.key}, ":words": {"S": words[: rows.WORDS_CHARACTERS_MAX]}}
    condition = f"#leaseKey = :key AND attribute_not_exists(#{rows.PAUSED})" + _owners_as_seen(lease, values)
    return _update(lease.key, condition, f"SET #{rows.PAUSED} = :words", values)


def resume(lease: Lease) -> Request:
    """Take the pause away, whoever owns the lease by now."""
    values = {":key": {"S": lease.key}}
    condition = f"#leaseKey = :key AND attribute_exists(#{rows.PAUSED})"
    return _update(lease.key, condition, f"REMOVE #{rows.PAUSED}", values)


def ask_restart(lease: Lease, words: str) -> Request:
    """Ask the holder for a new child of its record processor. Its renewals go on, so the counter stays."""
    values: dict[str, Any] = {":key": {"S": lease.key}, ":words": {"S": words[: rows.WORDS_CHARACTERS_MAX]}}
    condition = "#leaseKey = :key" + _owners_as_seen(lease, values)
    return _update(lease.key, condition, f"SET #{rows.RESTART} = :words", values)


def leave_out(lease: Lease, records: frozenset[str]) -> Request:
    """Ask whoever holds the lease not to deliver `records`, in the place of those of `lease`. The counter stays."""
    values: dict[str, Any] = {":key": {"S": lease.key}, ":records": {"SS": sorted(records)}}
    condition = "#leaseKey = :key" + _owners_as_seen(lease, values)
    if lease.left_out:
        condition += f" AND #{rows.LEFT_OUT} = :before"
        values[":before"] = {"SS": sorted(lease.left_out)}
    else:
        condition += f" AND attribute_not_exists(#{rows.LEFT_OUT})"
    return _update(lease.key, condition, f"SET #{rows.LEFT_OUT} = :records", values)


def record_children(key: str, children: frozenset[str]) -> Request:
    """Note the child shards on an existing row; the counter stays. `children` must not be empty."""
    assert children, "DynamoDB has no empty sets"
    values: dict[str, Any] = {":key": {"S": key}, ":children": {"SS": sorted(children)}}
    request = _update(key, "#leaseKey = :key", "SET #childShardIds = :children", values)
    del request["ReturnValues"]
    return request


def fill_hash_range(key: str, hash_range: HashRange) -> Request:
    """Give an existing row of KCL before 2.3 its hash range, unless it has one (shards#missing-hash-ranges)."""
    assert hash_range.start < hash_range.end, "Java cannot read a row with a range of one key"
    values = {":key": {"S": key}, ":start": {"S": str(hash_range.start)}, ":end": {"S": str(hash_range.end)}}
    condition = "#leaseKey = :key AND (attribute_not_exists(#startingHashKey) OR attribute_not_exists(#endingHashKey))"
    request = _update(key, condition, "SET #startingHashKey = :start, #endingHashKey = :end", values)
    del request["ReturnValues"]
    return request


def delete_completed(key: str) -> Request:
    """DeleteItem, only while the checkpoint is SHARD_END: the row may have been recreated meanwhile."""
    condition = "#checkpoint = :shardEnd"
    return {
        "Key": {rows.KEY: {"S": key}},
        "ConditionExpression": condition,
        "ExpressionAttributeNames": _names(condition),
        "ExpressionAttributeValues": {":shardEnd": {"S": SHARD_END_NAME}},
    }


def delete_unchanged(lease: Lease) -> Request:
    """DeleteItem, only while the counter stands where it was seen, and the owners are as seen."""
    values: dict[str, Any] = {":key": {"S": lease.key}, ":seen": _number(lease.counter)}
    condition = "#leaseKey = :key AND #leaseCounter = :seen" + _owners_as_seen(lease, values)
    return {
        "Key": {rows.KEY: {"S": lease.key}},
        "ConditionExpression": condition,
        "ExpressionAttributeNames": _names(condition),
        "ExpressionAttributeValues": values,
    }


# --- judgements ------------------------------------------------------------------------------------------------------


def judge_refused(
    lease: Lease, row: Lease | None, *, resent: bool, position: Position | None = None
) -> Lease | Refusal:
    """What a refused renew (or, with `position`, checkpoint) of our `lease` means, given the row as it is.

    A lease: the row is still ours and this is its state; the module's page says when. Otherwise why it is lost.
    """
    me = lease.actual_owner
    if row is None:
        return Refusal("the row was deleted")
    if row.actual_owner != me:
        return Refusal(f"the row belongs to {row.actual_owner}" if row.actual_owner else "the row was released")
    if row.owner == row.checkpoint_owner:
        return Refusal("the row names us as both owners of a handoff, which nobody may renew")
    if row.counter == lease.counter + 1 and resent:
        return row
    if row.counter == lease.counter and row.is_complete and position is not None:
        return row
    if row.checkpoint_owner is None and lease.checkpoint_owner is not None:
        return Refusal("the handoff was ended by giving the lease back to us; it is found anew")
    if row.counter > lease.counter:
        return Refusal(f"counter moved from {lease.counter} to {row.counter} without us", by_twin=True)
    return Refusal(f"the row was recreated or restored (counter {row.counter}, ours {lease.counter})")


def judge_read(lease: Lease, row: Lease | None) -> Lease | Refusal:
    """Whether our `lease`, of which no write is under way or unknown, still is what a consistent read shows.

    A handoff that somebody else began shows on the returned lease.
    """
    if row is not None and row.counter == lease.counter and row.actual_owner == lease.actual_owner:
        if row.checkpoint_owner is not None and row.owner != row.checkpoint_owner:
            return row
        if row.checkpoint_owner is None and lease.checkpoint_owner is None:
            return row
    judged = judge_refused(lease, row, resent=False)
    assert isinstance(judged, Refusal)
    return judged


def judge_refused_take(lease: Lease, owner: str, row: Lease | None, *, resent: bool) -> Lease | Refusal:
    """Whether a refused take was in truth our own earlier attempt; else why it was refused."""
    if row is None:
        return Refusal("the row was deleted")
    ours = row.owner == owner and row.checkpoint_owner is None and row.counter == lease.counter + 1
    if ours and resent:
        return row
    return Refusal(f"counter moved from {lease.counter} to {row.counter}, owner {row.actual_owner}")


def judge_refused_handoff(lease: Lease, next_owner: str, row: Lease | None, *, resent: bool) -> Lease | Refusal:
    """Whether a refused beginning of a handoff was in truth our own earlier attempt; else why it was refused."""
    if row is None:
        return Refusal("the row was deleted")
    if resent and (row.owner, row.checkpoint_owner) == (next_owner, lease.owner):
        return row
    return Refusal(f"the owners are {_owners(row)}, not {_owners(lease)}")


def judge_refused_assign(lease: Lease, owner: str, row: Lease | None, *, resent: bool) -> Lease | Refusal:
    """Whether the row belongs to `owner` all the same, after an attempt of unknown outcome; else why it was refused."""
    if row is None:
        return Refusal("the row was deleted")
    if resent and (row.owner, row.checkpoint_owner) == (owner, None) and row.counter > lease.counter:
        return row
    if (row.owner, row.checkpoint_owner) == (lease.owner, lease.checkpoint_owner):
        return Refusal(f"counter moved from {lease.counter} to {row.counter}")
    return Refusal(f"the owners are {_owners(row)}, not {_owners(lease)}")


def judge_refused_release(lease: Lease, row: Lease | None) -> Lease | None:
    """The lease to release instead: ours, but a handoff began or ended since it was seen. None: nothing to release."""
    if row is None or row.actual_owner != lease.actual_owner:
        return None
    same_owners = (row.owner, row.checkpoint_owner) == (lease.owner, lease.checkpoint_owner)
    return None if same_owners else row


def is_owner_switch(seen: Lease, owner: str) -> bool:
    """Whether making `owner` the owner counts in `ownerSwitchesSinceCheckpoint` (leases#owner-switches)."""
    return (seen.owner is not None and seen.owner != owner) or seen.checkpoint_owner == owner


def pinned(request: Request, until_s: int) -> Request:
    """The same change of owner, after which our leaders leave the lease where it is until `until_s` (epoch seconds)."""
    update = request["UpdateExpression"].replace("SET ", f"SET #{rows.PINNED_UNTIL} = :pinnedUntil, ", 1)
    values = request["ExpressionAttributeValues"] | {":pinnedUntil": _number(until_s)}
    names = request["ExpressionAttributeNames"] | _names(f"#{rows.PINNED_UNTIL}")
    return request | {
        "UpdateExpression": update,
        "ExpressionAttributeValues": values,
        "ExpressionAttributeNames": names,
    }


# --- helpers ---------------------------------------------------------------------------------------------------------


def _owners_as_seen(lease: Lease, values: dict[str, Any]) -> str:
    """The end of a condition: the owners are those of `lease`. Adds to `values`."""
    condition = ""
    for name, seen, value in (
        (rows.OWNER, lease.owner, ":owner"),
        (rows.CHECKPOINT_OWNER, lease.checkpoint_owner, ":checkpointOwner"),
    ):
        if seen is None:
            condition += f" AND attribute_not_exists(#{name})"
        else:
            condition += f" AND #{name} = {value}"
            values[value] = {"S": seen}
    return condition


def _guard_values(lease: Lease) -> dict[str, Any]:
    assert lease.actual_owner is not None, "only a held lease can be written"
    return {
        ":seen": _number(lease.counter),
        ":next": _number(lease.counter + 1),
        ":me": {"S": lease.actual_owner},
    }


def _update(key: str, condition: str, update: str, values: Mapping[str, Any]) -> Request:
    return {
        "Key": {rows.KEY: {"S": key}},
        "ConditionExpression": condition,
        "UpdateExpression": update,
        "ExpressionAttributeNames": _names(condition + update),
        "ExpressionAttributeValues": dict(values),
        "ReturnValues": "ALL_NEW",
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


def _names(expressions: str) -> dict[str, str]:
    return {f"#{name}": name for name in _PLACEHOLDER.findall(expressions)}


def _and_mark(lease: Lease) -> str:
    """The mark of a worker heartbeat goes with the owner, where there is one."""
    return "" if lease.heartbeat is None else f", #{rows.HEARTBEAT}"


def _owners(lease: Lease) -> str:
    if lease.checkpoint_owner is None:
        return lease.owner or "nobody"
    return f"{lease.checkpoint_owner} and next {lease.owner or 'nobody'}"


def _number(value: int) -> dict[str, str]:
    return {"N": str(value)}
