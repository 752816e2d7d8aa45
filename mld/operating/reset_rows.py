"""Computes the lease rows with which an application, or one of its shards, starts at another place, for `mld reset` and
`mld restore`. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mld.core.positions import SHARD_END, TRIM_HORIZON, Position
from mld.core.steps import Steps
from mld.core.streams import Shard
from mld.leases.lease import Lease
from mld.operating.plan import ActRefusedError
from mld.shards.graph import ShardGraph, ancestors_first, id_order, new_lease


@dataclass(frozen=True, slots=True)
class ResetRows:
    """The rows as a reset wants them."""

    puts: tuple[Lease, ...]
    """Rows to create, or into which existing rows are changed; in this order."""
    deletes: tuple[str, ...] = ()
    """Keys of rows that are deleted afterwards."""
    notes: tuple[str, ...] = ()


def whole_reset(
    begin: Sequence[Shard], positions: Mapping[str, Position], existing: Sequence[Lease]
) -> Steps[ResetRows]:
    """Return the rows of an application in which each shard of `begin` starts at its position in `positions`.

    `begin` are the shards that were open at that place. They cover all hash keys, and none descends from another.
    """
    graph = yield from ShardGraph.steps(begin)
    puts = yield from ancestors_first(graph, {shard.shard_id: positions[shard.shard_id] for shard in begin})
    deletes = sorted((lease.key for lease in existing if lease.key not in graph.shards), key=id_order)
    return ResetRows(puts, tuple(deletes))


def shard_reset(graph: ShardGraph, shard_id: str, position: Position, existing: Sequence[Lease]) -> Steps[ResetRows]:
    """Return the rows that make one listed shard start at `position`. All other shards keep their places.

    A descendant of the shard may have no row although some of its own descendants have rows. It gets a row at
    SHARD_END. Otherwise the end of the shard would create rows for its children, and their records would be read again.

    Raises ActRefusedError if the shard has no row because an ancestor is not read to its end. If the shard got a row
    now, it would start before the ancestor has ended.
    """
    shard = graph.shards[shard_id]
    rows = {lease.key: lease for lease in existing}
    if shard_id not in rows:
        ancestors = yield from graph.above([shard_id])
        unfinished = [key for key in sorted(ancestors, key=id_order) if key in rows and not rows[key].is_complete]
        if unfinished:
            raise ActRefusedError(
                f"shard {shard_id} has no row, because it comes after {unfinished[0]}, which is not read to its end: "
                f"reset {unfinished[0]}, or the whole application without --shard"
            )
    descendants = yield from graph.below([shard_id])
    between = []
    for key in descendants - rows.keys():
        further = yield from graph.below([key])
        if further & rows.keys():
            between.append(key)
    # The youngest descendants first: the row of an ended shard must not be written before the rows of its children.
    ended = [
        replace(new_lease(graph.shards[key], SHARD_END), children=frozenset(graph.children.get(key, ())))
        for key in sorted(between, key=id_order, reverse=True)
    ]
    notes = []
    parents = sorted(graph.listed_parents(shard_id), key=id_order)
    if position == TRIM_HORIZON and parents:
        notes.append(
            f"{shard_id} is read from its beginning; earlier records of its keys are in {' and '.join(parents)}, which "
            "this does not reset"
        )
    if descendants & rows.keys() or ended:
        notes.append(f"the child shards of {shard_id}, and theirs, keep their places")
    return ResetRows((*ended, new_lease(shard, position)), (), tuple(notes))


def words_of(target: Lease, row: Lease | None) -> str:
    """Return the change of a row in words, to be printed after "SHARD: "."""
    if row is None:
        return f"new row at {target.checkpoint}"
    if row.checkpoint == target.checkpoint:
        return f"stays at {target.checkpoint}"
    return f"from {row.checkpoint} {direction(row.checkpoint, target.checkpoint)} to {target.checkpoint}"


def direction(old: Position, new: Position) -> str:
    """Return what a change of the checkpoint from `old` to `new` does: ``back`` if records are read again, ``forward``
    if records are skipped, ``aside`` if it is unknown which. The starting points TRIM_HORIZON, LATEST and AT_TIMESTAMP
    have no `number`.
    """
    if old.is_shard_end or new.sequence == TRIM_HORIZON.sequence:
        return "back"
    if new.number is None or new.is_shard_end:
        return "forward"
    if old.number is None:
        return "forward" if old == TRIM_HORIZON else "aside"
    return "forward" if new > old else "back"


def is_like(row: Lease, target: Lease) -> bool:
    """Return whether the row is as the reset wants it, except for its owner. It must not have a checkpoint that is
    being prepared (`pending`), or failures noted (`failing`).
    """
    return (
        row.checkpoint == target.checkpoint
        and row.pending is None
        and row.children == target.children
        and row.parents == target.parents
        and not is_of_another_shard(row, target)
        and row.failing is None
    )


def is_of_another_shard(row: Lease, target: Lease) -> bool:
    """Return whether the row belongs to a shard of the same name in a deleted stream, which its hash range shows."""
    return row.hash_range not in (None, target.hash_range)
