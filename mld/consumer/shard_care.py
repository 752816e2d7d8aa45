"""`ShardCare`: the interface by which a consumer asks `shards` about a shard that begins, ends or is not found.

`consumer` may not import `shards`, which implements this interface, creates lease rows of child shards, and returns the
verdicts below.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from mld.core.streams import ChildShard
from mld.leases.lease import Lease


class MissingVerdict(Enum):
    """Why Kinesis answered "resource not found" for a shard, or refused a position in it."""

    OVER = "over"  # this is the right stream, and the shard has left retention
    LISTED = "listed"  # the shard exists after all: try again
    UNKNOWN = "unknown"  # the stream is missing or may be the wrong one: keep the checkpoint, wait


class EndVerdict(Enum):
    """What to do after the end of a shard was read."""

    READY = "ready"  # the child shards have rows: SHARD_END may be checkpointed
    WAIT = "wait"  # the child shards have no rows yet: ask again later
    READ_AGAIN = "read again"  # the end contradicts itself or the listing, so it proves nothing


class ShardCare(Protocol):
    """Looks after the lease table when a shard begins and ends. Raises TableError or StreamError if AWS does not
    answer.
    """

    async def parents_complete(self, lease: Lease) -> bool:
        """Return whether the shard may be read: each of its parents is complete, or has no row any more."""
        ...

    def ancestors(self, lease: Lease) -> tuple[str, ...]:
        """Return the ids of the shard's ancestors, parents first, as far as they are listed."""
        ...

    async def oddity(self, lease: Lease) -> str | None:
        """Return a sentence that says why the row of `lease` cannot belong to its shard, with the remedy; None if it
        can.
        """
        ...

    async def prepare_end(self, lease: Lease, children: Sequence[ChildShard]) -> EndVerdict:
        """Create the lease rows of the child shards. If `children` is empty, they are looked up in the listing."""
        ...

    async def judge_missing(self, lease: Lease) -> MissingVerdict:
        """Judge a missing shard; the checkpoint of `lease` must be the last position that was read."""
        ...

    def ended(self, lease: Lease) -> None:
        """Note that the row is at SHARD_END: wake consumers of child shards, and queue the row for clean-up."""
        ...
