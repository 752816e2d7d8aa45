"""Turning a table of one stream into one of several, and back: which rows are written, in which order. Pure.

Three steps, each planned from the table as it is then. First every lease of the old form gets a copy of the new form,
created under the condition that its key is free. When all copies are there, the list of streams follows. Then the rows
of the old form go, each under the condition that it is as it was read. So a command that dies leaves every lease in one
of the forms or in both, and the same command again goes on from there. Workers of either form refuse a mixed table.

Where both forms of a lease exist, the earlier of the two places counts: a copy at the place of the old row, or before
it, stays, and the old row goes. A new row that is further is neither overwritten nor trusted, because only somebody
else can have moved it: the command refuses, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from mld.core.positions import TRIM_HORIZON, Position
from mld.core.stream_ids import StreamId, stream_of_key
from mld.leases import rows
from mld.leases.lease import Lease
from mld.operating.naming import listed, names_of, streams_in
from mld.operating.plan import (
    OF_HOLDER,
    ActPlan,
    ActRefusedError,
    Change,
    RawTable,
    Row,
    put,
    remove_as_read,
    unchanged,
    yes_or_no,
)
from mld.shards.graph import id_order
from mld.tracking import stream_list
from mld.tracking.stream_list import ListedStream

NAMED_MAX = 3
_NOT_COPIED = frozenset({*OF_HOLDER, rows.STREAM, rows.SHARD})
"""What a row says of its holder, and of its form."""
_GUARDED = (
    rows.COUNTER,
    rows.CHECKPOINT,
    rows.CHECKPOINT_SUB,
    rows.OWNER,
    rows.CHECKPOINT_OWNER,
    rows.PENDING,
    rows.PENDING_SUB,
    rows.CHILDREN,
    rows.STREAM,
)
"""What must be as it was read when a row is deleted: every write of a worker changes one of them."""


class TableForm(Enum):
    """How many streams the rows of a table can tell apart."""

    SEVERAL = "several"
    ONE = "one"


@dataclass(frozen=True, slots=True)
class Reshaping:
    """The leases of one stream go to the form `to`. `stream` is the stream as the list has it."""

    to: TableForm
    stream: ListedStream

    def sources(self, table: RawTable) -> Mapping[str, Row]:
        """Return the rows of the old form, by key, from old to young shards."""
        wanted = None if self.to is TableForm.SEVERAL else self.stream.stream
        leases = sorted(
            (lease for lease in table.scan.leases if lease.stream == wanted), key=lambda one: id_order(one.shard_id)
        )
        raw = {row.get(rows.KEY, {}).get("S", ""): row for row in table.rows}
        return {lease.key: raw[lease.key] for lease in leases}

    def target(self, key: str) -> str:
        """Return the key of the new form."""
        id_ = self.stream.stream
        return f"{id_}:{key}" if self.to is TableForm.SEVERAL else key.removeprefix(f"{id_}:")

    def whole(self, table: RawTable) -> ActPlan:
        """Return all that is left, for people: one change for each lease, and the list. Raises ActRefusedError."""
        self._require_fit(table)
        seen = {lease.key: lease for lease in table.scan.leases}
        changes, notes = [], []
        for key, row in self.sources(table).items():
            there = seen.get(self.target(key))
            if there is None:
                words = f"becomes {self.target(key)}, at {_place(row)}"
                changes.append(replace(self._copy(key, row), name=key, words=words))
                continue
            changes.append(_removed(row, f"its row goes; {there.key} is there, at {there.checkpoint}"))
            if there.checkpoint != seen[key].checkpoint:
                notes.append(f"{there.key} is before {key}: the records between are delivered again")
        changes += self._list(table)
        if self.to is TableForm.ONE:
            others = [one for one in listed(table).current().values() if one.id != self.stream.id]
            notes += [f"stream {one.label} is listed, too, has no leases, and is forgotten" for one in others]
        return ActPlan(self.title, tuple(changes), tuple(notes))

    @property
    def title(self) -> str:
        """What this does, in one line."""
        if self.to is TableForm.SEVERAL:
            return f"to the form of several streams: the leases become those of stream {self.stream.stream}"
        return f"to the form of one stream: stream {self.stream.stream}"

    def next_step(self, table: RawTable) -> ActPlan:
        """Return what is to be written now; no changes when all is done. Raises ActRefusedError."""
        self._require_fit(table)
        sources, there = self.sources(table), {lease.key for lease in table.scan.leases}
        copies = tuple(self._copy(key, row) for key, row in sources.items() if self.target(key) not in there)
        if copies:
            return ActPlan(self.title, copies)
        follows = tuple(self._list(table))
        # Back, the list goes last: until then the table is known by it to hold several streams.
        if follows and (self.to is TableForm.SEVERAL or not sources):
            return ActPlan(self.title, follows)
        return ActPlan(self.title, tuple(_removed(row, "its row goes") for row in sources.values()))

    def deletes(self, step: ActPlan) -> bool:
        """Return whether a step takes rows of the old form away."""
        return any(change.write.deletes and change.key != stream_list.KEY for change in step.changes)

    def require_still(self, first: Mapping[str, Row], table: RawTable) -> None:
        """Raise ActRefusedError if rows of the old form are other ones than at `first`: somebody is at work."""
        for key, row in self.sources(table).items():
            if key not in first:
                raise ActRefusedError(f"row {key} came meanwhile: somebody else is at work; stop them and ask again")
            if first[key] != row:
                raise ActRefusedError(f"row {key} moved meanwhile: somebody else is at work; stop them and ask again")

    # --- the parts --------------------------------------------------------------------------------------------------

    def _require_fit(self, table: RawTable) -> None:
        if self.to is TableForm.ONE:
            require_alone(table, self.stream.id)
        seen = {lease.key: lease for lease in table.scan.leases}
        for key in self.sources(table):
            if seen[key].stream is None and stream_of_key(key) is not None:
                raise ActRefusedError(f"lease row {key} names a stream in its key, but has no {rows.STREAM}: repair it")
            other = seen.get(self.target(key))
            if other is not None and not _is_not_after(other.checkpoint, seen[key].checkpoint):
                raise ActRefusedError(_both(seen[key], other))

    def _copy(self, key: str, row: Row) -> Change:
        item = {name: value for name, value in row.items() if name not in _NOT_COPIED}
        item[rows.KEY] = {"S": self.target(key)}
        if self.to is TableForm.SEVERAL:
            item |= {rows.STREAM: {"S": self.stream.stream}, rows.SHARD: {"S": key}}
        return Change(f"created, at {_place(row)}", put(item))

    def _list(self, table: RawTable) -> list[Change]:
        before = listed(table)
        if self.to is TableForm.ONE:
            if table.row(stream_list.KEY) is None:
                return []
            write = yes_or_no("remove", stream_list.KEY, unchanged(before.seen, stream_list.FIELDS))
            return [Change("the list of streams goes", write)]
        if not self.sources(table):
            return []
        if any(one.stream == self.stream.stream and one.former_since_s is None for one in before.streams):
            return []
        others = tuple(one for one in before.streams if one.stream != self.stream.stream)
        after = before.followed_by(sorted((*others, self.stream), key=lambda one: one.stream))
        item = {rows.KEY: {"S": stream_list.KEY}, **stream_list.values_of(after)}
        write = put(item, unchanged(before.seen, stream_list.FIELDS))
        return [Change(f"the list of streams has {self.stream.label}", write)]


def require_alone(table: RawTable, stream: StreamId) -> None:
    """Raise ActRefusedError if the table has leases of other streams, which a table of one cannot keep."""
    others = [one for one in streams_in(table.scan.leases) if one != stream]
    if others:
        raise ActRefusedError(
            f"the table also holds leases of {names_of(others, NAMED_MAX)}, and a table of one stream has no place for "
            "them: let mld.formerStreams = delete take them away first, or stay with several streams"
        )


def _removed(row: Row, words: str) -> Change:
    """Delete the row, if it is as it was read."""
    return Change(words, remove_as_read(row, _GUARDED))


def _is_not_after(new: Position, old: Position) -> bool:
    """Return whether whoever goes on from `new` is surely given everything that follows `old`."""
    if new in (old, TRIM_HORIZON):
        return True
    return new.number is not None and (old.is_shard_end or (old.number is not None and new <= old))


def _both(old: Lease, new: Lease) -> str:
    return (
        f"there are two rows of shard {old.shard_id}: {old.key} at {old.checkpoint}, and {new.key} at "
        f"{new.checkpoint}, which somebody else must have moved; delete the one that is wrong, and ask again"
    )


def _place(row: Row) -> str:
    lease = rows.parse_row(row)
    assert lease is not None, "only rows of leases are turned"
    return str(lease.checkpoint)
