"""The `LeaseTable` port: every read and conditional write of the lease table (leases spec, section 5).

Each write is fenced by its condition. A `Refusal` or False means *refused*: somebody else changed the row. An exception
(`errors.TableError`) means *unknown*, except `TableThrottledError` and `TableMissingError`, which mean *not applied*.
Implementations do not retry by themselves: who retries after an unknown outcome says so with `resent=True`, and only
then is a row that an earlier attempt of ours left behind accepted as our own success (leases spec, 15.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mld.leases.lease import Lease
from mld.positions import Position


@dataclass(frozen=True, slots=True)
class TableScan:
    """All lease rows; `corrupt` names rows that are leases but cannot be read, with the reason."""

    leases: tuple[Lease, ...]
    corrupt: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """A conditional write was refused. `by_twin`: the row still names us, yet somebody else has moved its counter."""

    why: str
    by_twin: bool = False


class LeaseTable(Protocol):
    async def ensure(self) -> bool:
        """Create the table if it is missing and wait until it can be used; True if this call created it."""
        ...

    async def scan(self) -> TableScan:
        """Every lease, in pages, in parallel segments where the table is large. Non-lease rows are skipped."""
        ...

    async def get(self, key: str) -> Lease | None:
        """One lease, strongly consistent; None if there is no such row or the row is not a lease."""
        ...

    async def create(self, lease: Lease) -> bool:
        """Put the row if the key is free; False if it exists."""
        ...

    async def renew(self, lease: Lease, *, resent: bool = False) -> Lease | Refusal:
        """Raise the counter by one if the row still is `lease`'s holding; returns the row as it is now.

        A handoff that somebody else began shows as `checkpoint_owner` on the returned lease. `throughput_kbps` is
        written if `lease` has one. `resent`: an earlier write of ours with this counter has an unknown outcome.
        """
        ...

    async def take(self, lease: Lease, owner: str, *, resent: bool = False) -> Lease | Refusal:
        """Make `owner` the owner if the counter has not moved since `lease` was read; returns the row as it is now.

        `resent`: an earlier take of this very lease and counter by `owner` has an unknown outcome.
        """
        ...

    async def release(self, lease: Lease) -> bool:
        """Remove the owner if the row still is `lease`'s holding, so that others may take it at once.

        While a handoff is pending this completes it: the next owner stays.
        """
        ...

    async def checkpoint(self, lease: Lease, position: Position, *, resent: bool = False) -> Lease | Refusal:
        """Store `position` and drop any pending checkpoint, if the row still is `lease`'s holding.

        Returns the row as it is now. Its checkpoint differs from `position` in two cases: the row is complete, because
        SHARD_END is never replaced by anything else; or, with `resent`, an earlier write of ours was another one, and
        the caller sends again on top of the returned lease.
        """
        ...

    async def record_children(self, key: str, children: frozenset[str]) -> bool:
        """Note the child shards on the row, if it exists. Does not touch the counter."""
        ...

    async def delete_completed(self, key: str) -> bool:
        """Delete the row if its checkpoint is SHARD_END; False if it is absent or not complete."""
        ...
