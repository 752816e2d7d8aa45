"""What an operator's command would change, row by row: one value for all of them. Pure.

Each change is one conditional write of one row, made from the row as the plan saw it. So two operators, or an operator
and a worker, never overwrite each other: whoever comes second is refused, and learns so. A plan that is carried out in
part, because a row moved or the network failed, leaves every row either as it was or as planned; asking again plans
what is left.

Two kinds of plans: those of steering write rows that workers hold, under the conditions of `leases.writes`; those that
move a whole application write rows that an operator holds meanwhile (`operator_hold`), by the writes at the end here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

from mld.core.errors import MldError, TableError
from mld.core.positions import SHARD_END, TRIM_HORIZON, Position
from mld.core.steps import Steps
from mld.core.streams import Shard
from mld.leases import rows, writes
from mld.leases.lease import Lease
from mld.leases.rows import Place
from mld.leases.table import Condition, LeaseWrite, Refusal, TableScan, Value
from mld.shards.graph import ShardGraph, ancestors_first, id_order, new_lease

Row: TypeAlias = Mapping[str, Mapping[str, Any]]

# The condition is that the row still belongs to this operator and is in no handoff. The id of an operator is made for
# one run of one command, so nobody else writes a row under it, and its own renewals do not stand in the way.

_STALE = (
    *writes.PREPARED,
    rows.CHILDREN,
    rows.THROUGHPUT,
    rows.HEARTBEAT,
    rows.FAILING,
    rows.LEFT_OUT,
    *rows.STATUS,
)
"""What a row says about a place that it leaves."""
_OF_HOLDER = (rows.OWNER, rows.CHECKPOINT_OWNER, rows.HEARTBEAT, *rows.STATUS)
"""What a row says of its holder."""


class ActRefusedError(MldError):
    """A command cannot be planned: nothing was changed. The message names the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Change:
    """One write of one row: `words` completes "SHARD: "."""

    words: str
    write: LeaseWrite[Any]
    place: Place | None = None
    """Where the row is; None: in the lease table."""
    name: str = ""
    """What people call the row, if not by its key."""

    @property
    def key(self) -> str:
        return self.name or self.write.key


@dataclass(frozen=True, slots=True)
class KeptLines:
    """A new file, and its lines: what the changes of a plan take away."""

    path: Path
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ActPlan:
    """What a command would do: `title` in one line, changes in the order in which they are written, and remarks."""

    title: str
    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()
    kept: KeptLines | None = None
    """Written before the first change, and gone again if surely none was made."""


class Fate(Enum):
    """What became of a change."""

    DONE = "done"
    REFUSED = "refused"  # the row is not as the plan saw it: nothing was written
    UNKNOWN = "unknown"  # no answer, or an error: it may be written or not
    SKIPPED = "not tried"  # an earlier change failed, and this one needs it


@dataclass(frozen=True, slots=True)
class Outcome:
    """A change and its fate; `why` says more unless it is done. `row` is what the table has then, if it answered so."""

    change: Change
    fate: Fate
    why: str = ""
    row: Lease | None = None

    @property
    def words(self) -> str:
        """What became of it, for people."""
        return f"{self.fate.value}: {self.why}" if self.why else self.fate.value


@dataclass(frozen=True, slots=True)
class RawTable:
    """Every row of a lease table as it is stored, and what the rows mean."""

    rows: tuple[Row, ...]
    scan: TableScan

    def row(self, key: str) -> Row | None:
        """Return the row of this key."""
        return next((row for row in self.rows if row.get(rows.KEY, {}).get("S") == key), None)


def raw_table(found: Sequence[Row]) -> RawTable:
    """Return the table that consists of `found`."""
    leases, corrupt, others = [], [], []
    for row in found:
        try:
            lease = rows.parse_row(row)
        except rows.CorruptRowError as error:
            corrupt.append((error.key, error.reason))
            continue
        except TableError as error:
            corrupt.append((rows.UNKNOWN_KEY, str(error)))
            continue
        if lease is None:
            others.append(row)
        else:
            leases.append(lease)
    return RawTable(tuple(found), TableScan(tuple(leases), tuple(corrupt), tuple(others)))


# --- writes of rows that an operator holds ----------------------------------------------------------------------------


def create(lease: Lease, me: str) -> LeaseWrite[bool]:
    """Make a new row, which belongs to the operator until it is handed back."""
    return writes.create(replace(lease, owner=me))


def put_back(row: Row, me: str) -> LeaseWrite[bool]:
    """Make a saved row again, as it was but for its owners."""
    item = {name: value for name, value in row.items() if name not in _OF_HOLDER} | {rows.OWNER: {"S": me}}
    return writes.put("put", rows.parse_row(item), item)


