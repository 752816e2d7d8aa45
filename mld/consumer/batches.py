"""What a child gets of a page: the records that are new to it, without what others put around them."""

from __future__ import annotations

from mld.consumer.ports import ShardSource
from mld.consumer.stopping import Stopping
from mld.positions import Position
from mld.streams import ChildBatch, HashRange, Page
from mld.turns import in_turns


async def batch_of(
    page: Page, delivered: Position, hash_range: HashRange | None, source: ShardSource, stopping: Stopping
) -> ChildBatch | None:
    """The batch after `delivered`; None if a stop is asked for while it waits for schemas."""
    if source.placement is not None and page.bears_frames:  # the only pages that may have aggregates
        hash_range = await source.placement.range_of(hash_range)
    batch = page.after(delivered, hash_range)
    await in_turns(batch.opening())
    if source.prepare is None or not page.bears_frames:
        return batch
    return await stopping.unless(source.prepare(batch))
