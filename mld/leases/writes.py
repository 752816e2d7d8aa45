"""Makes every conditional write of a lease row, and decides what a refusal means. Pure.

Rules: leases#conditional-writes, leases#refused-writes, leases#lost-replies, leases#completed-rows and
leases#owner-switches. The return type of each function shows what `LeaseTable.apply` returns for its write: the row as
it is now or a `Refusal`, or whether anything was written.

The holder's guard (leases#holder-guard), used by renew and checkpoint:

    leaseCounter = n AND ((leaseOwner = me AND no checkpointOwner) OR (checkpointOwner = me AND leaseOwner <> me))

The guard holds before and during a handoff, so that the holder learns of a handoff from the answer to its own write.
The last clause excludes a row that names one worker as both owners, which nobody may renew. While other writes of ours
are under way, the guard allows every counter that they may leave (`own_writes.Span`), and a checkpoint names the
positions that it may replace. If the guard does not hold, the present row shows why (`judge_refused`):

    present row                              meaning
    gone, or of another actual owner         the lease is lost
    ours, but with a lower counter           the row was recreated or restored: the lease is lost
    ours, but another worker has had the     the lease is lost
      lease meanwhile
    ours otherwise                           `Overtaken`: nothing was written. If our other writes do not explain the
                                             counter (`own_writes`), the lease is lost to a twin, another process with
                                             our worker id
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from mld.core.errors import TableUnavailableError
from mld.core.positions import SHARD_END_NAME, Position
from mld.core.stream_ids import key_of
from mld.core.streams import HashRange
from mld.leases import rows
from mld.leases.lease import Failing, Lease, ShardStatus
from mld.leases.own_attribute import Row
from mld.leases.own_writes import Span
from mld.leases.table import AnswerT, Condition, LeaseWrite, Overtaken, Refusal, Value

RELEASE_WRITES_MAX = 2  # if the first write is refused, the second one uses the owners that the refusal shows

RowWrite: TypeAlias = LeaseWrite[Lease | Refusal]
"""A write whose answer is the row as it is now, or a refusal."""
HolderWrite: TypeAlias = LeaseWrite[Lease | Refusal | Overtaken]
"""A write of the holder. Its answer may also be `Overtaken`: the row is still ours, but the write did not change it."""
YesOrNo: TypeAlias = LeaseWrite[bool]
"""A write whose answer is whether anything was written."""

EXISTS = Condition("#leaseKey = :key")
NOT_HANDED = Condition.absent(rows.CHECKPOINT_OWNER)
HOLDS = "(#leaseOwner = :me AND attribute_not_exists(#checkpointOwner))"
STILL_HOLDS = "(#checkpointOwner = :me AND #leaseOwner <> :me)"
LACKS_RANGE = Condition("(attribute_not_exists(#startingHashKey) OR attribute_not_exists(#endingHashKey))")
SHARD_END_VALUE = Value(":shardEnd", {"S": SHARD_END_NAME})
ONE = Value(":one", {"N": "1"})
ZERO = Value(":zero", {"N": "0"})
PREPARED = (rows.PENDING, rows.PENDING_SUB, rows.PENDING_STATE)
SWITCH = (rows.OWNER_SWITCHES, ONE)
"""Counts one more switch of the owner (`is_owner_switch`)."""


# --- writes of a holder -----------------------------------------------------------------------------------------------


def renew(
    lease: Lease,
    *,
    span: Span | None = None,
    failing: Failing | None = None,
    status: ShardStatus | None = None,
) -> HolderWrite:
    """Renew: raise the counter by one if the holder's guard holds. If `lease` has a throughput, write it.

    If another worker has begun a handoff, the lease in the answer has a `checkpoint_owner`. `span` says how earlier
    writes of ours may have changed the row; None: no other write is under way. `failing` is the note
    about failures of the record processor that the row is to get: a note with 0 failures removes the one in the row,
    and None leaves it there. `status` is the status to write; None leaves the old status in the row.
    """
    span = span or Span.exactly(lease)
    sets, adds = _raised(span)
    if lease.throughput_kbps is not None:
        sets.append(_throughput(lease.throughput_kbps))
    if failing is not None and failing.failures:
        sets.append((rows.FAILING, Value(":failing", rows.failing_value(failing))))
    removed = [*_mark(lease)]
    removed += [rows.FAILING] if failing is not None and not failing.failures else []
    if status is not None:
        values = rows.status_values(status)
        sets += [(name, Value(f":{name}", value)) for name, value in values.items()]
        removed += [name for name in rows.STATUS if name not in values]
    refused = partial(judge_refused, lease)
    return LeaseWrite(
        "renew", lease.key, _guard(lease, span), the_row, refused, sets=tuple(sets), removes=tuple(removed), adds=adds
    )


def checkpoint(lease: Lease, position: Position, *, span: Span | None = None) -> HolderWrite:
    """Store `position` and remove a prepared checkpoint. The write also raises the counter, so it is a renewal, too. A
    checkpoint at SHARD_END can only be replaced by SHARD_END.

    A checkpoint is progress, so it also removes a note of failures. `span` is as for `renew`. If the span allows
    several counters, a condition on the counter alone would let a delayed checkpoint undo a later one. So the condition
    then also names the positions that may be replaced.
    """
    span = span or Span.exactly(lease)
    raised, adds = _raised(span)
    sets = [
        *raised,
        (rows.CHECKPOINT, _text(":checkpoint", position.sequence)),
        (rows.CHECKPOINT_SUB, _number(":sub", 0 if position.is_sentinel else position.sub)),
        (rows.OWNER_SWITCHES, ZERO),
    ]
    removed = (*PREPARED, rows.FAILING) if lease.failing is not None else PREPARED
    conditions = _guard(lease, span)
    if not position.is_shard_end:
        conditions += (Condition("#checkpoint <> :shardEnd", (SHARD_END_VALUE,)),)
    if not span.is_exact:
        may_replace = {one for one in (lease.checkpoint, *span.replaces) if one <= position} | {position}
        conditions += (_replaces(may_replace),)
    refused = partial(judge_refused, lease)
    return LeaseWrite(
        "checkpoint", lease.key, conditions, the_row, refused, sets=tuple(sets), removes=removed, adds=adds
    )


def release(lease: Lease, *, writes_max: int = RELEASE_WRITES_MAX) -> YesOrNo:
    """Remove the owners and raise the counter, so that others may take the lease at once. This ends a pending handoff.

    The only condition is that the owners are as seen, so that a release also works right after a renewal whose reply
    was lost. If the release is refused because a handoff has begun or ended meanwhile, but the actual owner is still
    the same, it is tried again with the new owners.
    """
    assert lease.actual_owner is not None, "only an owned lease can be released"

    def again(row: Lease | None) -> bool | YesOrNo:
        """Return the release with the owners in `row`. Return False if there is nothing to release, or if `writes_max`
        writes were tried.
        """
        other = judge_refused_release(lease, row)
        return False if other is None or writes_max <= 1 else release(other, writes_max=writes_max - 1)

    conditions, removed = (EXISTS, *_owners_as_seen(lease)), (rows.OWNER, rows.CHECKPOINT_OWNER, *_mark(lease))
    return LeaseWrite("release", lease.key, conditions, _yes, again, removes=removed, adds=((rows.COUNTER, ONE),))


# --- changes of the owner ---------------------------------------------------------------------------------------------


def take(lease: Lease, owner: str, *, resent: bool = False) -> RowWrite:
    """Make `owner` the owner if the counter is as seen. This ends a pending handoff, and may count as an owner switch
    (`is_owner_switch`).

    `resent`: `owner` has sent a take of this lease with this counter before, whose outcome is unknown.
    """
    return LeaseWrite(
        "take",
        lease.key,
        (_seen(lease),),
        the_row,
        partial(judge_refused_take, lease, owner, resent=resent),
        sets=(_next(lease), (rows.OWNER, _text(":owner", owner))),
        removes=(rows.CHECKPOINT_OWNER, *_mark(lease)),
        adds=(SWITCH,) if is_owner_switch(lease, owner) else (),
    )


def begin_handoff(lease: Lease, next_owner: str) -> RowWrite:
    """Begin a handoff: name the next owner in the row. The counter is not changed, so that the present owner can
    continue to renew and checkpoint.

    The write is refused unless the row still has the owner of `lease`, and no handoff is pending. `next_owner` must be
    another worker.
    """
    assert lease.owner is not None, "only an owned lease can be handed off"
    assert next_owner != lease.owner, "nobody may renew a row that names one worker twice"
    owner = _text(":owner", lease.owner)
    conditions = (EXISTS, Condition.equal(rows.OWNER, owner), NOT_HANDED)
    sets = ((rows.OWNER, _text(":nextOwner", next_owner)), (rows.CHECKPOINT_OWNER, owner))
    refused = partial(_refused_by_owners, lease)
    return LeaseWrite("begin_handoff", lease.key, conditions, the_row, refused, sets=sets)


def assign(lease: Lease, owner: str, *, resent: bool = False) -> RowWrite:
    """Make `owner` the owner and raise the counter, if the owners are as seen. This ends a pending handoff.

    There is no condition on the counter, so renewals by the present holder do not prevent the change. With `resent` (an
    earlier attempt may have been applied), the write also counts as successful if the row belongs to `owner` by now,
    whoever wrote it.
    """
    counted = (rows.COUNTER, ONE)
    return LeaseWrite(
        "assign",
        lease.key,
        (EXISTS, *_owners_as_seen(lease)),
        the_row,
        partial(judge_refused_assign, lease, owner, resent=resent),
        sets=((rows.OWNER, _text(":newOwner", owner)),),
        removes=(rows.CHECKPOINT_OWNER, *_mark(lease)),
        adds=(counted, SWITCH) if is_owner_switch(lease, owner) else (counted,),
    )


def assign_expired(lease: Lease, owner: str) -> RowWrite:
    """Make an `assign` with the additional condition that the counter is as seen: an owner that has renewed its lease
    meanwhile keeps it.
    """
    write = assign(lease, owner)
    return replace(write, verb="assign_expired", conditions=(*write.conditions, _seen(lease)))


def pinned(write: RowWrite, until_s: int) -> RowWrite:
    """Return the write `write`, which changes the owner, with a pin added: until `until_s` (epoch seconds), leaders of
    mld leave the lease with that owner.
    """
    return replace(write, sets=((rows.PINNED_UNTIL, _number(":pinnedUntil", until_s)), *write.sets))


# --- requests of an operator ------------------------------------------------------------------------------------------
# These writes do not change the counter, so that the holder's renewals are not refused.


def pause(lease: Lease, note: str) -> RowWrite:
    """Ask the holder to stop delivering. `note` says who asks, and why."""
    assert note, "somebody pauses it"
    conditions = (EXISTS, Condition.absent(rows.PAUSED), *_owners_as_seen(lease))
    return _wish("pause", lease, conditions, (rows.PAUSED, _note(note)))


def resume(lease: Lease) -> RowWrite:
    """Remove the pause, whoever owns the lease by now."""
    return replace(_wish("resume", lease, (EXISTS, Condition.present(rows.PAUSED))), removes=(rows.PAUSED,))


def ask_restart(lease: Lease, note: str) -> RowWrite:
    """Ask the holder to start a new child of its record processor. `note` says who asks, and why."""
    return _wish("ask_restart", lease, (EXISTS, *_owners_as_seen(lease)), (rows.RESTART, _note(note)))


def leave_out(lease: Lease, records: frozenset[str]) -> RowWrite:
    """Ask the holder not to deliver `records`. They replace the set in the row, on condition that the row still has the
    set of `lease`.
    """
    before = Value(":before", {"SS": sorted(lease.left_out)})
    as_seen = Condition.equal(rows.LEFT_OUT, before) if lease.left_out else Condition.absent(rows.LEFT_OUT)
    conditions = (EXISTS, *_owners_as_seen(lease), as_seen)
    return _wish("leave_out", lease, conditions, (rows.LEFT_OUT, Value(":records", {"SS": sorted(records)})))


def _wish(verb: str, lease: Lease, conditions: tuple[Condition, ...], *sets: tuple[str, Value]) -> RowWrite:
    """Make a write that sets an operator's request (a pause, for example) in the row. If it is refused, the answer says
    that the owners have changed, or that somebody did the same before.
    """

    def refused(row: Lease | None) -> Lease | Refusal:
        return Refusal(
            "the row was deleted" if row is None else f"the owners are {_owners(row)}, or it was done before"
        )

    return LeaseWrite(verb, lease.key, conditions, the_row, refused, sets=sets)


# --- rows of shards ---------------------------------------------------------------------------------------------------


def create(lease: Lease) -> YesOrNo:
    """Create a row if its key is free. Raises ValueError for values that no new row may have (`rows.new_row`)."""
    return put("create", lease, rows.new_row(lease))


def put(verb: str, lease: Lease | None, item: Row) -> YesOrNo:
    """Create the row `item` if its key is free. `lease` is the lease in it; None if the row is not a lease."""
    return yes_or_no(verb, item[rows.KEY]["S"], Condition.absent(rows.KEY), creates=lease, item=item)


def record_children(key: str, children: frozenset[str]) -> YesOrNo:
    """Record the child shards in an existing row, without changing its counter. `children` must not be empty."""
    assert children, "DynamoDB has no empty sets"
    value = Value(":children", {"SS": sorted(children)})
    return yes_or_no("record_children", key, EXISTS, sets=((rows.CHILDREN, value),))


def fill_hash_range(key: str, hash_range: HashRange) -> YesOrNo:
    """Add the hash range to an existing row that KCL before 2.3 created without one, unless it has one by now
    (shards#missing-hash-ranges).
    """
    assert hash_range.start < hash_range.end, "Java cannot read a row with a range of one key"
    start, end = _text(":start", str(hash_range.start)), _text(":end", str(hash_range.end))
    return yes_or_no("fill_hash_range", key, EXISTS, LACKS_RANGE, sets=((rows.HASH_START, start), (rows.HASH_END, end)))


def delete_completed(key: str) -> YesOrNo:
    """Delete the row if its checkpoint is SHARD_END. So a row that was recreated meanwhile with another checkpoint
    stays.
    """
    return yes_or_no("delete_completed", key, Condition.equal(rows.CHECKPOINT, SHARD_END_VALUE))


def delete_unchanged(lease: Lease) -> YesOrNo:
    """Delete the row if the counter and the owners are as seen.

    Use this for streams that the application no longer reads: the checkpoint is lost with the row. The caller must know
    that nobody renews the lease.
    """
    return yes_or_no("delete_unchanged", lease.key, EXISTS, _seen(lease), *_owners_as_seen(lease))


def of_stream(write: LeaseWrite[AnswerT], stream: str) -> LeaseWrite[AnswerT]:
    """Return the same write for a table of several streams, in which the stream's identifier is part of the key."""
    key, lease, item = key_of(stream, write.key), write.creates, write.item
    names = {rows.KEY: {"S": key}, rows.STREAM: {"S": stream}, rows.SHARD: {"S": write.key}}
    return replace(
        write,
        key=key,
        creates=None if lease is None else replace(lease, key=key, stream=stream),
        item=None if item is None else {**item, **names},
    )


def yes_or_no(verb: str, key: str, *conditions: Condition, **more: Any) -> YesOrNo:
    """Make a write whose answer is whether anything was written; `more` are fields of `LeaseWrite`."""
    return LeaseWrite(verb, key, conditions, _yes, lambda _: False, wants_row=False, **more)


# --- answers ----------------------------------------------------------------------------------------------------------


def the_row(row: Row) -> Lease:
    """Return the lease in the row that was written. Raises TableUnavailableError or CorruptRowError."""
    lease = rows.parse_row(row)
    if lease is None:
        raise TableUnavailableError(f"row {row.get(rows.KEY)} has stopped being a lease")
    return lease


def _yes(_row: Row) -> bool:
    return True


def judge_refused(lease: Lease, row: Lease | None) -> Refusal | Overtaken:
    """Return what a refused renew or checkpoint of our `lease` means. `row` is the present row; the table in the
    module's header shows the cases.
    """
    me = lease.actual_owner
    if row is None:
        return Refusal("the row was deleted")
    if row.actual_owner != me:
        return Refusal(f"the row belongs to {row.actual_owner}" if row.actual_owner else "the row was released")
    if row.owner == row.checkpoint_owner:
        return Refusal("the row names us as both owners of a handoff, which nobody may renew")
    if row.checkpoint_owner is None and lease.checkpoint_owner is not None:
        return Refusal("the handoff was ended by giving the lease back to us", row=row)
    if row.counter < lease.counter:
        return Refusal(f"the row was recreated or restored (counter {row.counter}, ours {lease.counter})", row=row)
    if row.counter > lease.counter and has_changed_hands(lease, row):
        return given_back(row)
    return Overtaken(row)


def unexplained(lease: Lease, row: Lease) -> Refusal:
    """Return the refusal for a row that names us, although our own writes do not explain its counter."""
    if has_changed_hands(lease, row):
        return given_back(row)
    return Refusal(f"counter moved from {lease.counter} to {row.counter} without us", by_twin=True)


def given_back(row: Lease) -> Refusal:
    """Return the refusal for a lease that another worker took and then gave back to us: `row` names us again."""
    return Refusal("another worker took it, and it was given back to us", row=row)


def has_changed_hands(before: Lease, row: Lease) -> bool:
    """Return whether another worker owned the lease between two reads of its row (`before`, `row`), which both show the
    same owner.

    `owner_switches` counts changes of the owner, and each checkpoint resets it to 0.
    """
    as_before = (row.owner_switches, row.checkpoint) == (before.owner_switches, before.checkpoint)
    return row.owner_switches > 0 and not as_before


def judge_refused_take(lease: Lease, owner: str, row: Lease | None, *, resent: bool) -> Lease | Refusal:
    """Return what a refused take means: `row`, the present row, if an earlier attempt of the same take has made it
    ours; else the refusal, which says why.
    """
    if row is None:
        return Refusal("the row was deleted")
    is_ours = row.owner == owner and row.checkpoint_owner is None and row.counter == lease.counter + 1
    if is_ours and resent:
        return row
    return Refusal(f"counter moved from {lease.counter} to {row.counter}, owner {row.actual_owner}")


def _refused_by_owners(lease: Lease, row: Lease | None) -> Refusal:
    """Return the refusal of a write whose condition on the owners was not fulfilled."""
    if row is None:
        return Refusal("the row was deleted")
    return Refusal(f"the owners are {_owners(row)}, not {_owners(lease)}", row=row)


def judge_refused_assign(lease: Lease, owner: str, row: Lease | None, *, resent: bool) -> Lease | Refusal:
    """Return what a refused assign means: `row`, the present row, if it belongs to `owner` and an earlier attempt may
    have been applied (`resent`); else the refusal, which says why.
    """
    if row is None:
        return Refusal("the row was deleted")
    if resent and (row.owner, row.checkpoint_owner) == (owner, None) and row.counter > lease.counter:
        return row
    if (row.owner, row.checkpoint_owner) == (lease.owner, lease.checkpoint_owner):
        return Refusal(f"counter moved from {lease.counter} to {row.counter}")
    return _refused_by_owners(lease, row)


def judge_refused_release(lease: Lease, row: Lease | None) -> Lease | None:
    """Return what a refused release means. If the present row is still ours, but a handoff has begun or ended since
    `lease` was read, return that row: its owners are to be used for the next attempt. Return None if there is nothing
    to release any more.
    """
    if row is None or row.actual_owner != lease.actual_owner:
        return None
    same_owners = (row.owner, row.checkpoint_owner) == (lease.owner, lease.checkpoint_owner)
    return None if same_owners else row


def is_owner_switch(seen: Lease, owner: str) -> bool:
    """Return whether making `owner` the owner of `seen` counts in `ownerSwitchesSinceCheckpoint`
    (leases#owner-switches).
    """
    return (seen.owner is not None and seen.owner != owner) or seen.checkpoint_owner == owner


# --- parts ------------------------------------------------------------------------------------------------------------


def _guard(lease: Lease, span: Span) -> tuple[Condition, ...]:
    """Return the holder's guard, see the module's header."""
    assert lease.actual_owner is not None, "only a held lease can be written"
    me = _text(":me", lease.actual_owner)
    return (_within(span), Condition(f"({HOLDS} OR {STILL_HOLDS})", (me,)))


def _within(span: Span) -> Condition:
    """Return the condition that the row's counter is within the span."""
    over = _number(":seen", span.over)
    if span.is_exact:
        return Condition.equal(rows.COUNTER, over)
    return Condition(f"#{rows.COUNTER} BETWEEN :seen AND :upTo", (over, _number(":upTo", span.up_to)))


def _raised(span: Span) -> tuple[list[tuple[str, Value]], tuple[tuple[str, Value], ...]]:
    """Return the clauses (sets, adds) that raise the lease counter by one: a SET if the value in the row is known
    exactly, else an ADD.
    """
    if span.is_exact:
        return [(rows.COUNTER, _number(":next", span.over + 1))], ()
    return [], ((rows.COUNTER, ONE),)


def _replaces(positions: set[Position]) -> Condition:
    """Return the condition that the row has one of these checkpoints. An absent sub-sequence number counts as 0."""
    texts, values = [], []
    for number, one in enumerate(sorted(positions)):
        sequence, sub = f":was{number}", f":wasSub{number}"
        values += [_text(sequence, one.sequence), _number(sub, 0 if one.is_sentinel else one.sub)]
        text = f"#{rows.CHECKPOINT_SUB} = {sub}"
        if one.is_sentinel or not one.sub:
            text = f"({text} OR attribute_not_exists(#{rows.CHECKPOINT_SUB}))"
        texts.append(f"(#{rows.CHECKPOINT} = {sequence} AND {text})")
    return Condition(f"({' OR '.join(texts)})", tuple(values))


def _owners_as_seen(lease: Lease) -> tuple[Condition, ...]:
    """Return the conditions that the row's owners are those of `lease`."""
    return (
        _is_or_absent(rows.OWNER, ":owner", lease.owner),
        _is_or_absent(rows.CHECKPOINT_OWNER, ":checkpointOwner", lease.checkpoint_owner),
    )


def _is_or_absent(attribute: str, name: str, seen: str | None) -> Condition:
    """Return the condition that an attribute has the value `seen`, or is absent if that is None. `name` is the
    placeholder of the value.
    """
    return Condition.absent(attribute) if seen is None else Condition.equal(attribute, _text(name, seen))


def _seen(lease: Lease) -> Condition:
    """Return the condition that the row has the counter of `lease`."""
    return Condition.equal(rows.COUNTER, _number(":seen", lease.counter))


def _next(lease: Lease) -> tuple[str, Value]:
    """Return the SET clause for a counter that is one higher than that of `lease`."""
    return (rows.COUNTER, _number(":next", lease.counter + 1))


def _mark(lease: Lease) -> tuple[str, ...]:
    """Return the names of the attributes to remove with a write: the mark, if the row has it. mld 0.2 marked rows that
    it did not renew.
    """
    return () if lease.heartbeat is None else (rows.HEARTBEAT,)


def _throughput(kbps: float) -> tuple[str, Value]:
    return (rows.THROUGHPUT, Value(":throughput", {"N": rows.number_text(kbps)}))


def _note(note: str) -> Value:
    """Return an operator's note as a value, cut to the length that is kept."""
    return _text(":words", note[: rows.WORDS_CHARACTERS_MAX])


def _owners(lease: Lease) -> str:
    """Return the owners of a lease as text for a message."""
    if lease.checkpoint_owner is None:
        return lease.owner or "nobody"
    return f"{lease.checkpoint_owner} and next {lease.owner or 'nobody'}"


def _text(name: str, text: str) -> Value:
    return Value(name, {"S": text})


def _number(name: str, number: int) -> Value:
    return Value(name, {"N": str(number)})