def rewrite(seen: Lease, target: Lease, me: str) -> LeaseWrite[Lease | Refusal]:
    """Give the row the place of `target`, as if it had been created there, with its parents and hash range."""
    new = rows.new_row(target)
    moved = [rows.CHECKPOINT, rows.CHECKPOINT_SUB, rows.OWNER_SWITCHES]
    moved += [] if seen.parents == target.parents else [rows.PARENTS]
    moved += [] if seen.hash_range == target.hash_range else [rows.HASH_START, rows.HASH_END]
    sets = tuple((name, Value(f":{name}", new[name])) for name in (*moved, rows.CHILDREN) if name in new)
    gone = tuple(name for name in (*moved, *_STALE) if name not in new)

    def refused(_: Lease | None) -> Lease | Refusal:
        return Refusal("the row is not this operator's, or not as it was read")

    counted = ((rows.COUNTER, writes.ONE),)
    return LeaseWrite("rewrite", seen.key, _mine(me), writes.the_row, refused, sets=sets, removes=gone, adds=counted)


def remove(key: str, me: str) -> LeaseWrite[bool]:
    """Delete the row."""
    return writes.yes_or_no("remove", key, *_mine(me))


def _mine(me: str) -> tuple[Condition, ...]:
    return Condition.equal(rows.OWNER, Value(":me", {"S": me})), writes.NOT_HANDED


# --- rows after a reset -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResetRows:
    """`puts` are written first, in this order: created, or made of the row that is there. Then `deletes` go."""

    puts: tuple[Lease, ...]
    deletes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def whole_reset(
    begin: Sequence[Shard], positions: Mapping[str, Position], existing: Sequence[Lease]
) -> Steps[ResetRows]:
    """Return the rows for an application that begins at `positions`, one for each shard of `begin`: a partition of all
    keys.

    `begin` are the shards that were open at that place, without descendants of one another.
    """
    graph = yield from ShardGraph.steps(begin)
    puts = yield from ancestors_first(graph, {shard.shard_id: positions[shard.shard_id] for shard in begin})
    deletes = sorted((lease.key for lease in existing if lease.key not in graph.shards), key=id_order)
    return ResetRows(puts, tuple(deletes))


def shard_reset(graph: ShardGraph, shard_id: str, position: Position, existing: Sequence[Lease]) -> Steps[ResetRows]:
    """Return the rows that let one listed shard begin at `position`, and nothing else. Raises ActRefusedError.

    A shard without a row whose ancestors are still being read has not begun; a row for it would let it begin too soon.
    """
    shard = graph.shards[shard_id]
    rows = {lease.key: lease for lease in existing}
    if shard_id not in rows:
        above = yield from graph.above([shard_id])
        unread = [key for key in sorted(above, key=id_order) if key in rows and not rows[key].is_complete]
        if unread:
            raise ActRefusedError(
                f"shard {shard_id} has no row, because it comes after {unread[0]}, which is not read to its end: "
                f"reset {unread[0]}, or the whole application without --shard"
            )
    below = yield from graph.below([shard_id])
    passed = []
    for key in below - rows.keys():
        further = yield from graph.below([key])
        if further & rows.keys():
            passed.append(key)
    # From young to old: a complete row is written when the rows of its children are there.
    ended = [
        replace(new_lease(graph.shards[key], SHARD_END), children=frozenset(graph.children.get(key, ())))
        for key in sorted(passed, key=id_order, reverse=True)
    ]
    notes = []
    parents = sorted(graph.listed_parents(shard_id), key=id_order)
    if position == TRIM_HORIZON and parents:
        notes.append(
            f"{shard_id} is read from its beginning; what its keys had before is in {' and '.join(parents)}, which "
            "this leaves alone"
        )
    if below & rows.keys() or ended:
        notes.append(f"the shards that follow {shard_id} keep their places")
    return ResetRows((*ended, new_lease(shard, position)), (), tuple(notes))


def words_of(target: Lease, row: Lease | None) -> str:
    """Return what becomes of a row, for people: completes "SHARD: "."""
    if row is None:
        return f"new row at {target.checkpoint}"
    if row.checkpoint == target.checkpoint:
        return f"stays at {target.checkpoint}"
    return f"from {row.checkpoint} {direction(row.checkpoint, target.checkpoint)} to {target.checkpoint}"


def direction(old: Position, new: Position) -> str:
    """Return whether records are read again or skipped."""
    if old.is_shard_end or new.sequence == TRIM_HORIZON.sequence:
        return "back"
    if new.number is None or new.is_shard_end:
        return "forward"
    if old.number is None:
        return "forward" if old == TRIM_HORIZON else "aside"
    return "forward" if new > old else "back"
