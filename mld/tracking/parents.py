"""Decides whether a shard may start: all its parents that have a row must be at SHARD_END.

Rule: shards#parents-before-children. A parent without a row never blocks: its row was deleted after its end, or it
never had one. Reads are strongly consistent, so that a child also waits for a parent whose row was created a moment
ago.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from mld.core.positions import SHARD_END
from mld.core.streams import Shard
from mld.leases.lease import Lease
from mld.shards.shard_rows import ShardRows

ANCESTORS_MAX = 1_000
"""How many ancestors of its shard are passed to a child process at most, the nearest first. They are passed in its
environment, whose size is limited."""


def blocking_parent(lease: Lease, rows: Mapping[str, Lease | None]) -> str | None:
    """Return the id of the first parent of `lease` that has not ended; None if the shard may start.

    `rows` has the rows of the parents; a parent whose entry is None or absent has no row. As in Java, a parent at
    SHARD_END with a sub-sequence number does not count as ended.
    """
    for parent in sorted(lease.parents):
        row = rows.get(parent)
        if row is not None and row.checkpoint != SHARD_END:
            return parent
    return None


def ancestors_of(lease: Lease, listed: Mapping[str, Shard]) -> tuple[str, ...]:
    """Return the ancestors of the shard of `lease`, the nearest first: the parents that its row names, and their
    ancestors as far as they are in `listed`; at most `ANCESTORS_MAX`.
    """
    found: dict[str, None] = {}
    to_visit = deque(sorted(lease.parents))
    while to_visit and len(found) < ANCESTORS_MAX:
        shard_id = to_visit.popleft()
        if shard_id not in found:
            found[shard_id] = None
            to_visit += sorted(listed[shard_id].parents) if shard_id in listed else ()
    return tuple(found)


async def parents_complete(table: ShardRows, lease: Lease) -> str | None:
    """Read the rows of the parents. Return the first parent that has not ended; None if the shard of `lease` may start.
    Raises `errors.TableError`.
    """
    for parent in sorted(lease.parents):
        blocked_by = blocking_parent(lease, {parent: await table.get(parent)})
        if blocked_by is not None:
            return blocked_by
    return None
