"""Whether a shard may start: every parent that still has a row must be at SHARD_END.

Rule: shards#parents-before-children. A parent without a row never blocks: it was cleaned up, or nobody wants it. Reads
are strongly consistent, so that a child cannot slip past a parent row that was created a moment ago.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from mld.core.positions import SHARD_END
from mld.core.streams import Shard
from mld.leases.lease import Lease
from mld.shards.shard_rows import ShardRows

ANCESTORS_MAX = 1_000
"""So many shards that it follows a child is told, the nearest first: an environment has no room for any number."""


def blocking_parent(lease: Lease, rows: Mapping[str, Lease | None]) -> str | None:
    """Return the first parent of `lease` that still has to end, by name; None if the shard may start.

    `rows` holds what was read of the parents; None or no entry means that there is no row. SHARD_END is tested by
    equality as in Java, where a row at SHARD_END with a sub-sequence number still blocks.
    """
    for parent in sorted(lease.parents):
        row = rows.get(parent)
        if row is not None and row.checkpoint != SHARD_END:
            return parent
    return None


def ancestors_of(lease: Lease, listed: Mapping[str, Shard]) -> tuple[str, ...]:
    """Return what the shard of `lease` follows: the parents that its row names, and those of the parents as listed."""
    found: dict[str, None] = {}
    left = deque(sorted(lease.parents))
    while left and len(found) < ANCESTORS_MAX:
        shard_id = left.popleft()
        if shard_id not in found:
            found[shard_id] = None
            left += sorted(listed[shard_id].parents) if shard_id in listed else ()
    return tuple(found)


async def parents_complete(table: ShardRows, lease: Lease) -> str | None:
    """Read the parents' rows; returns the parent that blocks `lease`, or None. Raises `errors.TableError`."""
    for parent in sorted(lease.parents):
        blocked_by = blocking_parent(lease, {parent: await table.get(parent)})
        if blocked_by is not None:
            return blocked_by
    return None
