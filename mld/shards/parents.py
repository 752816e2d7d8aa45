"""May a shard start? Not before every parent that still has a row is at SHARD_END (shards#parents-before-children).

A parent without a row never blocks: it was cleaned up, or nobody wants it. Reads are strongly consistent, so that a
child cannot slip past a parent row that was created a moment ago.
"""

from __future__ import annotations

from collections.abc import Mapping

from mld.leases.lease import Lease
from mld.positions import SHARD_END
from mld.shards.ports import ShardRows


def blocking_parent(lease: Lease, rows: Mapping[str, Lease | None]) -> str | None:
    """The first parent of `lease` that still has to end, by name; None if the shard may start.

    `rows` holds what was read of the parents; None or no entry means that there is no row. SHARD_END is tested by
    equality as in Java, where a row at SHARD_END with a sub-sequence number still blocks.
    """
    for parent in sorted(lease.parents):
        row = rows.get(parent)
        if row is not None and row.checkpoint != SHARD_END:
            return parent
    return None


async def parents_complete(table: ShardRows, lease: Lease) -> str | None:
    """Read the parents' rows; returns the parent that blocks `lease`, or None. Raises `errors.TableError`."""
    for parent in sorted(lease.parents):
        blocked_by = blocking_parent(lease, {parent: await table.get(parent)})
        if blocked_by is not None:
            return blocked_by
    return None
